# SPDX-License-Identifier: Apache-2.0
"""Where one participant has its part of a placement in memory."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake.reshard import _check
from mooncake.reshard.contracts import (LeaseId, ParticipantId, PlacementId, ResourceId, ResourceKind, RevisionId, RuntimeBindingFragment,
                                        RuntimeInstanceId)

__all__ = ["WeightRuntimeBindingManifest"]


@dataclass(frozen=True)
class WeightRuntimeBindingManifest:
    """Addresses, valid for the placement with this digest, as long as this generation and lease are. Not serialized."""

    resource_id: ResourceId
    placement_id: PlacementId
    placement_digest: str
    instance_id: RuntimeInstanceId
    generation: int
    lease_id: LeaseId
    revision: RevisionId
    participant_id: ParticipantId
    fragments: tuple[RuntimeBindingFragment, ...]

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT

    def __post_init__(self) -> None:
        _check.texts(self, "resource_id", "placement_id", "instance_id", "lease_id", "revision", "participant_id", "placement_digest")
        if not _check.is_sha256(self.placement_digest):
            raise ValueError("placement_digest must be a lowercase SHA-256 digest")
        _check.u64(self.generation, "generation")
        fragments = _check.items(self.fragments, "WeightRuntimeBindingManifest fragments", RuntimeBindingFragment)
        _check.settle(self, fragments=tuple(sorted(fragments, key=lambda one: one.placement_fragment_id)))
        if len({one.placement_fragment_id for one in fragments}) != len(fragments):
            raise ValueError("duplicate placement fragment in runtime binding")
        if len({one.fragment_id for one in fragments}) != len(fragments):
            raise ValueError("duplicate runtime fragment_id in runtime binding")
