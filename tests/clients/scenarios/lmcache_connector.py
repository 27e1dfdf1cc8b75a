"""LMCache 0.5.6, mooncakestore:// connector. argv: save_chunk_meta (0 or 1), then what to do: "write" or "read".

`read` runs in another process than `write`, on the same cluster, and finds the same bytes.
"""
import asyncio
import sys

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from steps import MASTER, METADATA, digest, fill, loop_beside, scenario, step

CHUNK = 64
SHAPE = (4, 2, CHUNK, 2, 32)  # layers, K and V, tokens, heads, head size
COUNT = 6
WAIT_S = 60


def main():
    with_meta, what = bool(int(sys.argv[1])), sys.argv[2]
    loop = loop_beside()

    def wait(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT_S)

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=False,
        max_local_cpu_size=0.05,
        remote_url=f"mooncakestore://{MASTER}/",
        extra_config={
            "local_hostname": "127.0.0.1",
            "metadata_server": METADATA,
            "mooncake_master_server_addr": MASTER,
            "global_segment_size": 32 << 20,
            "local_buffer_size": 16 << 20,
            "transfer_timeout": 20,
            "save_chunk_meta": with_meta,
            "mooncake_prefer_local_alloc": what == "write",
        },
    )
    metadata = LMCacheMetadata("lane/model", 1, 1, 0, 0, torch.bfloat16, SHAPE, chunk_size=CHUNK)
    backend = LocalCPUBackend(config, metadata, "cpu")
    connector = CreateConnector(config.remote_url, loop, backend, config, metadata)
    shape = metadata.get_shapes()[0]

    def key(number):
        return CacheEngineKey("lane/model", 1, 0, 0xABC000 + number + 1000 * with_meta, torch.bfloat16)

    def chunk(number, tokens=CHUNK):
        size = torch.Size([shape[0], shape[1], tokens, shape[3]])
        made = backend.allocate(size, torch.bfloat16, MemoryFormat.KV_2LTD)
        fill(made.tensor, number)
        return made

    def got(objects):
        return [None if item is None else [list(item.tensor.shape), digest(item.tensor)] for item in objects]

    if what == "write":
        step("exists before")(lambda: bool(connector.exists_sync(key(0))))
        step("put one")(lambda: wait(connector.put(key(0), chunk(0))))
        step("put batch")(lambda: wait(connector.batched_put([key(i) for i in range(1, COUNT)], [chunk(i) for i in range(1, COUNT)])))
        step("put a part of a chunk")(lambda: wait(connector.put(key(COUNT), chunk(COUNT, tokens=CHUNK // 4))))
        step("put again")(lambda: wait(connector.put(key(0), chunk(77))))
        step("bytes put")(lambda: [digest(chunk(i).tensor) for i in range(COUNT)] + [digest(chunk(COUNT, CHUNK // 4).tensor)])
    step("exists")(lambda: [bool(wait(connector.exists(key(i)))) for i in range(COUNT + 2)])
    step("how many of the first")(lambda: wait(connector.batched_async_contains("lookup", [key(i) for i in range(COUNT + 3)])))
    step("get batch")(lambda: got(wait(connector.batched_get([key(i) for i in range(COUNT + 1)]))))
    step("get with misses")(lambda: got(wait(connector.batched_get([key(500), key(2), key(501)]))))
    step("get at once from threads")(lambda: [got(x) for x in wait(many(connector, key))])
    if what == "read":
        step("close")(lambda: wait(connector.close()))
    else:
        sys.stdin.readline()  # keeps its segment until the reader is done


async def many(connector, key):
    return await asyncio.gather(*(connector.batched_get([key(i), key(i + 1)]) for i in range(COUNT - 1)))


if __name__ == "__main__":
    with scenario():
        main()
