# SPDX-License-Identifier: Apache-2.0
"""Boxes of whole numbers in N dimensions, each an offset and a shape: does one contain another, do any overlap, do they tile a container?"""

from bisect import bisect_left
from math import prod
from typing import Iterable, List, Optional, Protocol, Sequence, Tuple

from mooncake.reshard._compat import _strict_zip

__all__ = ["LogicalBox", "OverlapRegion", "box_contains", "boxes_exactly_cover", "boxes_overlap", "regions_exactly_cover"]

Box = Tuple[Tuple[int, ...], Tuple[int, ...]]
# From three dimensions on boxes are compared in pairs; a manifest that needs more comparisons is refused.
_MAX_HIGH_DIMENSIONAL_PAIRWISE_COMPARISONS = 1_000_000


class LogicalBox(Protocol):
    """A part of a whole, by where it lies in it."""

    @property
    def global_offset(self) -> Tuple[int, ...]: ...

    @property
    def local_shape(self) -> Tuple[int, ...]: ...


class OverlapRegion(Protocol):
    """What two boxes have in common."""

    @property
    def overlap_offset(self) -> Tuple[int, ...]: ...

    @property
    def overlap_shape(self) -> Tuple[int, ...]: ...


def box_contains(outer_offset: Tuple[int, ...], outer_shape: Tuple[int, ...], inner_offset: Tuple[int, ...], inner_shape: Tuple[int, ...]) -> bool:
    """Whether no point of the inner box lies outside the outer one. ValueError if they differ in dimensions."""
    return all(begin <= inner and inner + size <= begin + extent
               for begin, extent, inner, size in _strict_zip(outer_offset, outer_shape, inner_offset, inner_shape))


def boxes_overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two have a point in common. O(n log n) comparisons in one and two dimensions. ValueError if more of them, in three dimensions
    and above, lie side by side than can be compared."""
    return any_overlap(boxes, _MAX_HIGH_DIMENSIONAL_PAIRWISE_COMPARISONS)


def boxes_exactly_cover(container_offset: Tuple[int, ...], container_shape: Tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether every point of the container lies in exactly one of the boxes, and no point of theirs outside."""
    # Boxes within a container that do not overlap fill it if and only if their volumes add up to its.
    return (bool(boxes) and all(box_contains(container_offset, container_shape, *box) for box in boxes)
            and sum(prod(shape) for _, shape in boxes) == prod(container_shape) and not boxes_overlap(boxes))


def regions_exactly_cover(target: LogicalBox, regions: Iterable[OverlapRegion]) -> bool:
    """Whether the regions write every element of the target once."""
    return boxes_exactly_cover(target.global_offset, target.local_shape, [(region.overlap_offset, region.overlap_shape) for region in regions])


def span(box: Box, dimension: int) -> Tuple[int, int]:
    """Begin and end of a box in one dimension."""
    return box[0][dimension], box[0][dimension] + box[1][dimension]


def most_divided(boxes: Sequence[Box]) -> int:
    """The dimension in which boxes have most different spans, which tells them best apart; the first of several."""
    return max(range(len(boxes[0][0])), key=lambda dimension: len({span(box, dimension) for box in boxes}))


def any_overlap(boxes: Sequence[Box], pairs_max: Optional[int]) -> bool:
    if len(boxes) < 2:
        return False
    dimensions = len(boxes[0][0])
    if dimensions == 1:
        spans = sorted(span(box, 0) for box in boxes)
        return any(begin < end for (_, end), (begin, _) in zip(spans, spans[1:]))
    return _rectangles_overlap(boxes) if dimensions == 2 else _bodies_overlap(boxes, pairs_max)


def _rectangles_overlap(boxes: Sequence[Box]) -> bool:
    """A line goes over the first dimension and keeps the spans, in the second one, of the rectangles that it crosses. Until one overlap is
    found these are disjoint, so that their order is total and a new one can only meet its two neighbours."""
    events = []
    for box in boxes:
        begin, end = span(box, 0)
        events += [(begin, 1, span(box, 1)), (end, 0, span(box, 1))]
    crossed: List[Tuple[int, int]] = []
    for _, is_begin, here in sorted(events):  # at one place ends come first
        place = bisect_left(crossed, here)
        if not is_begin:
            del crossed[place]
            continue
        if (place > 0 and crossed[place - 1][1] > here[0]) or (place < len(crossed) and crossed[place][0] < here[1]):
            return True
        crossed.insert(place, here)
    return False


def _bodies_overlap(boxes: Sequence[Box], pairs_max: Optional[int]) -> bool:
    """As above, in more dimensions: a new one is compared with each that is crossed."""
    swept = most_divided(boxes)
    crossed: List[Box] = []
    pairs = 0
    for box in sorted(boxes, key=lambda one: one[0][swept]):
        begin = box[0][swept]
        crossed = [other for other in crossed if span(other, swept)[1] > begin]
        for offset, shape in crossed:
            if pairs_max is not None and pairs >= pairs_max:
                raise ValueError("high-dimensional overlap budget exceeded before validation")
            pairs += 1
            if all(one < other + size and other < one + extent for one, extent, other, size in _strict_zip(offset, shape, *box)):
                return True
        crossed.append(box)
    return False
