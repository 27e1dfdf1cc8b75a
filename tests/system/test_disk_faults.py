"""What a real kernel and real files do to a node with a disk: the disk is off or read-only and says so in a line, or goes on; memory and heartbeats
feel nothing, and no byte is wrong. Small file systems on loop devices need root."""
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

import cluster
from python_cluster import MooncakeDistributedStore, pattern, wait_until
from service_process import Service

MIB = 1 << 20
MEMORY = 64 * MIB
pytestmark = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("MC_LAB"), reason="mounts")


def sh(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def mounted(image_folder, mebibytes):
    """An ext4 of its own: (where it is mounted, the loop device)."""
    image, at = image_folder / "image", image_folder / "mounted"
    at.mkdir(exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(mebibytes * MIB)
    sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", image)
    sh("mount", "-o", "loop,errors=remount-ro", image, at)
    try:
        yield at
    finally:
        sh("umount", "-l", at)


@pytest.fixture
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="mc-disk-faults-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def master():
    with cluster.Master("--enable_offload=true", "--default_kv_lease_ttl=0", "--client_ttl=3") as running:
        yield running


@pytest.fixture
def client(master):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", master.address) == 0
    yield store
    assert store.close() == 0


class Node(Service):
    """With a disk at that path; it is killed at its end, however its disk is."""

    def __init__(self, master, path, disk=512 * MIB, before=()):
        super().__init__(command=[*before, str(cluster.BUILD / "mc_store_rest_server")], MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE=MEMORY,
                         MOONCAKE_OFFLOAD_ENABLED=1, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=path, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=disk)

    def said(self, words, seconds=20):
        return wait_until(lambda: words in self.log(), seconds)

    def __exit__(self, *unused):
        print(self.log())  # shown when the test fails
        if self.process is not None:
            self.kill()
        self.log_file.close()


def value_of(number):
    return pattern(MIB, number)


def put(client, number):
    wait_until(lambda: client.put(f"key-{number}", value_of(number)) == 0, 20)


def stored(master):
    return int(master.metrics()["file_cache_nums_"])


def put_and_store(master, client, numbers):
    for number in numbers:
        before = stored(master)
        put(client, number)
        wait_until(lambda before=before: stored(master) > before, 20)


def right_or_missed(client, numbers):
    """How many are there."""
    found = 0
    for number in numbers:
        data = client.get(f"key-{number}")
        assert not data or data == value_of(number), f"key-{number} has wrong bytes"
        found += bool(data)
    return found


def memory_works(client):
    """Puts and gets of what no disk is needed for."""
    for number in range(20):
        wait_until(lambda number=number: client.put(f"small-{number}", b"%d" % number * 100) == 0, 20)
        assert client.get(f"small-{number}") == b"%d" % number * 100
    for number in range(20):
        assert client.remove(f"small-{number}", True) in (0, -704, -706, -707)


def no_suspect(master):
    assert "is suspect" not in master.log()


def test_full_file_system(master, client, folder):
    """Room for less than is allowed: what is there is used on, the oldest makes room."""
    with mounted(folder, 420) as at, Node(master, at, disk=2048 * MIB) as node:
        node.said("is mounted as number 2")
        with open(at / "of somebody else", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 150 * MIB)
        for number in range(500):
            put(client, number)
            wait_until(lambda number=number: number - int(master.metrics()["mooncake_offload_done_total"]) < 16, 30)
        assert node.log().count("grows no further than") == 1
        assert "takes nothing more" not in node.log()
        assert wait_until(lambda: right_or_missed(client, range(440, 500)) == 60, 20)
        right_or_missed(client, range(420))
        memory_works(client)
        no_suspect(master)
        node.kill()


def test_mounted_read_only(master, client, folder):
    with mounted(folder, 420) as at:
        with Node(master, at) as node:
            node.said("is mounted as number 2")
            put_and_store(master, client, range(4))
        sh("mount", "-o", "remount,ro", at)
        with Node(master, at) as node:
            node.said("this node goes on without that disk")
            assert node.log().count("E1") == 1
            wait_until(lambda: client.put("key-10", value_of(10)) == 0, 30)
            assert client.get("key-10") == value_of(10)
            memory_works(client)
            node.kill()


def test_becomes_read_only(master, client, folder):
    """As ext4 does after an error of its journal: what lies there is read on, removals wait until that disk has left, and nothing removed is back."""
    with mounted(folder, 420) as at:
        with Node(master, at) as node:
            node.said("is mounted as number 2")
            put_and_store(master, client, range(4))
            sh("mount", "-o", "remount,abort,errors=remount-ro", at)
            client.put("key-10", value_of(10))
            wait_until(lambda: "is read-only: what is there can be loaded" in master.log(), 20)
            assert client.get("key-1") == value_of(1)
            node.said("it leaves, with what lies there")
            wait_until(lambda: client.remove("key-0", True) == 0, 20)
            assert client.get("key-0") == b""
            memory_works(client)
            node.kill()


def test_device_without_room(master, client, folder):
    """A thin device: the file system has promised the room, and writes fail."""
    sh("mount", "-t", "tmpfs", "-o", "size=300m", "none", folder)
    try:
        with mounted(folder, 1024) as at, Node(master, at, disk=768 * MIB) as node:
            node.said("is mounted as number 2")
            for number in range(400):
                put(client, number)
                if "takes nothing more" in node.log():
                    break
                time.sleep(0.01)
            node.said("takes nothing more")
            assert node.log().count("takes nothing more") == 1
            memory_works(client)
            right_or_missed(client, range(number + 1))
            no_suspect(master)
            node.kill()
    finally:
        sh("umount", "-l", folder)


def test_device_that_hangs(master, client, folder):
    """Nothing is written for ten seconds: the memory's gets take what they took, and then the disk goes on."""
    with mounted(folder, 420) as at, Node(master, at) as node:
        node.said("is mounted as number 2")
        put_and_store(master, client, range(3))
        sh("fsfreeze", "-f", at)
        try:
            until, number = time.monotonic() + 10, 3
            while time.monotonic() < until:
                started = time.monotonic()
                assert client.put(f"key-{number}", value_of(number)) == 0 and client.get(f"key-{number}") == value_of(number)
                assert time.monotonic() - started < 3
                number += 1
                time.sleep(0.5)
            assert node.log().count("has not answered for") == 1
            memory_works(client)
            no_suspect(master)
        finally:
            sh("fsfreeze", "-u", at)
        node.said("answers again")
        wait_until(lambda: stored(master) >= number, 20)  # what came meanwhile is stored then
        put_and_store(master, client, range(number, number + 3))
        assert right_or_missed(client, range(number + 3)) == number + 3
        node.kill()


FORBID = """
import ctypes, os, struct, sys
def of(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
program = of(0x20, 0, 0, 0) + of(0x15, 0, 1, 425) + of(0x06, 0, 0, 0x00050000 | 1) + of(0x06, 0, 0, 0x7fff0000)  # io_uring_setup: EPERM
held = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(held))))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_io_uring_is_forbidden(master, client, folder):
    with Node(master, folder, before=[sys.executable, "-c", FORBID]) as node:
        node.said("is mounted as number 2")
        put_and_store(master, client, range(80))
        assert not any("io_uring" in os.readlink(f"/proc/{node.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{node.process.pid}/fd"))
        assert right_or_missed(client, range(80)) == 80
        node.kill()


def filled(master, client, folder, count=150):
    """A directory with so many values, of a node that was killed."""
    with Node(master, folder) as node:
        node.said("is mounted as number 2")
        put_and_store(master, client, range(count))
    return next(folder.glob("mooncake-c.0/volume.0"))


def test_flipped_bits(master, client, folder):
    volume, draw = filled(master, client, folder), random.Random(1)
    size = volume.stat().st_size
    with open(volume, "r+b") as file:
        for _ in range(300):
            at = draw.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << draw.randrange(8)]))
    with Node(master, folder) as node:
        node.said("is mounted as number")
        wait_until(lambda: stored(master) > 0, 20)
        assert wait_until(lambda: right_or_missed(client, range(150)), 20) < 150
        memory_works(client)
        node.kill()


def test_cut_off(master, client, folder):
    volume = filled(master, client, folder)
    os.truncate(volume, 100 * MIB + 12345)
    with Node(master, folder) as node:
        node.said("is mounted as number")
        assert wait_until(lambda: right_or_missed(client, range(150)), 20) < 150
        put_and_store(master, client, range(200, 210))
        assert right_or_missed(client, range(200, 210)) == 10
        node.kill()


def test_copied_directory(master, client, folder):
    """One disk's directory at two nodes at once: one of them is refused, and nothing is wrong."""
    (folder / "one").mkdir()
    filled(master, client, folder / "one", 20)
    shutil.copytree(folder / "one", folder / "two")
    with Node(master, folder / "one") as first:
        first.said("is mounted as number")
        with Node(master, folder / "two") as second:
            second.said("SEGMENT_ALREADY_EXISTS")
            for number in range(100, 120):
                put(client, number)
            wait_until(lambda: right_or_missed(client, range(20)) == 20, 20)
            assert right_or_missed(client, range(100, 120)) > 0
            assert client.remove("key-1", True) == 0
            assert client.get("key-1") == b""
            memory_works(client)
            assert second.log().count("SEGMENT_ALREADY_EXISTS") == 1
            second.kill()
        first.kill()


def test_identity_is_destroyed(master, client, folder):
    """Nothing that lies there can be believed: it begins anew."""
    filled(master, client, folder, 5)
    (folder / "mooncake-c.0" / "identity").write_bytes(b"something else, of nobody" * 400)
    with Node(master, folder) as node:
        node.said("is mounted as number")
        assert node.log().count("begins anew") == 1
        for number in range(10, 15):
            put(client, number)
        wait_until(lambda: master.metrics()["mooncake_offload_done_total"] >= 10, 20)
        assert right_or_missed(client, range(10, 15)) == 5
        assert right_or_missed(client, range(5)) == 0
        node.kill()
