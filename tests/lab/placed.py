"""The store's tests (tests/system) with each of their processes on a host of a laboratory: MC_LAB="LOSS DELAY_MS", for example "0.01 1".

cluster.py imports this when MC_LAB is set. The process that runs the tests becomes one of the hosts, "tests"; every master has a host of its own, and so
has every store node that is a process (StoreProcess), so that bytes between tests and nodes go over that network.
"""
import atexit
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from hosts import Lab  # noqa: E402

loss, delay_ms = (float(word) for word in os.environ["MC_LAB"].split())
lab = Lab.make(seed=1, loss=loss, delay_ms=delay_ms)
atexit.register(lab.end)
here = lab.host("tests")
here.enter()


def new_host(kind):
    """Each call is another host."""
    return lab.host(f"{kind}{lab.made}")
