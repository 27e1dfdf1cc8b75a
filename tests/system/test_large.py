"""One object of more than 4 GiB there and back, on each path, from a store node in another process. Heavy: `./dev test all` runs it."""
import ctypes
import mmap
import os
import random
import subprocess
import sys

import pytest

import cluster
from python_cluster import joined, master, wait_until  # noqa: F401

LENGTH = (4 << 30) + (64 << 20) + 12345
SEGMENT = LENGTH + (256 << 20)
NODE = """
import sys
sys.path.insert(0, sys.argv[1])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[3]), 0, "tcp", "", sys.argv[2]) == 0
print("up", flush=True)
sys.stdin.read()
"""


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


pytestmark = [
    pytest.mark.skipif(not os.environ.get("MC_TEST_ALL"), reason="heavy; ./dev test all"),
    pytest.mark.skipif(cluster.SANITIZED, reason="needs too much memory under a sanitizer"),
    pytest.mark.skipif(available_bytes() < 3 * SEGMENT + (2 << 30), reason="needs 15 GiB of memory"),
]


@pytest.fixture
def node(master):  # noqa: F811
    command = [sys.executable, "-c", NODE, os.environ["MC_PYTHONPATH"], master.address, str(SEGMENT)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_more_than_4_gib_round_trips(master, node, path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MC_PATHS", path)
    store = joined(master, 0)
    source, target = mmap.mmap(-1, LENGTH), mmap.mmap(-1, LENGTH)
    # Every 16 MiB begins with its own number, so that no two are alike and none can stand in another's place.
    block = random.Random(1).randbytes(16 << 20)
    for at in range(0, LENGTH, len(block)):
        part = min(len(block), LENGTH - at)
        source[at:at + part] = (at.to_bytes(8, "little") + block[8:])[:part]
    there, back = (ctypes.c_char.from_buffer(buffer) for buffer in (source, target))
    try:
        wait_until(lambda: store.put_from("large", ctypes.addressof(there), LENGTH) == 0, 60)
        assert store.get_size("large") == LENGTH
        assert store.get_into("large", ctypes.addressof(back), LENGTH) == LENGTH
        for at in range(0, LENGTH, len(block)):
            assert source[at:at + len(block)] == target[at:at + len(block)], f"bytes from {at} on are wrong"
        assert store.remove("large", True) == 0
    finally:
        store.close()
