# SPDX-License-Identifier: Apache-2.0
"""Plans: the regions to copy, and who takes part. A plan that was made, or unpickled, has been checked against its source and target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from math import prod
from typing import Any, Generic, Optional, TypeVar, Union

from mooncake.reshard import _check
from mooncake.reshard.contracts import ParticipantId, PlacementFragmentId, PlacementId, ResourceId, RevisionId, TensorId
from mooncake.reshard.geometry import box_contains, regions_exactly_cover
from mooncake.reshard.weight._cover import grouped
from mooncake.reshard.weight._planner.geometry import loops_over
from mooncake.reshard.weight._planner.ownership import RuntimeTensorOwner
from mooncake.reshard.weight.placement import WeightPlacementManifest
from mooncake.reshard.weight.storage_manifest import StoredFragment, StoredManifestIdentity, WeightManifest, validate_weight_manifest_snapshot
from mooncake.reshard.weight.types import ParallelRank, PlacementFragment, TensorDescriptor

__all__ = ["LogicalTransferPlan", "PlanningLimits", "PipelineRouteGroup", "PlacementExecutorPlan", "RuntimeTensorOwner", "LogicalTransferOperation",
           "LogicalTransferRegion", "TransferRegion"]

S = TypeVar("S", bound=Union[PlacementFragment, StoredFragment])
T = TypeVar("T", bound=Union[PlacementFragment, StoredFragment])


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0


@dataclass(frozen=True)
class PipelineRouteGroup:
    """The operations, by their place in the plan, from one stage of a pipeline to another. A stored source has no stage: None."""

    source_pp: Optional[int]
    source_pipeline_stage_id: Optional[int]
    target_pp: int
    target_pipeline_stage_id: Optional[int]
    operation_indices: tuple[int, ...]

    def __post_init__(self) -> None:
        _check.settle(self, operation_indices=tuple(self.operation_indices))
        for name in ("source_pp", "target_pp", "source_pipeline_stage_id", "target_pipeline_stage_id"):
            value = getattr(self, name)
            if not _is_natural(value) and (value is not None or name == "target_pp"):
                raise ValueError(f"pipeline route {name} must be non-negative")
        if not all(map(_is_natural, self.operation_indices)):
            raise ValueError("pipeline route indices must be non-negative integers")
        if len(self.operation_indices) != len(set(self.operation_indices)):
            raise ValueError("pipeline route has duplicate operation indices")


@dataclass(frozen=True)
class PlanningLimits:
    """A plan beyond these is refused."""

    max_transfer_regions: int = 1_000_000
    max_segments_per_region: int = 1_000_000
    max_total_lowered_segments: int = 10_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not _is_natural(value) or value == 0:
                raise ValueError(f"planning limit {name} must be a positive integer")


@dataclass(frozen=True)
class TransferRegion(Generic[S, T]):
    """What two fragments have in common, and the loops that copy it. There is one right way to say this; another is refused."""

    tensor_id: TensorId
    source: S
    target: T
    overlap_offset: tuple[int, ...]
    overlap_shape: tuple[int, ...]
    source_base_offset: int
    target_base_offset: int
    inner_bytes: int
    outer_loop_counts: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("overlap_offset", "overlap_shape", "outer_loop_counts", "source_strides", "target_strides"):
            _check.settle(self, **{name: _integers(getattr(self, name), name)})
        self._check_box()
        self._check_numbers()
        loops = loops_over(self.source, self.target, self.overlap_offset, self.overlap_shape)
        if self.total_bytes != loops.inner_bytes * prod(loops.outer_loop_counts):
            raise ValueError("transfer region loop geometry does not match overlap")
        for side in ("source", "target"):
            if getattr(self, f"{side}_base_offset") != getattr(loops, f"{side}_base_offset"):
                raise ValueError(f"transfer region {side} base offset is inconsistent")
        if any(getattr(self, name) != value for name, value in loops._asdict().items()):
            raise ValueError("transfer region loop geometry is not canonical")

    def _check_box(self) -> None:
        if not self.tensor_id:
            raise ValueError("transfer region tensor_id must not be empty")
        if not self.source.tensor_id == self.target.tensor_id == self.tensor_id:
            raise ValueError("transfer region tensor mismatch")
        lengths = {len(one) for one in (self.overlap_offset, self.overlap_shape, self.source.global_offset, self.target.global_offset)}
        if len(lengths) > 1 or not self.overlap_offset:
            raise ValueError("transfer region logical rank mismatch")
        if min(self.overlap_offset) < 0 or min(self.overlap_shape) <= 0:
            raise ValueError("transfer region logical box is invalid")
        for side, one in (("source", self.source), ("target", self.target)):
            if not box_contains(one.global_offset, one.local_shape, self.overlap_offset, self.overlap_shape):
                raise ValueError(f"transfer region exceeds {side} logical fragment")

    def _check_numbers(self) -> None:
        for name in ("source_base_offset", "target_base_offset", "inner_bytes"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"transfer region {name} must be an integer")
        if self.source_base_offset < 0 or self.target_base_offset < 0:
            raise ValueError("transfer region base offsets must be non-negative")
        if self.inner_bytes <= 0:
            raise ValueError("transfer region inner_bytes must be positive")
        if not len(self.outer_loop_counts) == len(self.source_strides) == len(self.target_strides):
            raise ValueError("transfer region outer loop rank mismatch")
        if any(count <= 0 for count in self.outer_loop_counts):
            raise ValueError("transfer region outer loop counts must be positive")
        if any(stride < 0 for stride in (*self.source_strides, *self.target_strides)):
            raise ValueError("transfer region strides must be non-negative")

    @property
    def segment_count(self) -> int:
        return prod(self.outer_loop_counts)

    @property
    def total_bytes(self) -> int:
        return self.inner_bytes * self.segment_count

    # The same, in words for a region that has at most one loop.

    @property
    def source_offset(self) -> int:
        return self.source_base_offset

    @property
    def target_offset(self) -> int:
        return self.target_base_offset

    @property
    def nbytes(self) -> int:
        return self.inner_bytes

    @property
    def repeat(self) -> int:
        return self.segment_count

    @property
    def source_stride(self) -> int:
        return self._only_stride("source")

    @property
    def target_stride(self) -> int:
        return self._only_stride("target")

    def _only_stride(self, side: str) -> int:
        strides = getattr(self, f"{side}_strides")
        if len(strides) > 1:
            raise ValueError(f"N-D transfer region has multiple {side} strides")
        return strides[0] if strides else 0

    def validate_bounds(self) -> None:
        """ValueError if a segment lies beyond its fragment: of a region that was unpickled nothing is known."""
        for side in ("source", "target"):
            last = sum((count - 1) * stride for count, stride in zip(self.outer_loop_counts, getattr(self, f"{side}_strides")))
            if getattr(self, f"{side}_base_offset") + last + self.inner_bytes > getattr(self, side).nbytes:
                raise ValueError(f"transfer region exceeds {side} fragment")

    def iter_segments(self, *, max_segments: int) -> Iterator[tuple[int, int, int]]:
        """(offset in the source fragment, offset in the target fragment, bytes) of each contiguous copy."""
        if not _is_natural(max_segments) or max_segments == 0:
            raise ValueError("max_segments must be a positive integer")
        if self.segment_count > max_segments:
            raise ValueError(f"transfer region exceeds max_segments: {self.segment_count} > {max_segments}")
        for index in product(*map(range, self.outer_loop_counts)):
            yield (self.source_base_offset + sum(step * stride for step, stride in zip(index, self.source_strides)),
                   self.target_base_offset + sum(step * stride for step, stride in zip(index, self.target_strides)), self.inner_bytes)


LogicalTransferRegion = TransferRegion[Union[PlacementFragment, StoredFragment], PlacementFragment]
LogicalTransferOperation = LogicalTransferRegion


def _integers(values: Any, name: str) -> tuple[int, ...]:
    try:
        found = () if isinstance(values, (str, bytes, bytearray)) else tuple(values)
    except TypeError as error:
        raise ValueError(f"transfer region {name} must contain integers") from error
    if isinstance(values, (str, bytes, bytearray)) or any(type(one) is not int for one in found):
        raise ValueError(f"transfer region {name} must contain integers")
    return found


@dataclass(frozen=True)
class PlacementExecutorPlan:
    """A participant of a placement that sends or receives, and all fragments that it holds."""

    placement_id: PlacementId
    participant_id: ParticipantId
    rank: ParallelRank
    placement_fragment_ids: tuple[PlacementFragmentId, ...]

    def __post_init__(self) -> None:
        _check.settle(self, placement_fragment_ids=tuple(self.placement_fragment_ids))
        if not (self.placement_id and self.participant_id and self.placement_fragment_ids):
            raise ValueError("placement executor identifiers must not be empty")
        if len(self.placement_fragment_ids) != len(set(self.placement_fragment_ids)):
            raise ValueError("placement executor has duplicate fragment IDs")


@dataclass(frozen=True)
class LogicalTransferPlan:
    """What is copied from where to where. The source is a placement, or what lies in the store: exactly one of both."""

    resource_id: ResourceId
    revision: RevisionId
    source_placement: Optional[WeightPlacementManifest]
    target_placement: WeightPlacementManifest
    source_tensors: tuple[TensorDescriptor, ...]
    target_tensors: tuple[TensorDescriptor, ...]
    operations: tuple[LogicalTransferOperation, ...]
    source_manifest: Optional[WeightManifest] = None
    planning_limits: PlanningLimits = field(default_factory=PlanningLimits)
    source_executors: tuple[PlacementExecutorPlan, ...] = ()
    target_executors: tuple[PlacementExecutorPlan, ...] = ()
    source_manifest_identity: Optional[StoredManifestIdentity] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("source_tensors", "target_tensors", "operations", "source_executors", "target_executors"):
            _check.settle(self, **{name: tuple(getattr(self, name))})
        self._check_types()
        manifest = self.source_manifest and validate_weight_manifest_snapshot(self.source_manifest)
        _check.settle(self, source_manifest=manifest, source_manifest_identity=manifest and manifest.manifest_identity)
        self._check_identity()
        self._check_operations()
        if not all(isinstance(one, PlacementExecutorPlan) for one in (*self.source_executors, *self.target_executors)):
            raise ValueError("logical transfer plan has invalid canonical executor metadata")
        self.validate_source_manifest_snapshot()
        _check.settle(self, _indices={side: self._indices_by_executor(side) for side in ("source", "target")}, _routes=self._grouped_by_stage())
        self._check_target()
        self.validate_source_placement_snapshot()

    # ---- What a plan is checked for, in this order. ----

    def _check_types(self) -> None:
        if not self.resource_id or not self.revision:
            raise ValueError("logical transfer plan identifiers must not be empty")
        for name, value, kind in (("target placement", self.target_placement, WeightPlacementManifest),
                                  ("planning_limits", self.planning_limits, PlanningLimits),
                                  ("source placement", self.source_placement, (WeightPlacementManifest, type(None))),
                                  ("source manifest", self.source_manifest, (WeightManifest, type(None)))):
            if not isinstance(value, kind):
                raise ValueError(f"logical transfer plan {name} is invalid")
        if (self.source_placement is None) == (self.source_manifest is None):
            raise ValueError("logical transfer plan requires exactly one source provenance")

    def _check_identity(self) -> None:
        wanted = (self.resource_id, self.revision)
        for side, placement in (("source", self.source_placement), ("target", self.target_placement)):
            if placement is not None and (placement.resource_id, placement.revision) != wanted:
                raise ValueError(f"logical transfer plan {side} placement identity differs")
        generation, manifest = self.target_placement.weight_generation, self.source_manifest
        if self.source_placement is not None and self.source_placement.weight_generation != generation:
            raise ValueError("logical transfer plan source and target weight_generation differs")
        if manifest is not None and (manifest.resource_id, manifest.revision, manifest.weight_generation) != (*wanted, generation):
            raise ValueError("logical transfer plan source manifest identity differs")

    def _check_operations(self) -> None:
        limits, segments = self.planning_limits, 0
        if len(self.operations) > limits.max_transfer_regions:
            raise ValueError("logical transfer plan exceeds max_transfer_regions")
        for operation in self.operations:
            if not isinstance(operation, TransferRegion):
                raise ValueError("logical transfer plan requires a canonical transfer operation")
            if not isinstance(operation.target, PlacementFragment):
                raise ValueError("logical transfer plan target must be a placement")
            if self.source_placement is not None and not isinstance(operation.source, PlacementFragment):
                raise ValueError("logical transfer plan source must be a placement")
            if self.source_placement is None and not isinstance(operation.source, StoredFragment):
                raise ValueError("logical transfer plan source has no placement")
            operation.validate_bounds()
            if operation.segment_count > limits.max_segments_per_region:
                raise ValueError("logical transfer plan exceeds max_segments_per_region")
            segments += operation.segment_count
        if segments > limits.max_total_lowered_segments:
            raise ValueError("logical transfer plan exceeds max_total_lowered_segments")

    def validate_source_manifest_snapshot(self) -> None:
        """ValueError if the manifest is not the one that was planned with."""
        if self.source_manifest is None:
            if self.source_manifest_identity is not None:
                raise ValueError("logical plan has unexpected source manifest identity")
            return
        manifest = validate_weight_manifest_snapshot(self.source_manifest)
        if self.source_manifest_identity != manifest.manifest_identity:
            raise ValueError("logical plan source manifest identity differs")
        if self.source_tensors != tuple(sorted(manifest.tensors, key=lambda one: one.tensor_id)):
            raise ValueError("logical plan source tensor catalog differs")
        stored: dict[str, StoredFragment] = {fragment.fragment_id: fragment for fragment in manifest.fragments}
        if any(stored.get(operation.source.fragment_id) != operation.source for operation in self.operations):
            raise ValueError("logical plan and source manifest fragment snapshots differ")

    def validate_source_placement_snapshot(self) -> None:
        """ValueError if operations and executors are not those of the source placement."""
        if self.source_placement is None:
            return
        if self.source_tensors != self.source_placement.tensors:
            raise ValueError("logical plan source tensor catalog differs from placement")
        self._check_executors("source", self.source_placement)

    def _check_target(self) -> None:
        """Every executor's fragments are written, each of their bytes once."""
        parts = self._check_executors("target", self.target_placement)
        tensors = {tensor.tensor_id: tensor for part in parts for tensor in part.tensors}
        if self.target_tensors != tuple(tensors[name] for name in sorted(tensors)):
            raise ValueError("logical target tensor catalog differs from placement")
        written = grouped(self.operations, lambda one: one.target.placement_fragment_id)
        for fragment in (fragment for part in parts for fragment in part.fragments):
            if not regions_exactly_cover(fragment, written.get(fragment.placement_fragment_id, ())):
                raise ValueError(f"logical target fragment is not fully covered: {fragment.placement_fragment_id}")

    def _check_executors(self, side: str, placement: WeightPlacementManifest) -> list[Any]:
        """The executors of one side are those participants, as the placement has them, whose fragments operations name. Returns their parts."""
        held = {fragment.placement_fragment_id: (part.participant_id, fragment) for part in placement.parts for fragment in part.fragments}
        taking_part = set()
        for fragment in (getattr(operation, side) for operation in self.operations):
            participant_id, known = held.get(fragment.placement_fragment_id, (None, None))
            if known != fragment:
                raise ValueError(f"logical plan and {side} placement fragment snapshots differ")
            taking_part.add(participant_id)
        executors = getattr(self, f"{side}_executors")
        if not executors:
            raise ValueError(f"logical plan has no {side} executor metadata")
        parts = {part.participant_id: part for part in placement.parts}
        seen = []
        for executor in executors:
            if executor.placement_id != placement.placement_id:
                raise ValueError(f"logical {side} executor placement differs from {side}")
            if executor.participant_id in seen:
                raise ValueError(f"logical plan has duplicate {side} executor participant")
            seen.append(executor.participant_id)
            part = parts.get(executor.participant_id)
            if part is None or executor.rank != part.rank:
                raise ValueError(f"logical {side} executor differs from {side} placement")
            if executor.placement_fragment_ids != tuple(fragment.placement_fragment_id for fragment in part.fragments):
                raise ValueError(f"logical {side} executor fragments differ from {side} placement")
            if executor.participant_id not in taking_part:
                raise ValueError(f"logical {side} executor operations differ from {side} placement")
        if set(seen) != taking_part:
            raise ValueError(f"logical {side} executors differ from planned operations")
        return [parts[name] for name in seen]

    # ---- Views of the operations; not compared, not pickled. ----

    def _indices_by_executor(self, side: str) -> Mapping[PlacementExecutorPlan, tuple[int, ...]]:
        executors = getattr(self, f"{side}_executors")
        if len(set(executors)) != len(executors):
            raise ValueError("transfer plan has duplicate executor projection key")
        of_fragment = grouped(range(len(self.operations)), lambda index: getattr(self.operations[index], side).fragment_id)
        return {executor: tuple(sorted(index for name in executor.placement_fragment_ids for index in of_fragment.get(name, ())))
                for executor in executors}

    def _grouped_by_stage(self) -> tuple[PipelineRouteGroup, ...]:
        def route(index: int) -> tuple[Any, ...]:
            source, target = self.operations[index].source, self.operations[index].target
            of_source = (source.rank.pp, source.pipeline_stage_id) if isinstance(source, PlacementFragment) else (None, None)
            return (*of_source, target.rank.pp, target.pipeline_stage_id)

        groups = grouped(range(len(self.operations)), route)
        ordered = sorted(groups, key=lambda stages: [-1 if one is None else one for one in stages])
        return tuple(PipelineRouteGroup(*stages, tuple(groups[stages])) for stages in ordered)  # type: ignore[call-arg]

    @property
    def total_bytes(self) -> int:
        return sum(operation.total_bytes for operation in self.operations)

    @property
    def source_placement_id(self) -> Optional[PlacementId]:
        return None if self.source_placement is None else self.source_placement.placement_id

    @property
    def target_placement_id(self) -> PlacementId:
        return self.target_placement.placement_id

    @property
    def pipeline_routes(self) -> tuple[PipelineRouteGroup, ...]:
        return self._routes  # type: ignore[attr-defined]

    def operation_indices_for_executor(self, executor: PlacementExecutorPlan, side: str) -> tuple[int, ...]:
        """The operations, by their place in the plan, in which an executor is the "source" or the "target"."""
        if side not in ("source", "target"):
            raise ValueError(f"invalid executor side: {side}")
        if executor not in getattr(self, f"{side}_executors"):
            raise ValueError(f"{side} executor is not part of this logical plan")
        return self._indices[side][executor]  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, object]) -> None:
        _check.settle(self, **state)
        self.__post_init__()
