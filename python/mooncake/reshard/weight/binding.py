# SPDX-License-Identifier: Apache-2.0
"""Whether runtime bindings hold what a placement says, in memory that nobody else of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mooncake.reshard import _check
from mooncake.reshard.contracts import RuntimeBindingFragment, validate_resource_binding_identity
from mooncake.reshard.contracts.fragments import contiguous_strides
from mooncake.reshard.weight._cover import grouped
from mooncake.reshard.weight.part import WeightPlacementPart
from mooncake.reshard.weight.placement import WeightPlacementManifest
from mooncake.reshard.weight.runtime import WeightRuntimeBindingManifest
from mooncake.reshard.weight.types import PlacementFragment, Tensors

__all__ = ["validate_runtime_binding", "validate_runtime_bindings"]

T = TypeVar("T")
Bound = tuple[PlacementFragment, RuntimeBindingFragment]


def validate_runtime_binding(placement: WeightPlacementManifest, binding: WeightRuntimeBindingManifest) -> None:
    """ValueError unless the binding has exactly the fragments of its participant, each as a contiguous view, and none over another."""
    if not isinstance(placement, WeightPlacementManifest):
        raise ValueError("placement must be a WeightPlacementManifest")
    if not isinstance(binding, WeightRuntimeBindingManifest):
        raise ValueError("binding must be a WeightRuntimeBindingManifest")
    validate_resource_binding_identity(placement, binding)
    if placement.revision != binding.revision:
        raise ValueError("placement and runtime binding revision differ")
    part = next((part for part in placement.parts if part.participant_id == binding.participant_id), None)
    if part is None:
        raise ValueError(f"unknown runtime binding participant: {binding.participant_id}")
    tensors = {tensor.tensor_id: tensor for tensor in part.tensors}
    bound = _bound(part, binding)
    for fragment, memory in bound:
        _check_view(fragment, memory, tensors[fragment.tensor_id].itemsize)
    _check_memory(binding.instance_id, bound, tensors)


def validate_runtime_bindings(placement: WeightPlacementManifest, bindings: object) -> None:
    """ValueError unless there is one binding of each participant that holds anything, and none of them lies over another."""
    found = _check.items(bindings, "runtime bindings", WeightRuntimeBindingManifest)
    by_participant = {binding.participant_id: binding for binding in found}
    if len(by_participant) != len(found):
        raise ValueError("duplicate runtime binding participant")
    for binding in found:
        validate_runtime_binding(placement, binding)
    parts = {part.participant_id: part for part in placement.parts}
    tensors = {tensor.tensor_id: tensor for tensor in placement.tensors}
    for instance_id, of_one in grouped(found, lambda one: one.instance_id).items():
        _check_memory(instance_id, [pair for binding in of_one for pair in _bound(parts[binding.participant_id], binding)], tensors)
    wanted = {part.participant_id for part in placement.parts if part.fragments}
    if wanted - set(by_participant):
        raise ValueError(f"missing runtime binding participant: {min(wanted - set(by_participant))}")
    if set(by_participant) - wanted:
        raise ValueError(f"unknown runtime binding participant: {min(set(by_participant) - wanted)}")


def _bound(part: WeightPlacementPart, binding: WeightRuntimeBindingManifest) -> list[Bound]:
    """Each fragment of the part with its memory."""
    memory = {one.placement_fragment_id: one for one in binding.fragments}
    wanted = {fragment.placement_fragment_id for fragment in part.fragments}
    if set(memory) - wanted:
        raise ValueError(f"unknown placement fragment in runtime binding: {min(set(memory) - wanted)}")
    if wanted - set(memory):
        raise ValueError(f"missing placement fragment in runtime binding: {min(wanted - set(memory))}")
    return [(fragment, memory[fragment.placement_fragment_id]) for fragment in part.fragments]


def _check_view(fragment: PlacementFragment, memory: RuntimeBindingFragment, itemsize: int) -> None:
    for what, is_right in (("byte size", memory.nbytes == fragment.nbytes), ("local_shape", memory.local_shape == fragment.local_shape),
                           ("itemsize", memory.itemsize == itemsize)):
        if not is_right:
            raise ValueError(f"runtime binding {what} does not match placement: {fragment.placement_fragment_id}")
    if memory.strides_bytes != contiguous_strides(fragment.local_shape, itemsize):
        raise ValueError(f"runtime binding stride does not describe a canonical contiguous view: {fragment.placement_fragment_id}")


def _check_memory(instance_id: str, bound: Iterable[Bound], tensors: Tensors) -> None:
    """Addresses mean the same on one device of one worker only. There, views are disjoint but for declared aliases, and allocations are
    disjoint or the same."""
    for space, pairs in grouped(bound, lambda pair: (instance_id, pair[1].worker_id, pair[1].device)).items():
        for (fragment, memory), (other, beside) in _meeting(pairs, lambda pair: (pair[1].address, pair[1].nbytes)):
            if not ((memory.address, memory.nbytes) == (beside.address, beside.nbytes) and _are_aliases(fragment, other, tensors)):
                raise ValueError(f"runtime binding address ranges overlap: {memory.fragment_id} and {beside.fragment_id} in {space}")
        for (_, memory), (_, beside) in _meeting(pairs, lambda pair: (pair[1].storage_address, pair[1].storage_nbytes)):
            if (memory.storage_address, memory.storage_nbytes) != (beside.storage_address, beside.storage_nbytes):
                raise ValueError(
                    f"runtime binding storage allocation ranges overlap: {memory.fragment_id} and {beside.fragment_id} in {space}")


def _meeting(things: Sequence[T], extent: Callable[[T], tuple[int, int]]) -> Iterator[tuple[T, T]]:
    """Pairs of things whose ranges, given as address and length, have a byte in common."""
    before: list[T] = []
    for thing in sorted(things, key=lambda one: extent(one)[0]):
        before = [other for other in before if sum(extent(other)) > extent(thing)[0]]
        for other in before:
            yield other, thing
        before.append(thing)


def _are_aliases(one: PlacementFragment, other: PlacementFragment, tensors: Tensors) -> bool:
    """Whether both say that they share their memory, and would read the same from it. A group names its fragment's own tensor."""
    return (bool(one.aliases) and one.aliases == other.aliases and (one.global_offset, one.local_shape) == (other.global_offset, other.local_shape)
            and tensors[one.tensor_id].is_like(tensors[other.tensor_id]))
