"""Tensors as objects: what can be said of them without torch, and the runner of torch_tensors.py, which needs it.

MC_TORCH_PYTHON names a Python that has torch; without it this Python's own is taken, if there is one."""
import importlib.util
import os
import pathlib
import struct
import subprocess
import sys
import xml.etree.ElementTree

import pytest

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake import _tensor  # noqa: E402
from mooncake import _tensor_parallel as parallel  # noqa: E402
from mooncake import store as module  # noqa: E402

HEADER = 304
# As the original (0.3.13.post1) writes them.
F32_3_4 = (
    "4e4f4f4d0100300100000000020000000000000000000000300100000000000030000000000000000300000000000000"
    "0400000000000000" + "ff" * 48 + "03000000000000000400000000000000" + "ff" * 48 + "00" * 136
)
SHARD_1_OF_2 = (
    "4e4f4f4d0100300100000000020000000100000000000000300100000000000030000000000000000600000000000000"
    "0400000000000000" + "ff" * 48 + "03000000000000000400000000000000" + "ff" * 48
    + "0100000000000000" "0100000000000000" "0100000002000000" "0000000000000000" "0300000000000000" + "00" * 96
)


@pytest.mark.parametrize("text,shape,whole,axes", [
    (F32_3_4, (3, 4), (3, 4), ()),
    (SHARD_1_OF_2, (3, 4), (6, 4), (_tensor.Axis(1, 0, 1, 2, 0, 0, 3),)),
], ids=["whole", "shard"])
def test_the_header_is_the_originals(text, shape, whole, axes):
    data = bytes.fromhex(text)
    assert len(data) == HEADER
    header = _tensor.parse(data, HEADER + 48)
    assert header == _tensor.Header(0, int(bool(axes)), whole, shape, axes)
    assert header.pack() == data


@pytest.mark.parametrize("code", range(15))
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 0, 3), (1,) * 7 + (5,), (1 << 40, 3)])
def test_every_dtype_and_shape_comes_back(code, shape):
    header = _tensor.Header(code, _tensor.WHOLE, shape, shape, ())
    data = header.pack()
    size = HEADER + header.data_bytes
    assert len(data) == HEADER == module._tensor_metadata_size() and _tensor.parse(data, size) == header
    assert struct.unpack_from("<Q", data, 32)[0] == size - HEADER
    for wrong in (size - 1, size + 1, 0, HEADER - 1, 1 << 62):
        assert _tensor.parse(data, wrong) is None


def test_the_codes_of_dtypes_never_change():
    assert _tensor.DTYPES == ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
                              "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    assert len(_tensor.ITEM_SIZES) == 15


