# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which part of a model's weights, and what must be copied where to hold them otherwise.

`mooncake.reshard.weight` describes weights and plans copies; `mooncake.reshard.contracts` is what every kind of resource has in common. Pure
Python, no address, no framework: whoever copies attaches the addresses.
"""

from mooncake.reshard.contracts import PlacementManifest, ResourceKind, ResourceManifest, RuntimeBindingManifest

__all__ = ["ResourceKind", "ResourceManifest", "PlacementManifest", "RuntimeBindingManifest"]
