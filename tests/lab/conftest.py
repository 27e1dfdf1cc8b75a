"""Where the modules of these tests lie, and a laboratory where there can be one."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import places  # noqa: E402

places.use("lab", "faults", "system")
from hosts import Lab  # noqa: E402


def pytest_collection_modifyitems(items):
    why = Lab.why_not()
    for item in items if why else []:
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def make_lab():
    """Lab.make, with an end."""
    made = []

    def make(**options):
        made.append(Lab.make(**options))
        return made[-1]
    yield make
    for lab in made:
        lab.end()
