"""What every test here takes for granted of the process that it runs in."""
import pathlib
import shutil
import signal
import tempfile

import pytest

SHM = pathlib.Path("/dev/shm")

# A shell that starts something in the background has it ignore SIGINT, which children inherit; the tests interrupt theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder():
    """A directory of the test's own, in memory where there is a file system for that."""
    path = tempfile.mkdtemp(prefix="mc-test-", dir=SHM if SHM.is_dir() else None)
    yield pathlib.Path(path)
    shutil.rmtree(path)
