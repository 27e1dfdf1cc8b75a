# SPDX-License-Identifier: Apache-2.0
"""Names of things, each a type of its own for whoever checks types; at run time all are str."""

from typing import NewType

LeaseId = NewType("LeaseId", str)
ParticipantId = NewType("ParticipantId", str)
PlacementFragmentId = NewType("PlacementFragmentId", str)
PlacementId = NewType("PlacementId", str)
PlacementSetId = NewType("PlacementSetId", str)
ResourceId = NewType("ResourceId", str)
RevisionId = NewType("RevisionId", str)
RuntimeFragmentId = NewType("RuntimeFragmentId", str)
RuntimeInstanceId = NewType("RuntimeInstanceId", str)
StoredFragmentId = NewType("StoredFragmentId", str)
TensorId = NewType("TensorId", str)
TopologyId = NewType("TopologyId", str)

__all__ = ["LeaseId", "ParticipantId", "PlacementFragmentId", "PlacementId", "PlacementSetId", "ResourceId", "RevisionId", "RuntimeFragmentId",
           "RuntimeInstanceId", "StoredFragmentId", "TensorId", "TopologyId"]
