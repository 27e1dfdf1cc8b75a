"""LMCache 0.5.6: MooncakeLookupClient finds what an LMCacheEngine of another process has stored, and that engine's bytes come back.

argv: "store", "retrieve" or "lookup"; one process each, on the same cluster. The engine's GPU connector copies from and to CPU tensors.
"""
import sys

import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector import GPUConnectorInterface
from lmcache.v1.lookup_client.mooncake_lookup_client import MooncakeLookupClient
from lmcache.v1.metadata import LMCacheMetadata
from steps import MASTER, digest, fill, scenario, step, wait_for

CHUNK = 32
LAYERS, HIDDEN = 4, 64
SHAPE = (LAYERS, 2, CHUNK, 2, 32)
TOKENS = list(range(100, 100 + 5 * CHUNK + 7))  # five chunks and a part of one


class CpuConnector(GPUConnectorInterface):
    """The KV cache is one CPU tensor [K and V, layer, token, hidden]."""

    def __init__(self, cache):
        self.cache = cache

    def to_gpu(self, memory_obj, start, end, **kwargs):
        self.cache[:, :, start:end].copy_(memory_obj.tensor)

    def from_gpu(self, memory_obj, start, end, **kwargs):
        memory_obj.tensor.copy_(self.cache[:, :, start:end])

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
        for memory_obj, start, end in zip(memory_objs, starts, ends):
            self.from_gpu(memory_obj, start, end)

    def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs):
        for memory_obj, start, end in zip(memory_objs, starts, ends):
            self.to_gpu(memory_obj, start, end)

    def get_shape(self, num_tokens):
        return torch.Size([2, LAYERS, num_tokens, HIDDEN])


def made_config():
    return LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=False,
        max_local_cpu_size=0.05,
        remote_url=f"mooncakestore://{MASTER}/",
        remote_serde="naive",
        extra_config={
            "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "mooncake_master_server_addr": MASTER,
            # The alias that LMCache's documents write; the original does not know it.
            "master_server_address": MASTER,
            "global_segment_size": 0, "local_buffer_size": 16 << 20, "transfer_timeout": 20, "save_chunk_meta": False,
            "save_unfull_chunk": True,
        },
    )


def main():
    what = sys.argv[1]
    config = made_config()
    metadata = LMCacheMetadata("lane/engine", 1, 1, 0, 0, torch.bfloat16, SHAPE, chunk_size=CHUNK)
    if what == "lookup":
        client = MooncakeLookupClient(config, metadata, MASTER)
        step("lookup all")(lambda: client.lookup(TOKENS))
        step("lookup a beginning")(lambda: client.lookup(TOKENS[: 2 * CHUNK] + [9] * CHUNK))
        step("lookup nothing")(lambda: client.lookup([7] * CHUNK))
        return
    cache = torch.zeros(2, LAYERS, len(TOKENS), HIDDEN, dtype=torch.bfloat16)
    want = fill(cache.clone(), 7)
    if what == "store":
        cache.copy_(want)
    engine = LMCacheEngineBuilder.get_or_create("lane", config, metadata, CpuConnector(cache), lambda *_: None, lambda thing, _: thing)
    engine.post_init()
    if what == "store":
        step("store")(lambda: engine.store(tokens=torch.tensor(TOKENS)))
        # The put goes on in the engine's own thread.
        step("stored")(lambda: wait_for(lambda: engine.lookup(TOKENS) >= 5 * CHUNK, 30))
    step("lookup by the engine")(lambda: engine.lookup(TOKENS))
    if what == "retrieve":
        found = step("retrieve")(lambda: int(engine.retrieve(torch.tensor(TOKENS), req_id="lane").sum())) or 0
        step("bytes are those stored")(lambda: found > 0 and digest(cache[:, :, :found]) == digest(want[:, :, :found]))
        step("nothing beyond")(lambda: int(cache[:, :, found:].count_nonzero()))
    step("destroy")(lambda: LMCacheEngineBuilder.destroy("lane"))


if __name__ == "__main__":
    with scenario():
        main()
