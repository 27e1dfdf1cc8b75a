# SPDX-License-Identifier: Apache-2.0
"""Planning: each target fragment is cut along the source fragments that it lies over, and every piece is one region to copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

from mooncake.reshard.contracts import ParticipantId
from mooncake.reshard.geometry import boxes_exactly_cover
from mooncake.reshard.weight._planner.contracts import LogicalTransferOperation, LogicalTransferPlan, PlacementExecutorPlan, PlanningLimits, \
    TransferRegion
from mooncake.reshard.weight._planner.geometry import itemsize_of, loops_over
from mooncake.reshard.weight._planner.ownership import Sources, check_target
from mooncake.reshard.weight.part import WeightPlacementPart
from mooncake.reshard.weight.placement import WeightPlacementManifest
from mooncake.reshard.weight.storage_manifest import WeightManifest
from mooncake.reshard.weight.types import PlacementFragment, TensorDescriptor, Tensors

__all__ = ["plan_placement_transfer", "plan_placement_transfer_to_local_target", "plan_stored_transfer_to_target_placement"]


def plan_placement_transfer(source_placement: WeightPlacementManifest, target_placement: WeightPlacementManifest, *,
                            planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """From one placement to another of the same weights."""
    _check_placement(source_placement, "source")
    _check_placement(target_placement, "target")
    return _plan(source_placement, target_placement, target_placement.parts, planning_limits)


def plan_placement_transfer_to_local_target(source_placement: WeightPlacementManifest, target_placement: WeightPlacementManifest,
                                            target_participant_id: Optional[ParticipantId] = None, *,
                                            planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """As much of that as one participant of the target receives; which may be left out if there is one only."""
    _check_placement(source_placement, "source")
    _check_placement(target_placement, "target")
    if target_participant_id is None:
        if target_placement.topology.world_size != 1:
            raise ValueError("target_participant_id is required for a multi-participant target")
        target_participant_id = target_placement.parts[0].participant_id
    parts = [part for part in target_placement.parts if part.participant_id == target_participant_id]
    if not parts:
        raise ValueError(f"unknown target participant: {target_participant_id}")
    return _plan(source_placement, target_placement, parts, planning_limits, is_local=True)


def plan_stored_transfer_to_target_placement(source_manifest: WeightManifest, target_placement: WeightPlacementManifest, *,
                                             planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """From the store to a placement."""
    _check_placement(target_placement, "target")
    if not isinstance(source_manifest, WeightManifest):
        raise ValueError("source manifest must be a WeightManifest")
    return _plan(source_manifest, target_placement, target_placement.parts, planning_limits)


def _check_placement(placement: object, side: str) -> None:
    if not isinstance(placement, WeightPlacementManifest):
        raise ValueError(f"{side} placement manifests must be WeightPlacementManifest")


def _plan(source: Union[WeightPlacementManifest, WeightManifest], target: WeightPlacementManifest, parts: Sequence[WeightPlacementPart],
          limits: Optional[PlanningLimits], is_local: bool = False) -> LogicalTransferPlan:
    """`parts` are those of the target that are written."""
    for name in ("resource_id", "revision", "weight_generation"):
        if getattr(source, name) != getattr(target, name):
            raise ValueError(f"source and target {name} differ")
    limits = limits or PlanningLimits()
    source_tensors = {tensor.tensor_id: tensor for tensor in source.tensors}
    target_tensors = {tensor.tensor_id: tensor for part in parts for tensor in part.tensors}
    target_fragments = [fragment for part in parts for fragment in part.fragments]
    _check_names(source_tensors, target_tensors, is_local)
    if is_local and not target_fragments:
        raise ValueError("local target manifest has no fragments")
    if not is_local:
        check_target(target_tensors, target_fragments)
    regions = _regions(Sources(source_tensors, source.fragments), source_tensors, target_tensors, target_fragments, limits)
    placement, manifest = (source, None) if isinstance(source, WeightPlacementManifest) else (None, source)
    return LogicalTransferPlan(
        resource_id=target.resource_id, revision=target.revision, source_placement=placement, target_placement=target,
        source_tensors=_sorted(source_tensors), target_tensors=_sorted(target_tensors), operations=regions, source_manifest=manifest,
        planning_limits=limits,
        source_executors=_executors(placement, placement.parts, {one.source.fragment_id for one in regions}) if placement else (),
        target_executors=_executors(target, parts, {one.target.fragment_id for one in regions}))


def _check_names(source: Tensors, target: Tensors, is_local: bool) -> None:
    """A whole target has the tensors of the source; one participant has some of them."""
    missing, unknown = sorted(set(source) - set(target)), sorted(set(target) - set(source))
    if missing and not is_local:
        raise ValueError(f"target manifests are missing tensors: {', '.join(missing)}")
    if unknown:
        raise ValueError(f"target manifests contain unknown tensors: {', '.join(unknown)}")


def _check_alike(source: TensorDescriptor, target: TensorDescriptor) -> None:
    """Axes may differ: that is what planning is for."""
    if source.layout_fingerprint != target.layout_fingerprint:
        raise ValueError(f"layout mismatch for tensor {source.tensor_id}")
    if any(getattr(source, name) != getattr(target, name) for name in ("global_shape", "dtype", "itemsize", "layer_id", "expert_id")):
        raise ValueError(f"tensor descriptor mismatch: {source.tensor_id}")


def _regions(sources: Sources, source_tensors: Tensors, target_tensors: Tensors, target_fragments: Iterable[PlacementFragment],
             limits: PlanningLimits) -> tuple[LogicalTransferOperation, ...]:
    regions: list[LogicalTransferOperation] = []
    segments = 0
    for target in sorted(target_fragments, key=lambda one: one.fragment_id):
        tensor = target_tensors[target.tensor_id]
        _check_alike(source_tensors[target.tensor_id], tensor)
        overlaps = sources.serving(target).overlaps(target)
        if len(regions) + len(overlaps) > limits.max_transfer_regions:
            raise ValueError(f"logical transfer plan exceeds max_transfer_regions: {limits.max_transfer_regions}")
        if not boxes_exactly_cover(target.global_offset, target.local_shape, [(offset, shape) for offset, shape, _ in overlaps]):
            raise ValueError(f"target fragment is not fully covered: {target.fragment_id}")
        for offset, shape, source in overlaps:
            region = _region(tensor, source, target, offset, shape)
            if region.segment_count > limits.max_segments_per_region:
                raise ValueError("logical transfer region exceeds max_segments_per_region: "
                                 f"{region.segment_count} > {limits.max_segments_per_region}")
            segments += region.segment_count
            if segments > limits.max_total_lowered_segments:
                raise ValueError(f"logical transfer plan exceeds max_total_lowered_segments: {segments} > {limits.max_total_lowered_segments}")
            regions.append(region)
    regions.sort(key=lambda one: (one.target.fragment_id, one.target_base_offset, one.source.fragment_id, one.source_base_offset))
    return tuple(regions)


def _region(tensor: TensorDescriptor, source: Any, target: PlacementFragment, offset: tuple[int, ...], shape: tuple[int, ...]
            ) -> LogicalTransferOperation:
    if not itemsize_of(source) == itemsize_of(target) == tensor.itemsize:
        raise ValueError("transfer region fragment itemsize differs from descriptor")
    return TransferRegion(tensor.tensor_id, source, target, offset, shape, **loops_over(source, target, offset, shape)._asdict())


def _executors(placement: WeightPlacementManifest, parts: Sequence[WeightPlacementPart], used: set[str]) -> tuple[PlacementExecutorPlan, ...]:
    """The participants of which a fragment is used."""
    named = [(part, tuple(fragment.placement_fragment_id for fragment in part.fragments)) for part in parts]
    executors = [PlacementExecutorPlan(placement.placement_id, part.participant_id, part.rank, names)
                 for part, names in named if used.intersection(names)]
    return tuple(sorted(executors, key=lambda one: one.rank.order))


def _sorted(tensors: Tensors) -> tuple[TensorDescriptor, ...]:
    return tuple(tensors[name] for name in sorted(tensors))
