# SPDX-License-Identifier: Apache-2.0
"""Mooncake: a pool of memory over the machines of an inference cluster, in which engines put and find KV cache by key.

Import what you need: ``from mooncake.store import MooncakeDistributedStore, ReplicateConfig``.
"""


def __getattr__(name):
    # Not at import: `import mooncake` must not load the extension.
    if name == "__version__":
        from mooncake.store import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
