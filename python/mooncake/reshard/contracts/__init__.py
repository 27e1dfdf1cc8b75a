# SPDX-License-Identifier: Apache-2.0
"""What the manifests of every kind of resource have in common: names, protocols, and the memory that a part lies in."""

from mooncake.reshard.contracts.fragments import RuntimeBindingFragment
from mooncake.reshard.contracts.ids import (LeaseId, ParticipantId, PlacementFragmentId, PlacementId, PlacementSetId, ResourceId, RevisionId,
                                            RuntimeFragmentId, RuntimeInstanceId, StoredFragmentId, TensorId, TopologyId)
from mooncake.reshard.contracts.manifest import (PlacementManifest, ResourceKind, ResourceManifest, RuntimeBindingManifest, StoredResourceManifest,
                                                 validate_resource_binding_identity)

__all__ = ["LeaseId", "ParticipantId", "PlacementFragmentId", "PlacementId", "PlacementManifest", "PlacementSetId", "ResourceId", "ResourceKind",
           "ResourceManifest", "RevisionId", "RuntimeBindingManifest", "RuntimeBindingFragment", "RuntimeFragmentId", "RuntimeInstanceId",
           "StoredFragmentId", "TensorId", "TopologyId", "StoredResourceManifest", "validate_resource_binding_identity"]
