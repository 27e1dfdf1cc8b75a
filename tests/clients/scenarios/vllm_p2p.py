"""vLLM 0.32.0 on CPU: MooncakeConnectorWorker (P2P) with its bootstrap server, ZMQ side channel and sender threads, led by words on its input.

argv: ROLE ENGINE BOOTSTRAP_PORT; ROLE is kv_producer, kv_consumer or kv_both. Words: "send ID" (a request has been prefilled here), "load ID ENGINE PORT"
(pull it from there),  What asks for an accelerator or for torch.distributed is replaced, as in vLLM's own unit tests.
"""
import os
import sys
import time
import types

ROLE, ENGINE, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(VLLM_MOONCAKE_BOOTSTRAP_PORT=str(PORT), VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT="20", VLLM_MOONCAKE_CONNECTOR_TIMEOUT="20")

import torch  # noqa: E402
from steps import digest, fill, led, scenario  # noqa: E402

import vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector as connector  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402

BLOCK, BLOCKS, LAYERS, HEADS, SIZE = 16, 24, 3, 2, 32
REQUEST_BLOCKS = 5


def replace_what_needs_a_device():
    torch.accelerator.current_device_index = lambda: 0
    connector.current_platform = types.SimpleNamespace(set_device=lambda _: None)
    one = types.SimpleNamespace(world_size=1, rank_in_group=0)
    backend = types.SimpleNamespace(get_name=lambda: "CPU")
    for name, value in (("get_ip", lambda: "127.0.0.1"), ("get_tensor_model_parallel_rank", lambda: 0), ("get_tensor_model_parallel_world_size", lambda: 1),
                        ("get_pp_group", lambda: one), ("get_current_attn_backends", lambda _: [backend]),
                        ("get_current_attn_backends_and_specs", lambda config, cache, backends: (backends, [])),
                        ("select_common_block_size", lambda size, backends, specs: size)):
        assert hasattr(connector, name), name
        setattr(connector, name, value)


def stand_in():
    extra = {"num_workers": 4, "mooncake_protocol": "tcp"}
    transfer = types.SimpleNamespace(kv_role=ROLE, kv_connector_extra_config=extra, get_from_extra_config=extra.get)
    parallel = types.SimpleNamespace(data_parallel_index=0, data_parallel_rank_local=0, local_engines_only=True, pipeline_parallel_size=1,
                                     tensor_parallel_size=1, nnodes_within_dp=1, data_parallel_master_ip="127.0.0.1", rank=0)
    model = types.SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: HEADS)
    return types.SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel, cache_config=types.SimpleNamespace(block_size=BLOCK), model_config=model)


class Lane:
    def __init__(self):
        replace_what_needs_a_device()
        names = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
        self.worker = connector.MooncakeConnectorWorker(stand_in(), ENGINE, KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)]))
        self.caches = {name: torch.zeros(BLOCKS, HEADS, BLOCK, 2 * SIZE, dtype=torch.bfloat16) for name in names}
        self.worker.register_kv_caches(self.caches)
        self.next_block = 1  # block 0 is vLLM's null block

    def blocks(self):
        """The next blocks, so that requests do not share any."""
        first = self.next_block
        self.next_block += REQUEST_BLOCKS
        return list(range(first, first + REQUEST_BLOCKS))

    def want(self, seed, layer, i):
        return fill(torch.zeros_like(next(iter(self.caches.values()))[0]), seed * 1000 + layer * 100 + i)

    def digest(self, blocks):
        return digest(*(cache[block] for cache in self.caches.values() for block in blocks))

    def send(self, number):
        """As the scheduler tells it: first that the request exists, then, when it has finished, its blocks."""
        blocks = self.blocks()
        for layer, cache in enumerate(self.caches.values()):
            for i, block in enumerate(blocks):
                cache[block] = self.want(number, layer, i)
        for told in ([], [blocks]):
            meta = connector.MooncakeConnectorMetadata()
            meta.add_new_req(f"p{number}", told, {"transfer_id": f"x{number}"}, load_remote_cache=False)
            self.worker.start_load_kv(meta)
        return self.digest(blocks)

    def sent(self, number):
        return self.wait_for(lambda results: f"p{number}" in results.finished_sending)

    def load(self, number, engine, port):
        """Into other blocks, in turned order, one that is left out before them."""
        self.next_block += 1
        blocks = self.blocks()[::-1]
        meta = connector.MooncakeConnectorMetadata()
        meta.add_new_req(f"d{number}", [blocks], {"transfer_id": f"x{number}", "remote_engine_id": engine, "remote_bootstrap_addr": f"http://127.0.0.1:{port}"})
        self.worker.start_load_kv(meta)
        came = self.wait_for(lambda results: f"d{number}" in results.finished_recving)
        return [came, sorted(self.worker.get_block_ids_with_load_errors()) != [], self.digest(blocks)]

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition(self.worker.get_transfer_results()):
                return True
            time.sleep(0.01)
        return False


def act(lane, words):
    if words[0] == "send":
        return lane.send(int(words[1]))
    if words[0] == "sent":
        return lane.sent(int(words[1]))
    if words[0] == "load":
        return lane.load(int(words[1]), words[2], words[3])
    raise ValueError(words)


def main():
    led(Lane, act)


if __name__ == "__main__":
    with scenario():
        main()
