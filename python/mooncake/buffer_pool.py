# SPDX-License-Identifier: Apache-2.0
"""The pools of buffers of mooncake.store, under the module name that some programs import them from."""

from mooncake.store import BufferPool

RegisteredBufferPool = BufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
