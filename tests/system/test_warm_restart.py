"""A store node ends, is killed, or is started again beside the memory that it left in its data directory."""
import pytest

import cluster
from python_cluster import MISSING, joined, pattern, wait_until
from store_process import StoreProcess
from test_recovery import all_there, fill, restart, value_of


@pytest.fixture
def master():
    with cluster.Master() as running:
        yield running


@pytest.fixture
def client(master):
    store = joined(master, 0)
    yield store
    store.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_its_objects_are_there_again(master, client, folder, end):
    with StoreProcess(master.address, data_dir=folder) as node:
        wait_until(lambda: client.put("warm up", bytes(1 << 20)) == 0)
        fill(client, 30)
        assert client.remove("key-7", True) == 0
        kept = [number for number in range(30) if number != 7]
        for again in range(2):
            getattr(node, end)()
            node.start()
            wait_until(lambda: all_there(client, kept), 20)
            assert client.get_size("key-7") == MISSING
            wait_until(lambda again=again: client.put(f"new-{again}", b"new") == 0)
        assert client.get("new-0") == client.get("new-1") == b"new"
        assert "takes up what an earlier process left" in node.log()


def test_master_and_node_at_once(master, client, folder):
    with StoreProcess(master.address, data_dir=folder) as node:
        wait_until(lambda: client.put("warm up", bytes(1 << 20)) == 0)
        fill(client, 30)
        for _ in range(2):
            master.kill()
            node.kill()
            master.start()
            node.start()
            wait_until(lambda: all_there(client, range(30)), 20)


def test_without_a_directory_nothing_is_left(master, client):
    with StoreProcess(master.address) as node:
        wait_until(lambda: client.put("key-1", value_of(1)) == 0)
        node.kill()
        node.start()
        wait_until(lambda: client.put("other", b"v") == 0)
        assert client.get("key-1") == b""


def test_a_directory_that_cannot_be_used(master, client, folder):
    """Costs only what outlives the process."""
    with StoreProcess(master.address, data_dir=folder / "missing" / "deeper") as node:
        wait_until(lambda: client.put("key-1", value_of(1)) == 0)
        assert client.get("key-1") == value_of(1)
        assert node.log().count("missing/deeper") >= 1


def flip(folder, value):
    """Changes one byte of that value behind everybody's back."""
    (path,) = folder.glob("*.data")
    at = path.read_bytes().find(value)
    assert at >= 0
    with open(path, "r+b") as data:
        data.seek(at + len(value) // 2)
        byte = data.read(1)
        data.seek(at + len(value) // 2)
        data.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("by", ["scrubber", "reader"])
def test_rotten_bytes_are_found(master, client, folder, by):
    rate = "64" if by == "scrubber" else "0"
    value = pattern(200000, 5)
    with StoreProcess(master.address, data_dir=folder, MC_SCRUB_MB_PER_S=rate) as node:
        wait_until(lambda: client.put("rotten", value) == 0)
        wait_until(lambda: client.put("sound", value_of(3)) == 0)
        flip(folder, value)
        if by == "reader":
            assert client.get("rotten") == b""
        wait_until(lambda: client.get_size("rotten") == MISSING, 20)
        if by == "scrubber":
            assert "no longer matches its checksum" in node.log()
        assert client.get("sound") == value_of(3)
        wait_until(lambda: client.put("rotten", value) == 0)
        assert client.get("rotten") == value


def test_rotten_while_nobody_ran(master, client, folder):
    value = pattern(200000, 5)
    with StoreProcess(master.address, data_dir=folder) as node:
        wait_until(lambda: client.put("rotten", value) == 0)
        wait_until(lambda: client.put("sound", value_of(3)) == 0)
        node.kill()
        flip(folder, value)
        node.start()
        wait_until(lambda: client.get("sound") == value_of(3), 20)
        assert client.get("rotten") == b""
        wait_until(lambda: client.get_size("rotten") == MISSING, 20)


def test_files_are_not_for_others(master, client, folder):
    with StoreProcess(master.address, data_dir=folder):
        wait_until(lambda: client.put("key-1", value_of(1)) == 0)
        files = list(folder.iterdir())
        assert {path.suffix for path in files} >= {".data", ".index"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)
