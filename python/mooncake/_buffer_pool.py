# SPDX-License-Identifier: Apache-2.0
"""A pool of registered buffers: memory for get_into and put_from that is paid for once and lent again and again.

Invariant: a region is lent to one lease at a time, and is lent again only when no view of it is left: a lease cannot be released while
there are views of its buffer, and one that is dropped meanwhile comes back when the last view goes.
Invariant: a pool lends in the process that made it only. A forked child (a DataLoader's worker) has a copy of its own of what was lent.

Regions are private anonymous memory in classes of size (powers of two from min_size_class), each registered with the store. Nothing but
this process and its store's devices reaches into them.
"""

import collections
import ctypes
import mmap
import os
import sys
import threading
import time

_SIZE_MAX = 1 << 62
_CLASS_DEFAULT_MAX = 1 << 30  # larger regions are given back to the system, not kept
_ALIGNMENT_MIN = ctypes.sizeof(ctypes.c_void_p)
_LINGER_POLL_S = 0.01  # how often a waiter looks for leases and views that ended without a word


class _Region:
    """Aligned memory of its own, with room for one lease."""

    __slots__ = ("size", "address", "offset", "memory", "idle_references")

    def __init__(self, size, alignment):
        # mmap aligns to a page; more is taken from a larger reservation, of which the rest is never touched.
        spare = 0 if alignment <= mmap.PAGESIZE else alignment
        try:
            # Shared memory, mmap's default, would be written to by forked children, too.
            self.memory = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for a buffer of {size} bytes: {error}") from error
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.address = (base + alignment - 1) // alignment * alignment
        self.offset = self.address - base
        self.size = size
        # Versions of Python differ in what they count of a reference that is only being looked at.
        self.idle_references = sys.getrefcount(self.memory)

    def in_use(self):
        """Whether views of the memory exist: each of them, and all that is made of it, refers to it."""
        return sys.getrefcount(self.memory) > self.idle_references

    def view(self, size):
        return memoryview(self.memory)[self.offset : self.offset + size]


def _seconds(timeout):
    if timeout is None:
        return None
    timeout = float(timeout)
    if not timeout >= 0:
        raise RuntimeError("timeout must be non-negative")
    return timeout


class BufferLease:
    """A buffer that is lent by a BufferPool: `ptr`, `size`, and `buffer`, a memoryview. Give it back with release() or `with`."""

    def __init__(self, *_args):
        raise TypeError("a BufferLease is only made by a BufferPool")

    @classmethod
    def _make(cls, pool, region, size):
        self = cls.__new__(cls)
        self._pool, self._region, self._size = pool, region, size
        return self

    def _open(self):
        region = self._region
        if region is None:
            raise RuntimeError("buffer lease is closed")
        return region

    @property
    def ptr(self):
        """Address of the buffer."""
        return self._open().address

    @property
    def size(self):
        """The bytes that were asked for."""
        return self._size

    @property
    def buffer(self):
        """A writable memoryview of the buffer. While it, or a view made of it, lives, the lease cannot be released."""
        if self._region is None:
            raise BufferError("buffer lease is closed")
        return self._region.view(self._size)

    def release(self):
        """Gives the buffer back. Again: nothing happens. RuntimeError while there are views of it."""
        if self._region is not None:
            self._pool._take_back(self)

    def __enter__(self):
        self._open()
        return self

    def __exit__(self, *_exception):
        self.release()

    def __del__(self):
        region = getattr(self, "_region", None)
        if region is not None:
            # The collector may call this in the middle of the pool's own work: nothing but an append.
            self._pool._dropped.append(region)


class BufferLeaseView:
    """A lease's buffer together with the lease, so that neither goes without the other."""

    def __init__(self, lease):
        if not isinstance(lease, BufferLease):
            raise TypeError(f"a BufferLease, not {type(lease).__name__}")
        self._lease = lease

    @property
    def buffer(self):
        """A writable memoryview of the lease's buffer."""
        return self._lease.buffer


