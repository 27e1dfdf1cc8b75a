# SPDX-License-Identifier: Apache-2.0
"""The classes of manifests, by one import."""

from mooncake.reshard.weight.binding import validate_runtime_binding, validate_runtime_bindings
from mooncake.reshard.weight.part import WeightPlacementPart
from mooncake.reshard.weight.placement import WeightPlacementManifest
from mooncake.reshard.weight.runtime import WeightRuntimeBindingManifest
from mooncake.reshard.weight.topology import ParallelTopology, TopologyParticipant
from mooncake.reshard.weight.types import (OwnershipAxis, ParallelRank, PlacementFragment, ReplicatedAxis, RuntimeBindingFragment, SplitAxis,
                                           TensorDescriptor)

__all__ = ["ParallelRank", "ParallelTopology", "PlacementFragment", "TopologyParticipant", "WeightPlacementManifest", "WeightPlacementPart",
           "RuntimeBindingFragment", "WeightRuntimeBindingManifest", "SplitAxis", "ReplicatedAxis", "OwnershipAxis", "TensorDescriptor",
           "validate_runtime_binding", "validate_runtime_bindings"]
