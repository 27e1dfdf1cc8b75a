"""Ways to segments are open before anybody needs them: a first get does not depend on an owner that answers late."""
import os
import pathlib
import signal
import time

import pytest

import cluster
from python_cluster import SLOW, MooncakeDistributedStore, arguments, lateness, wait_until
from store_process import StoreProcess

VALUE = b"value" * 1000


def mapped_segments():
    return pathlib.Path("/proc/self/maps").read_text().count("mooncake-data")


def stays_mapped(count):
    """A store that puts while its ways are being opened may open one twice, and lets one go: a look alone counts both."""
    for _ in range(5):
        if mapped_segments() < count:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("order", ["owner first", "reader first"])
def test_a_first_get_needs_no_owner(order):
    """Shared memory: the owner is stopped before the reader has got anything. Its memory is there, so is the value."""
    with cluster.Master("--default_kv_lease_ttl=0ms") as master:
        reader, writer, before = MooncakeDistributedStore(), MooncakeDistributedStore(), mapped_segments()
        if order == "reader first":
            assert reader.setup(*arguments(master, 0)) == 0
        with StoreProcess(master.address) as owner:
            assert writer.setup(*arguments(master, 0)) == 0
            if order == "owner first":
                assert reader.setup(*arguments(master, 0)) == 0
            wait_until(lambda: writer.put("key", VALUE) == 0)
            wait_until(lambda: stays_mapped(before + 2))  # the writer's and the reader's
            cluster.hold_still(owner.process.pid)
            try:
                with lateness() as late_s:
                    start = time.monotonic()
                    assert reader.get("key") == VALUE
                    assert time.monotonic() - start < 0.2 * SLOW + late_s()
            finally:
                os.kill(owner.process.pid, signal.SIGCONT)
            assert writer.close() == 0 and reader.close() == 0


def test_over_tcp_a_connection_is_there_before_the_first_get(monkeypatch):
    monkeypatch.setenv("MC_PATHS", "tcp")
    with cluster.Master() as master, StoreProcess(master.address) as owner:
        reader = MooncakeDistributedStore()
        assert reader.setup(*arguments(master, 0)) == 0

        def of_owner():
            """Established connections between this process's and the owner's sockets."""
            ours = sockets(os.getpid())
            return [line for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
                    if line.split()[9] in ours and line.split()[3] == "01" and not line.split()[2].endswith(f":{master.port:04X}")]

        wait_until(lambda: of_owner())
        assert reader.close() == 0
        assert owner.process.poll() is None


def sockets(pid):
    found = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def test_memory_of_an_owner_that_is_gone_is_let_go(monkeypatch):
    """Mapped ahead, and never used: it must not stay when its owner has died and another one has come."""
    with cluster.Master(f"--client_ttl={2 * SLOW}s") as master:
        reader, before = MooncakeDistributedStore(), mapped_segments()
        assert reader.setup(*arguments(master, 0)) == 0
        owner = StoreProcess(master.address).start()
        wait_until(lambda: mapped_segments() == before + 1)
        owner.kill()
        wait_until(lambda: mapped_segments() == before, 20)
        assert reader.close() == 0


def test_a_close_does_not_wait_for_a_stopped_owner_for_long():
    with cluster.Master() as master, StoreProcess(master.address) as owner:
        cluster.hold_still(owner.process.pid)
        try:
            reader = MooncakeDistributedStore()
            assert reader.setup(*arguments(master, 0)) == 0
            time.sleep(0.2)
            start = time.monotonic()
            assert reader.close() == 0
            assert time.monotonic() - start < 1.5 * SLOW
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
