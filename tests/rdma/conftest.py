"""These tests run in the virtual machine of vm.py (`./dev test rdma`), where MC_DESK is set; elsewhere they fail at once."""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import places  # noqa: E402

places.use("rdma", "system")
import cables  # noqa: E402


def pytest_sessionstart():
    if "MC_DESK" not in os.environ or not cables.DEVICES:
        pytest.exit("this is not the virtual machine: run ./dev test rdma", returncode=1)


@pytest.fixture(autouse=True)
def all_plugged():
    """Every test begins and ends with all cables in."""
    yield
    there = [number for number in range(cables.COUNT) if (cables.CLASS / f"rxe{number}").is_dir()]
    for number in there:
        if not cables.is_active(number):
            cables.plug(number)
    cables.wait_active(*there)
