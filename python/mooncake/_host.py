# SPDX-License-Identifier: Apache-2.0
"""Helpers of mooncake.store about this host: memory for buffers, and binding a thread to a NUMA node."""

import operator
import os

from mooncake._record import checked
from mooncake._store import _allocate, _number, _prefer_node, _release

_addresses = set()  # of all allocators: tensors often outlive the allocator they came from


class MooncakeHostMemAllocator:
    """Host memory for buffers, shared with children that are forked. It stays until free(), also when the allocator is gone."""

    __slots__ = ()
    __module__ = "mooncake.store"

    @checked
    def alloc(self, size):
        """Address of size zeroed bytes at a page's start. RuntimeError when there is no memory, and for a size of 0."""
        size = _number(size)
        address = _allocate(size)
        if address == 0:
            raise RuntimeError(f"no memory of {size} bytes")
        _addresses.add(address)
        return address

    @checked
    def free(self, ptr):
        """Gives an address of alloc back. 0, or -1 when it is none."""
        address = _number(ptr)
        try:
            _addresses.remove(address)
        except KeyError:
            return -1
        _release(address)
        return 0


def bind_to_numa_node(node):
    """Moves the calling thread to the processors of a NUMA node, as far as they exist and are allowed, and lets its memory come from there
    while there is some. Never raises."""
    try:
        node = operator.index(node)
        _prefer_node(node)  # also where the node has memory only
        with open(f"/sys/devices/system/node/node{node}/cpulist") as file:
            spans = [span.split("-") for span in file.read().split(",")]
        wanted = {processor for span in spans for processor in range(int(span[0]), int(span[-1]) + 1)} & os.sched_getaffinity(0)
        if wanted:
            os.sched_setaffinity(0, wanted)
    except Exception:
        pass  # a wish, not a promise
