"""The calls on tensors, with torch: run by test_tensors.py in a Python that has it.

MC_ORIGINAL names a folder with the package of the original Mooncake: then bytes are compared with what it writes and reads."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import tensor_rank  # noqa: E402
from python_cluster import address, master, node, pattern, store, unset, with_fields  # noqa: E402,F401
from mooncake import _tensor_parallel as parallel  # noqa: E402
from mooncake import store as module  # noqa: E402
from mooncake.store import ParallelAxis, ReadTarget, TensorParallelism  # noqa: E402

HEADER = 304
DTYPES = [torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
          torch.bool, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (1,) * 7 + (5,)]

upserts = pytest.mark.skipif(not hasattr(module.MooncakeDistributedStore, "upsert_parts"), reason="this build has no upserts")


def filled(dtype, shape):
    """Elements that differ, of any dtype."""
    size = torch.empty(shape, dtype=dtype).nbytes
    data = bytearray(pattern(max(size, 1))[:size])
    if dtype is torch.bool:
        data = bytearray(each & 1 for each in data)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def same(left, right):
    """Bit for bit: NaNs too."""
    if left is None or left.dtype is not right.dtype or left.shape != right.shape:
        return False
    return raw(left) == raw(right)


def raw(tensor):
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def room(size=1 << 16):
    memory = bytearray(size)
    return memory, address(memory)


def test_the_example_of_the_document(store):
    """The block of docs/python.md, line by line."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
    lines = page.split("## Tensors\n```python\n")[1].split("```")[0].splitlines()
    memory, ptr = room()
    names = {"store": store, "tensor": filled(torch.float32, (3, 4)), "ptr": ptr, "room": len(memory)}
    tensor, results = names["tensor"], []
    for line in lines:
        code = compile(line, "python.md", "single" if "=" in line.split("#")[0] and not line.startswith("store.") else "eval")
        results.append(eval(code, names))
    assert results[0] == 0 and same(names["tensor"], tensor) and same(results[2], tensor) and results[4] == 0 and names["size"] == HEADER + 48
    assert same(store.get_tensor("copy"), tensor)
    assert store.put_tensor_from("other", ptr, len(memory)) == -600


def axis(**fields):
    made = ParallelAxis()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def tp(rank, size, split_dim=0):
    return axis(kind="tp", rank=rank, size=size, split_dim=split_dim)


def pp(rank=0, size=2, stage_id=0):
    return axis(kind="pp", rank=rank, size=size, stage_id=stage_id)


def place(*axes):
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def target(mode, *axes):
    made = ReadTarget()
    made.mode = mode
    if axes:
        made.parallelism = place(*axes)
    return made


class Cut:
    """A writer_partition: anything with these three."""

    def __init__(self, rank, size, split_dim):
        self.rank, self.size, self.split_dim = rank, size, split_dim


WHOLE = torch.arange(96, dtype=torch.float32).reshape(12, 8)


# ---- whole tensors ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_comes_back(store, dtype, shape):
    tensor = filled(dtype, shape)
    assert store.put_tensor("key", tensor) == 0
    assert same(store.get_tensor("key"), tensor)
    header, place_of, size, owner = module._serialize_tensor(tensor)
    assert owner is tensor and (place_of, size, len(header)) == (tensor.data_ptr(), tensor.nbytes, HEADER)
    assert store.get("key") == header + raw(tensor)
    assert same(module._deserialize_tensor(store.get("key")), tensor)
    memory, start = room()
    inside = store.get_tensor_into("key", start, len(memory))
    assert same(inside, tensor)
    assert tensor.nbytes == 0 or inside.data_ptr() == start + HEADER
    assert store.put_tensor_from("copy", start, HEADER + tensor.nbytes) == 0
    assert same(store.get_tensor("copy"), tensor)


@pytest.mark.parametrize("make", [
    lambda: WHOLE.t(), lambda: WHOLE[:, 3:], lambda: WHOLE[::2], lambda: WHOLE[5], lambda: WHOLE.expand(2, 12, 8), lambda: WHOLE[3:, 1],
    lambda: torch.tensor([1 + 2j, 3 + 4j]).conj().imag, lambda: torch.nn.Parameter(WHOLE), lambda: WHOLE.clone().requires_grad_(),
    lambda: WHOLE.to(memory_format=torch.contiguous_format).as_strided((3, 3), (1, 1)),
], ids=["transposed", "columns", "steps", "row", "expanded", "column", "negated", "parameter", "with grad", "overlapping"])
def test_views_are_stored_as_what_they_show(store, make):
    tensor = make()
    assert store.put_tensor("key", tensor) == 0
    assert torch.equal(store.get_tensor("key"), tensor.detach().clone())
    assert store.get_tensor("key").is_contiguous()


@pytest.mark.parametrize("make", [
    lambda: None, lambda: 5, lambda: b"bytes", lambda: [1.0], lambda: torch.zeros([1] * 9), lambda: torch.zeros(2, dtype=torch.complex64),
    lambda: torch.zeros(2, 2).to_sparse(), lambda: torch.zeros(3, device="meta"), lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8),
], ids=["None", "int", "bytes", "list", "9 dimensions", "complex", "sparse", "meta", "quantized"])
def test_what_is_no_tensor_is_refused(store, make):
    wrong = make()
    assert store.put_tensor("key", wrong) == -600
    assert store.batch_put_tensor(["a", "key", "b"], [WHOLE, wrong, WHOLE]) == [0, -600, 0]
    assert store.pub_tensor("key", wrong) == -600
    assert store.put_tensor_with_tp("key", wrong, 0, 2) == -600
    assert store.put_tensor_with_parallelism("key", wrong, place(tp(0, 2))) == -600
    assert store.batch_is_exist(["a", "key", "b", "key_tp_0", "key__parallelism_manifest"]) == [1, 0, 1, 0, 0]
    with pytest.raises(ValueError):
        module._serialize_tensor(wrong)


