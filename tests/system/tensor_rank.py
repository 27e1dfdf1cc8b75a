"""One rank of a parallel program that writes or reads a tensor in shards; run by torch_tensors.py, as a process each.

    tensor_rank.py MASTER upsert RANK SIZE FIRST LAST [versions|count]      FIRST to LAST; a line [version, code] after each
    tensor_rank.py MASTER read SIZE...             as ranks of these, until its input ends: then {"answers", "misses", "last", "wrong"}

An element is its place in the whole tensor plus PITCH for each version, so that whoever reads some can judge them.
"""
import json
import os
import sys
import threading

import torch

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, TensorParallelism  # noqa: E402

KEY = "ranks"
PITCH = 1 << 20
INDEX = torch.arange(64 * 512, dtype=torch.int64).reshape(64, 512)


def place(rank, size):
    axis, made = ParallelAxis(), TensorParallelism()
    axis.kind, axis.rank, axis.size, axis.split_dim = "tp", rank, size, 0
    made.axes = [axis]
    return made


def target(mode, rank, size):
    made = ReadTarget()
    made.mode, made.parallelism = mode, place(rank, size)
    return made


def write(store, call, rank, size, first, last, how="count"):
    for version in range(first, last + 1):
        part = INDEX.chunk(size, 0)[rank] + PITCH * version
        if call == "put":
            code = store.put_tensor_with_parallelism(KEY, part, place(rank, size))
        else:
            given = {"version": version} if how == "versions" else {}
            code = store.upsert_tensor_with_parallelism(KEY, part, place(rank, size), **given)
        print(json.dumps([version, code]), flush=True)


def version_of(tensor, index):
    """None: of more than one, or not the right bytes."""
    versions = (tensor - index) if tensor.shape == index.shape else torch.ones(1)
    version = int(versions.flatten()[0])
    return version // PITCH if version % PITCH == 0 and bool((versions == version).all()) else None


def read(store, sizes):
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    said = {"answers": 0, "misses": 0, "last": -1, "wrong": []}
    print("[]", flush=True)
    while not ended.is_set():
        for rank, size in [(rank, size) for size in sizes for rank in range(size)]:
            part = INDEX.chunk(size, 0)[rank]
            for found, index in (
                (store.get_tensor_with_parallelism(KEY, target("shard", rank, size)), part),
                (store.get_tensor_with_parallelism(KEY, target("as_stored", rank, size)), part),
                (store.get_tensor_with_tp(KEY, rank, size) if size > 1 else None, part),
                (store.get_tensor_with_parallelism(KEY, target("full", rank, size)), INDEX),
            ):
                if found is None:
                    said["misses"] += 1
                    continue
                said["answers"] += 1
                version = version_of(found, index)
                # What holds is never replaced by what came before it.
                if version is None or version < said["last"]:
                    said["wrong"].append([rank, version, said["last"]])
                else:
                    said["last"] = version
    print(json.dumps(said), flush=True)


def main(master, call, *numbers):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    torch.set_num_threads(1)
    if call == "read":
        read(store, [int(each) for each in numbers])
    else:
        write(store, call, *map(int, numbers[:4]), *numbers[4:])
    assert store.close() == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
