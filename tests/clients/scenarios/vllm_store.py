"""vLLM 0.32.0 on CPU: the worker of MooncakeStoreConnector, led by words on its input: "save", "save more", "lookup", "lookup over zmq", "load", "load
wrong", "reset", "errors", "close".

argv: RANK TP_SIZE SEED. The configuration is a stand-in and the four functions that ask torch.distributed for the rank are replaced, as in vLLM's own unit
tests; worker, threads, coordinator, lookup server and client are vLLM's. `save` stores the KV cache of one request, `load` reads it into other blocks.
"""
import queue
import sys
import time
import types
from unittest import mock

import torch
from steps import digest, fill, scenario, step

import vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker as worker_module
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import LoadSpec, MooncakeStoreConnectorMetadata, ReqMeta
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

BLOCK, BLOCKS, LAYERS, HEADS, SIZE = 16, 32, 3, 4, 32
REQUEST_BLOCKS = 6


class NoEvent:
    """In the place of a CUDA event: what is on a CPU is there."""

    def record(self, *_):
        pass

    def synchronize(self):
        pass


def stand_in(rank):
    model = types.SimpleNamespace(model="lane/vllm-model", get_num_layers=lambda _: LAYERS, get_total_num_kv_heads=lambda: HEADS)
    parallel = types.SimpleNamespace(data_parallel_index=0, pipeline_parallel_size=1, rank=rank, decode_context_parallel_size=1)
    transfer = types.SimpleNamespace(kv_role="kv_both", kv_connector_extra_config={})
    cache = types.SimpleNamespace(block_size=BLOCK, prefix_match_unit=None, enable_prefix_caching=True, num_gpu_blocks=BLOCKS)
    return types.SimpleNamespace(model_config=model, parallel_config=parallel, kv_transfer_config=transfer, cache_config=cache, kv_events_config=None,
                                 speculative_config=None)


def wait(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Lane:
    def __init__(self, rank, tp_size, seed):
        self.rank, self.seed = rank, seed
        one = types.SimpleNamespace(world_size=1, rank_in_group=0)
        for name, value in (("get_tensor_model_parallel_rank", lambda: rank), ("get_tensor_model_parallel_world_size", lambda: tp_size),
                            ("get_pcp_group", lambda: one), ("get_dcp_group", lambda: one), ("get_ip", lambda: "127.0.0.1")):
            setattr(worker_module, name, value)
        self.config = stand_in(rank)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS // tp_size, head_size=SIZE, dtype=torch.bfloat16)
        names = [f"model.layers.{i}.self_attn" for i in range(LAYERS)]
        self.worker = worker_module.MooncakeStoreWorker(self.config, KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)]))
        self.caches = {name: torch.zeros(BLOCKS, 2, BLOCK, HEADS // tp_size, SIZE, dtype=torch.bfloat16) for name in names}
        self.worker.register_kv_caches(self.caches)
        self.client = None

    def hashes(self, seed=None):
        return [bytes([seed if seed is not None else self.seed, i] * 16) for i in range(REQUEST_BLOCKS)]

    def want(self, layer, block, seed=None):
        """Known bytes of a block, by layer and rank."""
        seed = self.seed if seed is None else seed
        shape = next(iter(self.caches.values()))[0]
        return fill(torch.zeros_like(shape), seed * 100000 + self.rank * 10000 + layer * 100 + block)

    # Block 0 is vLLM's null block and never saved.
    def save(self, request="r1", job=1, blocks=range(1, REQUEST_BLOCKS + 1)):
        for layer, cache in enumerate(self.caches.values()):
            for i, block in enumerate(blocks):
                cache[block] = self.want(layer, i)
        meta = MooncakeStoreConnectorMetadata({request}, set())
        meta.add_request(ReqMeta(req_id=request, token_len_chunk=len(blocks) * BLOCK, block_ids=(list(blocks),), block_hashes=self.hashes()[: len(blocks)],
                                 can_save=True, store_job_id=job))
        self.worker.wait_for_save(meta)
        done = {}

        def finished():
            told = self.worker.build_connector_worker_meta()
            done.update(told.completed_saves if told else {})
            return job in done

        came = wait(finished)
        self.worker.get_finished({request}, meta)
        return [came, {str(number): count for number, count in done.items()}]

    def load(self, request="r2", seed=None):
        """Into blocks of the other half, in turned order."""
        blocks = [BLOCKS - 1 - i for i in range(REQUEST_BLOCKS)]
        for cache in self.caches.values():
            cache[BLOCKS // 2:] = 0
        tokens = REQUEST_BLOCKS * BLOCK
        meta = MooncakeStoreConnectorMetadata({request}, set())
        meta.add_request(ReqMeta(req_id=request, token_len_chunk=tokens, block_ids=(blocks,), block_hashes=self.hashes(seed),
                                 load_spec=LoadSpec(vllm_cached_tokens=0, kvpool_cached_tokens=tokens, can_load=True)))
        self.worker.start_load_kv(meta)
        done = set()
        came = wait(lambda: done.update(self.worker.get_finished(set(), meta)[1]) or request in done)
        errors = sorted(self.worker.get_block_ids_with_load_errors())
        same = all(torch.equal(cache[block].view(torch.uint8), self.want(layer, i, seed).view(torch.uint8))
                   for layer, cache in enumerate(self.caches.values()) for i, block in enumerate(blocks))
        return [came, errors, same, digest(*(cache[block] for cache in self.caches.values() for block in blocks))]

    def lookup(self):
        result = self.worker.lookup(REQUEST_BLOCKS * BLOCK + 5, self.hashes())
        half = self.worker.lookup(3 * BLOCK + 1, self.hashes()[:3])
        none = self.worker.lookup(REQUEST_BLOCKS * BLOCK, self.hashes(200))
        return [int(value[0] if isinstance(value, tuple) else getattr(value, "hit_length", getattr(value, "num_tokens", -1))) for value in (result, half, none)]

    def zmq_client(self):
        if self.client is None:
            self.client = worker_module.LookupKeyClient(self.config)
        return self.client

    def lookup_over_zmq(self):
        result = self.zmq_client().lookup("r9", REQUEST_BLOCKS * BLOCK + 5, self.hashes())
        return int(result[0] if isinstance(result, tuple) else getattr(result, "hit_length", getattr(result, "num_tokens", -1)))

    def act(self, word):
        if word == "save":
            return self.save()
        if word == "save a part":
            return self.save("part", 2, range(1, 3))
        if word == "lookup":
            return self.lookup()
        if word == "lookup over zmq":
            return self.lookup_over_zmq()
        if word == "load":
            return self.load()
        if word == "load what nobody saved":
            return self.load("r3", 250)[:3]
        if word == "reset":
            return self.zmq_client().reset()
        if word == "close":
            return self.worker.close()
        raise ValueError(word)


def main():
    rank, tp_size, seed = (int(word) for word in sys.argv[1:4])
    with mock.patch.object(torch.cuda, "Event", NoEvent):
        holder = queue.Queue()
        step("set up")(lambda: holder.put(Lane(rank, tp_size, seed)))
        lane = holder.get(timeout=1)
        for line in sys.stdin:
            word = line.strip()
            if word == "end":
                return
            step(word)(lambda: lane.act(word))


if __name__ == "__main__":
    with scenario():
        main()
