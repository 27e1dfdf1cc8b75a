"""The lower room alone (src/rdma), two processes: link_check.c moves bytes both ways in many sizes and compares every one."""
import os
import pathlib
import subprocess

import pytest

import cables

PROGRAM = pathlib.Path(os.environ["MC_BUILD"]) / "tests" / "link_check"
SETUPS = ("oob", "cm")


def check(local, remote, setup, *more):
    before = cables.carried_by_all()
    done = subprocess.run([PROGRAM, local, remote, "--setup", setup, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150,
                          stdin=subprocess.DEVNULL, text=True, env={**os.environ, "MC_RDMA_RAIL_PAUSE_SECONDS": "2"})
    assert done.returncode == 0 and "link_check: good" in done.stdout, done.stdout[-4000:]
    return [after - each for each, after in zip(before, cables.carried_by_all())]


@pytest.mark.parametrize("setup", SETUPS)
def test_one_device(setup):
    by = check("rxe0", "rxe1", setup, "--max", str(4 << 20))
    assert by[0] > 4 << 20 and by[1] > 4 << 20


@pytest.mark.skipif(cables.COUNT < 4, reason="two devices for each side")
@pytest.mark.parametrize("setup", SETUPS)
def test_two_devices(setup):
    by = check("rxe0,rxe1", "rxe2,rxe3", setup, "--max", str(8 << 20))
    assert min(by) > sum(by) // 20, by


@pytest.mark.skipif(cables.COUNT < 4, reason="two devices for each side")
@pytest.mark.parametrize("pulled", [1, 2])
@pytest.mark.parametrize("setup", SETUPS)
def test_cable_pulled(setup, pulled):
    check("rxe0,rxe1", "rxe2,rxe3", setup, "--max", str(8 << 20), "--break", f"ip link set sw{pulled} down", "--mend", f"ip link set sw{pulled} up")
