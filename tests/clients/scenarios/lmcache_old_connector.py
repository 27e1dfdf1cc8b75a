"""LMCache 0.3.9, mooncakestore:// connector and lookup client: setup with seven positional arguments. argv as for lmcache_connector.py."""
import asyncio
import sys
import types

import torch
from lmcache.config import LMCacheEngineMetadata
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.mooncakestore_connector import MooncakestoreConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.token_database import ChunkedTokenDatabase
from steps import MASTER, METADATA, digest, fill, loop_beside, scenario, step

CHUNK = 64
TOKENS = list(range(500, 500 + 3 * CHUNK))
SHAPE = (4, 2, CHUNK, 2, 32)
COUNT = 5
WAIT_S = 60


def lookup_client(config, metadata):
    """Its configuration comes from a vLLM that is not here."""
    vllm = types.ModuleType("lmcache.integration.vllm.utils")
    vllm.create_lmcache_metadata, vllm.ENGINE_NAME = lambda unused: (metadata, config), "lane"
    sys.modules[vllm.__name__] = vllm
    from lmcache.v1.lookup_client.mooncake_lookup_client import MooncakeLookupClient

    return MooncakeLookupClient(None, MASTER)


def main():
    with_meta, what = bool(int(sys.argv[1])), sys.argv[2]
    loop = loop_beside()

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

    token_keys = [key for _, _, key in ChunkedTokenDatabase(config, metadata).process_tokens(TOKENS)]
    if what == "write":
        step("put by tokens")(lambda: [wait(connector.put(key, chunk(i))) for i, key in enumerate(token_keys)])
        step("put")(lambda: [wait(connector.put(key(i), chunk(i))) for i in range(COUNT)])
        step("bytes put")(lambda: [digest(chunk(i).tensor) for i in range(COUNT)])
    step("exists")(lambda: [bool(wait(connector.exists(key(i)))) for i in range(COUNT + 2)])
    step("get batch")(lambda: got(wait(connector.batched_get([key(i) for i in range(COUNT)]))))
    step("get with misses")(lambda: got(wait(connector.batched_get([key(500), key(2)]))))
    if what == "read":
        step("close")(lambda: wait(connector.close()))
    else:
        # In this process: without vLLM the hash of tokens is Python's own, and before 3.12 that of None is another in each.
        client = lookup_client(config, metadata)
        step("lookup all")(lambda: client.lookup(TOKENS))
        step("lookup a beginning")(lambda: client.lookup(TOKENS[: 2 * CHUNK] + [9] * CHUNK))
        step("lookup nothing")(lambda: client.lookup([7] * CHUNK))
        sys.stdin.readline()


if __name__ == "__main__":
    with scenario():
        main()
