"""What runs without RDMA, in the machine: when these fail, a failure of the other tests is not RDMA's."""
import os
import pathlib
import subprocess

import pytest

import python_cluster
from store_process import StoreProcess


@pytest.mark.parametrize("command", ["test_region", "test_transfer_wire", "test_transport tcp ra*", "test_transport tcp_peer_*"])
def test_unit(command):
    name, *pattern = command.split(" ", 1)
    done = subprocess.run([pathlib.Path(os.environ["MC_BUILD"]) / "tests" / name, *pattern], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-4000:]
    assert b"[  PASSED  ]" in done.stdout


@pytest.fixture(scope="module")
def master():
    with python_cluster.cluster.Master() as running:
        yield running


def test_store(master, monkeypatch):
    """Put, get and remove of objects that lie in another process, by tcp."""
    monkeypatch.setenv("MC_PATHS", "tcp")
    with StoreProcess(master.address, size=32 << 20):
        store = python_cluster.joined(master, segment=0)
        for size in (1, 4096, 65537, (4 << 20) + 1):
            data = python_cluster.pattern(size, size)
            python_cluster.wait_until(lambda: store.put(f"size {size}", data) == 0)
            assert store.get(f"size {size}") == data
            assert store.remove(f"size {size}", True) == 0
            assert store.is_exist(f"size {size}") == 0
        assert store.close() == 0
