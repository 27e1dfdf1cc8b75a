# SPDX-License-Identifier: Apache-2.0
"""Protocols of manifests: what has these attributes is one, whatever its class."""

from enum import Enum
from typing import Protocol

from mooncake.reshard.contracts.ids import LeaseId, PlacementId, ResourceId, RuntimeInstanceId


class ResourceKind(str, Enum):
    """What a manifest is about; the value stands in its JSON."""

    MODEL_WEIGHT = "model_weight"
    KV_CACHE = "kv_cache"


class ResourceManifest(Protocol):
    """Anything that is about one named resource."""

    @property
    def resource_id(self) -> ResourceId: ...

    @property
    def resource_kind(self) -> ResourceKind: ...


class PlacementManifest(ResourceManifest, Protocol):
    """Who holds which part, without addresses. The digest is of the canonical JSON."""

    @property
    def placement_id(self) -> PlacementId: ...

    @property
    def digest(self) -> str: ...


class RuntimeBindingManifest(ResourceManifest, Protocol):
    """Where one running instance has its parts of a placement, valid for a generation and a lease."""

    @property
    def placement_id(self) -> PlacementId: ...

    @property
    def placement_digest(self) -> str: ...

    @property
    def instance_id(self) -> RuntimeInstanceId: ...

    @property
    def generation(self) -> int: ...

    @property
    def lease_id(self) -> LeaseId: ...


class StoredResourceManifest(ResourceManifest, Protocol):
    """Where a resource lies in the store."""

    namespace: str
    group_id: str
    manifest_key: str
    created_at: str


def validate_resource_binding_identity(placement: PlacementManifest, binding: RuntimeBindingManifest) -> None:
    """ValueError unless the binding was made for exactly this placement."""
    for name in ("resource_kind", "resource_id"):
        if getattr(placement, name) != getattr(binding, name):
            raise ValueError(f"placement and runtime binding {name} differ")
    if placement.placement_id != binding.placement_id:
        raise ValueError("placement_id and runtime binding placement_id differ")
    if placement.digest != binding.placement_digest:
        raise ValueError("placement digest and runtime binding placement digest differ")
