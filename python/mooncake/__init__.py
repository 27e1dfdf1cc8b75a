# SPDX-License-Identifier: Apache-2.0
"""Mooncake: a pool of memory over the machines of an inference cluster, in which engines put and find KV cache by key.

Import what you need: ``from mooncake.store import MooncakeDistributedStore, ReplicateConfig``.
"""

from importlib import import_module
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # other parts of the package may lie elsewhere, as with the original

TYPE_CHECKING = False
if TYPE_CHECKING:  # what reads types sees what __getattr__ gives
    from mooncake import buffer_pool, engine, store
    from mooncake.store import BufferPool, RegisteredBufferPool, __version__

__all__ = ["BufferPool", "RegisteredBufferPool"]


def __dir__():
    return sorted({*globals(), *__all__})


def __getattr__(name):
    # Not at import: `import mooncake` must not load the extension.
    if name in ("buffer_pool", "engine", "store"):
        return import_module(f"{__name__}.{name}")
    if name in ("__version__", *__all__):
        from mooncake import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