def test_a_tensor_is_the_readers_own(store):
    assert store.put_tensor("key", WHOLE) == 0
    first, second = store.get_tensor("key"), store.get_tensor("key")
    first.zero_()
    assert torch.equal(second, WHOLE) and torch.equal(store.get_tensor("key"), WHOLE)
    assert store.remove("key", True) == 0
    assert torch.equal(second, WHOLE)


def test_objects_that_are_no_tensor(store):
    good = module._serialize_tensor(WHOLE)[0] + raw(WHOLE)
    wrong = {"short": good[:-1], "long": good + b"x", "head": good[:HEADER], "cut": good[:100], "one": b"x", "noise": pattern(500),
             "flipped": bytes([good[0] ^ 1]) + good[1:]}
    for key, value in wrong.items():
        assert store.put(key, value) == 0
        assert store.get_tensor(key) is None
        memory, start = room()
        assert store.get_tensor_into(key, start, len(memory)) is None
        assert store.get_tensor_with_tp(key) is None and store.get_tensor_with_parallelism(key) is None
        with pytest.raises(ValueError):
            module._deserialize_tensor(value)
        memory[: len(value)] = value
        assert store.put_tensor_from("from", start, len(value)) == -600
    for nothing in (bytearray(good), None, 5, "text"):
        with pytest.raises(TypeError):
            module._deserialize_tensor(nothing)
    assert store.batch_get_tensor([*wrong, "none"]) == [None] * (len(wrong) + 1)
    assert store.is_exist("from") == 0


def test_batches(store):
    tensors = [filled(dtype, (5, 3)) for dtype in DTYPES]
    keys = [f"key{i}" for i in range(len(tensors))]
    codes = store.batch_put_tensor(keys, tensors)
    assert codes == [0] * len(keys) and type(codes) is list and type(codes[0]) is int
    assert all(map(same, store.batch_get_tensor(keys), tensors))
    assert store.batch_put_tensor([], []) == store.batch_get_tensor([]) == store.batch_get_tensor_into([], [], []) == []
    assert store.batch_put_tensor(["a", "b"], [WHOLE]) == [-600, -600]
    found = store.batch_get_tensor(["key0", "none", "key2"])
    assert found[1] is None and same(found[0], tensors[0]) and same(found[2], tensors[2])
    memory, start = room()
    places = [start + 1024 * i for i in range(3)]
    found = store.batch_get_tensor_into(["key0", "none", "key2"], places, [1024] * 3)
    assert found[1] is None and same(found[0], tensors[0]) and same(found[2], tensors[2])
    assert store.batch_get_tensor_into(["key0", "none"], places[:1], [1024] * 2) == [-600, -600]
    sizes = [HEADER + tensors[0].nbytes, 500, HEADER + tensors[2].nbytes]
    assert store.batch_put_tensor_from(["x", "y", "z"], places, sizes) == [0, -600, 0]
    assert same(store.get_tensor("z"), tensors[2]) and store.is_exist("y") == 0
    assert store.batch_put_tensor_from(["x", "y"], places, sizes) == [-600, -600]


def test_memory_of_the_caller(store):
    assert store.put_tensor("key", WHOLE) == 0
    need = HEADER + WHOLE.nbytes
    memory, start = room()
    assert same(store.get_tensor_into("key", start, need), WHOLE)
    assert memory[need:] == bytes(len(memory) - need)
    for size in (need - 1, HEADER, HEADER - 1, 1, 0):
        assert store.get_tensor_into("key", start, size) is None
    assert store.get_tensor_into("key", 0, need) is None
    # Not aligned to anything.
    shifted = store.get_tensor_into("key", start + 1, len(memory) - 1)
    assert shifted is None or same(shifted, WHOLE)
    for size in (need - 1, need + 1, HEADER, 0):
        assert store.put_tensor_from("wrong", start, size) == -600
    assert store.put_tensor_from("wrong", 0, need) == -600 and store.is_exist("wrong") == 0


def test_publishing(store):
    name = store.get_hostname()
    assert store.pub_tensor("a", WHOLE) == store.pub_tensor("b", WHOLE, with_fields(replica_num=1)) == 0
    assert store.pub_tensor("c", WHOLE, config=with_fields(preferred_segments=[name])) == 0
    assert store.pub_tensor("d", WHOLE, with_fields(preferred_segments=[name, "other"])) == -600
    assert store.batch_pub_tensor(["d"], [WHOLE], with_fields(preferred_segments=[name, "other"])) == [-600]
    assert store.pub_tensor("d", WHOLE, with_fields(replica_num=0)) == -600
    assert store.batch_pub_tensor(["e", "f"], [WHOLE, WHOLE], with_fields(group_ids=["1", "2"])) == [0, 0]
    assert store.batch_pub_tensor(["g", "h"], [WHOLE, WHOLE], with_fields(group_ids=["1"])) == [-600, -600]
    # Each key's shards are of its group.
    assert store.batch_pub_tensor_with_tp(["i", "j"], [WHOLE, WHOLE], with_fields(group_ids=["1", "2"]), 0, 4) == [0, 0]
    assert store.pub_tensor_with_tp("k", WHOLE, with_fields(), 0, 2) == 0
    assert store.batch_is_exist(["d", "g", "h", "i_tp_3", "j_tp_3", "k_tp_1"]) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(TypeError):
        store.put_tensor(5, WHOLE)


