# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of one machine share: one of them makes it, the others map it.

It is made in two phases, because nobody can map what is not there yet: each rank creates its part and hands a blob to all others, by whatever
means they have; with the blobs of all each completes.

Invariant: nobody can shorten the memory below those who map it (it is sealed), so no access ends a process by SIGBUS.
Invariant: it has no name. It is gone with the last process that maps it, however that ends.
"""

import ctypes
import fcntl
import hashlib
import mmap as mapping
import os
import struct

__all__ = ["SharedSegment"]

SIZE_MAX = 1 << 46
_MAGIC = 0x6D635F7365676D31
# Magic, fingerprint of what all ranks must agree on, rank; of the owner: process, descriptor, device, inode.
_BLOB = struct.Struct("<QQqqqQQ")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _fingerprint(name, size, world_size, owner_rank):
    text = f"{len(name)}:{name}:{size}:{world_size}:{owner_rank}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def _make(name, size):
    """A descriptor of sealed memory."""
    fd = os.memfd_create(name.replace("\0", "_").encode("utf-8", "replace")[:200].decode("utf-8", "ignore"), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open(pid, fd, device, inode, size):
    """A descriptor of the owner's memory, which is sure to be that."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(f"the owner's memory cannot be opened ({path}: {error.strerror}): the ranks must run as one user, on one machine, "
                           "where they see each other's processes") from error
    try:
        seen = os.fstat(mine)
        if (seen.st_dev, seen.st_ino, seen.st_size) != (device, inode, size) or fcntl.fcntl(mine, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise RuntimeError(f"{path} is not the memory that the owner has made: it is gone, or is on another machine")
    except OSError as error:
        os.close(mine)
        raise RuntimeError(f"{path} is not memory: {error.strerror}") from error
    except RuntimeError:
        os.close(mine)
        raise
    return mine


class SharedSegment:
    """Made by create(); usable when complete() has returned."""

    __module__ = "mooncake.engine"
    __slots__ = ("_fd", "_memory", "_size", "_world_size", "_rank", "_owner", "_fingerprint", "_complete", "__weakref__")

    def __new__(cls, *_args, **_keywords):
        raise TypeError("a SharedSegment is only made by SharedSegment.create")

    @staticmethod
    def create(name, size, world_size, rank_id, owner_rank=0, device_id=0, mmap=True, host_register=False):
        """The first phase: (segment, blob). All ranks give the same name, size, world_size and owner_rank, whose memory it is.

        device_id is accepted. RuntimeError: a number is out of bounds; mmap=False or host_register=True, which need devices that there are not;
        there is no memory."""
        if not SharedSegment.supported(mmap, host_register):
            raise RuntimeError("shared segments of this build are plain memory: mmap=True, host_register=False")
        if not 0 < size <= SIZE_MAX:
            raise RuntimeError(f"size {size} is not from 1 to {SIZE_MAX}")
        if world_size < 1 or not 0 <= rank_id < world_size or not 0 <= owner_rank < world_size:
            raise RuntimeError(f"rank_id {rank_id} and owner_rank {owner_rank} must be from 0 to below world_size {world_size}")
        self = object.__new__(SharedSegment)
        self._fd, self._memory, self._complete = -1, None, False
        self._size, self._world_size, self._rank, self._owner = size, world_size, rank_id, owner_rank
        self._fingerprint = _fingerprint(name, size, world_size, owner_rank)
        place = (0, -1, 0, 0)
        if rank_id == owner_rank:
            try:
                self._fd = _make(name, size)
                self._memory = mapping.mmap(self._fd, size)
            except OSError as error:
                raise RuntimeError(f"no memory for a shared segment of {size} bytes: {error.strerror}") from error
            seen = os.fstat(self._fd)
            place = (os.getpid(), self._fd, seen.st_dev, seen.st_ino)
        return self, _BLOB.pack(_MAGIC, self._fingerprint, rank_id, *place)

    def complete(self, blobs):
        """The second phase: the blobs of all ranks, by rank. RuntimeError: they do not fit together, or the owner's memory is out of reach."""
        if self._complete:
            return
        if len(blobs) != self._world_size:
            raise RuntimeError(f"{len(blobs)} blobs of {self._world_size} ranks")
        places = []
        for rank, blob in enumerate(blobs):
            if len(blob) != _BLOB.size:
                raise RuntimeError(f"the blob of rank {rank} is none")
            magic, fingerprint, said_rank, *place = _BLOB.unpack(blob)
            if magic != _MAGIC or said_rank != rank:
                raise RuntimeError(f"the blob of rank {rank} is none, or of another rank")
            if fingerprint != self._fingerprint:
                raise RuntimeError(f"rank {rank} has declared another segment: name, size, world_size and owner_rank must be the same")
            places.append(place)
        if self._rank != self._owner:
            fd = _open(*places[self._owner], self._size)
            try:
                self._memory = mapping.mmap(fd, self._size)
            except OSError as error:
                raise RuntimeError(f"the segment of {self._size} bytes cannot be mapped: {error.strerror}") from error
            finally:
                os.close(fd)
        self._complete = True

    def ready(self):
        """Whether complete() has been done."""
        return self._complete

    def base_addr(self):
        """Address of the memory; another one in each process. 0: not mapped yet."""
        return 0 if self._memory is None else ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def device_addr(self):
        """0: no device sees it under an address of its own."""
        return 0

    def size(self):
        """Length in bytes."""
        return self._size

    def _view(self):
        """The memory as a buffer, which stays as long as views of it."""
        return memoryview(self._memory)

    @staticmethod
    def supported(mmap=True, host_register=False):
        """Whether such a segment can be made: only plain memory can."""
        return bool(mmap) and not host_register and hasattr(os, "memfd_create")

    def __del__(self):
        if self._fd >= 0:
            os.close(self._fd)  # the memory stays as long as it is mapped
