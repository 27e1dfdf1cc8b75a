"""The folder's own tools, and those of the system tests."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import places  # noqa: E402

places.use("system", "monitoring")