@upserts
def test_upserts(store):
    assert store.upsert_tensor("key", WHOLE) == 0 and torch.equal(store.get_tensor("key"), WHOLE)
    assert store.upsert_tensor("key", WHOLE[:3] + 1) == 0 and torch.equal(store.get_tensor("key"), WHOLE[:3] + 1)
    assert store.upsert_pub_tensor("key", torch.zeros(0), with_fields()) == 0 and store.get_tensor("key").shape == (0,)
    assert store.batch_upsert_tensor(["key", "new"], [WHOLE, WHOLE + 1]) == [0, 0]
    assert store.batch_upsert_pub_tensor(["grouped", "new"], [WHOLE + 2, None], with_fields(group_ids=["a", "b"])) == [0, -600]
    assert torch.equal(store.get_tensor("grouped"), WHOLE + 2) and torch.equal(store.get_tensor("new"), WHOLE + 1)
    assert store.batch_upsert_pub_tensor(["grouped", "key"], [WHOLE, WHOLE], with_fields(group_ids=["a", "a"])) == [0, -600]
    memory, start = room()
    size = HEADER + store.get_tensor_into("new", start, len(memory)).nbytes
    assert store.upsert_tensor_from("key", start, size) == 0 and torch.equal(store.get_tensor("key"), WHOLE + 1)
    assert store.batch_upsert_tensor_from(["key", "more"], [start, start], [size, size - 1]) == [0, -600]
    for rank in range(2):
        assert store.put_tensor_with_parallelism("parts", WHOLE, place(tp(rank, 2))) == 0
        assert store.upsert_tensor_with_parallelism("parts", WHOLE + 10 * rank, place(tp(rank, 2))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("parts", target("full", tp(0, 2))), torch.cat([WHOLE, WHOLE + 10]))
    assert store.batch_upsert_tensor_with_parallelism(["parts"], [WHOLE], [place(tp(0, 2))]) == [0]
    store.get_tensor_into("new", start, len(memory))
    assert store.upsert_tensor_with_parallelism_from("cut", start, size, place(tp(0, 2))) == 0
    assert store.batch_upsert_tensor_with_parallelism_from(["cut"], [start], [size], [place(tp(0, 2))]) == [0]
    assert torch.equal(store.get_tensor_with_tp("cut", 1, 2), (WHOLE + 1)[6:])


@upserts
def test_upserts_near_the_writer(store):
    near = with_fields(prefer_alloc_in_same_node=True)
    for version in range(2):
        assert store.upsert_pub_tensor("key", WHOLE + version, near) == 0 and torch.equal(store.get_tensor("key"), WHOLE + version)
        assert store.batch_upsert_pub_tensor(["key", "other"], [WHOLE - version, None], near) == [0, -600]
        assert torch.equal(store.get_tensor("key"), WHOLE - version)
    assert store.upsert_pub_tensor("key", WHOLE, with_fields(prefer_alloc_in_same_node=True, replica_num=2)) == -600


def test_nothing_is_possible_on_a_store_that_is_not_set_up(unset):
    memory, start = room()
    header = module._serialize_tensor(WHOLE)[0]
    memory[:HEADER] = header
    size = HEADER + WHOLE.nbytes
    assert unset.put_tensor("k", WHOLE) == unset.pub_tensor("k", WHOLE) == unset.put_tensor_from("k", start, size) == -600
    assert unset.put_tensor_with_tp("k", WHOLE, 0, 2) == unset.put_tensor_with_parallelism("k", WHOLE, place(tp(0, 2))) == -600
    assert unset.batch_put_tensor(["a", "b"], [WHOLE, WHOLE]) == [-600, -600]
    assert unset.get_tensor("k") is None and unset.batch_get_tensor(["a", "b"]) == [None, None]
    assert unset.get_tensor_into("k", start, size) is None and unset.get_tensor_with_tp("k", 0, 2) is None
    assert unset.get_tensor_with_parallelism("k", target("full", tp(0, 2))) is None
    assert unset.save_tensor_to_safetensor("k") == -600


def test_gpus_are_not_there(store):
    for call in (lambda: store.get_tensor_into_cuda("k", WHOLE), lambda: store.batch_get_tensor_into_cuda(["k"], [WHOLE])):
        with pytest.raises(NotImplementedError):
            call()


def test_a_large_tensor(store):
    tensor = torch.arange(6 << 20, dtype=torch.int32)
    assert store.put_tensor("large", tensor) == 0
    assert torch.equal(store.get_tensor("large"), tensor)
    assert store.put_tensor("too large", torch.zeros(80 << 20, dtype=torch.uint8)) < 0
    assert store.is_exist("too large") == 0 and torch.equal(store.get_tensor("large"), tensor)


def test_many_threads(store):
    failures = []

    def work(seed):
        for i in range(30):
            tensor = torch.full((64, 64), seed * 1000 + i)
            if store.put_tensor(f"{seed}/{i}", tensor) != 0 or not torch.equal(store.get_tensor(f"{seed}/{i}"), tensor):
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- with_tp ----


@pytest.mark.parametrize("split_dim,size", [(0, 2), (0, 12), (1, 4), (1, 8)])
def test_ranks_get_their_shards(store, split_dim, size):
    parts = WHOLE.chunk(size, split_dim)
    assert store.put_tensor_with_tp("key", WHOLE, tp_size=size, split_dim=split_dim) == 0
    memory, start = room()
    for rank, part in enumerate(parts):
        assert torch.equal(store.get_tensor_with_tp("key", rank, size, split_dim), part)
        assert torch.equal(store.get_tensor_with_tp_into("key", start, len(memory), rank, size, split_dim), part)
        assert torch.equal(store.get_tensor(f"key_tp_{rank}"), part)
    # Another partition's shard is not this one's.
    assert store.get_tensor_with_tp("key", 0, size * 2) is None and store.get_tensor_with_tp_into("key", start, len(memory), 0, size * 2) is None
    for rank in (-1, size):
        assert store.get_tensor_with_tp("key", rank, size) is None
    assert store.get_tensor_with_tp("key") is None


def test_one_rank_has_the_whole(store):
    for size in (1, 0, -1):
        assert store.put_tensor_with_tp(f"key{size}", WHOLE, 0, size) == 0
        assert torch.equal(store.get_tensor(f"key{size}"), WHOLE)
    assert torch.equal(store.get_tensor_with_tp("key1"), WHOLE)


@pytest.mark.parametrize("size,split_dim", [(5, 0), (24, 0), (2, 2), (2, -1), (2, 99), (1 << 31, 0)])
def test_what_cannot_be_cut_evenly_is_refused(store, size, split_dim):
    assert store.put_tensor_with_tp("key", WHOLE, 0, size, split_dim) == -600
    assert store.batch_put_tensor_with_tp(["key"], [WHOLE], 0, size, split_dim) == [-600]
    assert store.put_tensor_with_tp("key", torch.tensor(1.0), 0, 2) == -600
    assert store.put_tensor_with_tp("key", torch.zeros(0), 0, 1 << 31) == -600
    assert store.remove_by_regex("key", True) == 0


