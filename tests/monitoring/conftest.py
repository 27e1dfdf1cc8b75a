"""The folder's own tools, and those of the system tests."""
import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import places  # noqa: E402

places.use("lab", "faults", "system", "monitoring")


@pytest.fixture
def folder():
    """In memory: of what a node keeps there."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="mc-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
