"""verl 0.9.1, its MooncakeCheckpointEngine: weights go from a trainer's rank through a chain of rollout ranks. argv: RANK WORLD PORT.

The engine is verl's own, on memory of the CPU: what it asks torch.cuda for is answered by a stand-in. Rank 0 has the table by which the ranks tell each
other what comes (torch's TCPStore), and knows of the next rank only that it is done: as a trainer does, it lives on until it hears that all are (a line).
"""
import asyncio
import os
import sys
import types

RANK, WORLD, PORT = (int(word) for word in sys.argv[1:4])
os.environ.update(RANK=str(RANK), MC_FORCE_TCP="1", VERL_LOGGING_LEVEL="WARNING")

import torch  # noqa: E402
import verl.checkpoint_engine.mooncake_checkpoint_engine as engine_module  # noqa: E402
from steps import digest, fill, pattern, scenario, step  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineRegistry  # noqa: E402

BUCKET = 1 << 20
WEIGHTS = [(f"layers.{i}.weight", (64 + 8 * i, 512)) for i in range(24)]  # several buckets, of bfloat16
engine_module.get_torch_device = lambda: types.SimpleNamespace(device_count=lambda: WORLD, set_device=lambda number: None, synchronize=lambda: None,
                                                               empty_cache=lambda: None)
engine_module.ray.util.get_node_ip_address = lambda: "127.0.0.1"


def weights(seed):
    for i, (name, shape) in enumerate(WEIGHTS):
        yield name, fill(torch.zeros(shape, dtype=torch.bfloat16), seed + i)


def wanted(seed):
    return [[name, list(shape), digest(pattern(shape[0] * shape[1] * 2, seed + i))] for i, (name, shape) in enumerate(WEIGHTS)]


async def received(engine):
    return [[name, list(tensor.shape), digest(tensor)] async for name, tensor in engine.receive_weights()]


def main():
    engine = CheckpointEngineRegistry.new("mooncake", bucket_size=BUCKET, device="cpu")
    engine_class = type(engine)
    step("topology")(lambda: [kwargs["rank"] for kwargs in engine_class.build_topology(1, WORLD - 1, [{}])])
    step("prepare")(lambda: engine.prepare()["addr"])
    step("group")(lambda: engine.init_process_group(RANK, WORLD, {"addr": "127.0.0.1", "port": PORT}))
    for seed in 100, 200:
        if RANK == 0:
            step(f"send {seed}")(lambda: asyncio.run(engine.send_weights(weights(seed))))
        else:
            step(f"receive {seed}")(lambda: asyncio.run(received(engine)) == wanted(seed))
    if RANK == 0:
        sys.stdin.readline()
    step("finalize")(lambda: engine.finalize())


if __name__ == "__main__":
    with scenario():
        main()
