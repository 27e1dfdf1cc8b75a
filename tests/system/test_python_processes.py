"""mooncake.store in programs of several processes, and in ones that are interrupted: workers by spawn and by fork, SIGINT in a call that waits, a
cancelled await, an interpreter that ends with everything open."""
import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import cluster
import store_process
from python_cluster import SEGMENT, SLOW, address, arguments, joined, master, node, pattern, store, wait_until  # noqa: F401
from mooncake.async_store import MooncakeDistributedStoreAsync

LATE = 9 * SLOW  # a deadline (5 s) and what a busy machine adds, but not a second deadline

HEAD = """
import asyncio, atexit, multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, {path!r})
from mooncake.store import BufferPool, MooncakeDistributedStore
from mooncake.async_store import MooncakeDistributedStoreAsync
def joined(segment=0, made=MooncakeDistributedStore):
    store = made()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 1 << 20, "tcp", "", {master!r}) == 0
    return store
"""


def program(tmp_path, master, body):
    """As a file: children by spawn import it."""
    path = tmp_path / "program.py"
    path.write_text(HEAD.format(path=os.environ["MC_PYTHONPATH"], master=getattr(master, "address", master)) + textwrap.dedent(body))
    return path


def run(tmp_path, master, body, seconds=30):
    ended = subprocess.run([sys.executable, "-B", program(tmp_path, master, body)], capture_output=True, text=True, timeout=seconds * SLOW)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr and "Fatal" not in ended.stderr and "Exception ignored" not in ended.stderr, ended.stderr
    return ended.stdout


WORKERS = """
inherited = None
def own(number):
    store = joined()
    value = store.get("shared")
    code = store.put("worker %d" % number, bytes([number]) * 70000)
    return len(value), code, store.close()
def parents(number):
    return inherited.put("never", b"v"), inherited.get("shared"), inherited.batch_is_exist(["shared"])
def pool_of_parent(number):
    try:
        pool.acquire(100)
    except RuntimeError as error:
        return "forked child" in str(error)
if __name__ == "__main__":
    store = inherited = joined()
    pool = BufferPool(store)
    lease = pool.acquire(1000)
    lease.buffer[:3] = b"abc"
    method = {method!r}
    with multiprocessing.get_context(method).Pool(3) as workers:
        assert workers.map(own, range(6), 1) == [(200000, 0, 0)] * 6
        if method == "fork":
            assert workers.map(parents, range(6), 1) == [(-1010, b"", [-1010])] * 6
            assert workers.map(pool_of_parent, range(6), 1) == [True] * 6
        else:
            import pickle
            try:
                pickle.dumps(store)
                raise SystemExit("a store was pickled")
            except TypeError as error:
                assert "pickle" in str(error), error
    assert bytes(lease.buffer[:3]) == b"abc"
    assert [store.get("worker %d" % i) for i in range(6)] == [bytes([i]) * 70000 for i in range(6)] and store.is_exist("never") == 0
    lease.release(); pool.close()
    print("fine", store.close())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool(tmp_path, master, store, method):
    """A store of their own works; the parent's is an error at once in a forked child, and cannot be sent to another process."""
    assert store.put("shared", bytes(200000)) == 0
    assert run(tmp_path, master, WORKERS.replace("{method!r}", repr(method)), 60) == "fine 0\n"


INTERRUPTED = """
store = joined()
buffer = bytearray(100_000)
base = memoryview(buffer)
import ctypes
place = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
print("ready", flush=True)
sys.stdin.readline()
try:
    {call}
    time.sleep(5)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 20
while (code := store.put("after " + str(time.monotonic()), b"v")) != 0 and time.monotonic() < deadline:
    time.sleep(0.05)
assert code == 0, code
while (value := store.get("big")) == b"" and time.monotonic() < deadline:
    time.sleep(0.05)  # a node that stood still is asked again after a second
assert value == bytes(100_000), len(value)
buffer[:] = bytes(len(buffer))
print("fine", store.close(), flush=True)
"""

CALLS = {
    "put": 'store.put("new", bytes(50000))',
    "put_from": 'store.put_from("new", place, 50000)',
    "get": 'store.get("big")',
    "get_into": 'store.get_into("big", place, 100000)',
    "exists": 'store.is_exist("big")',
}


