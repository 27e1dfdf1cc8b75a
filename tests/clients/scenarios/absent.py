"""A pytest plugin for test files that import names which a side has not got: they are read all the same, and the cases that use such a name fail.

SUITE_ABSENT: MODULE:NAME,NAME,...
"""
import importlib
import os


def lacking(what):
    def refuse(*unused, **also_unused):
        raise NotImplementedError(f"{what} is not there")

    return refuse


MODULE, _, NAMES = os.environ.get("SUITE_ABSENT", "").partition(":")
if MODULE:
    HOLDER = importlib.import_module(MODULE)
    for NAME in NAMES.split(","):
        if not hasattr(HOLDER, NAME):
            setattr(HOLDER, NAME, lacking(f"{MODULE}.{NAME}"))
