# SPDX-License-Identifier: Apache-2.0
"""What two fragments have in common, and where these bytes lie in each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Optional

from mooncake.reshard.contracts.fragments import contiguous_strides
from mooncake.reshard.geometry import Box, most_divided, span
from mooncake.reshard.weight._cover import boxes_of


class Loops(NamedTuple):
    """How to copy a box: `inner_bytes` at once, in nested loops, the outermost first, from one offset in each fragment on."""

    source_base_offset: int
    target_base_offset: int
    inner_bytes: int
    outer_loop_counts: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]


def itemsize_of(fragment: Any) -> int:
    elements = prod(fragment.local_shape)
    if elements <= 0 or fragment.nbytes % elements:
        raise ValueError("transfer region fragment byte size is invalid")
    if fragment.nbytes < elements:
        raise ValueError("transfer region fragment itemsize is invalid")
    return fragment.nbytes // elements


def loops_over(source: Any, target: Any, offset: tuple[int, ...], shape: tuple[int, ...]) -> Loops:
    """The fewest loops: an inner dimension that both fragments have whole needs none of its own."""
    itemsize = itemsize_of(source)
    if itemsize_of(target) != itemsize:
        raise ValueError("transfer region source and target itemsize differ")
    source_strides, target_strides = contiguous_strides(source.local_shape, itemsize), contiguous_strides(target.local_shape, itemsize)
    outer, inner_bytes = len(shape) - 1, shape[-1] * itemsize
    while outer > 0 and source_strides[outer - 1] == target_strides[outer - 1] == inner_bytes:
        outer -= 1
        inner_bytes *= shape[outer]
    return Loops(_offset_in(source, offset, source_strides), _offset_in(target, offset, target_strides), inner_bytes, shape[:outer],
                 source_strides[:outer], target_strides[:outer])


def _offset_in(fragment: Any, place: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((here - begin) * stride for here, begin, stride in zip(place, fragment.global_offset, strides))


def _overlap_box(source: Any, target: Any) -> Optional[Box]:
    """None if they have nothing in common."""
    spans = [(max(begin, other), min(begin + extent, other + size)) for begin, extent, other, size
             in zip(source.global_offset, source.local_shape, target.global_offset, target.local_shape)]
    if any(begin >= end for begin, end in spans):
        return None
    return tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans)


class BoxIndex:
    """Fragments of one tensor in the order of their begin, along the dimension that tells them best apart."""

    def __init__(self, fragments: Sequence[Any]) -> None:
        self.dimension = most_divided(boxes_of(fragments))
        self.fragments = sorted(fragments, key=lambda one: one.global_offset[self.dimension])
        self.begins = [one.global_offset[self.dimension] for one in self.fragments]
        self.longest = max(one.local_shape[self.dimension] for one in fragments)

    def near(self, target: Any) -> Sequence[Any]:
        """All that overlap the target in this dimension, and few others: what begins a whole longest box before it ends before it."""
        begin, end = span((target.global_offset, target.local_shape), self.dimension)
        return self.fragments[bisect_right(self.begins, begin - self.longest):bisect_left(self.begins, end)]

    def overlaps(self, target: Any) -> list[tuple[tuple[int, ...], tuple[int, ...], Any]]:
        """Offset, shape and fragment of each overlap with the target, in order."""
        found = [(_overlap_box(one, target), one) for one in self.near(target)]
        return sorted(((*box, one) for box, one in found if box is not None), key=lambda each: (each[0], each[1], each[2].fragment_id))
