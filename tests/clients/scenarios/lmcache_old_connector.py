"""LMCache 0.3.9, mooncakestore:// connector: setup with seven positional arguments. argv as for lmcache_connector.py."""
import asyncio
import sys
import threading

import torch
from lmcache.config import LMCacheEngineMetadata
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.mooncakestore_connector import MooncakestoreConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from steps import MASTER, METADATA, digest, fill, scenario, step

CHUNK = 64
SHAPE = (4, 2, CHUNK, 2, 32)
COUNT = 5
WAIT_S = 60


def main():
    with_meta, what = bool(int(sys.argv[1])), sys.argv[2]
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT_S)

    host, port = MASTER.split(":")
    extra = {"local_hostname": "127.0.0.1", "metadata_server": METADATA, "master_server_address": "set by the URL",
             "global_segment_size": 32 << 20, "local_buffer_size": 16 << 20, "transfer_timeout": 20, "save_chunk_meta": with_meta}
    config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=0.05, extra_config=extra)
    metadata = LMCacheEngineMetadata("lane/old", 1, 0, "vllm", torch.bfloat16, SHAPE)
    backend = LocalCPUBackend(config, metadata, "cpu")
    connector = MooncakestoreConnector(host, int(port), "", loop, backend, config)
    connector.init_chunk_meta(config, metadata)
    shape = torch.Size([2, SHAPE[0], CHUNK, SHAPE[3] * SHAPE[4]])

    def key(number):
        return CacheEngineKey("vllm", "lane/old", 1, 0, 0xDEF000 + number + 1000 * with_meta)

    def chunk(number):
        made = backend.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD)
        fill(made.tensor, 50 + number)
        return made

    def got(objects):
        return [None if item is None else [list(item.tensor.shape), digest(item.tensor)] for item in objects]

    if what == "write":
        step("put")(lambda: [wait(connector.put(key(i), chunk(i))) for i in range(COUNT)])
        step("bytes put")(lambda: [digest(chunk(i).tensor) for i in range(COUNT)])
    step("exists")(lambda: [bool(wait(connector.exists(key(i)))) for i in range(COUNT + 2)])
    step("get batch")(lambda: got(wait(connector.batched_get([key(i) for i in range(COUNT)]))))
    step("get with misses")(lambda: got(wait(connector.batched_get([key(500), key(2)]))))
    if what == "read":
        step("close")(lambda: wait(connector.close()))
    else:
        sys.stdin.readline()


if __name__ == "__main__":
    with scenario():
        main()
