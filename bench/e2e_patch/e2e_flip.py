"""The negative control of `./dev bench engine-e2e`: in a server that is patched with this, every block that the connector has
loaded gets one wrong bit, after the store has checked and delivered it. The comparison of logprobs must see that.

Nothing of the engine is changed but the store that its loading thread is given.
"""

import ctypes
import sys

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker"
SIGN_BIT = 0x80  # of the upper byte of a bf16


class FlippingStore:
    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def batch_get_into_multi_buffers(self, keys, addresses, sizes):
        results = self._store.batch_get_into_multi_buffers(keys, addresses, sizes)
        for number, (result, parts, lengths) in enumerate(zip(results, addresses, sizes)):
            if result > 0:
                part = number % len(parts)  # another layer in each block
                byte = ctypes.c_uint8.from_address(parts[part] + lengths[part] // 4 * 2 + 1)
                byte.value ^= SIGN_BIT
        print(f"bits flipped: {sum(result > 0 for result in results)}", file=sys.stderr, flush=True)
        return results


def patch(module):
    thread = module.KVCacheStoreRecvingThread
    plain = thread.__init__

    def init(self, store, *rest, **named):
        plain(self, FlippingStore(store), *rest, **named)

    thread.__init__ = init
