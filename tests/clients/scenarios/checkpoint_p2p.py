"""checkpoint-engine 0.4.2, its P2PStore, as its ParameterServer uses it. argv: "owner", or "reader" ADDRESS POINTER,POINTER,...

The owner registers a checkpoint's pools and says where they lie; the reader gathers ranges of them into a buffer of its own, bucket by bucket.
"""
import os
import sys
import types

os.environ["RANK"] = {"owner": "0", "reader": "1"}[sys.argv[1]]

import checkpoint_engine.p2p_store as p2p_store  # noqa: E402
import torch  # noqa: E402
from steps import digest, fill, pattern, say, scenario, step  # noqa: E402

SIZES = (1 << 20, 3 << 20, 4096, 77)  # of the pools
BUCKET = 1 << 20
# What DeviceManager says of a machine without accelerators; it refuses to be made on one.
DEVICES = types.SimpleNamespace(device_module=types.SimpleNamespace(device_count=lambda: 1), rdma_device=lambda rank: "", transfer_engine_protocol="tcp")
p2p_store.get_ip = lambda: "127.0.0.1"


def pools(seed=None):
    made = {f"memory_pool_checkpoint_{i}": torch.zeros(size, dtype=torch.uint8) for i, size in enumerate(SIZES)}
    if seed is not None:
        for i, pool in enumerate(made.values()):
            fill(pool, seed + i)
    return made


def refused(call):
    try:
        call()
    except AssertionError:
        return True
    return False


def owner():
    store = p2p_store.P2PStore(DEVICES)
    named = pools(40)
    step("owner: register")(lambda: store.register_named_tensors(named))
    # Not a step: two runs never have the same.
    say(step="owner: where", result=True, address=store.addr, pointers=[tensor.data_ptr() for tensor in named.values()])
    for line in sys.stdin:
        word = line.strip()
        if word == "end":
            return
        if word == "update":
            step(word)(lambda: [fill(tensor, 60 + i) for i, tensor in enumerate(named.values())] and True)
        if word == "unregister":
            step(word)(lambda: store.unregister_named_tensors(list(named)))
        if word == "register again":
            step(word)(lambda: store.register_named_tensors(named))


def buckets(pointers):
    """Ranges of the pools as the parameter server cuts them: none larger than a bucket, several in one call."""
    bucket, size = [], 0
    for pointer, whole in zip(pointers, SIZES):
        offset = 0
        while offset < whole:
            length = min(whole - offset, BUCKET - size)
            bucket.append((pointer + offset, length))
            offset, size = offset + length, size + length
            if size == BUCKET:
                yield bucket
                bucket, size = [], 0
    if bucket:
        yield bucket


def reader(address, pointers):
    store = p2p_store.P2PStore(DEVICES)
    buffer = torch.zeros(BUCKET, dtype=torch.uint8)

    def gather():
        parts = bytearray()
        for bucket in buckets(pointers):
            places, at = [], 0
            for _, length in bucket:
                places.append(buffer.data_ptr() + at)
                at += length
            store.batch_transfer_sync_read(address, places, [pointer for pointer, _ in bucket], [length for _, length in bucket])
            parts += bytes(buffer[:at].numpy())
        return digest(parts)

    def wanted(seed):
        return digest(b"".join(pattern(size, seed + i) for i, size in enumerate(SIZES)))

    for line in sys.stdin:
        word = line.strip()
        if word == "end":
            return
        if word == "register":
            step(word)(lambda: store.register_named_tensors({"__ipc_buffer__": buffer}))
        if word == "read":
            step(word)(lambda: gather() == wanted(40))
        if word == "read updated":
            step(word)(lambda: gather() == wanted(60))
        if word == "read beyond":
            step(word)(lambda: refused(lambda: store.batch_transfer_sync_read(address, [buffer.data_ptr()], [pointers[0] + (1 << 40)], [64])))
        if word == "read from nobody":
            step(word)(lambda: refused(lambda: store.batch_transfer_sync_read("127.0.0.1:1", [buffer.data_ptr()], [pointers[0]], [64])))
        if word == "unregister":
            step(word)(lambda: [store.unregister_named_tensors(["__ipc_buffer__"]), list(store.named_tensors)])


if __name__ == "__main__":
    with scenario():
        owner() if sys.argv[1] == "owner" else reader(sys.argv[2], [int(word) for word in sys.argv[3].split(",")])