def test_batches_of_shards(store):
    assert store.batch_put_tensor_with_tp(["a", "b", "c"], [WHOLE, None, WHOLE + 1], 0, 2, 1) == [0, -600, 0]
    assert store.batch_put_tensor_with_tp(["a", "b"], [WHOLE], 0, 2) == [-600, -600]
    found = store.batch_get_tensor_with_tp(["a", "b", "c"], 1, 2)
    assert found[1] is None and torch.equal(found[0], WHOLE[:, 4:]) and torch.equal(found[2], (WHOLE + 1)[:, 4:])
    memory, start = room()
    found = store.batch_get_tensor_with_tp_into(["a", "b"], [start, start + 2048], [2048] * 2, 0, 2)
    assert found[1] is None and torch.equal(found[0], WHOLE[:, :4])
    assert store.batch_get_tensor_with_tp_into(["a", "b"], [start], [2048] * 2, 0, 2) == [-600, -600]
    assert store.put_tensor("plain", WHOLE) == 0
    size = HEADER + store.get_tensor_into("plain", start, len(memory)).nbytes
    assert store.put_tensor_with_tp_from("d", start, size, 0, 3) == 0 and torch.equal(store.get_tensor_with_tp("d", 2, 3), WHOLE[8:])
    assert store.put_tensor_with_tp_from("e", start, size - 1, 0, 3) == -600 and store.put_tensor_with_tp_from("e", 0, size, 0, 3) == -600
    assert store.batch_put_tensor_with_tp_from(["e", "f"], [start, start], [size, 5], 0, 3, 0) == [0, -600]


# ---- with_parallelism ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.uint64], ids=str)
@pytest.mark.parametrize("split_dim", [0, 1])
@pytest.mark.parametrize("writers", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 3, 4, 12])
def test_readers_of_another_partition(store, dtype, split_dim, writers, readers):
    whole = filled(dtype, (12, 12))
    for rank, part in enumerate(whole.view(torch.uint8).reshape(12, 12, -1).chunk(writers, split_dim)):
        part = part.contiguous().view(dtype).reshape(part.shape[:2])
        assert store.put_tensor_with_parallelism("key", part, place(tp(rank, writers, split_dim))) == 0
    extent = 12 // readers
    memory, start = room()
    for rank in range(readers):
        wanted = whole.view(torch.uint8).reshape(12, 12, -1).narrow(split_dim, rank * extent, extent).contiguous().view(dtype)
        wanted = wanted.reshape((extent, 12) if split_dim == 0 else (12, extent))
        asked = target("shard", tp(rank, readers, split_dim))
        assert same(store.get_tensor_with_parallelism("key", asked), wanted)
        inside = store.get_tensor_with_parallelism_into("key", start, len(memory), asked)
        assert same(inside, wanted) and inside.data_ptr() == start + HEADER
        assert store.get_tensor_with_parallelism_into("key", start, HEADER + wanted.nbytes - 1, asked) is None
    assert same(store.get_tensor_with_parallelism("key", target("full", tp(0, readers, split_dim))), whole)
    # Asked for along another dimension, or unevenly: nothing rather than something else.
    if writers > 1:
        assert store.get_tensor_with_parallelism("key", target("shard", tp(0, readers, 1 - split_dim))) is None
    for size in (5, 7, 24):
        assert store.get_tensor_with_parallelism("key", target("shard", tp(0, size, split_dim))) is None


def test_a_missing_or_foreign_shard_is_a_miss(store):
    full, quarter = target("full", tp(0, 4)), target("shard", tp(3, 8))
    for rank in (0, 1, 3):
        assert store.put_tensor_with_parallelism("key", WHOLE, place(tp(rank, 4))) == 0
    assert store.get_tensor_with_parallelism("key", full) is None
    assert torch.equal(store.get_tensor_with_parallelism("key", quarter), WHOLE[6:])
    assert store.get_tensor_with_parallelism("key", target("shard", tp(2, 4))) is None
    # Something else under the shard's name: raw bytes, a plain tensor, another partition's shard, another dtype, another shape.
    shard = store.get("key_tp_1")
    others = [pattern(1000), module._serialize_tensor(WHOLE)[0] + raw(WHOLE), store.get("key_tp_3"), shard[:8] + b"\x06" + shard[9:]]
    assert store.put_tensor_with_parallelism("small", WHOLE[:3], place(tp(2, 4))) == 0
    others.append(store.get("small_tp_2"))
    for other in others:
        assert store.put("key_tp_2", other) == 0
        assert store.get_tensor_with_parallelism("key", full) is None
        assert store.get_tensor_with_parallelism("key", target("shard", tp(2, 4))) is None or other == store.get("small_tp_2")
        assert store.remove("key_tp_2", True) == 0
    assert store.put_tensor_with_parallelism("key", WHOLE + 5, place(tp(2, 4))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("key", full), torch.cat([WHOLE, WHOLE, WHOLE + 5, WHOLE]))


def reads_of(store, key, size):
    """What a reader of each of `size` ranks gets, by both calls, and of the whole: sets of the versions that its elements have; None: no answer."""
    memory, start = room()
    found = []
    for rank in range(size):
        for mode in ("shard", "as_stored"):
            asked = target(mode, tp(rank, size))
            found += [store.get_tensor_with_parallelism(key, asked), store.batch_get_tensor_with_parallelism([key, key], [asked, asked])[1]]
            inside = store.get_tensor_with_parallelism_into(key, start, len(memory), asked)
            found.append(None if inside is None else inside.clone())
    found.append(store.get_tensor_with_parallelism(key, target("full", tp(0, size))))
    return [None if each is None else set(each.flatten().tolist()) for each in found]


