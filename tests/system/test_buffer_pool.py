"""BufferPool: what is lent is nobody else's, what comes back is lent again, and a limit holds."""
import ctypes
import gc
import os
import threading
import traceback
import time

import pytest

from python_cluster import SLOW, address, joined, master, node, pattern, store, unset  # noqa: F401
from mooncake import buffer_pool
from mooncake import store as module
from mooncake.store import BufferLease, BufferLeaseView, BufferPool

CLASS = 65536
LOCAL_BUFFER = CLASS  # a pool is not smaller


@pytest.fixture
def pool(store):
    made = BufferPool(store, max_bytes=4 * CLASS, alignment=4096)
    yield made
    gc.collect()
    made.close()


def test_names():
    assert module.RegisteredBufferPool is BufferPool is buffer_pool.BufferPool is buffer_pool.RegisteredBufferPool
    assert module.RegisteredBufferLease is BufferLease and module.RegisteredBufferLeaseView is BufferLeaseView
    assert BufferPool.__module__ == BufferLease.__module__ == "mooncake.store"


def test_bytes_go_through_a_lease(store, pool):
    value = pattern(3000)
    assert store.put("key", value) == 0
    with pool.acquire(3000) as lease:
        assert lease.size == 3000 == len(lease.buffer) and lease.buffer.format == "B" and not lease.buffer.readonly
        assert address(lease.buffer) == lease.ptr and lease.ptr % 4096 == 0
        assert store.get_into("key", lease.ptr, lease.size) == 3000
        assert lease.buffer == value
        lease.buffer[:2] = b"ab"
        assert store.put_from("changed", lease.ptr, 3000) == 0
    assert store.get("changed") == b"ab" + value[2:]


def test_a_released_buffer_is_lent_again_and_a_lent_one_is_not(pool):
    first = pool.acquire(100)
    second = pool.acquire(100)
    place = first.ptr
    assert abs(place - second.ptr) >= CLASS
    first.release()
    first.release()
    assert pool.buffer(CLASS).ptr == place
    second.release()


def test_a_closed_lease_says_so(pool):
    lease = pool.acquire(10)
    lease.release()
    with pytest.raises(RuntimeError, match="closed"):
        lease.ptr
    with pytest.raises(BufferError):
        lease.buffer
    with pytest.raises(RuntimeError):
        lease.__enter__()
    assert lease.size == 10
    with pytest.raises(TypeError):
        BufferLease()


@pytest.mark.parametrize("derive", [lambda view: view, lambda view: view[5:], lambda view: (ctypes.c_char * 10).from_buffer(view)],
                         ids=["view", "slice", "export"])
def test_a_view_holds_its_buffer(pool, derive):
    lease = pool.acquire(100)
    view = derive(lease.buffer)
    with pytest.raises(RuntimeError, match="views exist"):
        lease.release()
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    place = lease.ptr
    del view
    lease.release()
    assert pool.acquire(100).ptr == place


def test_a_view_outlives_its_dropped_lease(pool):
    lease = pool.acquire(4 * CLASS)
    view = lease.buffer
    view[0] = 7
    del lease
    gc.collect()
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1, block=False)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    assert view[0] == 7
    del view
    pool.acquire(4 * CLASS, timeout=5).release()


def test_a_view_keeps_its_lease(pool):
    view = BufferLeaseView(pool.acquire(10))
    gc.collect()
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    assert len(view.buffer) == 10
    with pytest.raises(TypeError):
        BufferLeaseView(7)


def test_the_limit_holds_and_waiting_ends(pool):
    leases = [pool.acquire(CLASS) for _ in range(4)]
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1, block=False)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(1, timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 2 * SLOW
    with pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(1, timeout=0)
    turns = []
    timer = threading.Timer(0.2, lambda: (turns.append(1), leases.pop().release()))
    timer.start()
    # The timer's thread runs: waiting does not hold the GIL.
    assert pool.acquire(1, timeout=10).size == 1 and turns == [1]
    timer.join()


def test_a_dropped_lease_wakes_a_waiter(pool):
    leases = [pool.acquire(CLASS) for _ in range(4)]
    timer = threading.Timer(0.2, leases.clear)
    timer.start()
    pool.acquire(1, timeout=10).release()
    timer.join()


def test_free_buffers_of_other_sizes_make_room(pool):
    for lease in [pool.acquire(CLASS) for _ in range(4)]:
        lease.release()
    assert pool.acquire(4 * CLASS, block=False).size == 4 * CLASS


def test_a_pool_is_not_smaller_than_the_local_buffer(master):
    """As in the original; and a size that fits is not refused for its class, which would not."""
    store = joined(master, 0, 3 * CLASS + 1)
    with BufferPool(store, max_bytes=1, alignment=8, block_on_exhaustion=False) as pool:
        with pool.acquire(3 * CLASS + 1) as lease:
            assert lease.size == 3 * CLASS + 1
            with pytest.raises(RuntimeError, match="exhausted"):
                pool.acquire(1)
        with pytest.raises(RuntimeError, match="capacity"):
            pool.acquire(3 * CLASS + 2)
    assert store.close() == 0


def test_what_can_never_fit_is_refused_at_once(pool):
    for size in (4 * CLASS + 1, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 200):
        with pytest.raises(RuntimeError, match="capacity"):
            pool.acquire(size)
    for size in (-1, 1.5, "1", None, True):
        with pytest.raises(TypeError):
            pool.acquire(size)
    with pytest.raises(RuntimeError):
        pool.acquire(1, timeout=-1)
    with pytest.raises((TypeError, ValueError)):
        pool.acquire(1, timeout="soon")
    assert pool.acquire(0).size == 0


def test_regions_are_limited_too(store):
    pool = BufferPool(store, max_regions=2, alignment=8, block_on_exhaustion=False)
    leases = [pool.acquire(1), pool.acquire(10 * CLASS)]
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1)
    del leases
    pool.close()


