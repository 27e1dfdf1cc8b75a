# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which part of a model's weights, in memory or in the store, and what to copy so that others hold them otherwise.

    plan = plan_placement_transfer(source, target)           # WeightPlacementManifest both
    for region in plan.operations:                           # source and target: the fragments that it is copied from and to
        for source_offset, target_offset, nbytes in region.iter_segments(max_segments=1 << 20):
            ...
"""

from mooncake.reshard.weight.manifest import (OwnershipAxis, ParallelRank, ParallelTopology, PlacementFragment, ReplicatedAxis,
                                              RuntimeBindingFragment, SplitAxis, TensorDescriptor, TopologyParticipant, WeightPlacementManifest,
                                              WeightPlacementPart, WeightRuntimeBindingManifest, validate_runtime_binding,
                                              validate_runtime_bindings)
from mooncake.reshard.weight.planner import (LogicalTransferOperation, LogicalTransferPlan, PipelineRouteGroup, PlacementExecutorPlan,
                                             PlanningLimits, TransferRegion, plan_placement_transfer, plan_placement_transfer_to_local_target,
                                             plan_stored_transfer_to_target_placement)
from mooncake.reshard.weight.serde import weight_placement_from_json, weight_placement_to_json
from mooncake.reshard.weight.storage_manifest import StoredFragment, WeightManifest

__all__ = ["ParallelRank", "ParallelTopology", "PlacementFragment", "WeightPlacementManifest", "WeightPlacementPart", "RuntimeBindingFragment",
           "WeightRuntimeBindingManifest", "SplitAxis", "ReplicatedAxis", "OwnershipAxis", "TensorDescriptor", "TopologyParticipant",
           "validate_runtime_binding", "validate_runtime_bindings", "weight_placement_from_json", "weight_placement_to_json", "StoredFragment",
           "WeightManifest", "LogicalTransferPlan", "LogicalTransferOperation", "PipelineRouteGroup", "PlacementExecutorPlan", "PlanningLimits",
           "TransferRegion", "plan_placement_transfer", "plan_placement_transfer_to_local_target", "plan_stored_transfer_to_target_placement"]
