"""Where a folder of tests finds its modules, and what is built: its conftest.py begins with this."""
import os
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent


def use(*names):
    """The modules of those folders of tests/."""
    os.environ.setdefault("MC_BUILD", str(ROOT / ".cache" / "build-release"))
    os.environ.setdefault("MC_PYTHONPATH", str(ROOT / ".cache" / "pypath-release"))
    for name in names:
        if str(TESTS / name) not in sys.path:
            sys.path.insert(0, str(TESTS / name))
