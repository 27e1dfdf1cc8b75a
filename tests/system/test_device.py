"""Memory of GPUs, as programs pass it: put_from, get_into and their kin, and transfers between two processes. There is no GPU here:
the driver is a stand-in, whose memory no processor can touch, so a wrong access ends the process."""
import os
import pathlib
import random
import subprocess
import sys
import zlib

import pytest

import cluster
from python_cluster import joined, master, wait_until  # noqa: F401
from test_engine import Peer

HERE = pathlib.Path(__file__).parent
LIBRARY = str(cluster.BUILD / "tests/libfake_cuda.so")
SEGMENT = 160 << 20


@pytest.mark.parametrize("path", ["local", "shm", "tcp"])
def test_store(master, path):  # noqa: F811
    store = None
    if path != "local":
        store = joined(master, SEGMENT)
        wait_until(lambda: store.put("warm up " + path, bytes(SEGMENT // 2)) == 0)
        assert store.remove_all(True) >= 0
    worker = subprocess.run([sys.executable, str(HERE / "device_worker.py"), master.address, str(SEGMENT if path == "local" else 0)],
                            env={**os.environ, "MC_CUDA_LIBRARY": LIBRARY, "MC_PATHS": path}, stdout=subprocess.PIPE, text=True, timeout=100)
    if store is not None:
        assert store.close() == 0
    assert (worker.returncode, worker.stdout.strip()) == (0, "ok")


@pytest.mark.parametrize("near,far", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("forced", [False, True])
def test_engine(near, far, forced):
    draw = random.Random(5)
    common = {"MC_FORCE_TCP": "1"} if forced else {}
    with Peer(**common, **({"MC_CUDA_LIBRARY": LIBRARY} if near else {})) as here, \
            Peer(**common, **({"MC_CUDA_LIBRARY": LIBRARY} if far else {})) as there:
        for size in (1, 65537, (17 << 20) + 3):
            byte = draw.randrange(1, 256)
            data = zlib.crc32(bytes([byte]) * size)
            assert here.ask("fill", 0, size, byte) == "ok"
            assert here.ask("write", there.target, there.address + 9, size) == "0"
            assert int(there.ask("crc", 9, size)) == data
            assert here.ask("fill", 0, size, 0) == "ok"
            assert here.ask("read", there.target, there.address + 9, size) == "0"
            assert int(here.ask("crc", 0, size)) == data
        assert there.ask("bytes", "hello") == "0 hello hello"
        # What is given back cannot be reached any more, whoever's memory it was.
        assert there.ask("unregister") == "0"
        assert here.ask("write", there.target, there.address, 4096) != "0"
        assert here.process.poll() is None and there.process.poll() is None


def test_a_copy_of_the_engine_stops_no_other_thread():
    """Python's threads go on while a device takes its time, and the memory stays until then."""
    program = """
import sys, threading, time
sys.path[:0] = sys.argv[1:3]
import fake_device
from mooncake.engine import TransferEngine
engine, device = TransferEngine(), fake_device.library()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
address, memory = fake_device.allocate(4096)
for copy in (lambda: engine.write_bytes_to_buffer(address, b"hello", 5) == 0, lambda: engine.read_bytes_from_buffer(address, 5) == b"hello"):
    assert engine.register_memory(address, 4096) == 0
    copied, given_back = [], []
    device.fake_cuda_hold(1)
    threads = [threading.Thread(target=lambda: copied.append(copy())), threading.Thread(target=lambda: given_back.append(engine.unregister_memory(address)))]
    threads[0].start()
    while fake_device.number(fake_device.PENDING) == 0:  # and this thread goes on, or all of this never ends
        time.sleep(0.01)
    threads[1].start()
    time.sleep(0.5)
    assert copied == given_back == []
    device.fake_cuda_hold(0)
    for thread in threads:
        thread.join()
    assert (copied, given_back) == ([True], [0])
"""
    done = subprocess.run([sys.executable, "-c", program, os.environ["MC_PYTHONPATH"], str(HERE)], env={**os.environ, "MC_CUDA_LIBRARY": LIBRARY}, timeout=60)
    assert done.returncode == 0
