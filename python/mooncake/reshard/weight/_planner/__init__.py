# SPDX-License-Identifier: Apache-2.0
"""The planner. Import from mooncake.reshard.weight."""
