# SPDX-License-Identifier: Apache-2.0
"""Tensors, the axes along which ranks share them, and the boxes that ranks hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Literal, Optional, Union

from mooncake.reshard import _check, _json
from mooncake.reshard.contracts import PlacementFragmentId, RuntimeBindingFragment, TensorId

__all__ = ["OwnershipAxis", "ParallelAxis", "ParallelAxisKind", "ParallelRank", "PlacementFragment", "ReplicatedAxis", "RuntimeBindingFragment",
           "SplitAxis", "SplitAxisKind", "TensorDescriptor", "validate_fragment_geometry"]

ParallelAxisKind = Literal["dp", "pp", "ep", "tp"]
SplitAxisKind = Literal["ep", "tp"]
AXIS_KINDS = ("dp", "pp", "ep", "tp")  # the order in which a tensor names its axes


@dataclass(frozen=True)
class ParallelRank:
    """The coordinates of one rank. What it holds they do not say: boxes do."""

    dp: int = 0
    tp: int = 0
    pp: int = 0
    ep: int = 0

    def __post_init__(self) -> None:
        for kind, value in vars(self).items():
            _check.integer(value, f"parallel rank {kind}")

    @property
    def order(self) -> tuple[int, ...]:
        """Ranks in the order in which a plan names them."""
        return tuple(getattr(self, kind) for kind in AXIS_KINDS)

    def on(self, kinds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """The coordinates on some axes, by which ranks are grouped."""
        return tuple((kind, getattr(self, kind)) for kind in kinds)


def _check_axis_kind(kind: object) -> None:
    if _check.text(kind, "parallel axis kind") not in AXIS_KINDS:
        raise ValueError(f"unsupported parallel axis kind: {kind}")


@dataclass(frozen=True)
class SplitAxis:
    """The ranks of this axis have each a slice, along one dimension."""

    kind: SplitAxisKind
    dim: int
    semantics: ClassVar[str] = "split"

    def __post_init__(self) -> None:
        _check_axis_kind(self.kind)
        if self.kind not in ("ep", "tp"):
            raise ValueError(f"{self.kind} cannot use split semantics")
        _check.integer(self.dim, "split axis dim")
        if self.kind == "ep" and self.dim != 0:
            raise ValueError("EP must split the leading logical expert dimension")

    def _wire(self) -> dict[str, Any]:
        return {"semantics": self.semantics, **vars(self)}


@dataclass(frozen=True)
class ReplicatedAxis:
    """The ranks of this axis have each the whole."""

    kind: ParallelAxisKind
    semantics: ClassVar[str] = "replicated"

    def __post_init__(self) -> None:
        _check_axis_kind(self.kind)

    _wire = SplitAxis._wire


@dataclass(frozen=True)
class OwnershipAxis:
    """Some ranks of this axis have the whole, the others nothing."""

    kind: ParallelAxisKind
    semantics: ClassVar[str] = "ownership"

    def __post_init__(self) -> None:
        _check_axis_kind(self.kind)

    _wire = SplitAxis._wire


ParallelAxis = Union[SplitAxis, ReplicatedAxis, OwnershipAxis]
AXES: Mapping[str, type] = {axis.semantics: axis for axis in (SplitAxis, ReplicatedAxis, OwnershipAxis)}


@dataclass(frozen=True)
class TensorDescriptor:
    """A whole tensor. `layout_fingerprint` names what else its bytes depend on: tensors with different ones are never copied into each other."""

    tensor_id: TensorId
    global_shape: tuple[int, ...]
    dtype: str
    itemsize: int
    shard_dims: tuple[int, ...]
    layout_fingerprint: str
    parallel_axes: tuple[ParallelAxis, ...]
    layer_id: Optional[int] = None
    expert_id: Optional[int] = None

    def __post_init__(self) -> None:
        _check.settle(self, global_shape=_check.integers(self.global_shape, "global_shape", 1))
        if not self.global_shape:
            raise ValueError("global_shape must not be empty")
        _check.texts(self, "tensor_id", "dtype")
        _check.integer(self.itemsize, "itemsize", 1)
        self._settle_shard_dims()
        self._settle_axes()
        for name in ("layer_id", "expert_id"):
            if getattr(self, name) is not None:
                _check.integer(getattr(self, name), name)
        if self.expert_id is not None and "ep" in self.kinds(SplitAxis):
            raise ValueError("an individually allocated expert requires explicit EP ownership")
        _check.text(self.layout_fingerprint, "layout_fingerprint")

    def _settle_shard_dims(self) -> None:
        dims = _check.integers(self.shard_dims, "shard_dims")
        if len(dims) != len(set(dims)):
            raise ValueError("shard_dims must not contain duplicates")
        if tuple(sorted(dims)) != dims:
            raise ValueError("shard_dims must be sorted")
        if any(dim >= len(self.global_shape) for dim in dims):
            raise ValueError("shard_dims contains an out-of-range dimension")
        _check.settle(self, shard_dims=dims)

    def _settle_axes(self) -> None:
        axes = _check.sequence(self.parallel_axes, "TensorDescriptor parallel_axes")
        if not all(isinstance(axis, tuple(AXES.values())) for axis in axes):
            raise ValueError("TensorDescriptor parallel_axes must contain explicit axis values")
        if len({axis.kind for axis in axes}) != len(axes):
            raise ValueError("parallel_axes must not contain duplicate kinds")
        dims = [axis.dim for axis in axes if isinstance(axis, SplitAxis)]
        if len(set(dims)) != len(dims):
            raise ValueError("split axes must not share a dimension")
        if any(dim >= len(self.global_shape) for dim in dims):
            raise ValueError("split axis dimension is out of range")
        if tuple(sorted(dims)) != self.shard_dims:
            raise ValueError("parallel axis split dimensions conflict with shard_dims")
        _check.settle(self, parallel_axes=tuple(sorted(axes, key=lambda axis: AXIS_KINDS.index(axis.kind))))

    def kinds(self, *semantics: type) -> tuple[str, ...]:
        """The kinds of the axes that are of these classes."""
        return tuple(axis.kind for axis in self.parallel_axes if isinstance(axis, semantics))

    def is_like(self, other: TensorDescriptor) -> bool:
        """Whether only the names differ."""
        return replace(self, tensor_id=other.tensor_id) == other


Tensors = Mapping[TensorId, TensorDescriptor]  # by name


def validate_fragment_geometry(tensor: TensorDescriptor, *, fragment_id: str, global_offset: tuple[int, ...], local_shape: tuple[int, ...],
                               nbytes: int) -> None:
    """ValueError unless the box lies within the tensor and has as many bytes as elements need."""
    if not len(global_offset) == len(local_shape) == len(tensor.global_shape):
        raise ValueError(f"fragment rank mismatch: {fragment_id}")
    if any(offset + extent > whole for offset, extent, whole in zip(global_offset, local_shape, tensor.global_shape)):
        raise ValueError(f"fragment is out of bounds: {fragment_id}")
    wanted = prod(local_shape) * tensor.itemsize
    if nbytes != wanted:
        raise ValueError(f"fragment byte size mismatch: {fragment_id}: expected {wanted}, got {nbytes}")


def alias_group(aliases: object, tensor_id: TensorId) -> tuple[TensorId, ...]:
    """The names of tensors that may share this memory: none, or at least two, with this tensor's own."""
    group = _check.sequence(aliases, "aliases")
    if any(type(alias) is not str or not alias for alias in group):
        raise ValueError("aliases must contain non-empty strings")
    if len(set(group)) != len(group):
        raise ValueError("aliases must not contain duplicates")
    if len(group) == 1:
        raise ValueError("alias group must contain at least two tensor IDs")
    if group and tensor_id not in group:
        raise ValueError("alias group must contain the fragment tensor_id")
    return tuple(sorted(group))