def upsert_by(store, key, version, ranks, size, call="upsert_tensor_with_parallelism"):
    for rank in ranks:
        assert getattr(store, call)(key, torch.full((16 // size, 8), version), place(tp(rank, size))) == 0


@upserts
def test_a_version_by_other_ranks_replaces_all_of_the_former_one(store):
    upsert_by(store, "key", 1, range(4), 4, "put_tensor_with_parallelism")
    assert all(each == {1} for size in (1, 2, 4, 8) for each in reads_of(store, "key", size) if each is not None)
    upsert_by(store, "key", 2, range(2), 2)
    for size in (1, 2, 4, 8):
        got = reads_of(store, "key", size)
        assert all(each in ({2}, None) for each in got), (size, got)
        assert got[-1] == {2} and got[0] == {2}, "the shards of the former partition are in nobody's way"
    # The former partition again, rank by rank: what it left behind is no part of it.
    for done in range(1, 5):
        upsert_by(store, "key", 3, [done - 1], 4)
        for size in (1, 2, 4, 8):
            got = reads_of(store, "key", size)
            assert all(each is None or len(each) == 1 and each <= {2, 3} for each in got), (size, done, got)
            assert got[-1] == got[0] == ({3} if done == 4 else {2}), "what holds is there until another is whole"
    # The same partition again; one rank is ahead of the others.
    upsert_by(store, "key", 4, [2], 4)
    upsert_by(store, "key", 5, [2], 4)
    assert reads_of(store, "key", 4) == [{3}] * 25 and store.get_tensor_with_tp("key", 2, 4)[0, 0] == 3
    for version in (4, 5):
        upsert_by(store, "key", version, [0, 3, 1], 4)
        assert all(each in ({version}, None) for size in (1, 2, 4, 8) for each in reads_of(store, "key", size))
        assert reads_of(store, "key", 4) == [{version}] * 25
        assert all(store.get_tensor_with_tp("key", rank, 4)[0, 0] == version for rank in range(4))
        assert store.get_tensor_with_tp("key", 0, 2) is None
    # Nothing is left of what was replaced.
    assert store.remove_by_regex("^key", True) == 5


@upserts
def test_a_rank_that_is_alone_reads_what_it_upserted(store):
    upsert_by(store, "key", 1, [2], 4, "put_tensor_with_parallelism")
    for version in 2, 3:
        upsert_by(store, "key", version, [2], 4)
        got = reads_of(store, "key", 4)
        assert got[12:18] == [{version}] * 6 and got[:12] + got[18:] == [None] * 19, "nobody else has a shard"
    # Another rank is there: what holds is what both have.
    upsert_by(store, "key", 1, [0], 4, "put_tensor_with_parallelism")
    got = reads_of(store, "key", 4)
    assert got[:6] == got[12:18] == [{1}] * 6
    for rank in 0, 1, 3:
        upsert_by(store, "key", 2, [rank], 4)
    assert reads_of(store, "key", 4) == [{2}] * 25


@upserts
def test_versions_that_the_ranks_name(store):
    def upsert(value, rank, **more):
        return store.upsert_tensor_with_parallelism("key", torch.full((8, 8), value), place(tp(rank, 2)), **more)

    upsert_by(store, "key", 1, range(2), 2, "put_tensor_with_parallelism")
    assert upsert(7, 0, version=7) == 0 and upsert(8, 0, version=8) == 0 and upsert(8, 1, version=8) == 0
    assert reads_of(store, "key", 2) == [{8}] * 13
    # A rank that was started again gives its last one again, or is late.
    assert upsert(8, 1, version=8) == 0 and upsert(7, 1, version=7) == -600
    assert reads_of(store, "key", 2) == [{8}] * 13
    for wrong in (0, -1, "9", 1.5, (1 << 31) - 1, 1 << 40):
        assert upsert(9, 0, version=wrong) == -600
    # Without one: the next.
    assert upsert(9, 0) == 0 and upsert(9, 1) == 0 and reads_of(store, "key", 4)[-1] == {9}
    assert store.batch_upsert_tensor_with_parallelism(["key", "other"], [torch.full((8, 8), 20)] * 2, [place(tp(0, 2))] * 2, version=20) == [0, 0]
    assert upsert(20, 1, version=20) == 0 and reads_of(store, "key", 8)[-1] == {20}


@upserts
def test_each_stage_has_editions_of_its_own(store):
    def upsert(version, stage, rank):
        whole = torch.full((16, 8), version)
        assert store.upsert_tensor_with_parallelism("key", whole, place(pp(stage, 2, stage), tp(rank, 2))) == 0

    def seen(stage):
        return {int(store.get_tensor_with_parallelism("key", target(mode, tp(1, size), pp(stage, 2, stage)))[0, 0])
                for mode, size in (("full", 4), ("shard", 4), ("shard", 2), ("as_stored", 2))}

    for stage in range(2):
        for rank in range(2):
            assert store.put_tensor_with_parallelism("key", torch.full((16, 8), 1), place(pp(stage, 2, stage), tp(rank, 2))) == 0
    upsert(2, 0, 0)
    assert seen(0) == seen(1) == {1}
    upsert(2, 0, 1)
    assert seen(0) == {2} and seen(1) == {1}
    upsert(2, 1, 1), upsert(2, 1, 0)
    assert seen(0) == seen(1) == {2}


@upserts
def test_writers_partitions_are_replaced_as_one(store):
    def upsert(version, rank, call="upsert"):
        return getattr(store, call + "_tensor_with_parallelism")("key", torch.full((16, 8), version), writer_partition=Cut(rank, 2, 0))

    asked = target("shard", tp(0, 1))
    assert upsert(1, 0, "put") == upsert(1, 1, "put") == 0 and torch.equal(store.get_tensor_with_parallelism("key", asked), torch.full((16, 8), 1))
    assert upsert(2, 1) == 0 and torch.equal(store.get_tensor_with_parallelism("key", asked), torch.full((16, 8), 1))
    assert upsert(2, 0) == 0 and torch.equal(store.get_tensor_with_parallelism("key", asked), torch.full((16, 8), 2))


@upserts
def test_an_upsert_that_failed_is_made_again(store, monkeypatch):
    """Its edition may have become whole meanwhile, by what was written though nobody said so."""
    upsert_by(store, "key", 1, range(2), 2)
    upsert_by(store, "key", 2, [0], 2)
    real = parallel.write
    monkeypatch.setattr(parallel, "write", lambda *arguments: [-703 for _ in real(*arguments)])
    assert store.upsert_tensor_with_parallelism("key", torch.full((8, 8), 2), place(tp(1, 2))) == -703
    monkeypatch.undo()
    upsert_by(store, "key", 3, [0], 2)
    upsert_by(store, "key", 2, [1], 2)
    assert reads_of(store, "key", 2) == [{2}] * 13
    upsert_by(store, "key", 3, [1], 2)
    assert reads_of(store, "key", 2) == [{3}] * 13


@upserts
def test_ranks_that_are_apart_begin_together_when_the_tensor_was_removed(store):
    upsert_by(store, "key", 1, range(2), 2)
    for version in (2, 3, 4):
        upsert_by(store, "key", version, [0], 2)
    assert store.remove("key__parallelism_manifest", True) == 0  # as eviction may, and who knows no other names
    assert reads_of(store, "key", 2) == [None] * 13
    for version in (5, 6):
        upsert_by(store, "key", version, [0], 2)
        upsert_by(store, "key", version, [1], 2)
        assert reads_of(store, "key", 2) == [{version}] * 13


@upserts
@pytest.mark.parametrize("versions", [True, False])
def test_a_rank_that_is_restarted_while_it_is_ahead(store, versions):
    """With versions no answer has parts of two upserts. Without there are such answers, as docs/python.md says: nothing can tell them apart."""
    def upsert(rank, number):
        assert store.upsert_tensor_with_parallelism("key", torch.full((8, 8), number), place(tp(rank, 2)), version=number if versions else None) == 0

    upsert(0, 1)
    upsert(0, 2)
    del store.__dict__["_edition_counts"]  # what a restart forgets
    upsert(0, 3)
    for number in (1, 2, 3):
        upsert(1, number)
        if versions:
            assert reads_of(store, "key", 2) == [{number}] * 13
        elif number == 1:
            assert reads_of(store, "key", 2)[-1] == {3, 1}


class Rank:
    """A process of tensor_rank.py."""

    def __init__(self, master, *arguments):
        script = pathlib.Path(__file__).with_name("tensor_rank.py")
        self.process = subprocess.Popen([sys.executable, "-B", str(script), master.address, *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def line(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return [json.loads(line) for line in out.splitlines()]

    def kill(self):
        self.process.kill()
        self.process.communicate()


@upserts
@pytest.mark.timeout(300)
def test_one_version_in_each_answer_of_processes(master, store):
    """Four ranks put, two upsert again and again, each as fast as it can, others read as ranks of 1, 2, 4 and 8; the writers are killed in the middle."""
    for rank in range(4):
        tensor_rank.write(store, "put", rank, 4, 0, 0)
    assert reads_by(store, 0)
    readers = [Rank(master, "read", *sizes) for sizes in ((1, 8), (2, 4))]
    for each in readers:
        assert each.line() == []
    # One dies; the other does not wait for it, and what it writes alone holds for nobody.
    ranks = [Rank(master, "upsert", rank, 2, 1, 10_000) for rank in range(2)]
    assert all(each.line() == [1, 0] for each in ranks)
    while ranks[1].line()[0] < 30:
        pass
    ranks[1].kill()
    while ranks[0].line()[0] < 40:
        pass
    ranks[0].kill()
    first = tensor_rank.version_of(store.get_tensor_with_parallelism(tensor_rank.KEY, target("full", tp(0, 1))), tensor_rank.INDEX) + 1
    assert 30 <= first < 10_000
    # They come back, one where it was, the other beyond.
    tensor_rank.write(store, "upsert", 1, 2, first, first + 10, "versions")
    tensor_rank.write(store, "upsert", 0, 2, first + 5, first + 10, "versions")
    assert reads_by(store, first + 10)
    # Another partition; one rank is late.
    for rank in (2, 0, 1, 3):
        assert reads_by(store, first + 10)
        tensor_rank.write(store, "upsert", rank, 4, first + 11, first + 11)
    assert reads_by(store, first + 11)
    for each in readers:
        said = each.end()[-1]
        print(said)
        assert said["wrong"] == [] and said["answers"] > 50 and said["last"] == first + 11, said


def reads_by(store, version):
    found = [store.get_tensor_with_parallelism(tensor_rank.KEY, target("full", tp(0, size))) for size in (1, 2, 4, 8)]
    return [tensor_rank.version_of(each, tensor_rank.INDEX) for each in found] == [version] * 4


@upserts
def test_one_version_in_each_answer_under_load(store):
    """Four ranks, then two, four, one, eight, ... and readers of 1, 2, 4 and 8 all the while."""
    upsert_by(store, "key", 0, range(4), 4)
    wrong, answers, ends = [], [0] * 4, threading.Event()

    def read(index, size):
        while not ends.is_set():
            for each in reads_of(store, "key", size):
                answers[index] += each is not None
                if each is not None and len(each) != 1:
                    wrong.append((size, each))
    threads = [threading.Thread(target=read, args=(i, size)) for i, size in enumerate((1, 2, 4, 8))]
    for one in threads:
        one.start()
    for version in range(1, 43):
        size = (8, 2, 2, 4, 1, 4, 4)[version % 7]
        ranks = [threading.Thread(target=upsert_by, args=(store, "key", version, [rank], size)) for rank in range(size)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        for readers in (1, 2, 4, 8):
            got = reads_of(store, "key", readers)
            assert all(each in ({version}, None) for each in got) and got[0] == got[-1] == {version}, (version, size, readers, got)
    ends.set()
    for one in threads:
        one.join()
    assert not wrong and min(answers) > 20, (wrong[:5], answers)


@upserts
def test_an_older_releases_shards_are_read_and_replaced(store):
    """Edition 0 throughout, of any partition."""
    for size, version in ((4, 1), (2, 2)):
        for rank in range(size):
            own = parallel._place(place(tp(rank, size)))
            packed = parallel._local_shard(torch.full((16 // size, 8), version), 8, own)
            for name, item in parallel._with_manifest("key", own, [(own, packed)]):
                assert parallel.write(store, [[(name, item)]], None, True) == [0]
        for readers in (1, 2, 4, 8):
            got = reads_of(store, "key", readers)
            assert all(each in ({version}, None) for each in got) and got[0] == got[-1] == {version}
    for size, version in ((4, 3), (4, 4), (2, 5)):
        upsert_by(store, "key", version, range(size), size)
        for readers in (1, 2, 4, 8):
            got = reads_of(store, "key", readers)
            assert all(each in ({version}, None) for each in got) and got[0] == got[-1] == {version}


@upserts
def test_a_shard_that_was_read_is_put_elsewhere(store):
    """It brings the edition of where it came from."""
    upsert_by(store, "key", 1, range(4), 4)
    upsert_by(store, "key", 2, range(2), 2)
    memory, start = room()
    for rank in range(2):
        asked = target("as_stored", tp(rank, 2))
        size = HEADER + store.get_tensor_with_parallelism_into("key", start, len(memory), asked).nbytes
        assert store.put_tensor_with_parallelism_from("copy", start, size, place(tp(rank, 2))) == 0
    assert reads_of(store, "copy", 4)[-1] == reads_of(store, "copy", 4)[0] == {2}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(master, node, method):
    script = pathlib.Path(__file__).with_name("tensor_loader.py")
    done = subprocess.run([sys.executable, "-B", str(script), master.address, method], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_shards_without_a_manifest(store):
    assert store.put_tensor_with_tp("key", WHOLE, 0, 4) == 0
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 4))), WHOLE)
    assert torch.equal(store.get_tensor_with_parallelism("key", target("shard", tp(5, 6))), WHOLE[10:])
    assert store.put("key__parallelism_manifest", pattern(96)) == 0
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 4))), WHOLE)


def test_more_axes(store):
    for rank in range(2):
        for stage in range(2):
            assert store.put_tensor_with_parallelism("key", WHOLE + 100 * stage, place(pp(stage, 2, stage), tp(rank, 2))) == 0
    for stage in range(2):
        other = pp(stage, 2, stage)
        whole = WHOLE + 100 * stage
        assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 2), other)), whole)
        assert torch.equal(store.get_tensor_with_parallelism("key", target("shard", other, tp(1, 3))), whole[4:8])
        assert torch.equal(store.get_tensor_with_parallelism("key", target("as_stored", tp(1, 2), other)), whole[6:])
    for wrong in (target("full", tp(0, 2)), target("full", tp(0, 2), pp(1, 2, 7)), target("full", pp()), target("shard", pp())):
        assert store.get_tensor_with_parallelism("key", wrong) is None
    assert store.put_tensor_with_parallelism("copy", WHOLE, place(axis(kind="dp", rank=1, size=2))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("copy", target("shard", axis(kind="dp", rank=1, size=2))), WHOLE)
    assert store.get_tensor_with_parallelism("copy", target("shard", axis(kind="dp", rank=0, size=2))) is None