def test_large_buffers_are_given_back(store):
    pool = BufferPool(store, max_size_class=CLASS, alignment=4096)
    lease = pool.acquire(CLASS + 1)
    assert store.register_buffer(lease.ptr, lease.size) == -600  # it is registered
    place = lease.ptr
    lease.release()
    assert store.unregister_buffer(place) == -600
    pool.close()


def test_prewarm_and_close(store):
    pool = BufferPool(store, max_bytes=3 * CLASS, alignment=8, prewarm_size=100, prewarm_count=2)
    assert pool._regions == 2
    pool.prewarm(100, 1000)
    assert pool._regions == 3
    pool.close()
    pool.close()
    assert pool._regions == pool._bytes == 0
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_bad_pools_are_refused(store, unset):
    for wrong in (dict(alignment=0), dict(alignment=3), dict(alignment=4), dict(min_size_class=0), dict(default_timeout=-1)):
        with pytest.raises(RuntimeError):
            BufferPool(store, **wrong)
    for wrong in (dict(max_bytes=-1), dict(max_regions=-1), dict(prewarm_count=-1)):
        with pytest.raises(TypeError):
            BufferPool(store, **wrong)
    for none in (None, unset):
        with pytest.raises(RuntimeError, match="not initialized"):
            BufferPool(none)
    with pytest.raises(TypeError):
        BufferPool(5)


def test_the_default_alignment(store):
    pool = BufferPool(store)
    assert pool.acquire(10).ptr % (8 << 20) == 0
    gc.collect()
    pool.close()


def test_a_pool_outlives_its_store(master):
    store = joined(master, 0)
    pool = BufferPool(store, alignment=8)
    lease = pool.acquire(10)
    assert store.close() == 0
    lease.buffer[0] = 1
    lease.release()
    pool.close()


def test_many_threads(store):
    pool = BufferPool(store, max_bytes=4 * CLASS, alignment=4096)
    failures = []

    def work(seed):
        try:
            for i in range(100):
                with pool.acquire(CLASS if i % 3 else 2 * CLASS, timeout=30) as lease:
                    lease.buffer[:8] = bytes([seed]) * 8
                    time.sleep(0)
                    if bytes(lease.buffer[:8]) != bytes([seed]) * 8:
                        failures.append(seed)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    pool.close()
    assert pool._bytes == pool._regions == 0


def in_child(work, seconds=20):
    """What a forked child finds: work() returns None, or what is wrong. A child that hangs is ended."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = work() or "well"
        except BaseException:
            found = traceback.format_exc()
        os.write(writable, found.encode()[-4000:])
        os._exit(0)
    os.close(writable)
    os.set_blocking(readable, False)
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(readable)
            return "it hangs"
        time.sleep(0.01)
    found = os.read(readable, 4096).decode()
    os.close(readable)
    return found


def test_a_forked_child_writes_into_memory_of_its_own(store, pool):
    lease, free = pool.acquire(1000), pool.acquire(1000)
    lease.buffer[:6] = b"parent"
    free_region = free._region
    free.release()

    def work():
        if lease.buffer[:6] != b"parent":
            return "it does not see what was there"
        lease.buffer[:6] = b"child!"
        ctypes.memset(free_region.address, 0x77, 1000)
        ctypes.memset(lease.ptr + 6, 0x77, 900)

    assert in_child(work) == "well"
    assert lease.buffer[:6] == b"parent" and bytes(lease.buffer[6:906]) == bytes(900)
    assert bytes(free_region.view(1000)) == bytes(1000)
    lease.release()


def test_a_forked_child_is_lent_nothing(store, pool):
    lease, dropped = pool.acquire(1000), pool.acquire(1000)

    def work():
        nonlocal dropped
        for call in (lambda: pool.acquire(1000), lambda: pool.prewarm(1000, 2)):
            try:
                call()
            except RuntimeError as error:
                if "forked" not in str(error):
                    return str(error)
            else:
                return "it was lent a buffer"
        lease.release()
        dropped = None
        gc.collect()
        pool.close()

    with pool._changed:  # as a thread may hold it that is not in the child
        assert in_child(work) == "well"
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    lease.release()
    del dropped
    with pool.acquire(1000) as again:
        again.buffer[:4] = b"good"
        assert store.put_from("after", again.ptr, 4) == 0 and store.get("after") == b"good"


def test_a_forked_child_may_have_a_pool_of_its_own(store, pool, master):
    """As a DataLoader's worker: a store and a pool of its own, though its parent has both."""
    held = pool.acquire(1000)
    held.buffer[:6] = b"parent"
    assert store.put("given", b"bytes") == 0

    def work():
        mine = module.MooncakeDistributedStore()
        if mine.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master.address) != 0:
            return "no store"
        own = BufferPool(mine, max_bytes=2 * CLASS, alignment=4096)
        with own.acquire(5) as lease:
            if mine.get_into("given", lease.ptr, 5) != 5 or lease.buffer != b"bytes":
                return "no bytes"
        own.close()
        mine.close()

    assert in_child(work) == "well"
    assert held.buffer[:6] == b"parent"
    held.release()
