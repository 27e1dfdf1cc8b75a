"""What the measurements import besides each other: this tree's Python package, and what tests/ has for the same work."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("MC_BUILD", str(ROOT / ".cache" / "build-release"))
os.environ.setdefault("MC_PYTHONPATH", str(ROOT / ".cache" / "pypath-release"))
sys.path += [os.environ["MC_PYTHONPATH"], *(str(ROOT / "tests" / name) for name in ("", "system", "lab"))]
