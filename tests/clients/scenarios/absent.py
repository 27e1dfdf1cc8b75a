"""A pytest plugin for test files that import names which a side has not got, or whole packages that their helpers want and no case here does: they
are read all the same, and the cases that use such a name fail.

SUITE_ABSENT: MODULE:NAME,NAME,...    SUITE_ABSENT_MODULES: MODULE,MODULE,...
"""
import importlib
import os
import sys
import types


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


class Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lacking(f"{self.__name__}.{name}")


for NAME in os.environ.get("SUITE_ABSENT_MODULES", "").split(","):
    if NAME:
        sys.modules[NAME] = Absent(NAME)