class BufferPool:
    """Buffers for a store's get_into and put_from. Threads may share one.

    In a forked child acquire() is a RuntimeError, and what was lent before is a copy of the child's own.

    max_bytes and max_regions limit what the pool holds (0 and None: no limit); max_bytes is not less than the store's local_buffer_size.
    When nothing more can be had, acquire waits, unless block_on_exhaustion is False. Buffers larger than max_size_class are not kept when
    they come back."""

    def __init__(
        self, store, max_bytes=0, min_size_class=65536, max_size_class=None, alignment=8388608, block_on_exhaustion=True,
        default_timeout=None, max_regions=None, prewarm_size=None, prewarm_count=0,
    ):  # fmt: skip
        numbers = [max_bytes, min_size_class, alignment, prewarm_count]
        numbers += [each for each in (max_size_class, max_regions, prewarm_size) if each is not None]
        if any(each.__index__() < 0 for each in numbers):
            raise TypeError("sizes and counts are not negative")
        if not min_size_class or not alignment:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment & (alignment - 1) or alignment < _ALIGNMENT_MIN:
            raise RuntimeError("alignment must be a power of two and at least sizeof(void*)")
        if store is not None and not hasattr(store, "register_buffer"):
            raise TypeError(f"a MooncakeDistributedStore, not {type(store).__name__}")
        if store is None or not store.get_hostname():
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        self._store = store
        self._process = os.getpid()
        local_buffer = getattr(store, "__dict__", {}).get("_local_buffer", 0)
        self._max_bytes = max(max_bytes, local_buffer) if max_bytes else _SIZE_MAX
        self._max_regions = _SIZE_MAX if max_regions is None else max_regions
        self._min_class = min_size_class
        self._max_class = _CLASS_DEFAULT_MAX if max_size_class is None else max_size_class
        self._alignment = alignment
        self._block = bool(block_on_exhaustion)
        self._timeout = _seconds(default_timeout)
        self._changed = threading.Condition()
        self._free = {}  # size -> regions
        self._lent = 0
        self._dropped = collections.deque()  # regions of leases that nobody released; there may be views of them
        self._bytes = self._regions = 0
        self._closed = False
        if prewarm_size is not None and prewarm_count:
            self.prewarm(prewarm_size, prewarm_count)

    def _is_here(self):
        """Whether this is not a forked child, where a lock may be held for ever by a thread that is not there."""
        return self._process == os.getpid()

    def _check_here(self):
        if not self._is_here():
            raise RuntimeError("a buffer pool lends in the process that made it only, not in a forked child: make one of its own there")

    def _class_of(self, size):
        granted = self._min_class
        while granted < size:
            granted *= 2
        if granted > min(self._max_class, self._max_bytes):
            granted = max(size, 1)
        page = mmap.PAGESIZE
        return max(size, min((granted + page - 1) // page * page, self._max_bytes))

    def _check_size(self, size):
        if isinstance(size, bool) or not hasattr(size, "__index__") or size.__index__() < 0:
            raise TypeError("a size is an int that is not negative")
        size = size.__index__()
        if size > _SIZE_MAX or self._class_of(size) > self._max_bytes:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        return size

    def prewarm(self, size, count):
        """Makes up to count buffers for this size ahead, as far as the pool's limits go."""
        self._check_here()
        granted = self._class_of(self._check_size(size))
        with self._changed:
            while not self._closed and granted <= self._max_class and len(self._free.get(granted, ())) < count:
                region = self._make(granted)
                if region is None:
                    return
                self._free.setdefault(granted, []).append(region)

    def acquire(self, size, block=None, timeout=None):
        """A BufferLease of size bytes; its contents are what was there before.

        block None: as the pool was made; timeout in seconds, None: the pool's. RuntimeError when the time is over, when nothing is free and
        block is False, for a size that the pool can never hold, and after close()."""
        self._check_here()
        size = self._check_size(size)
        granted = self._class_of(size)
        block = self._block if block is None else bool(block)
        timeout = self._timeout if timeout is None else _seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                region = self._find(granted)
                if region is not None:
                    self._lent += 1
                    return BufferLease._make(self, region, size)
                if not block:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(_LINGER_POLL_S if left is None else min(left, _LINGER_POLL_S))

    buffer = acquire

    def _find(self, granted):
        self._reap()
        found = self._free.get(granted)
        if found:
            return found.pop()
        region = self._make(granted)
        # What lies free in other classes makes room, the largest first.
        while region is None and any(self._free.values()):
            self._discard(self._free[max(size for size, regions in self._free.items() if regions)].pop())
            region = self._make(granted)
        return region

    def _make(self, granted):
        """A new registered region, or None if the limits do not allow it."""
        if self._bytes + granted > self._max_bytes or self._regions >= self._max_regions:
            return None
        region = _Region(granted, self._alignment)
        code = self._store.register_buffer(region.address, granted)
        if code != 0:
            raise RuntimeError(f"a buffer cannot be registered: {code}")
        self._bytes += granted
        self._regions += 1
        return region

    def _discard(self, region):
        # A store that is closed has forgotten its buffers: the code does not matter.
        self._store.unregister_buffer(region.address)
        self._bytes -= region.size
        self._regions -= 1

    def _take_back(self, lease):
        if not self._is_here():
            lease._region = None
            return
        with self._changed:
            region = lease._region
            if region is None:
                return
            if region.in_use():
                raise RuntimeError("cannot release buffer while exported views exist")
            lease._region = None
            self._put_back(region)

    def _put_back(self, region):
        self._lent -= 1
        if self._closed or region.size > self._max_class:
            self._discard(region)
        else:
            self._free.setdefault(region.size, []).append(region)
        self._changed.notify_all()

    def _reap(self):
        for _ in range(len(self._dropped)):
            region = self._dropped.popleft()
            if region.in_use():
                self._dropped.append(region)
            else:
                self._put_back(region)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def close(self):
        """Gives all memory back. RuntimeError while buffers are lent. Again, and in a forked child: nothing happens."""
        if not self._is_here():
            return
        with self._changed:
            self._reap()
            if self._lent:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            for regions in self._free.values():
                while regions:
                    self._discard(regions.pop())
            self._changed.notify_all()

    def __del__(self):
        # Nobody holds a lease any more: it would hold the pool. Views keep their memory themselves.
        if not getattr(self, "_closed", True) and self._is_here():
            self._closed = True
            for region in [*self._dropped, *(each for regions in self._free.values() for each in regions)]:
                self._discard(region)
