"""The unit tests that know RDMA as one more path, over real verbs instead of their fake device (MC_TEST_REAL_VERBS).

What is left out of the transports' suite: deadline_passes and cleared_in_mid_copy, which measure or repeat by the clock, too much for an emulated machine.
"""
import os
import pathlib
import subprocess

import pytest

import cables

TESTS = pathlib.Path(os.environ["MC_BUILD"]) / "tests"
TRANSPORT = ("sizes", "whole_segment", "extent_layout", "many_parts", "thousands", "bad_arguments", "ranges", "bit_flips", "gone", "stale_write",
             "deadline_has_passed", "threads_at_once", "forked", "slot_only")


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    """They use every device there is, and each must learn all memory: two are enough."""
    for device in cables.DEVICES[2:]:
        subprocess.run(["rdma", "link", "delete", device], check=True)
    yield
    for number in range(2, cables.COUNT):
        subprocess.run(["rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", f"nic{number}"], check=True)
    cables.wait_active(*range(cables.COUNT))


def run(setup, name, *pattern):
    values = {**os.environ, "MC_TEST_REAL_VERBS": "1", "MC_RDMA_SETUP": setup}
    done = subprocess.run([TESTS / name, *pattern], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=170, stdin=subprocess.DEVNULL, env=values)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-4000:]
    assert "RDMA device rxe0" in said and "RDMA device fake" not in said, said[-4000:]
    return said


@pytest.mark.parametrize("case", TRANSPORT)
@pytest.mark.parametrize("setup", ["oob", "cm"])
def test_transport(setup, case):
    """Of the store's paths."""
    assert "[  PASSED  ] 1 test" in run(setup, "test_transport", f"rdma {case}")


@pytest.mark.parametrize("setup", ["oob", "cm"])
def test_transfer(setup):
    """Of the transfer engine's paths: all of them, RDMA among them."""
    assert "[  FAILED  ]" not in run(setup, "test_transfer")
