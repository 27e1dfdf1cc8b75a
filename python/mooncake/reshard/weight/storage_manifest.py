# SPDX-License-Identifier: Apache-2.0
"""Weights that lie in the store: which object, and where in it, has which box of which tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Union

from mooncake.reshard import _check, _json
from mooncake.reshard.contracts import ResourceId, ResourceKind, RevisionId, StoredFragmentId, TensorId
from mooncake.reshard.geometry import any_overlap
from mooncake.reshard.weight._cover import boxes_of, check_inventory, grouped
from mooncake.reshard.weight.serde import ANY, TEXT, TEXTS, at_least, each_at_least, read_fields, read_tensor
from mooncake.reshard.weight.types import TensorDescriptor, Tensors, alias_group

__all__ = ["StoredFragment", "StoredManifestIdentity", "WeightManifest", "validate_weight_manifest_snapshot"]

MANIFEST = {"resource_kind": ANY, "namespace": TEXT, "resource_id": TEXT, "revision": TEXT, "weight_generation": ANY, "group_id": TEXT,
            "manifest_key": TEXT, "tensors": ANY, "fragments": ANY, "created_at": TEXT}
FRAGMENT = {"fragment_id": TEXT, "tensor_id": TEXT, "global_offset": each_at_least(0), "local_shape": each_at_least(1), "object_key": TEXT,
            "object_offset": at_least(0), "nbytes": at_least(1), "aliases": TEXTS}


@dataclass(frozen=True)
class StoredManifestIdentity:
    """Where a manifest lies, and the digest of what it says."""

    namespace: str
    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    group_id: str
    manifest_key: str
    content_sha256: str

    def __post_init__(self) -> None:
        _check.texts(self, "namespace", "resource_id", "revision", "group_id", "manifest_key", "content_sha256")
        _check.u64(self.weight_generation, "weight_generation")
        if not _check.is_sha256(self.content_sha256):
            raise ValueError("content_sha256 must be a SHA-256 hex digest")


@dataclass(frozen=True)
class StoredFragment:
    """A box of a tensor, as bytes of an object."""

    fragment_id: StoredFragmentId
    tensor_id: TensorId
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    object_key: str
    object_offset: int
    nbytes: int
    aliases: tuple[TensorId, ...] = ()

    def __post_init__(self) -> None:
        _check.settle(self, global_offset=_check.integers(self.global_offset, "global_offset"),
                      local_shape=_check.integers(self.local_shape, "local_shape", 1))
        _check.texts(self, "fragment_id", "tensor_id", "object_key")
        _check.integer(self.object_offset, "object_offset")
        _check.integer(self.nbytes, "nbytes", 1)
        _check.settle(self, aliases=alias_group(self.aliases, self.tensor_id))


@dataclass(frozen=True)
class WeightManifest:
    """One generation of a model's weights in the store: complete, each element once. Its objects are those of one group."""

    namespace: str
    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    group_id: str
    manifest_key: str
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[StoredFragment, ...]
    created_at: str
    manifest_digest: str = field(init=False)

    def __post_init__(self) -> None:
        _check.texts(self, "namespace", "resource_id", "revision", "group_id", "manifest_key", "created_at")
        _check.settle(self, tensors=_check.items(self.tensors, "WeightManifest tensors", TensorDescriptor),
                      fragments=_check.items(self.fragments, "WeightManifest fragments", StoredFragment))
        _check.u64(self.weight_generation, "weight_generation")
        if self.manifest_key != f"{self.group_id}/manifest":
            raise ValueError("manifest_key does not belong to manifest group")
        if any(not fragment.object_key.startswith(f"{self.group_id}/payload/") for fragment in self.fragments):
            raise ValueError("payload object_key does not belong to manifest group")
        tensors = check_inventory(self.tensors, self.fragments)
        self._check_aliases(tensors)
        self._check_cover()
        self._check_objects()
        _check.settle(self, manifest_digest=_json.sha256(self.to_json()))

    def _check_aliases(self, tensors: Tensors) -> None:
        """Every box of an alias group is there for all its tensors, and these differ by name only."""
        shared = [one for one in self.fragments if one.aliases]
        for one in shared:
            strangers = [name for name in one.aliases if name not in tensors]
            if strangers:
                raise ValueError(f"stored alias references unknown tensor: {strangers[0]}")
        for (group, *_), alike in grouped(shared, lambda one: (one.aliases, one.global_offset, one.local_shape, one.nbytes)).items():
            if {one.tensor_id for one in alike} != set(group):
                raise ValueError("stored alias group is incomplete for fragment geometry")
            if not all(tensors[name].is_like(tensors[group[0]]) for name in group):
                raise ValueError("stored alias tensor descriptors differ")

    def _check_cover(self) -> None:
        by_tensor = grouped(self.fragments, lambda one: one.tensor_id)
        for name, held in by_tensor.items():
            boxes = boxes_of(held)
            if len(set(boxes)) != len(boxes):
                raise ValueError(f"duplicate fragment geometry: {name}")
        for tensor in self.tensors:
            boxes = boxes_of(by_tensor.get(tensor.tensor_id, ()))
            # A box lies within its tensor, so that volume and overlap decide. As many boxes as there are: what is stored must stay readable.
            if sum(prod(shape) for _, shape in boxes) != prod(tensor.global_shape) or any_overlap(boxes, None):
                raise ValueError(f"tensor is not fully covered: {tensor.tensor_id}")

    def _check_objects(self) -> None:
        for key, held in grouped(self.fragments, lambda one: one.object_key).items():
            held.sort(key=lambda one: one.object_offset)
            for one, other in zip(held, held[1:]):
                if other.object_offset < one.object_offset + one.nbytes:
                    raise ValueError(f"stored fragment object ranges overlap: {one.fragment_id} and {other.fragment_id} in {key}")

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT

    @property
    def manifest_identity(self) -> StoredManifestIdentity:
        return StoredManifestIdentity(self.namespace, self.resource_id, self.revision, self.weight_generation, self.group_id, self.manifest_key,
                                      self.manifest_digest)

    def _wire(self) -> dict[str, Any]:
        return {"resource_kind": self.resource_kind.value, **{name: value for name, value in vars(self).items() if name != "manifest_digest"}}

    def to_json(self) -> str:
        return _json.canonical(self, ensure_ascii=False)

    @classmethod
    def from_json(cls, value: Union[str, bytes, bytearray]) -> WeightManifest:
        return cls.from_dict(_json.load(value, "weight manifest"))

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> WeightManifest:
        read = read_fields(raw, MANIFEST, "weight manifest")
        if read.pop("resource_kind") != ResourceKind.MODEL_WEIGHT.value:
            raise ValueError("weight manifest resource_kind must be model_weight")
        tensors = [read_tensor(one, "tensor descriptor", f"stored tensor parallel_axes {index}", "stored tensor ", _check.integer)
                   for index, one in enumerate(_check.sequence(read["tensors"], "WeightManifest tensors"))]
        fragments = [StoredFragment(**read_fields(one, FRAGMENT, "stored fragment", "stored fragment ", _check.integer))
                     for one in _check.sequence(read["fragments"], "WeightManifest fragments")]
        return cls(**{**read, "tensors": tuple(tensors), "fragments": tuple(fragments)})


def validate_weight_manifest_snapshot(manifest: WeightManifest) -> WeightManifest:
    """The same manifest, checked as if it were made anew: of one that was unpickled nothing is known."""
    if not isinstance(manifest, WeightManifest):
        raise ValueError("weight manifest snapshot is invalid")
    try:
        return WeightManifest(**{name: value for name, value in vars(manifest).items() if name != "manifest_digest"})
    except (AttributeError, TypeError) as error:
        raise ValueError("weight manifest snapshot is invalid") from error