def interrupted(tmp_path, master, body, stop, go_on):
    process = subprocess.Popen([sys.executable, "-B", program(tmp_path, master, body)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        stop()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(0.3 * SLOW)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.stdout.readline()
        took = time.monotonic() - begun
        go_on()
        out, _ = process.communicate("\n", timeout=60 * SLOW)
        return said, took, out, process.returncode
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", CALLS)
def test_interrupt_in_a_call_while_the_master_stands_still(tmp_path, master, store, name):
    """The call ends by its deadline (5 s) at the latest, KeyboardInterrupt comes with its end, and the store works afterwards."""
    assert store.put("big", bytes(100_000)) == 0
    said, took, out, code = interrupted(tmp_path, master, INTERRUPTED.replace("{call}", CALLS[name]), lambda: cluster.hold_still(master.pid),
                                        lambda: os.kill(master.pid, signal.SIGCONT))
    assert said == "interrupted\n" and took < LATE, (said, took)
    assert (out, code) == ("fine 0\n", 0)


def test_interrupt_in_a_get_while_the_node_stands_still(tmp_path, master, store):
    with store_process.StoreProcess(master.address, SEGMENT) as other:
        wait_until(lambda: store.remove("big", True) is not None and store.put("big", bytes(100_000)) == 0 and
                   store.get_replica_desc("big")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_ != store.get_hostname())
        said, took, out, code = interrupted(tmp_path, master, INTERRUPTED.replace("{call}", CALLS["get_into"]), lambda: cluster.hold_still(other.process.pid),
                                            lambda: os.kill(other.process.pid, signal.SIGCONT))
    assert said == "interrupted\n" and took < LATE and (out, code) == ("fine 0\n", 0), (said, took, out)


def test_interrupt_in_a_setup_without_a_master(tmp_path):
    """Setup ends by its deadline with KeyboardInterrupt; the store can be set up afterwards."""
    with cluster.Master() as own:
        said, took, out, code = interrupted(tmp_path, own, """
            store = MooncakeDistributedStore()
            print("ready", flush=True)
            sys.stdin.readline()
            setup = lambda: store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 22, 1 << 20, "tcp", "", {master!r})
            try:
                setup()
                time.sleep(5)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            sys.stdin.readline()
            assert setup() == 0 and store.is_exist("none") == 0
            print("fine", store.close(), flush=True)""".replace("{master!r}", repr(own.address)), lambda: cluster.hold_still(own.pid),
            lambda: os.kill(own.pid, signal.SIGCONT))
    assert said == "interrupted\n" and took < LATE and (out, code) == ("fine 0\n", 0), (said, took, out)


def test_a_cancelled_call_runs_to_its_end(master, store):
    """Who awaited it goes on at once; the memory is the call's until that has ended, and everything works afterwards."""
    other = MooncakeDistributedStoreAsync()
    assert other.setup(*arguments(master, 0)) == 0
    assert store.put("cancelled", pattern(100_000)) == 0
    buffer = bytearray(100_000)

    async def work():
        cluster.hold_still(master.pid)
        try:
            calls = [asyncio.ensure_future(call) for call in (other.async_get_into("cancelled", address(buffer), len(buffer)), other.async_put("late", bytes(70_000)),
                                                              other.async_get("cancelled"))]
            await asyncio.sleep(0.1)
            begun = time.monotonic()
            for call in calls:
                call.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            took = time.monotonic() - begun
        finally:
            os.kill(master.pid, signal.SIGCONT)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended) and took < 3 * SLOW, (ended, took)
        assert await other.async_get("cancelled") == pattern(100_000)

    asyncio.run(work())  # its end waits for the executor's threads, and so for the calls
    assert bytes(buffer) == pattern(100_000) and other.get("late") == bytes(70_000)
    assert other.close() == 0


ENDINGS = {
    "pools and leases": "store = joined()\npool = BufferPool(store, prewarm_size=1 << 20, prewarm_count=2)\nlease = pool.acquire(100)\nview = lease.buffer",
    "a pool whose store is closed": "store = joined()\npool = BufferPool(store)\nlease = pool.acquire(100)\nstore.close()",
    "threads that wait for a buffer": """
        store = joined(); pool = BufferPool(store, max_regions=1); lease = pool.acquire(100)
        threading.Thread(target=pool.acquire, args=(100,), daemon=True).start()
        time.sleep(0.1)""",
    "threads in calls that end by themselves": """
        store = joined()
        def busy():
            for i in range(200): store.put("x%d" % i, bytes(1000)); store.get("x%d" % i)
        for _ in range(3): threading.Thread(target=busy).start()""",
    "calls that are awaited": """
        store = joined(made=MooncakeDistributedStoreAsync)
        async def work():
            calls = [asyncio.ensure_future(store.async_put("a%d" % i, bytes(100000))) for i in range(50)]
            await asyncio.sleep(0.01)
        asyncio.run(work())""",
    "a loop that never ended": """
        store = joined(made=MooncakeDistributedStoreAsync)
        loop = asyncio.new_event_loop()
        call = loop.run_in_executor(None, store.get, "none")
        kept = [store, loop, call]""",
    "many stores with segments": "stores = [joined(1 << 22) for _ in range(5)]",
    "async put and pool and fork": """
        store = joined(1 << 22); pool = BufferPool(store); lease = pool.acquire(10)
        pid = os.fork()
        if pid == 0: sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0""",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_interpreter_ends_with_everything_open(tmp_path, master, node, name):
    if cluster.SANITIZED and "fork" in name:
        pytest.skip("gcc 12's AddressSanitizer does not take its allocator's locks before a fork: the child waits for what no thread of its own holds")
    begun = time.monotonic()
    assert run(tmp_path, master, textwrap.dedent(ENDINGS[name])) == ""
    assert time.monotonic() - begun < 15 * SLOW


def test_an_interpreter_ends_while_the_master_stands_still(tmp_path):
    with cluster.Master() as own:
        process = subprocess.Popen([sys.executable, "-B", program(tmp_path, own, """
            store = joined(1 << 22)
            print("ready", flush=True)
            sys.stdin.readline()
            for i in range(3): threading.Thread(target=lambda: store.get("none"), daemon=True).start()
            time.sleep(0.1)""")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        cluster.hold_still(own.pid)
        try:
            begun = time.monotonic()
            _, said = process.communicate("\n", timeout=30 * SLOW)
            assert process.returncode == 0 and "Fatal" not in said and time.monotonic() - begun < 10 * SLOW, said
        finally:
            os.kill(own.pid, signal.SIGCONT)
