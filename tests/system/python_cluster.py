"""What the tests of mooncake.store share: a master, stores that joined it, and memory with known bytes."""
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import pytest

import cluster
import store_process

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402

SLOW = 5 if cluster.SANITIZED else 1  # how much longer things may take
CYCLES = 1000 if os.environ.get("MC_TEST_ALL") else 100
SEGMENT = 64 << 20
BUFFER = 16 << 20
MISSING = -704


def wait_until(condition, seconds=10):
    return cluster.wait_until(condition, seconds * SLOW)


def stopped(master, seconds):
    """Stops the master now; the timer that is returned lets it go on."""
    cluster.hold_still(master.pid)
    timer = threading.Timer(seconds, os.kill, [master.pid, signal.SIGCONT])
    timer.start()
    return timer


@contextlib.contextmanager
def lateness():
    """A function: the worst wait so far, in seconds, of a thread that only wanted to wake. That is what the machine itself costs a call that must end
    by its deadline; all else is ours."""
    worst, since, end = [0.0], [time.monotonic()], threading.Event()

    def now():
        return time.monotonic() - since[0] - 0.001

    def sleep():
        while not end.is_set():
            since[0] = time.monotonic()
            time.sleep(0.001)
            worst[0] = max(worst[0], now())
    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        yield lambda: max(worst[0], now())
    finally:
        end.set()
        thread.join()


@pytest.fixture(scope="module")
def master():
    with cluster.Master() as running:
        yield running


def arguments(master, segment=SEGMENT, buffer=BUFFER):
    """Of setup(), positional."""
    return (cluster.OWN_NAME, "P2PHANDSHAKE", segment, buffer, "tcp", "", master.address)


def joined(master, segment=SEGMENT, buffer=BUFFER):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, segment, buffer)) == 0
    return store


@pytest.fixture
def small():
    """A master and a store with 16 MiB, without objects."""
    with cluster.Master() as master:
        store = joined(master, 16 << 20)
        wait_until(lambda: store.put("all", bytes(15 << 20)) == 0)
        wait_until(lambda: store.remove_all(True) >= 0)
        yield master, store
        assert store.close() == 0


@pytest.fixture(scope="module")
def node(master, request):
    """A store with a segment that has room; in a laboratory the segment is on another host. Its local buffer is of the test's LOCAL_BUFFER."""
    with contextlib.ExitStack() as stack:
        if cluster.new_host:
            stack.enter_context(store_process.StoreProcess(master.address, SEGMENT))
        store = joined(master, 0 if cluster.new_host else SEGMENT, getattr(request.module, "LOCAL_BUFFER", BUFFER))
        wait_until(lambda: store.put("warm up", bytes(SEGMENT // 2)) == 0)
        yield store
        assert store.close() == 0


@pytest.fixture
def store(node):
    """The same, without objects."""
    assert node.remove_all(True) >= 0
    return node


@pytest.fixture
def unset():
    return MooncakeDistributedStore()


def address(buffer):
    """Of a writable buffer's first byte."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def pattern(size, seed=1):
    """Bytes that differ by place and seed."""
    return (bytes((seed * 31 + i * 7) & 0xFF for i in range(251)) * (size // 251 + 1))[:size]


def with_fields(**fields):
    config = ReplicateConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    return config
