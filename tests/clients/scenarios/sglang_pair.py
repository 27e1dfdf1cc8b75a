"""SGLang 0.5.23: MooncakeKVManager with a sender (prefill) or a receiver (decode), and the bootstrap server. Led by words: "send ROOM", "receive ROOM".

argv: "prefill" or "decode", and the bootstrap server's port. Managers, threads, ZMQ and HTTP are SGLang's; the parallel and serving configuration that a
server would have set is a stand-in, since a server needs a model and an accelerator.
"""
import os
import sys
import time
import types

os.environ.update(MOONCAKE_PROTOCOL="tcp", SGLANG_DISAGGREGATION_THREAD_POOL_SIZE="4", SGLANG_DISAGGREGATION_QUEUE_SIZE="2")
MODE, PORT = sys.argv[1], int(sys.argv[2])

import cpu_torchvision  # noqa: E402, F401
import numpy  # noqa: E402
import sglang.srt.disaggregation.mooncake.conn as mooncake  # noqa: E402
import torch  # noqa: E402
from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine  # noqa: E402
from steps import digest, fill, led, scenario  # noqa: E402

LAYERS, PAGES, PAGE_TOKENS, ROW = 3, 20, 4, 256
ITEM = PAGE_TOKENS * ROW
AUX_ITEM = 512


def stand_ins():
    parallel = types.SimpleNamespace(
        attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, attn_dcp_size=1, attn_dcp_rank=0, attn_dp_size=1, attn_dp_rank=0, dp_size=1,
        pp_size=1, pp_group=None, num_dp_ranks=1, nnodes=1, tp_size=1, tp_rank=0, dist_init_addr=None, enable_kv_cache_sharding=False,
        enable_cp_tp_group_sharing=False, enable_dsa_cache_layer_split=False, load_balance_method="follow_bootstrap_room", world_group=None)
    disagg = types.SimpleNamespace(disaggregation_bootstrap_port=PORT, disaggregation_decode_allocation_policy="early",
                                   disaggregation_transfer_backend="mooncake")
    found = {"get_parallel": lambda: parallel, "get_disagg": lambda: disagg,
             "get_serving": lambda: types.SimpleNamespace(host="127.0.0.1", port=1),
             "get_observability": lambda: types.SimpleNamespace(enable_trace=False),
             "get_schedule": lambda: types.SimpleNamespace(chunked_prefill_size=1024, max_prefill_tokens=1024),
             "get_spec": lambda: types.SimpleNamespace(speculative_algorithm=None),
             "get_memory": lambda: types.SimpleNamespace(enable_unified_memory=False),
             "get_device": lambda: types.SimpleNamespace(device="cpu"), "linear_attn_tp_size": lambda: 1, "get_local_ip_auto": lambda: "127.0.0.1"}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang.srt.disaggregation"):
            for name, value in found.items():
                if hasattr(module, name):
                    setattr(module, name, value)
    engine = MooncakeTransferEngine("127.0.0.1")
    mooncake.get_mooncake_transfer_engine = lambda: engine


class Lane:
    def __init__(self):
        stand_ins()
        # First all layers' K, then all V, as MHA pools report them.
        self.memory = [torch.zeros(PAGES, ITEM, dtype=torch.uint8) for _ in range(2 * LAYERS)]
        self.aux = torch.zeros(4, AUX_ITEM, dtype=torch.uint8)
        args = KVArgs()
        for name, value in dict(
                engine_rank=0, kv_data_ptrs=[m.data_ptr() for m in self.memory], kv_data_lens=[m.numel() for m in self.memory],
                kv_item_lens=[ITEM] * len(self.memory), kv_layer_ids=[], kv_cache_dtype_str="uint8", aux_data_ptrs=[self.aux.data_ptr()],
                aux_data_lens=[self.aux.numel()], aux_item_lens=[AUX_ITEM], state_types=[], state_data_ptrs=[], state_data_lens=[], state_item_lens=[],
                state_layer_ids=[], state_dim_per_tensor=[], state_slice_outer_counts=[], state_conv_shard_groups=[], is_hybrid_mla_backend=False,
                swa_kv_cache_layout=None, ib_device="", gpu_id=0, kv_head_num=2, total_kv_head_num=2, page_size=PAGE_TOKENS, system_dp_rank=0,
                rust_http_port=None, pp_rank=0, prefill_start_layer=0, prefill_end_layer=LAYERS, mla_compression_ratios=None, kv_buf_groups=0,
                hidden_kv_layers=0, draft_kv_layers=0).items():
            setattr(args, name, value)
        self.server = mooncake.MooncakeKVBootstrapServer("127.0.0.1", PORT) if MODE == "prefill" else None
        mode = DisaggregationMode.PREFILL if MODE == "prefill" else DisaggregationMode.DECODE
        self.manager = mooncake.MooncakeKVManager(args, mode, types.SimpleNamespace(host="127.0.0.1", enable_pd_role_switch=False), False)

    def wait(self, thing, *wanted, seconds=30):
        end = time.monotonic() + seconds
        while (state := thing.poll()) not in (*wanted, KVPoll.Failed) and time.monotonic() < end:
            time.sleep(0.002)
        return int(state)

    def pages(self, numbers):
        return digest(*(memory[page] for memory in self.memory for page in numbers))

    def send(self, room):
        pages = [1, 2, 3, 7, 8, 11]
        for i, memory in enumerate(self.memory):
            memory.copy_(fill(torch.zeros_like(memory), 1000 * room + i))
        fill(self.aux, room + 5)
        sender = mooncake.MooncakeKVSender(self.manager, f"127.0.0.1:{PORT}", room)
        sender.init(len(pages), aux_index=2)
        ready = self.wait(sender, KVPoll.WaitingForInput)
        # In two chunks, as chunked prefill does.
        sender.send(numpy.array(pages[:4], dtype=numpy.int32))
        sender.send(numpy.array(pages[4:], dtype=numpy.int32))
        return [ready, self.wait(sender, KVPoll.Success), self.pages(pages), digest(self.aux[2])]

    def receive(self, room):
        pages = [19, 4, 5, 6, 0, 13]
        address = f"127.0.0.1:{PORT}"
        known = self.manager.try_ensure_parallel_info(address)
        receiver = mooncake.MooncakeKVReceiver(self.manager, address, room)
        receiver.init(0)
        receiver.send_metadata(numpy.array(pages, dtype=numpy.int32), aux_index=1, state_indices=None)
        return [known, self.wait(receiver, KVPoll.Success), self.pages(pages), digest(self.aux[1])]


def main():
    led(Lane, lambda lane, words: (lane.send if words[0] == "send" else lane.receive)(int(words[1])))


if __name__ == "__main__":
    with scenario():
        main()