def test_writer_partitions(store):
    for rank in range(3):
        assert store.put_tensor_with_parallelism("key", WHOLE, writer_partition=Cut(rank, 3, 0)) == 0
    assert store.get_size("key__writer_2of3_sd0") == HEADER + 4 * 8 * 4
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full")), WHOLE)
    assert torch.equal(store.get_tensor_with_parallelism("key", target("shard", tp(1, 2))), WHOLE[6:])
    assert store.remove("key__writer_1of3_sd0", True) == 0
    assert store.get_tensor_with_parallelism("key", target("full")) is None
    for wrong in (5, None, Cut(3, 3, 0), Cut(0, 5, 0), Cut(0, 2, 2), Cut(0, 2, None), Cut("a", 2, 0), Cut(-1, 2, 0)):
        codes = store.batch_put_tensor_with_parallelism(["bad"], [WHOLE], writer_partitions=[wrong])
        assert codes == ([0] if wrong is None else [-600])
    assert store.put_tensor_with_parallelism("both", WHOLE, place(tp(0, 2)), writer_partition=Cut(0, 2, 0)) == -600


def test_batches_of_places(store):
    places = [place(tp(0, 2)), None, place(tp(0, 2, 5))]
    assert store.batch_put_tensor_with_parallelism(["a", "b", "c"], [WHOLE] * 3, places) == [0, 0, -600]
    for wrong in (places[:2], place(tp(0, 2)), 7):
        assert store.batch_put_tensor_with_parallelism(["d", "e", "f"], [WHOLE] * 3, wrong) == [-600] * 3
    assert store.batch_put_tensor_with_parallelism(["d"], [WHOLE], [7]) == [-600]
    found = store.batch_get_tensor_with_parallelism(["a", "b", "c", "a"], [target("shard", tp(0, 2)), None, None, target("shard", tp(1, 4))])
    assert torch.equal(found[0], WHOLE) and torch.equal(found[1], WHOLE) and found[2] is None and torch.equal(found[3], WHOLE[6:])
    assert store.batch_get_tensor_with_parallelism(["a", "b"], [None]) == [None, None]
    assert store.batch_get_tensor_with_parallelism([]) == []
    assert store.get_tensor_with_parallelism("b", 5) is None and store.get_tensor_with_parallelism("b", target("shard")) is None
    memory, start = room()
    found = store.batch_get_tensor_with_parallelism_into(["a", "b"], [start, start + 4096], [4096] * 2, [target("shard", tp(1, 4)), None])
    assert torch.equal(found[0], WHOLE[6:]) and torch.equal(found[1], WHOLE)
    assert store.batch_get_tensor_with_parallelism_into(["a", "b"], [start], [4096] * 2) == [-600, -600]


