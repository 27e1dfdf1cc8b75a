# SPDX-License-Identifier: Apache-2.0
"""Whether fragments are fragments of their tensors, and whether those of a placement hold every tensor, as its axes say.

Ranks are grouped by their coordinates. Those with the same coordinates on a tensor's ownership axes are one *owner* of it; of one owner, those
with the same coordinates on its replicated axes are one *replica*. Every replica must hold the tensor once: its fragments tile it. Within a
replica, ranks differ on the split axes, and each of these must divide its own dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod
from typing import Any, TypeVar

from mooncake.reshard.contracts import TensorId
from mooncake.reshard.geometry import Box, boxes_exactly_cover, boxes_overlap
from mooncake.reshard.weight.topology import ParallelTopology
from mooncake.reshard.weight.types import AXIS_KINDS, OwnershipAxis, ParallelRank, PlacementFragment, ReplicatedAxis, SplitAxis, TensorDescriptor, \
    Tensors, validate_fragment_geometry

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Coordinates = tuple[tuple[str, int], ...]


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def boxes_of(fragments: Iterable[Any]) -> list[Box]:
    return [(fragment.global_offset, fragment.local_shape) for fragment in fragments]


def tile(tensor: TensorDescriptor, boxes: Sequence[Box]) -> bool:
    return boxes_exactly_cover((0,) * len(tensor.global_shape), tensor.global_shape, boxes)


def check_inventory(tensors: Sequence[TensorDescriptor], fragments: Sequence[Any]) -> Tensors:
    """Of fragments of any kind: no name twice, each within a tensor that is there. Returns the tensors by name."""
    by_id: dict[TensorId, TensorDescriptor] = {}
    for tensor in tensors:
        if tensor.tensor_id in by_id:
            raise ValueError(f"duplicate tensor_id: {tensor.tensor_id}")
        by_id[tensor.tensor_id] = tensor
    seen: set[str] = set()
    for fragment in fragments:
        if fragment.fragment_id in seen:
            raise ValueError(f"duplicate fragment_id: {fragment.fragment_id}")
        seen.add(fragment.fragment_id)
        if fragment.tensor_id not in by_id:
            raise ValueError(f"unknown tensor_id: {fragment.tensor_id}")
        validate_fragment_geometry(by_id[fragment.tensor_id], fragment_id=fragment.fragment_id, global_offset=fragment.global_offset,
                                   local_shape=fragment.local_shape, nbytes=fragment.nbytes)
    return by_id


def check_fragments(tensors: Sequence[TensorDescriptor], fragments: Sequence[PlacementFragment]) -> None:
    """Of one participant, or of all: what can be told without knowing what is missing."""
    check_inventory(tensors, fragments)
    for held in grouped(fragments, lambda one: (one.tensor_id, one.rank)).values():
        boxes = boxes_of(held)
        seen: set[Box] = set()
        for fragment, box in zip(held, boxes):
            if box in seen:
                raise ValueError(f"duplicate logical fragment for tensor and parallel rank: {fragment.fragment_id}")
            seen.add(box)
        if boxes_overlap(boxes):
            raise ValueError("logical fragment boxes overlap for tensor and parallel rank")


def check_alias_groups(fragments: Sequence[PlacementFragment]) -> None:
    """Sharing memory takes the consent of all: every fragment of every tensor that a group names declares that group."""
    declared = {tensor_id: {one.aliases for one in held} for tensor_id, held in grouped(fragments, lambda one: one.tensor_id).items()}
    for group in sorted({one.aliases for one in fragments if one.aliases}):
        strangers = [tensor_id for tensor_id in group if tensor_id not in declared]
        if strangers:
            raise ValueError(f"alias group references unknown tensor: {strangers[0]}")
        for tensor_id in group:
            if declared[tensor_id] != {group}:
                raise ValueError(f"alias group is not declared consistently for tensor: {tensor_id}")


def check_complete(tensors: Sequence[TensorDescriptor], fragments: Sequence[PlacementFragment], topology: ParallelTopology) -> None:
    """Of all participants: every replica of every tensor is there."""
    if not tensors:
        raise ValueError("global weight placement must contain tensors")
    if not fragments:
        raise ValueError("global weight placement must contain fragments")
    by_tensor = grouped(fragments, lambda one: one.tensor_id)
    for tensor in tensors:
        held = by_tensor[tensor.tensor_id]
        _check_undeclared_axes(tensor, held, topology)
        owners, replicas = tensor.kinds(OwnershipAxis), tensor.kinds(ReplicatedAxis)
        for owner, owned in sorted(grouped(held, lambda one: one.rank.on(owners)).items()):
            ranks = [one.rank for one in topology.participants if one.rank.on(owners) == owner]
            wanted = grouped(ranks, lambda rank: rank.on(replicas))
            found = grouped(owned, lambda one: one.rank.on(replicas))
            if set(wanted) != set(found):
                raise ValueError("global placement tensor is not fully covered: missing or unexpected replicated-axis participant for "
                                 f"{tensor.tensor_id}")
            for replica in sorted(wanted):
                _check_replica(tensor, found[replica], wanted[replica], topology)


def _check_undeclared_axes(tensor: TensorDescriptor, held: Sequence[PlacementFragment], topology: ParallelTopology) -> None:
    """An axis that the tensor does not name must not decide who has what: on it, ranks may differ only along with the axes that are named
    (experts and tensor parallelism on the same ranks)."""
    declared = tuple(axis.kind for axis in tensor.parallel_axes)
    varying = tuple(kind for kind in declared if len({getattr(one.rank, kind) for one in held}) > 1)
    for kind in AXIS_KINDS:
        if kind in declared or getattr(topology, f"{kind}_size") == 1:
            continue
        if kind in ("dp", "pp") or len({getattr(one.rank, kind) for one in held}) == 1:
            raise ValueError(f"global placement tensor requires explicit parallel semantics for active undeclared {kind} axis: {tensor.tensor_id}")
        if not varying:
            raise ValueError(f"global placement tensor varies across undeclared {kind} axis: {tensor.tensor_id}")
        for alike in grouped(held, lambda one: one.rank.on(varying)).values():
            if len({getattr(one.rank, kind) for one in alike}) > 1:
                raise ValueError(f"global placement tensor varies independently across undeclared {kind} axis: {tensor.tensor_id}")


def _check_replica(tensor: TensorDescriptor, held: Sequence[PlacementFragment], ranks: Sequence[ParallelRank], topology: ParallelTopology) -> None:
    """The fragments of one replica tile the tensor, and come from all ranks that the split axes have: `ranks` are those that could hold some."""
    if not tile(tensor, boxes_of(held)):
        raise ValueError(f"global placement tensor is not fully covered: {tensor.tensor_id}")
    splits = tensor.kinds(SplitAxis)
    if not splits:
        return
    wanted, found = {rank.on(splits) for rank in ranks}, {one.rank.on(splits) for one in held}
    all_ranks = all({getattr(rank, kind) for rank in ranks} == set(range(getattr(topology, f"{kind}_size"))) for kind in splits)
    if not all_ranks or found != wanted:
        raise ValueError(f"global placement tensor is not fully covered: missing or unexpected split-axis participant for {tensor.tensor_id}")
    # Only of a full grid of coordinates can be told which axis divides which dimension.
    if len(found) != prod(len({getattr(one.rank, kind) for one in held}) for kind in splits):
        raise ValueError(f"non-Cartesian split-axis participant mapping cannot prove rank-to-dimension ownership: {tensor.tensor_id}")
    for axis in tensor.parallel_axes:
        if isinstance(axis, SplitAxis) and not _divides(tensor, axis, held):
            raise ValueError(f"split-axis rank geometry conflicts with declared dimension: {tensor.tensor_id}: {axis.kind} -> dim {axis.dim}")


def _divides(tensor: TensorDescriptor, axis: SplitAxis, held: Sequence[PlacementFragment]) -> bool:
    """Whether the ranks of this axis have disjoint slices of its dimension that leave nothing over."""
    slices = []
    for of_one in grouped(held, lambda one: getattr(one.rank, axis.kind)).values():
        merged: list[list[int]] = []
        for begin, end in sorted((one.global_offset[axis.dim], one.global_offset[axis.dim] + one.local_shape[axis.dim]) for one in of_one):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        slices += merged
    slices.sort()
    ends = [0, *(end for _, end in slices)]
    return [begin for begin, _ in slices] == ends[:-1] and ends[-1] == tensor.global_shape[axis.dim]
