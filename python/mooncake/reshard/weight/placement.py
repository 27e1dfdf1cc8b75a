# SPDX-License-Identifier: Apache-2.0
"""A whole placement: the parts of all participants, checked together, with a name made of its content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from mooncake.reshard import _check, _json
from mooncake.reshard.contracts import PlacementId, PlacementSetId, ResourceId, ResourceKind, RevisionId, TensorId
from mooncake.reshard.weight._cover import check_alias_groups, check_complete, check_fragments, grouped
from mooncake.reshard.weight.part import WeightPlacementPart
from mooncake.reshard.weight.topology import ParallelTopology
from mooncake.reshard.weight.types import PlacementFragment, TensorDescriptor, Tensors

__all__ = ["WeightPlacementManifest"]


@dataclass(frozen=True, init=False)
class WeightPlacementManifest:
    """Who holds what of one generation of a model's weights. What holds this has been checked to be complete."""

    resource_id: ResourceId
    placement_id: PlacementId
    revision: RevisionId
    weight_generation: int
    placement_set_id: PlacementSetId
    topology: ParallelTopology
    parts: tuple[WeightPlacementPart, ...]
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[PlacementFragment, ...]
    _digest_cache: Optional[str] = field(init=False, repr=False, compare=False)

    def __init__(self, *, resource_id: ResourceId, revision: RevisionId, weight_generation: int, placement_set_id: PlacementSetId,
                 topology: ParallelTopology, parts: tuple[WeightPlacementPart, ...], placement_id: Optional[PlacementId] = None) -> None:
        _check.settle(self, resource_id=resource_id, revision=revision, weight_generation=weight_generation, placement_set_id=placement_set_id,
                      topology=topology, _digest_cache=None)
        _check.texts(self, "resource_id", "revision", "placement_set_id")
        _check.u64(weight_generation, "weight_generation")
        if not isinstance(topology, ParallelTopology):
            raise ValueError("topology must be a ParallelTopology")
        if placement_id is not None:
            _check.text(placement_id, "placement_id")
        _check.settle(self, parts=tuple(sorted(_check.items(parts, "WeightPlacementManifest parts", WeightPlacementPart),
                                               key=lambda part: part.participant_id)))
        self._check_parts()
        tensors: dict[TensorId, TensorDescriptor] = {}
        for tensor in (tensor for part in self.parts for tensor in part.tensors):
            if tensors.setdefault(tensor.tensor_id, tensor) != tensor:
                raise ValueError(f"placement part tensor descriptor mismatch: {tensor.tensor_id}")
        _check.settle(self, tensors=tuple(tensors[name] for name in sorted(tensors)), fragments=tuple(
            sorted((fragment for part in self.parts for fragment in part.fragments), key=lambda one: one.placement_fragment_id)))
        check_fragments(self.tensors, self.fragments)
        check_alias_groups(self.fragments)
        check_complete(self.tensors, self.fragments, topology)
        canonical_id = _json.identity("complete-weight-placement", **self._content())
        if placement_id not in (None, canonical_id):
            raise ValueError("placement_id does not match canonical logical content")
        _check.settle(self, placement_id=canonical_id)

    def _check_parts(self) -> None:
        """One of each participant, all of this placement."""
        found = [part.participant_id for part in self.parts]
        wanted = {one.participant_id: one.rank for one in self.topology.participants}
        if len(found) != len(set(found)):
            raise ValueError("duplicate placement participant")
        if set(wanted) - set(found):
            raise ValueError(f"missing topology participant: {min(set(wanted) - set(found))}")
        if set(found) - set(wanted):
            raise ValueError(f"unknown topology participant: {min(set(found) - set(wanted))}")
        for part in self.parts:
            for name in ("resource_id", "revision", "weight_generation", "placement_set_id"):
                if getattr(part, name) != getattr(self, name):
                    raise ValueError(f"placement part {name} differs")
            if part.topology_id != self.topology.topology_id:
                raise ValueError("placement part topology_id differs")
            if part.rank != wanted[part.participant_id]:
                raise ValueError("placement part rank differs from topology")

    def _content(self) -> dict[str, Any]:
        """What placement_id is made of."""
        return {name: getattr(self, name)
                for name in ("resource_id", "revision", "weight_generation", "placement_set_id", "topology", "tensors", "parts")}

    def _wire(self) -> dict[str, Any]:
        return {"resource_kind": self.resource_kind.value, "placement_id": self.placement_id, **self._content()}

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON; computed once."""
        if self._digest_cache is None:
            from mooncake.reshard.weight import serde  # not above: it makes placements

            _check.settle(self, _digest_cache=_json.sha256(serde.weight_placement_to_json(self)))
        return self._digest_cache  # type: ignore[return-value]

    @classmethod
    def from_fragments(cls, *, resource_id: ResourceId, revision: RevisionId, weight_generation: int, placement_set_id: PlacementSetId,
                       topology: ParallelTopology, tensors: Sequence[TensorDescriptor], fragments: Sequence[PlacementFragment],
                       placement_id: Optional[PlacementId] = None) -> WeightPlacementManifest:
        """Of everybody's fragments in one list: each goes to the participant that has its rank."""
        tensors = _check.items(tensors, "placement tensors", TensorDescriptor)
        fragments = _check.items(fragments, "placement fragments", PlacementFragment)
        by_id = {tensor.tensor_id: tensor for tensor in tensors}
        used = {fragment.tensor_id for fragment in fragments}
        if len(by_id) != len(tensors):
            raise ValueError("duplicate tensor_id in placement tensors")
        if used - set(by_id):
            raise ValueError(f"unknown tensor_id: {min(used - set(by_id))}")
        if set(by_id) - used:
            raise ValueError(f"global placement contains an unreferenced tensor: {min(set(by_id) - used)}")
        ranks = {one.rank for one in topology.participants}
        for fragment in fragments:
            if fragment.rank not in ranks:
                raise ValueError(f"placement fragment rank has no topology participant: {fragment.fragment_id}")
        held = grouped(fragments, lambda one: one.rank)
        common = {"resource_id": resource_id, "revision": revision, "weight_generation": weight_generation, "placement_set_id": placement_set_id}
        parts = tuple(part_of(one.participant_id, one.rank, by_id, held.get(one.rank, ()), topology_id=topology.topology_id, **common)
                      for one in topology.participants)
        return cls(topology=topology, parts=parts, placement_id=placement_id, **common)  # type: ignore[arg-type]


def part_of(participant_id: Any, rank: Any, tensors: Tensors, fragments: Sequence[PlacementFragment],
            **common: Any) -> WeightPlacementPart:
    """A part with those of the tensors that its fragments are of."""
    used = {fragment.tensor_id for fragment in fragments}
    return WeightPlacementPart(participant_id=participant_id, rank=rank, tensors=tuple(tensors[name] for name in sorted(used)),
                               fragments=tuple(fragments), **common)