def test_from_the_callers_memory(store):
    memory, start = room()
    assert store.put_tensor("whole", WHOLE) == 0
    size = HEADER + store.get_tensor_into("whole", start, len(memory)).nbytes
    assert store.put_tensor_with_parallelism_from("a", start, size, place(tp(1, 2))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("a", target("full", tp(0, 2))), WHOLE)
    assert store.put_tensor_with_parallelism_from("b", start, size) == 0 and torch.equal(store.get_tensor("b"), WHOLE)
    assert store.put_tensor_with_parallelism_from("c", start, size, writer_partition=Cut(0, 1, 0)) == 0
    assert torch.equal(store.get_tensor_with_parallelism("c", target("full")), WHOLE)
    assert store.batch_put_tensor_with_parallelism_from(["d", "e"], [start, start], [size, size + 1]) == [0, -600]
    assert store.put_tensor_with_parallelism_from("f", 0, size, place(tp(0, 2))) == -600
    # A shard is stored as what it is, and as nothing else.
    part = store.get_tensor_with_parallelism_into("a", start, len(memory), target("shard", tp(1, 4)))
    size = HEADER + part.nbytes
    assert store.put_tensor_with_parallelism_from("g", start, size, place(tp(1, 4))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("g", target("shard", tp(1, 4))), WHOLE[3:6])
    assert store.put_tensor_with_parallelism_from("h", start, size, place(tp(0, 4))) == -600
    assert store.put_tensor_with_parallelism_from("h", start, size, writer_partition=Cut(0, 1, 0)) == -600
    assert store.remove_by_regex("^[fh]", True) == 0


