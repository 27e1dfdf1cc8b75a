"""mooncake.structured_object_store and mooncake.dataproto_catalog at a real cluster, in a Python that has numpy and perhaps torch; started by
test_structured_objects.py. object_cases.py MASTER CASE..."""
import ctypes
import json
import sys
import threading

import numpy as np

from mooncake import _bundle, _rows
from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake.structured_object_store import (BundleTransferPolicy, FieldSchema, MooncakeBundleTransfer, RemoteBundleRef, StructuredMemberSlice,
                                              StructuredObjectPayload, export_ref, import_ref, is_dataproto_ref_handle, raw_destination,
                                              tensor_object_buffer)

try:
    import torch
except ImportError:
    torch = None

CHUNK = 1000  # small, so that everything lies in many pieces


def refuses(kind, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")


def same(one, other):
    if torch is not None and isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape and all(map(same, one.reshape(-1).tolist(), other.reshape(-1).tolist()))
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return type(other) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def keys_of(store, prefix="t"):
    """How many objects are left below the prefix."""
    return store.remove_by_regex(f"^{prefix}/", True)


def bundles(store, transfer):
    data = bytes(range(256)) * 20
    ref = transfer.put_bundle(b"meta", {"one": data, "two": np.arange(7), "none": b""}, chunk_bytes=CHUNK)
    assert ref.manifest_key.startswith("t/default/") and len(ref.manifest["buffers"]["one"]["chunks"]) == 6
    manifest = transfer._bundles.manifest(RemoteBundleRef(ref.manifest_key, {}))
    assert manifest == ref.manifest and manifest["buffers"]["none"] == {"key": ref.manifest_key.replace("manifest", "buffer/none"), "bytes": 0, "chunks": []}
    read = transfer._bundles.read
    assert read(manifest["buffers"]["one"]) == data and read(manifest["meta"]) == b"meta" and read(manifest["buffers"]["none"]) == b""
    part = bytearray(1500)
    transfer._bundles.read_into(manifest["buffers"]["one"], 900, _bundle.memory_of(part, "part"))
    assert part == data[900:2400]
    target = bytearray(1210)
    transfer._bundles.read_parts(manifest["buffers"]["one"], [(4999, 121), (0, 1000), (999, 2), (1000, 0), (10, 87)], _bundle.memory_of(target, "parts"))
    assert target == data[4999:5120] + data[:1000] + data[999:1001] + data[10:97]
    refuses(ValueError, transfer._bundles.read_into, manifest["buffers"]["one"], 5000, _bundle.memory_of(bytearray(121), "beyond"))
    refuses(ValueError, transfer._bundles.read_parts, manifest["buffers"]["one"], [(5119, 2)], _bundle.memory_of(bytearray(2), "beyond"))
    transfer.remove_bundle({"manifest_key": ref.manifest_key})
    transfer.remove_bundle(RemoteBundleRef(ref.manifest_key, {}))
    transfer.remove_bundle(ref)
    assert keys_of(store) == 0
    assert "no bundle" in refuses(KeyError, transfer.get_object, RemoteBundleRef(ref.manifest_key, {}))
    for policy in (BundleTransferPolicy(4), BundleTransferPolicy(put_mode="batch"), BundleTransferPolicy(3, "parallel", "copy")):
        ref = transfer.put_bundle(b"m", {"one": data}, "other", CHUNK, policy)
        assert read(ref.manifest["buffers"]["one"]) == data
        transfer.remove_bundle(ref)
    assert keys_of(store) == 0
    for bad in ({"max_inflight_put": 0}, {"put_mode": "x"}, {"copy_mode": "x"}):
        refuses(ValueError, BundleTransferPolicy, **bad)
    for bad in ("", "/", "a\nb", None):
        refuses(ValueError, MooncakeBundleTransfer, store, bad)
    for name in ("a/b", "", "x\0"):
        refuses(ValueError, transfer.put_bundle, b"m", {name: b"x"})
        refuses(ValueError, transfer.put_bundle, b"m", {}, partition=name)
    refuses(TypeError, transfer.put_bundle, b"m", {"x": 5})
    assert keys_of(store) == 0, "what was refused has put nothing"


def failures(store, transfer):
    """A put that fails takes back what it has put; a piece that is lost is an error, not other bytes."""
    class Failing:
        def __getattr__(self, name):
            return getattr(store, name)

        def put_from(self, key, address, size, **keywords):
            return -200 if "/buffer/b/3" in key or key.endswith(self.fails) else store.put_from(key, address, size, **keywords)

    for fails in ("/3", "/manifest"):
        failing = Failing()
        failing.fails = fails
        assert "-200" in refuses(RuntimeError, MooncakeBundleTransfer(failing, "t").put_bundle, b"m", {"a": bytes(5000), "b": bytes(5000)}, "p", CHUNK)
        assert keys_of(store) == 0, fails
    ref = transfer.put_object({"a": np.arange(1000), "b": b"rest"}, chunk_bytes=CHUNK)
    assert store.remove(ref.manifest["buffers"]["a"]["chunks"][3]["key"], True) == 0
    assert "-704" in refuses(RuntimeError, transfer.get_object, ref)
    assert transfer.materialize(transfer.read_spec(ref).select_members(["b"])).objects == {"b": b"rest"}
    transfer.remove_bundle(ref)
    # Manifests are data from elsewhere.
    good = transfer.put_bundle(b"m", {"a": b"x" * 10})
    assert store.put("t/victim", b"v") == 0
    for change in ({"version": 2}, {"object_id": 5}, {"object_id": "../x"}, {"buffers": []}, {"buffers": {"a": {}}}, {"cleanup_keys": ["t/victim"]},
                   {"buffers": {"a": {"key": "t/victim", "bytes": 1, "chunks": [{"key": "t/victim", "bytes": 1}]}}}, {"buffer_object_ids": ["x"]},
                   {"buffers": {"a": {**good.manifest["buffers"]["a"], "bytes": 9}}}, {"meta": {"key": "t/victim", "bytes": -1, "chunks": [{"bytes": -1}]}}):
        evil = {**good.manifest, **change}
        refuses(ValueError, transfer.remove_bundle, RemoteBundleRef(good.manifest_key, evil))
        refuses(ValueError, transfer.get_object, {"manifest": evil, "manifest_key": good.manifest_key})
    refuses(ValueError, transfer.remove_bundle, RemoteBundleRef("t/default/other/manifest", good.manifest))
    assert store.get("t/victim") == b"v" and store.put("t/default/x/manifest", b"no json") == 0
    refuses(ValueError, transfer.get_object, {"manifest_key": "t/default/x/manifest"})
    for bad in ({}, {"manifest_key": 5}):
        refuses(ValueError, transfer.get_object, bad)
    refuses(TypeError, transfer.get_object, "text")


def objects(store, transfer):
    values = {"bytes": b"x" * 3000, "floats": np.arange(600, dtype=np.float32).reshape(200, 3), "turned": np.arange(12).reshape(3, 4).T, "bools": np.array([True, False]),
              "empty": np.empty((0, 4), np.int16), "scalar": np.array(2.5), "texts": np.array(["a", "bc"]), "times": np.array(["2026-01-01"], "M8[D]")}
    ref = transfer.put_object(values, chunk_bytes=CHUNK)
    got = transfer.get_object(ref)
    assert same({name: np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value for name, value in values.items()}, got)
    got["floats"][0, 0] = 9  # memory of its own
    spec = transfer.read_spec(ref).select_members(["floats", "bytes"]).slice_member("floats", 0, 150, 10, 1).slice_member("floats", 0, 10, 150, 7)
    assert spec.member_slice("floats") == StructuredMemberSlice(0, 10, 150, 7) and spec.member_slice("bytes") is None
    objects = transfer.materialize(spec).objects
    assert list(objects) == ["floats", "bytes"] and same(objects["floats"], np.ascontiguousarray(values["floats"][10:150:7]))
    for start, end, step in ((0, 0, 1), (150, 10, 1), (-5, 200, 2), (199, 1000, 1)):
        cut = transfer.materialize(transfer.read_spec(ref).select_members(["floats"]).slice_member("floats", 0, start, end, step)).objects["floats"]
        assert same(cut, np.ascontiguousarray(values["floats"][start:end:step]))
    target = np.empty((200, 3), np.float32)
    assert transfer.materialize_into(transfer.read_spec(ref).select_members(["floats"]), {"floats": target}).objects["floats"] is target
    assert (target == values["floats"]).all()
    room = (ctypes.c_char * 3000)()
    into = raw_destination(ctypes.addressof(room), 3000, room)
    objects = transfer.materialize_into(transfer.read_spec(ref).select_members(["floats", "bytes"]), {"floats": into}).objects
    assert same(objects["floats"], values["floats"]) and bytes(room)[:2400] == values["floats"].tobytes()
    transfer.materialize_into(transfer.read_spec(ref).select_members(["bytes"]), {"bytes": room})
    assert bytes(room) == values["bytes"]
    everything = transfer.read_spec(ref)
    for bad in (np.empty((200, 3)), np.empty((3, 200), np.float32), np.empty((200, 6), np.float32)[:, ::2], raw_destination(1, 2399)):
        refuses(ValueError, transfer.materialize_into, everything, {"floats": bad})
    refuses(TypeError, transfer.materialize_into, everything, {"floats": bytearray(2400)})
    refuses(ValueError, transfer.materialize_into, everything, {"bytes": bytearray(2999)})
    for name, axis, step in (("floats", 1, 1), ("floats", 0, 0), ("bytes", 0, 1), ("scalar", 0, 1)):
        refuses(ValueError, transfer.materialize, everything.slice_member(name, axis, 0, 1, step))
    refuses(ValueError, transfer.materialize, everything.select_members([]))
    refuses(KeyError, transfer.materialize, everything.select_members(["no"]))
    transfer.remove_bundle(ref)
    ref = transfer.put_structured_object(StructuredObjectPayload({"step": 5, "layout": "mine"}, {"a": b"1"}))
    result = transfer.materialize(transfer.read_spec(ref))
    assert (result.metadata["step"], result.metadata["layout"], result.objects) == (5, "mine", {"a": b"1"})
    one = transfer.put_object(np.arange(5))
    assert same(transfer.get_object(one), np.arange(5))
    for payload in (StructuredObjectPayload({"x": object()}, {"a": b"1"}), StructuredObjectPayload({}, {"a": np.array([None])}), StructuredObjectPayload({}, {"a": [1]})):
        refuses(TypeError, transfer.put_structured_object, payload)
    refuses(ValueError, transfer.put_structured_object, StructuredObjectPayload({"layout": 5}, {"a": b"1"}))
    refuses(TypeError, StructuredObjectPayload, {})


def values(_store, _transfer):
    """What a row may be."""
    nested = {"a": [1, 2.5, None, True, "ä\ud800", {"b": (1, b"\0\xff")}], 5: {}, None: [], 2.5: ()}
    arrays = [np.arange(6, dtype=np.int8).reshape(2, 3), np.float32(1.5), np.array([{"x": 1}, None, [np.arange(2)]], object), np.array("2026-01-01", "M8[D]"), np.empty((0, 3))]
    for value in (None, 1 << 100, float("inf"), "", b"", [], {}, nested, *arrays, [nested, arrays]):
        assert same(value, _rows.unpack(_rows.pack(value))), value
    assert np.isnan(_rows.unpack(_rows.pack(float("nan"))))
    deep = []
    for _ in range(300):
        deep = [deep]
    for bad in (object(), {1, 2}, 1j, lambda: 0, {(1,): 2}, deep, np.zeros(1, [("x", int)]), [object()], threading.Lock()):
        refuses(TypeError, _rows.pack, bad)
    packed = _rows.pack({"a": np.arange(4), "b": "text"})
    for cut in range(len(packed)):
        refuses(ValueError, _rows.unpack, packed[:cut])
    refuses(ValueError, _rows.unpack, packed + b"x")
    for text in (b'{"z":1}', b'{"n":["O",[1],8]}', b'{"n":["<i8",[2],8]}', b'{"n":5}', b'{"a":1,"b":2}', b'{"b":-1}', b'{"b":"x"}', b"{", b"\xff", b'{"d":[[[1],2]]}', b"[" * 100000):
        refuses(ValueError, _rows.unpack, len(text).to_bytes(4, "little") + text + bytes(8))


class Batch:
    """As a program's own DataProto."""

    def __init__(self, batch, non_tensor_batch=None, meta_info=None):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch or {}, meta_info or {}

    def __len__(self):
        return len(next(iter(self.batch.values())))


ROWS = 37
DENSE = {"ids": np.arange(ROWS * 5).reshape(ROWS, 5), "mask": np.arange(ROWS) % 3 == 0}
OTHERS = {"prompt": [f"text {row}" * row for row in range(ROWS)], "info": [{"row": row, "list": [row] * (row % 4), "array": np.arange(row)} for row in range(ROWS)],
          "maybe": [None if row % 2 else row for row in range(ROWS)]}
SELECTIONS = [None, slice(None), slice(3, 30, 4), slice(5, 5), slice(-3, None), [0], [], [36, 0, 5, 6, 7, 5, -1], range(10, 20), np.array([2, 1])]


def picked(values, rows):
    numbers = range(ROWS) if rows is None else range(ROWS)[rows] if isinstance(rows, slice) else rows
    return [values[int(one)] for one in numbers]


def batches(store, transfer):
    meta = {"step": 3, "names": ["x", "y"]}
    ref = transfer.put({**DENSE, **OTHERS, **meta}, type="dict", partition="train", chunk_bytes=CHUNK)
    assert (ref.batch_size, list(ref.meta_info)) == (ROWS, ["step", "names"])
    handle = json.loads(json.dumps(export_ref(ref)))
    assert is_dataproto_ref_handle(handle) and not is_dataproto_ref_handle({}) and export_ref(import_ref(handle)) == handle
    for rows in SELECTIONS:
        for asked in (ref, handle):
            got = transfer.get(asked, type="dict", rows=rows)
            assert list(got) == ["step", "names", *DENSE, *OTHERS]
            assert all(same(list(map(np.asarray, picked(value, rows))), [np.asarray(one) for one in got[name]]) for name, value in DENSE.items())
            assert all(same(picked(value, rows), got[name]) for name, value in OTHERS.items()), rows
    mixed = transfer.put({"ids": np.arange(3), "step": np.array(3)}, type="dict", partition="train")
    assert transfer.get(mixed, type="dict")["step"] == 3, "what has no rows is no field"
    transfer.cleanup_dataproto(mixed)
    assert same(transfer.get(handle, type="dict", rows=StructuredMemberSlice(0, 1, 9, 2), fields=["mask"])["mask"], DENSE["mask"][1:9:2].copy())
    sections = transfer.get(ref, fields=["prompt", "ids"], rows=[3, 1], meta_info_keys=["step"])
    assert list(sections["batch"]) == ["ids"] and sections["non_tensor_batch"]["prompt"].tolist() == picked(OTHERS["prompt"], [3, 1]) and sections["meta_info"] == {"step": 3}
    assert list(transfer.get(ref, batch_fields=["mask"])["batch"]) == ["mask"] and transfer.get(ref, non_tensor_fields=[])["batch"] == {}
    target = np.empty((ROWS, 5), int)
    assert transfer.get(ref, fields=["ids"], destinations={"ids": target})["batch"]["ids"] is target and (target == DENSE["ids"]).all()
    made = transfer.get_dataproto(ref, data_cls=Batch)
    assert isinstance(made, Batch) and same(made.batch["ids"], DENSE["ids"]) and made.meta_info == meta
    transfer.release_result(made)
    for call in ({"fields": ["no"]}, {"batch_fields": ["no"]}, {"meta_info_keys": ["no"]}):
        refuses(KeyError, transfer.get, ref, **call)
    refuses(ValueError, transfer.get, ref, fields=["ids"], batch_fields=["ids"])
    refuses(ValueError, transfer.get, ref, type="other")
    for rows, kind in (([ROWS], IndexError), ([-ROWS - 1], IndexError), ([1.5], TypeError), ([True], TypeError), ("ab", TypeError), (5, TypeError), (slice(0, 5, -1), ValueError)):
        refuses(kind, transfer.get, ref, rows=rows)
    view = transfer.dataproto_manifest_view(handle)
    assert list(view["batch_fields"]) == list(DENSE) and list(view["non_tensor_fields"]) == list(OTHERS) and view["batch_size"] == ROWS
    assert view["stages"]["default"]["dataproto"]["partition"] == "train" and view["non_tensor_fields"]["info"]["spec"]["payload_specs"]["offsets"]["dtype"] == "<i8"
    transfer.cleanup_dataproto(handle)
    transfer.cleanup_dataproto(ref)
    assert keys_of(store) == 0
    empty = transfer.put(Batch({}, meta_info={"only": "meta"}))
    assert (empty.batch_size, empty.stage_refs, transfer.get(export_ref(empty))["meta_info"]) == (0, {}, {"only": "meta"})
    config = ReplicateConfig()
    config.with_hard_pin, config.group_ids = True, ["mine"]
    named = transfer.put(Batch(DENSE), config=config)
    assert named._storage_group_id == "mine" and config.group_ids == ["mine"] and same(transfer.get(export_ref(named))["batch"], DENSE)
    config.group_ids = ["other"]
    refuses(ValueError, transfer.append_dataproto_fields, named, Batch({"x": np.arange(ROWS)}), stage="x", config=config)
    config.group_ids = ["a", "b"]
    for call, what in ((transfer.put, Batch(DENSE)), (transfer.put_object, DENSE)):
        refuses(ValueError, call, what, config=config)
    for groups in ([], [""], None):
        config.group_ids = groups
        assert same(transfer.get_object(transfer.put_object(DENSE, config=config)), DENSE)


def bad_batches(store, transfer):
    for data in (Batch({"a": np.arange(3), "b": np.arange(4)}), Batch({"a": np.arange(3)}, {"a": np.arange(3)}), {"batch": {"x/y": np.arange(3)}}):
        refuses(ValueError, transfer.put, data)
    assert "row 1: " in refuses(ValueError, transfer.put, Batch({}, {"a": np.array([1, object()], object)}))
    refuses(TypeError, transfer.put, Batch({"a": [1, 2]}))
    refuses(ValueError, transfer.put, {"a": np.arange(3), "b": np.arange(4)}, type="dict")
    refuses(ValueError, transfer.put, {"a": [1, 2], "b": [1, 2, 3]}, type="dict")
    refuses(TypeError, transfer.put, 5, type="dict")
    refuses(ValueError, transfer.put, {}, type="x")
    assert keys_of(store) == 0
    said = {"a": FieldSchema("json", metadata={"section": "non_tensor_batch"}), "b": FieldSchema("json", metadata={"section": "meta_info"})}
    ref = transfer.put({"a": [1, 2], "b": [1, 2, 3]}, type="dict", field_schemas=said)
    assert transfer.get(ref, type="dict") == {"b": [1, 2, 3], "a": [1, 2]}
    numbers = FieldSchema("ndarray", nullable=False, metadata={"dtype": "float32"})
    ref = transfer.put(Batch({}, {"a": np.array([1, 2], object), "b": [1, 2]}), field_schemas={"a": numbers, "b": numbers})
    assert same(transfer.get(ref, rows=[1])["non_tensor_batch"]["a"], np.array([2], np.float32)) and transfer.get(ref, type="dict")["b"] == [1, 2]
    refuses(ValueError, transfer.put, Batch({}, {"a": [1, None]}), field_schemas={"a": numbers})
    flat = transfer.put({"x": np.arange(2), "a": [3, 4]}, type="dict", field_schemas={"a": FieldSchema("ndarray", metadata={"section": "non_tensor_batch"})})
    assert transfer.get(flat, type="dict")["a"] == [3, 4], "a list is read as a list"
    rows_of_dicts(transfer)
    refuses(ValueError, transfer.put, Batch({"b": np.arange(2)}), field_schemas=said)
    refuses(ValueError, transfer.put, Batch({"b": np.arange(2)}), field_schemas={"b": FieldSchema("json", metadata={"section": "x"})})
    handle = export_ref(ref)
    for change in ({"type": "x"}, {"version": 3}, {"version": 2, "storage_group_id": None}, {"kind": "x"}, {"stage_refs": []}, {"stage_refs": {"": {"manifest_key": "x"}}},
                   {"stage_refs": {"default": {}}}, {"field_index": {"a": {"stage": "no", "member": "m", "section": "batch"}}}, {"field_index": {"a": 5}},
                   {"global_indexes": [True]}, {"global_indexes": 5}, {"batch_size": "2"}, {"meta_info": []}, {"storage_group_id": ""}):
        refuses(ValueError, import_ref, {**handle, **change})
    refuses(TypeError, transfer.get, {"type": "x"})
    refuses(TypeError, export_ref, handle)
    refuses(TypeError, export_ref, transfer.put(Batch({"a": np.arange(2)}, meta_info={"x": object()})))
    other = {**handle, "encoded_non_tensor": {"a": {"codec": "of a later release", "payload_members": {}}}}
    assert "later release" in refuses(ValueError, transfer.get, other)


def rows_of_dicts(transfer):
    said = {"a": FieldSchema("ragged_tensor_dict", metadata={"section": "non_tensor_batch", "keys": ["image"]})}
    good = [{"image": np.arange(3)}, None, {}]
    read = transfer.get(transfer.put(Batch({}, {"a": good}), field_schemas=said))["non_tensor_batch"]["a"]
    assert same(read[0]["image"], good[0]["image"]) and read[1:].tolist() == [None, {}]
    for key in "", "a/b", "a\\b", "a.b", "audio":
        assert "row 1" in refuses(ValueError, transfer.put, Batch({}, {"a": [None, {key: np.arange(3)}]}), field_schemas=said), key
    for bad in {"image": None}, 5:
        refuses(TypeError, transfer.put, Batch({}, {"a": [None, bad]}), field_schemas=said)
    ref = transfer.put(Batch({"x": np.arange(2)}))
    assert "cannot be constructed" in refuses(TypeError, transfer.get, ref, data_cls=object)


def appends(store, transfer):
    ref = transfer.put(Batch(DENSE, meta_info={"a": 1}), stage="rollout", chunk_bytes=CHUNK)
    more = transfer.append_dataproto_fields(export_ref(ref), Batch({"score": np.arange(ROWS, dtype=float)}, {"prompt": OTHERS["prompt"]}, {"b": 2}), stage="rollout")
    other = transfer.append_dataproto_fields(more, Batch({"value": np.arange(ROWS)}), stage="critic")
    assert list(other.stage_refs) == ["rollout", "critic"] and other.meta_info == {"a": 1, "b": 2} and other._storage_group_id == ref._storage_group_id
    for one, names in ((ref, [*DENSE]), (more, [*DENSE, "score", "prompt"]), (other, [*DENSE, "score", "prompt", "value"])):
        assert list(transfer.get(export_ref(one), type="dict", meta_info_keys=[])) == [name for name in names if name != "prompt"] + ["prompt"] * ("prompt" in names)
    for bad, stage in ((Batch({"score": np.arange(ROWS)}), "critic"), (Batch({"x": np.arange(3)}), "critic"), (Batch({"x": np.arange(ROWS)}), "a/b")):
        refuses(ValueError, transfer.append_dataproto_fields, other, bad, stage=stage)
    refuses(ValueError, transfer.append_dataproto_fields, other, Batch({"score": np.arange(ROWS)}), stage="rollout", overwrite=True)
    # An append that nobody has published goes, and what was there stays.
    transfer.cleanup_dataproto_append(more, other)
    transfer.cleanup_dataproto_append(more, other)
    assert same(transfer.get(export_ref(more), fields=["score"])["batch"]["score"], np.arange(ROWS, dtype=float))
    transfer.cleanup_dataproto_append(ref, more)
    assert same(transfer.get(export_ref(ref))["batch"], DENSE)
    refuses(KeyError, transfer.get, export_ref(more))
    # One that is published takes the former one with it.
    more = transfer.append_dataproto_fields(ref, Batch({"score": np.arange(ROWS)}), stage="rollout")
    again = transfer.append_dataproto_fields(more, Batch({"last": np.arange(ROWS)}), stage="rollout")
    transfer.cleanup_dataproto(export_ref(again))
    assert keys_of(store) == 0
    ref = transfer.put(Batch(DENSE), stage="s")
    new = transfer.append_dataproto_fields(ref, Batch({**DENSE, "ids": DENSE["ids"] + 1}), stage="s", overwrite=True)
    assert same(transfer.get(new)["batch"]["ids"], DENSE["ids"] + 1)
    refuses(KeyError, transfer.get, export_ref(ref))
    meta_only = transfer.append_dataproto_fields(new, Batch({}, meta_info={"m": 1}), stage="s")
    assert meta_only.stage_refs == new.stage_refs and meta_only.meta_info == {"m": 1}
    transfer.cleanup_dataproto(new)
    assert keys_of(store) == 0


def tensors(store, transfer):
    if torch is None:
        return
    dense = {"f": torch.arange(ROWS * 4, dtype=torch.float32).reshape(ROWS, 4), "h": torch.arange(ROWS, dtype=torch.bfloat16), "turned": torch.arange(ROWS * 2).reshape(2, ROWS).T}
    rows = [torch.arange(row, dtype=torch.int32) for row in range(ROWS)]
    ref = transfer.put({**dense, "ragged": rows, "word": "x"}, type="dict", chunk_bytes=CHUNK)
    for wanted in SELECTIONS:
        got = transfer.get(ref, type="dict", rows=wanted)
        numbers = list(range(ROWS)[wanted]) if isinstance(wanted, slice) else list(range(ROWS)) if wanted is None else [int(one) for one in wanted]
        assert all(same(value[numbers].contiguous(), got[name]) for name, value in dense.items()), wanted
        assert same([rows[one] for one in numbers], got["ragged"])
    nested = torch.nested.nested_tensor(rows[1:], layout=torch.jagged)
    ref = transfer.put(Batch({"n": nested}))
    assert same(rows[1:], list(transfer.get(ref)["batch"]["n"].unbind())) and same([rows[5], rows[2]], list(transfer.get(ref, rows=[4, 1])["batch"]["n"].unbind()))
    scalar = transfer.put_object({"one": torch.tensor(5), "none": torch.empty(0, 3), "turned": dense["turned"]})
    got = transfer.get_object(scalar)
    assert same(got["one"], torch.tensor(5)) and same(got["none"], torch.empty(0, 3)) and same(got["turned"], dense["turned"].contiguous())
    refuses(TypeError, transfer.put_object, {"x": torch.arange(4).to_sparse()})
    # Where put_tensor and get_tensor_into have it.
    assert store.put_tensor("plain", dense["f"]) == 0
    size = store.get_size("plain")
    room = (ctypes.c_char * size)()
    address = ctypes.addressof(room)
    assert same(store.get_tensor_into("plain", address, size), dense["f"])
    ref = transfer.put(Batch({"f": tensor_object_buffer(address, size, room, batch_size=ROWS)}), chunk_bytes=CHUNK)
    assert same(transfer.get(ref)["batch"]["f"], dense["f"]) and same(transfer.get(ref, rows=[7])["batch"]["f"], dense["f"][7:8])
    ctypes.memset(address, 0, size)
    assert same(transfer.get(ref, destinations={"f": raw_destination(address, size, room)})["batch"]["f"], dense["f"])
    ctypes.memset(address, 0, size)
    assert same(transfer.get(ref, destinations={"f": tensor_object_buffer(address, size)})["batch"]["f"], dense["f"]) and room[304 + 4 : 304 + 8] == b"\0\0\x80?"
    refuses(ValueError, transfer.get, ref, destinations={"f": raw_destination(address, size - 1)})
    refuses(ValueError, transfer.get, ref, destinations={"f": raw_destination(address, size)}, rows=[1])
    refuses(TypeError, transfer.get, ref, destinations={"f": np.empty(5)})


def catalog(store, transfer):
    """Rows by name, of fragments that go when nobody names them any more."""
    book = DataProtoCatalog()
    client = DataProtoCatalogTransfer(transfer, lambda method, *args, **keywords: getattr(book, method)(*args, **keywords))
    names = [f"row {row}" for row in range(ROWS)]
    client.put(Batch(DENSE), partition="p", keys=names, tags=[{"n": row} for row in range(ROWS)])
    client.put(Batch({"score": np.arange(3)}), partition="p", keys=names[4:1:-1])
    plan = client.resolve("p", [names[3], names[2]], ["ids", "score"])
    assert plan["tags"] == [{"n": 3}, {"n": 2}]
    for group in plan["field_groups"]:
        [fragment] = {one for one, _row in group["locations"]}
        got = transfer.get(plan["handles"][fragment], fields=group["fields"], rows=[row for _one, row in group["locations"]])["batch"]
        assert "ids" not in got or same(got["ids"], DENSE["ids"][[3, 2]])
        assert "score" not in got or same(got["score"], np.array([1, 2]))
    client.remove("p", names)
    assert all(transfer.get(one) for one in plan["handles"].values()), "who reads keeps them"
    client.release_read(plan["read_token"])
    assert keys_of(store) == 0 and client.list() == {}
    first = client.put(Batch(DENSE), partition="p", keys=names)
    plan = book.resolve("p", names)
    [(fragment, handle)] = plan["handles"].items()
    assert client.append(fragment, handle, Batch({"extra": np.arange(ROWS)}), partition="p", keys=names, stage="default")["fields"] == [*first["fields"], "extra"]
    refuses(ValueError, client.append, fragment, handle, Batch({"late": np.arange(ROWS)}), partition="p", keys=names, stage="default")
    new = book.resolve("p", names[:2], ["extra"])["handles"][fragment]
    assert same(transfer.get(new, fields=["extra", "mask"])["batch"], {"extra": np.arange(ROWS), "mask": DENSE["mask"]})
    client.drain()
    assert keys_of(store) == 0
    refuses(RuntimeError, client.put, Batch(DENSE), partition="p", keys=names)
    refuses(RuntimeError, client.close)


def main():
    address, *cases = sys.argv[1:]
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", address) == 0
    while store.put("warm up", bytes(30 << 20)) != 0:
        pass
    for case in cases:
        store.remove_all(True)
        globals()[case](store, MooncakeBundleTransfer(store, "t"))
        print("passed", case, "" if torch is not None else "without torch", flush=True)
    assert store.close() == 0


if __name__ == "__main__":
    main()
