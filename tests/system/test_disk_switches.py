"""Every way to switch the disk of a store node on, as users do it: flags, files, the environment, setup's arguments, and the master's --root_fs_dir; and what is
said when it cannot be."""
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys

import pytest

import cluster
from python_cluster import MISSING, MooncakeDistributedStore, joined, pattern, wait_until
from service_process import CLIENT, REST, Service

MIB = 1 << 20
LIMIT = "268435456"  # bytes of a disk


@pytest.fixture
def master():
    with cluster.Master("--enable_offload", "--default_kv_lease_ttl=100", "--client_ttl=3") as running:
        yield running


def disks(master):
    """Without those that may come back."""
    metrics = master.metrics()
    return metrics["mooncake_disks"] - metrics["mooncake_disks_absent"]


def capacity(master):
    return master.metrics()["master_total_file_capacity_bytes"]


def with_disks(master, count=1):
    wait_until(lambda: disks(master) == count, 20)


def taken(path):
    return sorted(one.name for one in path.iterdir())


def settings(master, **more):
    return {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": master.address, "global_segment_size": "16mb", **more}


class Client(Service):
    def start(self):
        return self.spawn().wait("is running")


def client(master, **variables):
    return Client("--host=127.0.0.1", f"--master_server_address={master.address}", "--global_segment_size=16 MB", "--enable_offload", "--start_offload_rpc_server=true",
                   command=CLIENT, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=LIMIT, **variables)


# ---- a store node as a process ----

@pytest.mark.parametrize("content, variables", [
    ({"enable_ssd_offload": True, "ssd_offload_path": "PATH"}, {}),
    ({"enable_ssd_offload": True, "ssd_offload_path": "PATH"}, {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/nowhere"}),  # the file's goes before it
    ({"enable_ssd_offload": "true"}, {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "PATH"}),
    ({"enable_offload": 1, "mode": "standalone-store"}, {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "PATH"}),  # vLLM's name of it
    (None, {"MOONCAKE_OFFLOAD_ENABLED": "true", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "PATH"}),
    (None, {"MOONCAKE_ENABLE_SSD_OFFLOAD": "1", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "PATH"}),  # SGLang's
])
def test_store_service(master, folder, tmp_path, content, variables):
    def placed(values):
        return {name: str(folder) if value == "PATH" else value for name, value in values.items()}
    flags = []
    if content is None:
        variables = {**variables, "MOONCAKE_MASTER": master.address, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "16mb"}
    else:
        (tmp_path / "mooncake.json").write_text(json.dumps(settings(master, **placed(content))))
        flags = [f"--config={tmp_path / 'mooncake.json'}"]
    with Service(*flags, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=LIMIT, **placed(variables)) as service:
        with_disks(master)
        assert taken(folder) == ["mooncake-c.0"] and capacity(master) == int(LIMIT)
        before = master.metrics()["mooncake_offload_done_total"]
        service.put("key", "value")
        wait_until(lambda: master.metrics()["mooncake_offload_done_total"] > before, 20)
    with_disks(master, 0)


def test_mooncake_client(master, folder):
    with client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder) as service:
        with_disks(master)
        assert taken(folder) == ["mooncake-c.0"]
    with_disks(master, 0)


def test_nobody_says_where(master):
    if os.path.exists("/data/file_storage"):
        pytest.skip("this machine has the directory in which the original looks")
    with client(master) as service:
        assert service.log().count("nobody says where") == 1
        assert disks(master) == 0


# ---- what is said ----

def without(master, path, **variables):
    """The log of a node that was told to use that path; it runs without a disk."""
    with client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=path, **variables) as service:
        assert disks(master) == 0
        log = service.log()
    assert log.count("goes on without that disk") == 1
    return log


def test_paths_that_cannot_be(master, folder):
    (folder / "file").write_text("")
    (folder / "there").mkdir()
    (folder / "link").symlink_to(folder / "there")
    for path, why in [("relative/path", "is not absolute"), (f"{folder}/there/../there", "holds .."), (f"{folder}/missing", "it is not there; make it (mkdir -p)"),
                      (f"{folder}/link", "is a link"), (f"{folder}/link/", "is a link"), (f"{folder}/file", "is no directory")]:
        assert f": {why}" in without(master, path), path
    assert taken(folder / "there") == []


def test_of_another_cluster(folder):
    """It is left alone, and said where it is and whose."""
    ours, text = ["--enable_offload", f"--cluster_uuid={'2' * 32}"], f"disk {folder}/mooncake-c.0 holds objects of cluster {'2' * 32} and is left alone"
    with cluster.Master(*ours) as master, client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder) as service:
        with_disks(master)
        other = joined(master, 0)
        wait_until(lambda: other.put("key", b"value") == 0)
        wait_until(lambda: master.metrics()["file_cache_nums_"] == 1)
        assert other.close() == 0 and text not in service.log()
    with cluster.Master("--enable_offload", f"--cluster_uuid={'1' * 32}") as stranger:
        service = client(stranger, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder).spawn()
        wait_until(lambda: text in service.log(), 20)
        service.kill()
    with cluster.Master(*ours) as master, client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder):
        wait_until(lambda: master.metrics()["file_cache_nums_"] == 1, 20)