def test_empty_shards(store):
    assert store.put_tensor_with_tp("key", torch.zeros(0, 4), 0, 2) == 0
    assert store.get_tensor_with_parallelism("key", target("full", tp(0, 2))).shape == (0, 4)
    assert store.get_tensor_with_parallelism("key", target("shard", tp(2, 4))).shape == (0, 4)


# ---- files ----


def test_safetensors(store, tmp_path, monkeypatch):
    files = pytest.importorskip("safetensors.torch")
    path = str(tmp_path / "one.safetensors")
    assert store.put_tensor("key", WHOLE) == 0 and store.save_tensor_to_safetensor("key", path) == 0
    assert torch.equal(files.load_file(path)["key"], WHOLE)
    assert store.remove_all(True) >= 0
    assert torch.equal(store.load_tensor_from_safetensor("key", path), WHOLE) and torch.equal(store.get_tensor("key"), WHOLE)
    # A name that the file has not: its first tensor; no name: the file's.
    assert torch.equal(store.load_tensor_from_safetensor("other", path), WHOLE) and torch.equal(store.get_tensor("other"), WHOLE)
    assert torch.equal(store.load_tensor_from_safetensor(file_name=path), WHOLE) and torch.equal(store.get_tensor(path), WHOLE)
    monkeypatch.chdir(tmp_path)
    assert store.save_tensor_to_safetensor("key") == 0 and (tmp_path / "key").exists()
    assert store.save_tensor_to_safetensor("none", path) == -1100
    assert store.save_tensor_to_safetensor("key", str(tmp_path / "no" / "folder")) == -600
    (tmp_path / "noise").write_bytes(pattern(500))
    assert store.load_tensor_from_safetensor("x", str(tmp_path / "noise")) is None
    assert store.load_tensor_from_safetensor("x", str(tmp_path / "none")) is None and store.is_exist("x") == 0
    with pytest.raises(TypeError):
        store.load_tensor_from_safetensor("x")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert store.save_tensor_to_safetensor("key", path) == -600 and store.save_tensor_to_safetensor("none", path) == -1100
    assert store.load_tensor_from_safetensor("x", path) is None


# ---- the original ----

ORIGINAL = """
import sys, torch
from mooncake import store
exec(sys.stdin.readline())
for line in sys.stdin:
    dtype, shape, data = eval(line)
    tensor = store._deserialize_tensor(bytes.fromhex(data))
    assert str(tensor.dtype) == dtype and (tuple(tensor.shape) == shape or shape == ()), (tensor.dtype, tensor.shape, dtype, shape)
    header, place, size, owner = store._serialize_tensor(tensor if shape else tensor.reshape(()))
    import ctypes
    print((header + ctypes.string_at(place, size)).hex())
"""


@pytest.mark.skipif("MC_ORIGINAL" not in os.environ, reason="MC_ORIGINAL names no package of the original")
def test_the_original_reads_and_writes_the_same_bytes():
    tensors = [filled(dtype, shape) for dtype in DTYPES for shape in SHAPES]
    ours = [(module._serialize_tensor(each)[0] + raw(each)).hex() for each in tensors]
    lines = ["pass", *(repr((str(each.dtype), tuple(each.shape), data)) for each, data in zip(tensors, ours))]
    done = subprocess.run([sys.executable, "-B", "-c", ORIGINAL], input="\n".join(lines), env=dict(os.environ, PYTHONPATH=os.environ["MC_ORIGINAL"]),
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    theirs = [line for line in done.stdout.splitlines() if line]
    assert theirs == ours
    assert all(same(module._deserialize_tensor(bytes.fromhex(data)), each) for data, each in zip(theirs, tensors))


def test_any_order_of_imports():
    for order in ("import torch, mooncake.store", "import mooncake.store, torch", "import mooncake.engine, torch, mooncake.store", "import torch, mooncake.engine, mooncake.store",
                  "import mooncake.store, mooncake.engine, torch"):
        code = order + "; print(mooncake.store._serialize_tensor(torch.zeros(2))[2])"
        done = subprocess.run([sys.executable, "-B", "-c", code], env=dict(os.environ, PYTHONPATH=os.environ["MC_PYTHONPATH"]),
                              capture_output=True, text=True, timeout=280)
        assert done.stdout == "8\n", done.stderr


def test_the_package_under_test():
    assert pathlib.Path(module.__file__).resolve().parts[-3:] == ("python", "mooncake", "store.py")
