# SPDX-License-Identifier: Apache-2.0
"""The Mooncake store: a pool of memory over many machines, in which objects are put and found by key.

See MooncakeDistributedStore. Codes: 0 or a count is success, negative is an error of include/mooncake.h.

The calls on bytes are those of the extension module ``mooncake._store``; this module adds setup, the calls on tensors, the pools of buffers
and the small types.
torch is imported by the first call that needs it, never by this module.
"""

from mooncake import _store
from mooncake._buffer_pool import BufferLease, BufferLeaseView, BufferPool
from mooncake._host import MooncakeHostMemAllocator, bind_to_numa_node
from mooncake._setup import SetupCalls
from mooncake._store import *  # noqa: F403  (the extension has no __all__: its public names)
from mooncake._store import __version__  # noqa: F401
from mooncake._tensor import TensorCalls
from mooncake._tensor import deserialize as _deserialize_tensor
from mooncake._tensor import metadata_size as _tensor_metadata_size
from mooncake._tensor import serialize as _serialize_tensor
from mooncake._tensor_parallel import ParallelAxis, ParallelTensorCalls, ReadTarget, TensorParallelism
from mooncake._types import *  # noqa: F403

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView


class MooncakeDistributedStore(ParallelTensorCalls, TensorCalls, SetupCalls, _store.MooncakeDistributedStore):
    __doc__ = _store.MooncakeDistributedStore.__doc__

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()


def _get_pyclient_from_wrapper(wrapper):
    """Raises NotImplementedError: there is no C++ object behind a store."""
    raise NotImplementedError("_get_pyclient_from_wrapper: there is no C++ object behind a store.")


for _each in (BufferLease, BufferLeaseView, BufferPool, ParallelAxis, ReadTarget, TensorParallelism):
    _each.__module__ = __name__
del _each, SetupCalls, TensorCalls, ParallelTensorCalls
