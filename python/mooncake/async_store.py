# SPDX-License-Identifier: Apache-2.0
"""A store whose calls can be awaited: ``await store.async_get(key)`` is ``store.get(key)`` on a thread of the event loop's executor.

Every call of the store releases the GIL, so the loop goes on meanwhile. A call that is cancelled still runs to its end: until then the
memory that it was given must stay.
"""

import asyncio
import functools

from mooncake.store import MooncakeDistributedStore

__all__ = ["MooncakeDistributedStoreAsync"]

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """MooncakeDistributedStore with an ``async_`` form of each of its methods."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.async_close()

    def __getattr__(self, name):
        # Only for names that nothing else defines. A dunder or a private name has no form of its own here.
        method = getattr(type(self), name[len(_PREFIX) :], None) if name.startswith(_PREFIX) else None
        if name[len(_PREFIX) :].startswith("_") or not callable(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @functools.wraps(method)
        async def call(*args, **kwargs):
            # With the context variables of who awaits, of which the span that it is in is one.
            return await asyncio.to_thread(method, self, *args, **kwargs)

        return call
