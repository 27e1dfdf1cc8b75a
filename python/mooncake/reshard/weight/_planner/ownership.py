# SPDX-License-Identifier: Apache-2.0
"""Whose fragments serve whom. Where a tensor lies with several owners or in several replicas, the copy takes one complete one of them.

Data parallelism chooses first. It replicates a tensor, or it is one of its ownership axes; then the tensor has its own source, whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from mooncake.reshard.contracts import TensorId
from mooncake.reshard.weight._cover import boxes_of, grouped, tile
from mooncake.reshard.weight._planner.geometry import BoxIndex
from mooncake.reshard.weight.types import OwnershipAxis, PlacementFragment, TensorDescriptor, Tensors

RuntimeTensorOwner = tuple[tuple[str, int], ...]


def parallel_tensor_owner(tensor: TensorDescriptor, fragment: PlacementFragment) -> RuntimeTensorOwner:
    """The coordinates on the tensor's ownership axes."""
    return fragment.rank.on(tensor.kinds(OwnershipAxis))


def has_dp_ownership(tensor: TensorDescriptor) -> bool:
    return "dp" in tensor.kinds(OwnershipAxis)


def _owners(tensor: TensorDescriptor, fragments: Iterable[PlacementFragment]) -> tuple[list[RuntimeTensorOwner], bool]:
    """The owners that have all of the tensor, in order, and whether that is all of them. Replicas of one owner count once: boxes may repeat."""
    kinds = tensor.kinds(OwnershipAxis)
    by_owner = grouped(fragments, lambda one: one.rank.on(kinds))
    complete = sorted(owner for owner, held in by_owner.items() if tile(tensor, list(dict.fromkeys(boxes_of(held)))))
    return complete, bool(complete) and len(complete) == len(by_owner)


def complete_dp_owned_source_owners(tensors: Tensors, fragments: Sequence[PlacementFragment]
                                    ) -> dict[TensorId, RuntimeTensorOwner]:
    """The one owner of each tensor that data parallelism owns."""
    by_tensor = grouped(fragments, lambda one: one.tensor_id)
    owners = {}
    for tensor in filter(has_dp_ownership, tensors.values()):
        complete, is_all = _owners(tensor, by_tensor.get(tensor.tensor_id, ()))
        if not complete:
            raise ValueError(f"DP-owned source tensor has no complete declared owner: {tensor.tensor_id}")
        if not is_all or len(complete) > 1:
            raise ValueError(f"DP-owned source tensor has ambiguous declared owners: {tensor.tensor_id}")
        owners[tensor.tensor_id] = complete[0]
    return owners


def complete_parallel_source_replicas(tensors: Tensors, fragments: Sequence[PlacementFragment]
                                      ) -> dict[int, dict[TensorId, RuntimeTensorOwner]]:
    """{dp rank that has all tensors which it should have: {tensor: its first owner}}."""
    replicated = [tensor for tensor in tensors.values() if not has_dp_ownership(tensor)]
    by_rank = grouped(fragments, lambda one: one.rank.dp)
    replicas = {}
    for dp in sorted(by_rank) if replicated else ():
        held = grouped(by_rank[dp], lambda one: one.tensor_id)
        found = {tensor.tensor_id: _owners(tensor, held.get(tensor.tensor_id, ())) for tensor in replicated}
        if all(is_all for _, is_all in found.values()):
            replicas[dp] = {name: complete[0] for name, (complete, _) in found.items()}
    if replicated and not replicas:
        raise ValueError("source manifests have no complete DP replica; tensors are not fully covered")
    return replicas


def check_target(tensors: Tensors, fragments: Sequence[PlacementFragment]) -> None:
    """Every dp rank of the target, or every owner where data parallelism owns, has the whole tensor."""
    held = grouped(fragments, lambda one: (one.tensor_id, one.rank.dp))
    by_tensor = grouped(fragments, lambda one: one.tensor_id)
    ranks = sorted({one.rank.dp for one in fragments})
    for tensor in tensors.values():
        if has_dp_ownership(tensor):
            if not _owners(tensor, by_tensor.get(tensor.tensor_id, ()))[1]:
                raise ValueError(f"target tensor is not fully covered by its DP owner: {tensor.tensor_id}")
            continue
        for dp in ranks:
            if not _owners(tensor, held.get((tensor.tensor_id, dp), ()))[1]:
                raise ValueError(f"target tensor is not fully covered: {tensor.tensor_id}: dp={dp}")


class Sources:
    """For each target fragment the source fragments that may serve it, no box twice."""

    def __init__(self, tensors: Tensors, fragments: Sequence[Any]) -> None:
        self.tensors = tensors
        self.by_tensor = grouped(fragments, lambda one: one.tensor_id)
        self.indexes: dict[tuple[TensorId, Optional[int]], BoxIndex] = {}
        self.stored = not any(isinstance(one, PlacementFragment) for one in fragments)
        if not self.stored:
            self.replicas = complete_parallel_source_replicas(tensors, fragments)
            self.owners = complete_dp_owned_source_owners(tensors, fragments)

    def serving(self, target: PlacementFragment) -> BoxIndex:
        """Replicas take turns: target ranks take the source ranks one after the other, and from the first on again."""
        tensor = self.tensors[target.tensor_id]
        dp = None
        if not self.stored and not has_dp_ownership(tensor):
            dp = list(self.replicas)[target.rank.dp % len(self.replicas)]
        key = (target.tensor_id, dp)
        if key not in self.indexes:
            self.indexes[key] = BoxIndex(self._chosen(tensor, dp))
        return self.indexes[key]

    def _chosen(self, tensor: TensorDescriptor, dp: Optional[int]) -> list[Any]:
        held = self.by_tensor[tensor.tensor_id]
        if self.stored:
            return held
        owner = self.owners[tensor.tensor_id] if dp is None else self.replicas[dp][tensor.tensor_id]
        eligible = [one for one in held if parallel_tensor_owner(tensor, one) == owner and dp in (None, one.rank.dp)]
        eligible.sort(key=lambda one: (one.rank.order, one.fragment_id))
        return [alike[0] for alike in grouped(eligible, lambda one: (one.global_offset, one.local_shape)).values()]
