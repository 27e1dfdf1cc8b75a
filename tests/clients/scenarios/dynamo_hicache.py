"""Dynamo's router (ai-dynamo-runtime 1.6.1) with the shared cache of SGLang's HiCache: its own reader of the KV events of a Mooncake master, unmodified.

argv: where these are published. Led by words: "hits" gives, of a prompt of PAGES pages, whether each page is in the shared cache, as the router
counts it for a worker. What a worker of SGLang would say about itself is said here; there is no worker.
"""
import asyncio
import json
import os
import sys
import tempfile

PAGES, PAGE = 4, 16
TOKENS = list(range(1, PAGES * PAGE + 1))
FOLDER = tempfile.TemporaryDirectory()
os.environ.update(DYN_FILE_KV=FOLDER.name, DYN_LOG="info")

from dynamo.llm import KvRouter, KvRouterConfig, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model  # noqa: E402
from dynamo.runtime import DistributedRuntime  # noqa: E402
from steps import led, loop_beside  # noqa: E402


def worker_config(endpoint):
    config = ModelRuntimeConfig()
    config.set_engine_specific("sglang_hicache_mooncake", json.dumps({
        "backend": "mooncake", "page_size": PAGE, "tp_size": 1, "pp_size": 1, "is_mla_model": True, "is_eagle": False, "should_split_heads": False,
        "kv_events_endpoint": endpoint}))
    return config


async def router(endpoint):
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp", event_plane="zmq")
    place = runtime.endpoint("test.backend.generate")

    async def generate(_request):
        yield {}
    served = asyncio.ensure_future(place.serve_endpoint(generate))
    await register_model(ModelInput.Tokens, ModelType.Chat, place, "model", "model", worker_type=WorkerType.Aggregated, kv_cache_block_size=PAGE,
                         runtime_config=worker_config(endpoint), skip_model_assets=True)
    return runtime, served, KvRouter(place, PAGE, KvRouterConfig(use_kv_events=False, shared_cache_type="hicache"))


class Lane:
    def __init__(self, endpoint):
        self.loop = loop_beside()
        self.runtime, self.served, self.router = self.run(router(endpoint))

    def run(self, what):
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(60)

    def hits(self):
        async def ask():
            return await self.router.get_overlap_scores(TOKENS)
        return self.run(ask())


led(lambda: Lane(sys.argv[1]), lambda lane, words: lane.hits())
