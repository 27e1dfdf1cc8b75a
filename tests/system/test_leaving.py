"""A store node that leaves (values are stored when they are evicted, so it has much in memory only): what lies in its memory only comes to its disk before it ends, and another process, at another port, serves it again."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import cluster
from python_cluster import MISSING, joined, pattern, wait_until
from service_process import CLIENT, Service

MIB = 1 << 20
COUNT = 60
MEMORY = 96 * MIB


@pytest.fixture
def master():
    with cluster.Master("--enable_offload", "--offload_on_evict", "--default_kv_lease_ttl=100", "--client_ttl=4") as running:
        yield running


@pytest.fixture
def client(master):
    store = joined(master, 0)
    yield store
    assert store.close() == 0


def node(master, folder=None, *flags, limit=512 * MIB, memory=MEMORY, **variables):
    disk = {} if folder is None else {"MOONCAKE_OFFLOAD_ENABLED": "true", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": folder,
                                      "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": limit}
    return Service(*flags, MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE=memory, **disk, **variables)


def value_of(number):
    return pattern(MIB - number, number)


def fill(client, count=COUNT):
    for number in range(count):
        wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)


def found(client, numbers):
    """Those that can be read; each is what was put."""
    there = []
    for number in numbers:
        value = client.get(f"key-{number}")
        assert value in (b"", value_of(number))
        there += [number] if value else []
    return there


def offered(master):
    """Its disk is at the master, with all that lies there."""
    wait_until(lambda: master.metrics()["mooncake_disks"] == 1 and master.metrics()["mooncake_segments"] == 1, 30)


def left(log):
    return [line for line in log.splitlines() if "leaving: " in line][-1]


def test_memory_comes_to_the_disk(master, client, folder):
    with node(master, folder) as first:
        offered(master)
        fill(client)
        assert client.remove("key-3", True) == 0
        assert first.stop(signal.SIGTERM) == 0
        assert "all that lay in memory is on the disk" in left(first.log())
        port = first.port
    with node(master, folder) as second:
        assert second.port != port
        wait_until(lambda: client.is_exist(f"key-{COUNT - 1}") == 1, 20)
        for number in range(COUNT):
            if number != 3:
                wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)
        assert client.get_size("key-3") == MISSING


def test_put_at_a_master_that_stores_nothing(folder):
    """What was put at a master without a disk tier is stored as soon as one has it."""
    with cluster.Master("--default_kv_lease_ttl=100") as master, node(master, folder) as first:
        client = joined(master, 0)
        fill(client, 20)
        assert master.metrics()["mooncake_offload_begun_total"] == 0
        master.kill()
        master.flags.append("--enable_offload")
        master.start()
        wait_until(lambda: master.metrics()["file_cache_nums_"] == 20, 40)
        first.stop(signal.SIGTERM)
        with node(master, folder):
            for number in range(20):
                wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)
        assert client.close() == 0


def test_a_master_that_stores_nothing(folder):
    with cluster.Master() as master, node(master, folder) as only:
        client = joined(master, 0)
        fill(client, 3)
        only.stop(signal.SIGTERM)
        assert "was left in memory and is lost: the master does not store on disks" in left(only.log())
        assert client.close() == 0


@pytest.mark.parametrize("with_disk", [True, False])
def test_what_is_left_stays_in_the_files(folder, tmp_path, with_disk):
    """With a data directory what no disk, or other node, has taken is not lost, and the log does not say so."""
    with cluster.Master() as master:
        keeps = {"MC_DATA_DIR": str(tmp_path / "data")}
        (tmp_path / "data").mkdir()
        with node(master, folder if with_disk else None, *([] if with_disk else ["--drain_on_exit"]), **keeps) as only:
            client = joined(master, 0)
            fill(client, 3)
            only.stop(signal.SIGTERM)
            assert "was left in memory and stays in the files of the data directory, for the next process there: " in left(only.log())
        with node(master, folder if with_disk else None, **keeps):
            for number in range(3):
                wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)
        assert client.close() == 0


def test_killed_while_it_leaves(master, client, folder):
    for life in range(3):
        with node(master, folder) as doomed:
            offered(master)
            for number in range(life * 20, life * 20 + 20):
                wait_until(lambda number=number: client.put(f"key-{number}", value_of(number)) == 0)
            doomed.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "leaving: what lies in memory only is stored" in doomed.log(), 20)
            doomed.kill()
    with node(master, folder):
        offered(master)
        assert found(client, range(60)) is not None  # each is what was put, or not there
        wait_until(lambda: client.put("after", b"1") == 0)
        assert client.get("after") == b"1"


def test_second_signal_and_grace(client, master, folder):
    """The master stands still, so nothing more comes to the disk."""
    for flags, signals, why in (([], 2, "it was told to end at once"), (["--exit_grace_s=2"], 1, "its time is over")):
        with node(master, folder, *flags) as service:
            offered(master)
            wait_until(lambda: client.put("key-0", value_of(0)) in (0, -705))
            cluster.hold_still(master.pid)
            try:
                service.process.send_signal(signal.SIGTERM)
                wait_until(lambda: "leaving: what lies in memory only is stored" in service.log(), 20)
                if signals == 2:
                    assert service.process.poll() is None
                    service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(timeout=25) == 0
            finally:
                os.kill(master.pid, signal.SIGCONT)
            service.process = None
            line = left(service.log())
            assert "was left in memory and is lost" in line and line.endswith(why), line
        wait_until(lambda: master.metrics()["mooncake_segments"] == 0, 40)


def test_disk_that_is_smaller(master, client, folder):
    """What does not fit is said, and what is there is right."""
    count = 330
    with node(master, folder, limit=256 * MIB, memory=400 * MIB) as first:
        offered(master)
        fill(client, count)
        first.stop(signal.SIGTERM)
        number, size = re.search(r"leaving: (\d+) objects \((\d+) bytes\) was left in memory and is lost: the disk takes no more", left(first.log())).groups()
        assert 0 < int(number) < count and int(size) > int(number) * MIB // 2
    with node(master, folder, limit=256 * MIB, memory=400 * MIB):
        offered(master)
        wait_until(lambda: master.metrics()["file_cache_nums_"] > 0, 20)
        there = []

        def look():
            there[:] = found(client, range(count))
            return len(there) >= (count - int(number)) * 0.9
        wait_until(look, 40)


def drained_to_another(client, master, old):
    """What the leaving node has in memory is at a new one before it ends."""
    with node(master, None):
        wait_until(lambda: master.metrics()["mooncake_segments"] == 2)
        wait_until(lambda: client.put("warm", bytes(4 * MIB)) == 0)
        old.stop(signal.SIGTERM)
        assert "all that lay in memory is at other nodes" in left(old.log())
        assert found(client, range(20)) == list(range(20))


def test_drains_without_a_disk(client, master):
    with node(master, None, "--drain_on_exit") as old:
        fill(client, 20)
        drained_to_another(client, master, old)


def test_drains_after_a_drain_that_was_cancelled(client, master):
    """Long before, so that nothing was moved for long when it leaves."""
    with node(master, None, "--drain_on_exit") as old:
        fill(client, 20)
        name = cluster.request(master.metrics_port, "GET", "/get_all_segments")[1].decode().split()[0]
        body = json.dumps({"segments": [name]}).encode()
        job = json.loads(cluster.request(master.metrics_port, "POST", "/api/v1/drain_jobs", body)[1])["job_id"]
        wait_until(lambda: "could not be moved away yet" in old.log(), 20)
        assert cluster.request(master.metrics_port, "POST", f"/api/v1/drain_jobs/cancel?job_id={job}")[0] == 200
        time.sleep(7)
        drained_to_another(client, master, old)


def test_drains_to_nobody(client, master):
    with node(master, None, "--drain_on_exit") as only:
        fill(client, 3)
        only.stop(signal.SIGTERM)
        assert left(only.log()).endswith("leaving: 3 objects was left in memory and is lost: no other node takes it")


def test_without_a_master(folder):
    """As when all of a cluster is ended at once: nobody waits for the whole grace."""
    for disk, flags, why in ((None, ["--drain_on_exit"], "no other node takes it"), (folder, [], "no master answers")):
        with cluster.Master("--enable_offload") as master, node(master, disk, "--exit_grace_s=600", *flags) as only:
            client = joined(master, 0)
            fill(client, 3)
            assert client.close() == 0
            master.kill()
            assert only.stop(signal.SIGTERM) == 0
            assert "was left in memory and is lost" in left(only.log()) and left(only.log()).endswith(why)


def test_without_disk_or_drain_it_ends_at_once(client, master):
    with node(master) as only:
        fill(client, 3)
        only.stop(signal.SIGTERM)
        assert "leaving: " not in only.log()


def test_mooncake_client_drains(client, master):
    flags = ["--host=127.0.0.1", f"--master_server_address={master.address}", f"--global_segment_size={MEMORY}", "--port=0", "--drain_on_exit"]
    with node(master) as stays:
        wait_until(lambda: client.put("warm", bytes(4 * MIB)) == 0)
        leaves = Service(*flags, command=CLIENT, ports=()).spawn().wait("setup_dummy is answered")
        try:
            wait_until(lambda: master.metrics()["mooncake_segments"] == 2)
            fill(client, 20)
        finally:
            assert leaves.stop(signal.SIGTERM) == 0
        assert "all that lay in memory is at other nodes" in left(leaves.log())
        assert found(client, range(20)) == list(range(20))
        assert stays.process.poll() is None


def test_a_disk_is_unmounted(master, client, folder):
    """What lies there stays for the next process, but for what was removed meanwhile; its memory is served on."""
    with node(master, folder) as first:
        offered(master)
        fill(client, 20)
        assert first.call("POST", "/api/unmount_local_disk", {"grace_period_seconds": 3601})[0] == 400
        assert first.stop(signal.SIGTERM) == 0
    with node(master, folder) as second:
        offered(master)
        wait_until(lambda: client.is_exist("key-19") == 1, 20)
        wait_until(lambda: client.get("key-5") == value_of(5), 20)  # now in memory, too
        assert second.call("POST", "/api/unmount_local_disk", {}) == (200, {"status": "success"})
        assert [client.is_exist(f"key-{number}") for number in (5, 6)] == [1, 0]
        assert client.get("key-5") == value_of(5) and client.get("key-6") == b""
        assert client.remove("key-7", True) == 0 and client.put("key-8", b"another") == 0
        assert second.call("POST", "/api/unmount_local_disk", {"grace_period_seconds": 1}) == (200, {"status": "success"})
        looked = subprocess.run([cluster.BUILD / "mooncake_disk", "check", folder], capture_output=True, text=True, timeout=60)
        assert looked.returncode == 0, looked.stdout + looked.stderr
        with node(master, folder):  # beside the one that has left it
            wait_until(lambda: client.is_exist("key-6") == 1, 20)
            wait_until(lambda: client.get("key-6") == value_of(6), 20)
            assert client.get("key-5") == value_of(5) and client.get("key-8") == b"another"
            assert client.get_size("key-7") == MISSING
            assert [path.name for path in folder.iterdir()] == ["mooncake-c.0"]


def test_python_closes(master, client, folder, monkeypatch):
    from python_cluster import MooncakeDistributedStore
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 * MIB))
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
    offered(master)
    fill(client, 10)
    assert store.close() == 0
    with node(master, folder):
        for number in range(10):
            wait_until(lambda number=number: client.get(f"key-{number}") == value_of(number), 20)