@pytest.mark.parametrize("text", [F32_3_4, SHARD_1_OF_2], ids=["whole", "shard"])
def test_a_flipped_bit_makes_no_other_tensor(text):
    """Either the header is refused, or the tensor's elements, shape and dtype are the same."""
    good = bytes.fromhex(text)
    meant = _tensor.parse(good, HEADER + 48)
    accepted = set()
    for place in range(HEADER * 8):
        data = bytearray(good)
        data[place // 8] ^= 1 << place % 8
        found = _tensor.parse(bytes(data), HEADER + 48)
        if found is not None:
            accepted.add(place // 8)
            assert (found.shape, found.data_bytes) == (meant.shape, meant.data_bytes)
            # A dtype of the same size cannot be told from another by the size.
            assert found.dtype == meant.dtype or place // 8 == 8
    assert accepted.isdisjoint(range(0, 8)) and accepted.isdisjoint(range(12, 16)) and accepted.isdisjoint(range(24, 40))


def test_cut_and_hostile_headers_are_refused():
    good = bytes.fromhex(F32_3_4)
    for length in range(HEADER):
        assert _tensor.parse(good[:length], HEADER + 48) is None
    for place, form, value in [(8, "i", -1), (8, "i", 15), (12, "I", 9), (12, "I", 1 << 31), (16, "I", 2), (40, "q", -3), (104, "q", -1),
                               (104, "q", 1 << 62), (168, "I", 5), (168, "I", 1 << 31), (56, "q", 1), (120, "q", 1)]:
        data = bytearray(good)
        struct.pack_into("<" + form, data, place, value)
        assert _tensor.parse(bytes(data), HEADER + 48) is None, (place, value)
    # -3 x -4 elements would be as many as 3 x 4.
    data = bytearray(good)
    for place in (40, 48, 104, 112):
        struct.pack_into("<q", data, place, -struct.unpack_from("<q", data, place)[0])
    assert _tensor.parse(bytes(data), HEADER + 48) is None


def axis(**fields):
    made = module.ParallelAxis()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def place(*axes):
    made = module.TensorParallelism()
    made.axes = list(axes)
    return parallel._place(made)


TP = dict(kind="tp", rank=1, size=2, split_dim=1)
PP = dict(kind="pp", rank=1, size=4, stage_id=2)
EP = dict(kind="EP", rank=0, size=2, expert_id=3)
DP = dict(kind="dp", rank=1, size=2)


@pytest.mark.parametrize("axes,key", [
    ([TP], "k_tp_1"),
    ([DP], "k__dp_1of2"),
    ([PP], "k__pp_1of4_sid2"),
    ([TP, PP], "k__tp_1of2_sd1__pp_1of4_sid2"),
    ([PP, TP], "k__tp_1of2_sd1__pp_1of4_sid2"),
    ([PP, EP, TP, DP], "k__dp_1of2__tp_1of2_sd1__ep_0of2_eid3__pp_1of4_sid2"),
])
def test_keys_of_shards_are_the_originals(axes, key):
    assert place(*(axis(**each) for each in axes)).key("k") == key


@pytest.mark.parametrize("wrong", [
    [], [DP] * 5, [TP, TP], [dict(TP, rank=2)], [dict(TP, rank=-1)], [dict(TP, size=0, rank=0)], [dict(TP, size=-2)], [dict(TP, split_dim=None)],
    [dict(TP, split_dim=-1)], [dict(TP, split_dim=8)], [dict(PP, stage_id=None)], [dict(EP, expert_id=None)], [dict(DP, split_dim=0)],
    [dict(PP, split_dim=0)], [dict(EP, split_dim=0)], [dict(TP, kind="")], [dict(TP, kind="cp")], [dict(TP, size=1 << 20)],
], ids=str)
def test_locations_that_are_none(wrong):
    assert place(*(axis(**each) for each in wrong)) is None
    assert parallel._place(None) is None and parallel._place(7) is None


def test_fields_take_what_they_mean():
    made = module.ParallelAxis()
    assert (made.kind, made.rank, made.size, made.split_dim, made.expert_id, made.stage_id) == ("", 0, 1, None, None, None)
    for name in ("rank", "size", "split_dim", "expert_id", "stage_id"):
        for wrong in (1.5, "1", [1]):
            with pytest.raises(TypeError):
                setattr(made, name, wrong)
        with pytest.raises(TypeError):
            setattr(made, name, 1 << 31)
    for name in ("rank", "size"):
        with pytest.raises(TypeError):
            setattr(made, name, None)
    with pytest.raises(TypeError):
        made.kind = 1
    target = module.ReadTarget()
    assert (target.mode, target.parallelism) == ("as_stored", None)
    target.mode, target.parallelism = "full", module.TensorParallelism()
    with pytest.raises(RuntimeError, match="mode"):
        target.mode = "all"
    for name in ("mode", "parallelism"):
        with pytest.raises(TypeError):
            setattr(target, name, 5)
    with pytest.raises(TypeError):
        module.TensorParallelism().axes = [TP]


def test_what_is_assigned_is_copied():
    """As in the original: one axis may be used for many places. What is read of a place is that place's own."""
    one, places = axis(kind="tp", split_dim=0), []
    for rank in range(4):
        one.rank, one.size = rank, 4
        places.append(module.TensorParallelism())
        places[-1].axes = [one]
    assert [parallel._place(each).key("k") for each in places] == [f"k_tp_{rank}" for rank in range(4)]
    target = module.ReadTarget()
    target.parallelism = places[0]
    places[0].axes = []
    assert parallel._place(target.parallelism).key("k") == "k_tp_0"
    target.parallelism.axes[0].rank = 3
    assert parallel._place(target.parallelism).key("k") == "k_tp_3" and one.rank == 3 and target.parallelism is target.parallelism
    target.parallelism = None
    assert target.parallelism is None


class Rank:
    """Whatever a program keeps its places in."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Index:
    def __index__(self):
        return 1


def test_places_of_the_callers_own_types():
    """Their attributes count, as in the original."""
    every = dict(split_dim=None, expert_id=None, stage_id=None)
    rank = Rank(axes=(Rank(**dict(every, **TP)), Rank(kind="pp", rank=Index(), size=4, stage_id=2), axis(**EP)))
    assert parallel._place(rank).key("k") == "k__tp_1of2_sd1__ep_0of2_eid3__pp_1of4_sid2"
    assert parallel._request(Rank(mode="SHARD", parallelism=rank)) == parallel.Request("shard", parallel._place(rank))
    assert parallel._request(Rank(mode="full", parallelism=None)) == parallel.Request("full", None)
    for wrong in (Rank(), Rank(axes=None), Rank(axes=5), Rank(axes=[]), Rank(axes=[5]), Rank(axes=[Rank(kind="tp")]), Rank(axes=[Rank(**dict(TP, rank="1"))]),
                  Rank(axes=[Rank(**dict(TP, kind=5))]), Rank(axes=[Rank(**dict(TP, size=1 << 31))])):
        assert parallel._place(wrong) is None
        assert parallel._request(Rank(mode="shard", parallelism=wrong)) is None
    for wrong in (5, Rank(mode="full"), Rank(parallelism=None), Rank(mode="all", parallelism=None), Rank(mode=5, parallelism=None), Rank(mode="shard", parallelism=None)):
        assert parallel._request(wrong) is None


def test_a_manifest_comes_back_or_is_refused():
    meant = parallel.Manifest(12, 1, 4, (6, 8))
    data = meant.pack()
    assert len(data) == 96 and data[:8] == b"NAMW\x01\x00\x60\x00" and parallel._manifest_of(data) == meant
    for length in range(96):
        assert parallel._manifest_of(data[:length]) is None
    assert parallel._manifest_of(data + b"\0") is None
    for at, form, value in [(0, "I", 0), (4, "H", 2), (6, "H", 95), (8, "i", 15), (12, "I", 9), (12, "I", 1), (16, "i", 2), (16, "i", -1),
                            (20, "i", 0), (20, "i", 3), (20, "i", 1 << 20), (32, "q", -1)]:
        wrong = bytearray(data)
        struct.pack_into("<" + form, wrong, at, value)
        assert parallel._manifest_of(bytes(wrong)) is None, (at, value)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.path.insert(0, sys.argv[1])
from mooncake import _tensor, store
node = store.MooncakeDistributedStore()
for call in (lambda: node.put_tensor("k", 1), lambda: node.get_tensor("k"), lambda: node.batch_get_tensor(["k"]),
             lambda: node.get_tensor_with_parallelism("k"), lambda: node.get_tensor_into("k", 1, 1), lambda: store._serialize_tensor(1),
             lambda: node.save_tensor_to_safetensor("k"), lambda: node.get_tensor_with_tp("k", 0, 2),
             lambda: store._deserialize_tensor(_tensor.Header(0, 0, (), (), ()).pack() + b"1234")):
    try:
        call()
        raise SystemExit("no ImportError")
    except ImportError as error:
        assert "torch" in str(error), error
assert node.get("k") == b"" and node.close() == 0
print("fine")
"""


def test_without_torch_only_tensors_are_missing():
    done = subprocess.run([sys.executable, "-B", "-c", WITHOUT_TORCH, os.environ["MC_PYTHONPATH"]], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr


def test_import_takes_no_torch():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import mooncake.store, mooncake.async_store; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-B", "-c", code, os.environ["MC_PYTHONPATH"]], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def torch_python():
    named = os.environ.get("MC_TORCH_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("torch") else None)


@pytest.mark.timeout(1500)
def test_with_torch(tmp_path):
    """torch_tensors.py in a Python that has torch; pytest itself is lent to it."""
    if os.environ.get("MC_SANITIZER"):
        pytest.skip("torch is not made for a sanitizer's runtime; the calls below it are tested under one by test_python_store.py")
    python = torch_python()
    if python is None:
        pytest.skip("no torch: MC_TORCH_PYTHON names a Python that has it (./dev test clients builds one)")
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(pytest.__file__).parents[1]))
    script = pathlib.Path(__file__).with_name("torch_tensors.py")
    report = tmp_path / "report.xml"
    done = subprocess.run([python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(script.parents[1]), "--timeout", "300",
                           "--junitxml", str(report), str(script)], env=environment, capture_output=True, text=True, timeout=1480)
    print(done.stdout[-20000:], done.stderr[-4000:])
    assert done.returncode == 0
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    assert int(suite.get("tests")) - int(suite.get("skipped")) > 50