def test_flags_without_an_effect(master, folder):
    """Are named when they say something else than what is done."""
    with client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder) as service:
        assert "--start_offload_rpc_server" not in service.log()
    with Client("--host=127.0.0.1", f"--master_server_address={master.address}", "--start_offload_rpc_server=false", command=CLIENT) as service:
        assert service.log().count("--start_offload_rpc_server changes nothing here") == 1


def test_too_small(master, folder):
    assert "at least 4 regions of 67108864 bytes" in without(master, folder, MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE="1000000")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed to be refused")
def test_no_permission(folder):
    """In a process that may not write there: what setup's user reads in the log."""
    program = f"""if True:
        import os, sys
        sys.path.insert(0, {os.environ["MC_PYTHONPATH"]!r})
        from mooncake.store import MooncakeDistributedStore
        os.setgid(65534), os.setuid(65534)
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", sys.argv[1], enable_ssd_offload=True, ssd_offload_path=sys.argv[2]) == 0
        store.close()"""
    folder.chmod(0o755)
    with cluster.Master("--enable_offload") as master:
        done = subprocess.run([sys.executable, "-c", program, master.address, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{folder} cannot be used for a disk: Permission denied; this node goes on without that disk" in done.stderr


def test_settings_that_make_no_sense(master, folder):
    """Each is one line, the node works all the same; and what has no effect here is no warning."""
    said = {"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": ("distributed_storage_backend", "makes no sense here"), "MOONCAKE_OFFLOAD_USE_URING": ("perhaps", "true or false"),
            "MOONCAKE_BUCKET_EVICTION_POLICY": ("arc", "fifo, lru or none"), "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT": ("-1", "a number of objects"),
            "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO": ("90", "a number above 0"), "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": ("1 GB", "a number of bytes"),
            "MOONCAKE_OFFLOAD_DAILY_WRITE_BYTES": ("1 TB", "a number of bytes"), "ENABLE_EVICTION": ("maybe", "true or false"), "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT": ("5", "is not known and changes nothing; did you mean ")}
    needless = {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "1342177280", "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "2", "MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_TTL_MS": "1",
              "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "500", "MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION": "true"}
    with client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=f"{folder},{folder}", **{name: value for name, (value, _) in said.items()}, **needless) as service:
        with_disks(master)
        warned = [line for line in service.log().splitlines() if line.startswith("W") and "environment: " in line]
        assert f"{folder}, is given twice" in service.log()
        told = [line for line in service.log().splitlines() if line.startswith("I") and " changes nothing here: " in line]
    assert sorted(line.split("environment: ")[1].split(" ")[0] for line in told) == sorted(needless)
    assert len(warned) == len(said)
    for name, (_, text) in said.items():
        assert [text in line for line in warned if f" {name}=" in line or f" {name} " in line] == [True], name


@pytest.mark.parametrize("backend", ["nvme_kv_storage_backend", "bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend", "tape"])
def test_backends(master, folder, backend):
    with client(master, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder, MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=backend) as service:
        with_disks(master)
        lines = service.log().count("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=")
    assert lines == (1 if backend in ("nvme_kv_storage_backend", "tape") else 0)
    with_disks(master, 0)


# ---- Python ----

def test_dictionary_and_its_path(master, folder, monkeypatch):
    """As SGLang's extra_config gives it; the path of the call goes before the environment's."""
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", LIMIT)
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/nowhere")
    store = MooncakeDistributedStore()
    assert store.setup({**settings(master), "protocol": "tcp", "rdma_devices": "", "enable_ssd_offload": "true", "ssd_offload_path": str(folder)}) == 0
    with_disks(master)
    assert taken(folder) == ["mooncake-c.0"]
    assert store.close() == 0
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(folder))
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master.address, None, enable_ssd_offload=True) == 0
    with_disks(master)
    assert taken(folder) == ["mooncake-c.0"]
    assert store.close() == 0
    with_disks(master, 0)
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master.address) == 0  # nobody has asked for it
    wait_until(lambda: store.put("key", b"value") == 0)
    assert disks(master) == 0 and store.close() == 0


