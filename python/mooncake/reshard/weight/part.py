# SPDX-License-Identifier: Apache-2.0
"""What one participant holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooncake.reshard import _check
from mooncake.reshard.contracts import ParticipantId, PlacementSetId, ResourceId, RevisionId, TopologyId
from mooncake.reshard.weight._cover import check_fragments
from mooncake.reshard.weight.types import ParallelRank, PlacementFragment, TensorDescriptor

__all__ = ["WeightPlacementPart"]


@dataclass(frozen=True)
class WeightPlacementPart:
    """One participant's fragments, and the tensors that they are of. What is missing, only the whole placement can tell."""

    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    placement_set_id: PlacementSetId
    topology_id: TopologyId
    participant_id: ParticipantId
    rank: ParallelRank
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[PlacementFragment, ...]

    def __post_init__(self) -> None:
        _check.texts(self, "resource_id", "revision", "placement_set_id", "topology_id", "participant_id")
        _check.u64(self.weight_generation, "weight_generation")
        if not isinstance(self.rank, ParallelRank):
            raise ValueError("placement part rank must be a ParallelRank")
        tensors = _check.items(self.tensors, "WeightPlacementPart tensors", TensorDescriptor)
        fragments = _check.items(self.fragments, "WeightPlacementPart fragments", PlacementFragment)
        if any(fragment.rank != self.rank for fragment in fragments):
            raise ValueError("placement part fragment rank differs from part rank")
        idle = {tensor.tensor_id for tensor in tensors} - {fragment.tensor_id for fragment in fragments}
        if idle:
            raise ValueError(f"placement part contains an unreferenced tensor: {min(idle)}")
        _check.settle(self, tensors=tuple(sorted(tensors, key=lambda one: one.tensor_id)),
                      fragments=tuple(sorted(fragments, key=lambda one: one.placement_fragment_id)))
        check_fragments(self.tensors, self.fragments)

    def _wire(self) -> dict[str, Any]:
        """Within the JSON of a placement, which says the rest."""
        return {name: getattr(self, name) for name in ("participant_id", "rank", "fragments")}
