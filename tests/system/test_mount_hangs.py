"""A directory whose file system hangs, as a mount of NFS does whose server is away: who opens a store with it hears so within seconds."""
import os
import subprocess
import sys

import pytest

import cluster
from cluster import wait_until
from service_process import REST, Service

MIB = 1 << 20
LATE_S = 3 * cluster.START_S


@pytest.fixture
def master():
    with cluster.Master("--enable_offload", "--client_ttl=4") as running:
        yield running


@pytest.fixture
def hung(tmp_path):
    """As environment, the directory that hangs, and the flag without which it does not."""
    path, flag = tmp_path / "mount" / "of nfs", tmp_path / "hangs"
    path.mkdir(parents=True)
    flag.touch()
    yield {"LD_PRELOAD": str(cluster.BUILD / "tests" / "libhung_path.so"), "MC_TEST_HUNG": str(path), "MC_TEST_HANGS": str(flag)}, path, flag
    flag.unlink(missing_ok=True)


def service(master, **more):
    more.setdefault("MC_RPC_TIMEOUT_MS", 30000)
    return Service(command=REST, MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_GLOBAL_SEGMENT_SIZE=64 * MIB, **more)


@pytest.mark.parametrize("below", ["", "made by us"])
def test_a_data_directory(master, hung, below):
    """The node does not begin without what lies there: it comes once the directory answers."""
    environment, path, flag = hung
    node = service(master, MC_DATA_DIR=str(path / below), **environment)
    node.spawn()
    try:
        wait_until(lambda: "not joined yet (UNAVAILABLE_IN_CURRENT_STATUS)" in node.log(), LATE_S)
        assert f"the data directory {path / below} does not answer: its file system hangs" in node.log()
        assert master.metrics()["mooncake_segments"] == 0 and list(path.iterdir()) == []
        flag.unlink()
        node.wait(timeout_s=LATE_S)
        wait_until(lambda: list((path / below).glob("*.data")), LATE_S)
    finally:
        node.__exit__()


def test_a_setup(master, hung):
    environment, path, _flag = hung
    program = ("import os, sys; sys.path.insert(0, os.environ['MC_PYTHONPATH']); from mooncake.store import MooncakeDistributedStore as Store; "
               "store = Store(); print(store.setup('127.0.0.1', 'P2PHANDSHAKE', 1 << 24, 1 << 20, 'tcp', '', sys.argv[1], data_dir=sys.argv[2]), store.close())")
    done = subprocess.run([sys.executable, "-c", program, master.address, str(path)], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=LATE_S, check=False)
    assert done.stdout.split()[:1] == ["-1010"] and f"the data directory {path} does not answer" in done.stderr, done


def test_a_disk(master, hung, folder):
    """The node goes on without it, with the one that does answer, and the master hears of it."""
    environment, path, _flag = hung
    with service(master, MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=f"{path},{folder}",
                 MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=512 * MIB, **environment) as node:
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1, LATE_S)
        assert f"the disk {path} does not answer: its file system hangs" in node.log()
        wait_until(lambda: "says that 1 of its disks cannot be used" in master.log(), LATE_S)


def test_many_disks(master, hung, folder):
    """All hang but the last: that one has as long as the others, and the call as long as with one."""
    environment, path, _flag = hung
    paths = ",".join(str(path / str(number)) for number in range(7))
    with service(master, MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=f"{paths},{folder}",
                 MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=512 * MIB, **{**environment, "MC_RPC_TIMEOUT_MS": "5000"}) as node:
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1, LATE_S)
        assert node.log().count("does not answer: its file system hangs") == 7 and "not joined yet" not in node.log()