@dataclass(frozen=True)
class PlacementFragment:
    """The box of a tensor that one rank holds. Without a name of its own it is named by its content."""

    tensor_id: TensorId
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    nbytes: int
    rank: ParallelRank
    pipeline_stage_id: Optional[int] = None
    aliases: tuple[TensorId, ...] = ()
    placement_fragment_id: PlacementFragmentId = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _check.settle(self, global_offset=_check.integers(self.global_offset, "global_offset"),
                      local_shape=_check.integers(self.local_shape, "local_shape", 1))
        _check.text(self.tensor_id, "tensor_id")
        _check.u64(self.nbytes, "nbytes", 1)
        if not isinstance(self.rank, ParallelRank):
            raise ValueError("rank must be a ParallelRank")
        if self.pipeline_stage_id is not None:
            _check.integer(self.pipeline_stage_id, "pipeline_stage_id")
        _check.settle(self, aliases=alias_group(self.aliases, self.tensor_id))
        if self.placement_fragment_id is None:
            content = self._wire()
            del content["placement_fragment_id"]
            _check.settle(self, placement_fragment_id=_json.identity("weight-placement-fragment", **content))
        _check.text(self.placement_fragment_id, "placement_fragment_id")

    @property
    def fragment_id(self) -> PlacementFragmentId:
        return self.placement_fragment_id

    def _wire(self) -> dict[str, Any]:
        """A stage is written only if there is one, so that names of those without stay what they were before there were stages."""
        fields = dict(vars(self))
        if self.pipeline_stage_id is None:
            del fields["pipeline_stage_id"]
        return fields
