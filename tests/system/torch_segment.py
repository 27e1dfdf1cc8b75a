"""mooncake.shared_segment in a Python that has torch; started by test_shared_segment.py. torch_segment.py alone|group|refused"""
import gc
import pathlib
import sys
import tempfile

import torch
import torch.distributed
import torch.multiprocessing

from mooncake.shared_segment import SharedSegmentError, create_shared_segment, shared_segment_supported

WORLD = 3
BLOCKS = {"v": dict(count=2, shape=(3, 5), dtype=torch.bfloat16), "k": dict(count=4, shape=[2000, 3], dtype=torch.float32)}
STRIDE = 24576 + 4096  # k: 24,000 bytes, in whole pages; v


def refuses(text, *arguments, **keywords):
    try:
        create_shared_segment(*arguments, **keywords)
    except SharedSegmentError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"it was not refused: {text}")


def alone():
    segment = create_shared_segment("alone", BLOCKS, 1, 0)
    k, v = segment.tensors("k"), segment.tensors("v")
    assert [tuple(one.shape) for one in k] == [(2000, 3)] * 4 and [one.dtype for one in v] == [torch.bfloat16] * 2
    assert segment.total_size() == 4 * STRIDE
    assert [one.data_ptr() - segment.base_addr() for one in k + v] == [0, STRIDE, 2 * STRIDE, 3 * STRIDE, 24576, STRIDE + 24576]
    for number, one in enumerate(k + v):
        assert not one.any()
        one.fill_(number + 1)
    assert all((one == number + 1).all() for number, one in enumerate(segment.tensors("k") + segment.tensors("v")))
    last = k[3][1990:]
    del segment, k, v, one
    gc.collect()
    assert (last == 4).all(), "a view of a tensor keeps the memory"
    assert shared_segment_supported() and not shared_segment_supported(mmap=False) and not shared_segment_supported(host_register=True)


def refused():
    refuses("comm_group", "n", BLOCKS, 2, 0)
    refuses("a block", "n", {}, 1, 0)
    refuses("plain memory", "n", BLOCKS, 1, 0, mmap=False)
    refuses("plain memory", "n", BLOCKS, 1, 0, host_register=True)
    refuses("tp_group", "n", BLOCKS, 1, 0, comm_group=object(), tp_group=object())
    refuses("world_size", "n", BLOCKS, 1, 1)
    for bad in (dict(count=0), dict(count="x"), dict(shape=()), dict(shape=(0, 1)), dict(shape=5), dict(dtype="float32")):
        refuses("block 'k'", "n", {"k": {**BLOCKS["k"], **bad}}, 1, 0)
    refuses("block 'k'", "n", {"k": dict(count=1, shape=(1,))}, 1, 0)
    segment = create_shared_segment("n", BLOCKS, 1, 0)
    try:
        segment.tensors("x")
    except SharedSegmentError as error:
        assert "['k', 'v']" in str(error)
    else:
        raise AssertionError("there is no such block")


class Coordinator:
    cpu_group = None


def rank_main(rank, meeting):
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", world_size=WORLD, rank=rank)
    group = Coordinator()
    group.cpu_group = torch.distributed.group.WORLD
    segment = create_shared_segment("group", BLOCKS, WORLD, rank, owner_rank=1, **{"tp_group" if rank == 0 else "comm_group": group})
    k = segment.tensors("k")
    if rank == 2:
        for number, one in enumerate(k):
            one.fill_(number + 10)
    torch.distributed.barrier()
    assert all((one == number + 10).all() for number, one in enumerate(k))
    # One that has declared another shape is told to all.
    other = {**BLOCKS, "k": dict(count=4, shape=(2000, 2 if rank == 0 else 3), dtype=torch.float32)}
    refuses("another segment", "other", other, WORLD, rank, comm_group=group)
    # So is what one cannot make at all: the others hear of it instead of waiting.
    refuses("rank 0: block 'k'", "bad block", {**BLOCKS, "k": dict(count=0 if rank == 0 else 4, shape=(5,), dtype=torch.float32)}, WORLD, rank, comm_group=group)
    refuses("rank 2: shared segments", "devices", BLOCKS, WORLD, rank, comm_group=group, mmap=rank != 2)
    refuses("rank 0:", "bad owner", BLOCKS, WORLD, rank, owner_rank=9 if rank == 0 else 0, comm_group=group)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def together():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, args=(str(pathlib.Path(folder) / "meeting"),), nprocs=WORLD)


if __name__ == "__main__":
    {"alone": alone, "group": together, "refused": refused}[sys.argv[1]]()
    print("all as it must be")