def test_several_disks(master, folder, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", LIMIT)
    paths = [folder / name for name in "abc"]
    for path in paths:
        path.mkdir()

    def node():
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master.address, None, enable_ssd_offload=True, ssd_offload_path=",".join(map(str, paths))) == 0
        with_disks(master, 3)
        return store
    store = node()
    assert capacity(master) == 3 * int(LIMIT)
    start = master.metrics()["file_cache_nums_"]
    for number in range(40):  # more than twice the memory
        wait_until(lambda number=number: store.put(f"disk-{number}", pattern(MIB, number)) == 0)
        wait_until(lambda number=number: master.metrics()["file_cache_nums_"] == start + number + 1, 20)
    assert all(taken(path) == ["mooncake-c.0"] for path in paths)
    assert store.close() == 0
    held = []
    for path in paths:
        looked = subprocess.run([cluster.BUILD / "mooncake_disk", "list", path], capture_output=True, text=True, timeout=60)
        assert looked.returncode == 0, looked.stdout + looked.stderr
        held.append({f"disk-{number}" for number in range(40) if f"disk-{number}" in looked.stdout.split()})
    assert set.union(*held) == {f"disk-{number}" for number in range(40)}
    store = node()
    for number in range(40):
        wait_until(lambda number=number: store.get(f"disk-{number}") == pattern(MIB, number), 20)
    assert store.remove_all(True) >= 0 and store.close() == 0
    with_disks(master, 0)


def test_ranks_that_share_a_path(master, folder, tmp_path):
    """Processes that begin at once with one path, as older SGLang's do: each has a directory, again when all have begun anew."""
    (tmp_path / "mooncake.json").write_text(json.dumps(settings(master, enable_ssd_offload=True, ssd_offload_path=str(folder))))
    for turn in range(2):
        with contextlib.ExitStack() as stack:
            ranks = [Service(f"--config={tmp_path / 'mooncake.json'}", command=REST, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=LIMIT).spawn() for _ in range(4)]
            for rank in ranks:
                stack.push(rank.__exit__)
            for rank in ranks:
                rank.wait()
            with_disks(master, 4)
            assert taken(folder) == [f"mooncake-c.{number}" for number in range(4)]
            if turn == 0:
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda pair: pair[1].put(f"rank-{pair[0]}", f"value {pair[0]}" * 1000), enumerate(ranks)))
                wait_until(lambda: master.metrics()["mooncake_offload_done_total"] == 4, 20)
            for number, rank in enumerate(ranks):
                value = f"value {number}" * 1000
                wait_until(lambda number=number, rank=rank, value=value: rank.call("GET", f"/api/get/rank-{number}") == (200, value.encode()), 20)
        with_disks(master, 0)
    looked = subprocess.run([cluster.BUILD / "mooncake_disk", "check", folder], capture_output=True, text=True, timeout=60)
    assert looked.returncode == 0, looked.stdout + looked.stderr


# ---- the master's --root_fs_dir ----

def test_root_fs_dir(folder, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "bucket")
    (folder / "root").mkdir(), (folder / "own").mkdir()
    with cluster.Master(f"--root_fs_dir={folder}/root/", "--cluster_id=here", f"--quota_bytes={LIMIT}", "--default_kv_lease_ttl=100", "--client_ttl=3") as master:
        store = joined(master, 16 * MIB)
        with_disks(master)
        assert taken(folder / "root") == ["here"] and taken(folder / "root" / "here") == ["mooncake-c.0"]
        assert capacity(master) == int(LIMIT)
        client = joined(master, 0)  # who lends nothing has none
        own = MooncakeDistributedStore()
        assert own.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder / "own")) == 0
        with_disks(master, 2)
        assert taken(folder / "own") == ["mooncake-c.0"] and taken(folder / "root" / "here") == ["mooncake-c.0"]
        assert own.close() == 0
        with_disks(master)
        for number in range(40):
            wait_until(lambda number=number: client.put(f"key-{number}", pattern(MIB, number)) == 0)
            wait_until(lambda number=number: master.metrics()["file_cache_nums_"] == number + 1, 20)
        assert client.remove("key-3", True) == 0
        assert store.close() == 0
        with_disks(master, 0)
        store = joined(master, 16 * MIB)
        wait_until(lambda: client.is_exist("key-39") == 1, 20)
        assert client.get_size("key-3") == MISSING
        for number in (0, 20, 39):
            wait_until(lambda number=number: client.get(f"key-{number}") == pattern(MIB, number), 20)
        assert store.close() == 0 and client.close() == 0
        assert taken(folder / "root" / "here") == ["mooncake-c.0"]


def test_root_that_is_not_there(folder):
    """On a node where it is not mounted: one line, and memory works."""
    with cluster.Master(f"--root_fs_dir={folder}/root", "--enable_offload", "--noenable_disk_eviction") as master:
        assert master.log().count("which the original forbids") == 1
        with Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb") as service:
            assert service.log().count("cannot be made: No such file or directory; objects stay in memory only") == 1
            service.put("key", "value")
            assert disks(master) == 0 and taken(folder) == []


def test_flags_of_the_root_alone():
    with cluster.Master("--quota_bytes=5", "--noenable_disk_eviction", "--global_file_segment_size=7") as master:
        for flag in ("quota_bytes", "enable_disk_eviction", "global_file_segment_size"):
            assert master.log().count(f"--{flag} says something of the disks of --root_fs_dir only") == 1
    refused = subprocess.run([cluster.MASTER, "--root_fs_dir=relative"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "--root_fs_dir must be absolute" in refused.stderr
