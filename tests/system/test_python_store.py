"""mooncake.store against a real master: every method, every code that clients rely on, and every wrong argument."""
import array
import ast
import ctypes
import gc
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

from python_cluster import (  # noqa: F401
    BUFFER, MISSING, SEGMENT, SLOW, address, arguments, joined, master, node, pattern, store, unset, wait_until, with_fields
)
from mooncake import _setup, store as module
from mooncake._setup import SetupCalls
from mooncake.store import BufferHandle, MooncakeDistributedStore, ObjectDataType, ReplicateConfig, SoftPinAction


# ---- not set up ----

KEYS, PLACES, LENGTHS = ["a", "b", "c"], [4096, 8192, 12288], [1, 2, 3]
REFUSED = [
    ("put", ("k", b"v"), -600),
    ("put_parts", ("k", b"v", b"w"), -600),
    ("put_batch", (KEYS, [b"1", b"2", b"3"]), -600),
    ("put_from", ("k", 4096, 10), -600),
    ("put_from", ("k", 4096, 0), -600),
    ("batch_put_from", (KEYS, PLACES, LENGTHS), [-600] * 3),
    ("batch_put_from_multi_buffers", (KEYS, [[4096]] * 3, [[1]] * 3), [-600] * 3),
    ("get", ("k",), b""),
    ("get_batch", (KEYS,), [b""] * 3),
    ("get_buffer", ("k",), None),
    ("batch_get_buffer", (KEYS,), [None] * 3),
    ("get_into", ("k", 4096, 10), -600),
    ("batch_get_into", (KEYS, PLACES, LENGTHS), [-600] * 3),
    ("batch_get_into_multi_buffers", (KEYS, [[4096]] * 3, [[1]] * 3), [-600] * 3),
    ("get_into_ranges", ([4096], [["a"]], [[[0, 1]]], [[[0, 1]]], [[[1, 1]]]), [[[-600, -600]]]),
    ("is_exist", ("k",), -600),
    ("batch_is_exist", (KEYS,), [-600] * 3),
    ("longest_prefix", (KEYS,), -600),
    ("remove", ("k",), -600),
    ("batch_remove", (KEYS,), [-600] * 3),
    ("remove_by_regex", (".*",), -600),
    ("remove_all", (), -600),
    ("get_size", ("k",), -600),
    ("firm_pin_left", ("k",), -600),
    ("register_buffer", (4096, 10), -600),
    ("unregister_buffer", (4096,), -600),
    ("get_hostname", (), ""),
    ("get_replica_desc", ("k",), []),
    ("put_from_with_metadata", ("k", 4096, 4096, 1, 1), -600),
    ("upsert", ("k", b"v"), -600),
    ("upsert_parts", ("k", b"v"), -600),
    ("upsert_batch", (KEYS, [b"1", b"2", b"3"]), -600),
    ("upsert_from", ("k", 4096, 10), -600),
    ("batch_upsert_from", (KEYS, PLACES, LENGTHS), [-600] * 3),
    ("batch_get_session_start", (KEYS,), [-600] * 3),
    ("batch_get_into_multi_buffer_ranges", (KEYS, [[4096]] * 3, [[1]] * 3, [[0]] * 3), [-600] * 3),
    ("batch_get_session_end", (KEYS,), -600),
    ("batch_put_session_start", (KEYS, LENGTHS), [-600] * 3),
    ("batch_put_from_multi_buffer_ranges", (KEYS, [[4096]] * 3, [[1]] * 3, [[0]] * 3), [-600] * 3),
    ("batch_put_session_end", (KEYS,), [-600] * 3),
    ("batch_put_session_revoke", (KEYS,), [-600] * 3),
    ("create_copy_task", ("k", ["s"]), ((0, 0), -600)),
    ("create_move_task", ("k", "s", "t"), ((0, 0), -600)),
    ("query_task", ((1, 2),), (None, -600)),
    ("batch_replica_clear", (KEYS,), []),
    ("batch_pin", (KEYS,), [-600] * 3),
    ("hint", (KEYS, "drop"), [-600] * 3),
    ("allocate_and_mount_segment", (1 << 20,), {"ret": -600, "segment_ids": [], "allocated_size": 0}),
    ("mount_segment", ("/nowhere", 1 << 20), {"ret": -600, "segment_ids": []}),
    ("unmount_segment", (["1-2"],), -600),
    ("unmount_and_free_segment", (["1-2"],), -600),
    ("unmount_local_disk_segment", (), -600),
    ("alloc_from_mem_pool", (100,), 0),
    ("get_offload_rpc_read_count", (), 0),
    ("batch_get_replica_desc", (KEYS,), {}),
    ("health_check", (), 1),
    ("close", (), 0),
]


@pytest.mark.parametrize("name, given, wanted", REFUSED, ids=[f"{row[0]}-{i}" for i, row in enumerate(REFUSED)])
def test_calls_before_setup_return_their_code(unset, name, given, wanted):
    result = getattr(unset, name)(*given)
    assert result == wanted and type(result) is type(wanted)


def test_calls_after_close_return_their_code(master):
    store = joined(master, 0)
    assert store.close() == 0
    for name, given, wanted in REFUSED:
        assert getattr(store, name)(*given) == wanted, name
    assert store.close() == 0


def test_the_table_of_refusals_knows_every_method():
    public = {name for calls in (module._store.MooncakeDistributedStore, SetupCalls) for name in dir(calls) if not name.startswith("_")}
    assert public - {row[0] for row in REFUSED} == {"setup", "setup_dummy", "init_all"}
    # The calls on tensors are made of these; they have tests of their own.


# ---- setup ----


def test_setup_positional_with_engine_and_keywords(master):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, 0), None, enable_ssd_offload=True, ssd_offload_path="/nowhere", tenant_id="t") == 0
    assert store.health_check() == 0
    assert store.close() == 0


@pytest.mark.parametrize("word, is_on", [("1", True), ("true", True), ("TRUE", True), ("yes", True), ("On", True), (" true ", True), (True, True), (1, True), ("0", False), ("False", False),
                                         ("no", False), ("off", False), ("", False), (False, False), (None, False), ("enabled", None), ("y", None), ("2", None)])
def test_words_that_switch_a_disk_on(capfd, word, is_on):
    """As in mooncake_config; what is none of them is off, and said."""
    assert _setup._disk_paths({"enable_ssd_offload": word, "ssd_offload_path": "/there"}) == ("/there" if is_on else None)
    assert capfd.readouterr().err.count(f'enable_ssd_offload "{word}" means off: true or false is expected') == (1 if is_on is None else 0)


def test_setup_by_keywords_of_the_original(master):
    store = MooncakeDistributedStore()
    code = store.setup(
        local_hostname="127.0.0.1",
        metadata_server="http://127.0.0.1:1/metadata",
        global_segment_size=0,
        local_buffer_size=BUFFER,
        protocol="tcp",
        rdma_devices="",
        master_server_addr=master.address,
        client_http_port=9300,
    )
    assert code == 0 and store.close() == 0


@pytest.mark.parametrize("address_key, device_key", [("master_server_addr", "rdma_devices"), ("master_server_address", "device_name")])
@pytest.mark.parametrize("size", ["0", 0, "3mb", "16 MB", "1.5mb", 1048576.0, "4194304", "4e6", "1.5E+3 kb"])
def test_setup_from_dict_takes_both_spellings_and_any_value(master, address_key, device_key, size):
    store = MooncakeDistributedStore()
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": size, "local_buffer_size": "16 MB"}
    config.update({"protocol": "tcp", address_key: master.address, device_key: "", "no such key": object()})
    assert store.setup(config) == 0
    assert store.is_exist("nothing") == 0
    assert store.close() == 0
    assert store.setup(config=config) == 0 and store.close() == 0


def test_setup_canonical_key_wins(master):
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "0"}
    store = MooncakeDistributedStore()
    assert store.setup({**config, "master_server_addr": master.address, "master_server_address": "127.0.0.1:1"}) == 0
    store.close()


@pytest.mark.parametrize("name", ["global_segment_size", "local_buffer_size"])
@pytest.mark.parametrize("size", ["50%", "", "gb", "x", "-1", "1 2", "3 parsecs", "1e", "e9", "1e19", "1e999", "inf", "99999999999999999999", "9000000 tb", "1..5", "\u0661", "3gb\0"])
def test_setup_refuses_bad_sizes(master, name, size):
    store = MooncakeDistributedStore()
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address, name: size}
    assert store.setup(config) == -600
    assert store.health_check() == 1


def test_setup_bounds_of_local_buffer_in_dict(master):
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address, "global_segment_size": "0"}
    for size, wanted in ((0, 0), (1, -600), ("1023", -600), (1024, 0)):
        store = MooncakeDistributedStore()
        assert store.setup({**config, "local_buffer_size": size}) == wanted
        store.close()


def test_setup_needs_two_keys_of_the_dict(unset):
    assert unset.setup({}) == -600
    assert unset.setup({"local_hostname": "127.0.0.1"}) == -600
    assert unset.setup({"metadata_server": "P2PHANDSHAKE", "local_hostname": None}) == -600


def test_setup_type_errors_name_the_argument(unset, master):
    good = arguments(master, 0)
    for names in ("session_ids", "nonsense"):
        with pytest.raises(TypeError, match=names):
            unset.setup(*good, **{names: 1})
    with pytest.raises(TypeError, match="master_server_addr"):
        unset.setup(*good[:6])
    with pytest.raises(TypeError, match="protocol"):
        unset.setup(*good, protocol="tcp")
    with pytest.raises(TypeError, match="local_hostname"):
        unset.setup(7, *good[1:])
    with pytest.raises(TypeError, match="global_segment_size"):
        unset.setup(good[0], good[1], [1], *good[3:])
    with pytest.raises(TypeError):
        unset.setup()
    with pytest.raises(TypeError):
        unset.setup(*good, *range(7))
    with pytest.raises(ValueError, match="NUL"):
        unset.setup("a\0b", *good[1:])
    assert unset.health_check() == 1


def test_setup_negative_size(unset, master):
    assert unset.setup("127.0.0.1", "P2PHANDSHAKE", -1, BUFFER, "tcp", "", master.address) == -600


def test_setup_without_a_master_fails_within_its_time(unset):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        start = time.monotonic()
        assert unset.setup("127.0.0.1", "P2PHANDSHAKE", 0, BUFFER, "tcp", "", f"127.0.0.1:{closed.getsockname()[1]}") < 0
        assert time.monotonic() - start < 6 * SLOW
    assert unset.health_check() == 1 and unset.get("k") == b""


def test_setup_twice_is_refused_and_harmless(store):
    assert store.put("k", b"v") == 0
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, BUFFER, "tcp", "", "127.0.0.1:1") == -600
    assert store.get("k") == b"v"


def test_setup_again_after_close_brings_an_empty_segment(master):
    store = joined(master)
    wait_until(lambda: store.put("again", b"v") == 0)
    assert store.close() == 0
    assert store.setup(*arguments(master)) == 0
    wait_until(lambda: store.put("again 2", b"w") == 0)
    assert store.get("again 2") == b"w"
    assert store.close() == 0


def test_local_buffer_of_zero_is_a_server_only(master):
    server = MooncakeDistributedStore()
    assert server.setup(*arguments(master, 0, 0)) == 0
    assert server.put("by a server", b"v") == -600
    assert server.get("by a server") == b""
    assert server.close() == 0


# ---- put and get ----

SIZES = [1, 2, 63, 64, 65, 4095, 4096, 65535, 65536, 65537, 131073, (1 << 20) + 13, 9 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_round_trip(store, size):
    value = pattern(size)
    assert store.put("k", value) == 0
    got = store.get("k")
    assert type(got) is bytes and got == value
    assert store.get_batch(["k", "none", "k"]) == [value, b"", value]
    assert bytes(store.get_buffer("k")) == value
    assert store.get_size("k") == size
    target = bytearray(size + 1)
    assert store.get_into("k", address(target), size + 1) == size
    assert target[:size] == value and target[size] == 0


def as_numpy(data):
    return pytest.importorskip("numpy").frombuffer(data, dtype="uint8")


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(bytearray(data)),
        lambda data: array.array("B", data),
        lambda data: array.array("i", data),
        lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data),
        lambda data: memoryview(data).cast("B", (8, 32)),
        lambda data: memoryview(bytes(b for x in data for b in (x, 0)))[::2],
        as_numpy,
        lambda data: as_numpy(data).reshape(16, 16),
        lambda data: as_numpy(bytes(b for x in data for b in (0, x)))[1::2],
        lambda data: as_numpy(data).reshape(16, 16).T.copy().T,
        type("Bytes", (bytes,), {}),
    ],
)
def test_put_takes_any_buffer(store, wrap):
    data = pattern(256)
    assert store.put("k", wrap(data)) == 0
    assert store.get("k") == data


def test_put_of_an_existing_key_keeps_the_old_value(store):
    assert store.put("k", b"old") == 0
    assert store.put("k", b"new value") == 0
    assert store.put_parts("k", b"a", b"b") == 0
    assert store.put_batch(["k", "k"], [b"1", b"2"]) == 0
    assert store.get("k") == b"old"


def test_codes_of_put(store):
    assert store.put("k", b"") == -600
    assert store.put_parts("k") == 0 == store.put_parts("k", b"", bytearray()) == store.upsert_parts("k", b"")
    assert store.put("", b"v") == -400
    assert store.put("k" * 1024, b"v") == 0
    assert store.put("k" * 1025, b"v") == -400
    assert store.put("ä" * 513, b"v") == -400
    assert store.put("huge", bytes(SEGMENT + (1 << 20))) == -200
    assert store.get("k" * 1024) == b"v"
    assert store.get("k" * 1025) == b"" and store.get("") == b""
    assert store.is_exist("k") == 0


def test_keys_are_utf8_text_or_bytes(store):
    for key in ("plain", "model@tp_rank:0@pcp0@group:0@deadbeef", "Schlüssel", "\U0001f600", "nul\0inside", " "):
        assert store.put(key, key.encode()) == 0
        assert store.get(key) == key.encode()
        assert store.get(key.encode()) == key.encode()
        assert store.batch_is_exist([key, key.encode()]) == [1, 1]
    with pytest.raises(UnicodeEncodeError):
        store.put("\ud800", b"v")


def test_put_parts(store):
    assert store.put_parts("k", b"head", memoryview(b"-body-"), bytearray(b"tail"), b"", array.array("b", b"!")) == 0
    assert store.get("k") == b"head-body-tail!"
    assert store.put_parts("strided", memoryview(b"a.b.c.")[::2], config=ReplicateConfig()) == 0
    assert store.get("strided") == b"abc"
    many = [bytes([i % 256]) * (i % 5) for i in range(3000)]
    assert store.put_parts("many", *many) == 0
    assert store.get("many") == b"".join(many)


@pytest.mark.parametrize("part", [array.array("i", [1]), memoryview(bytes(16)).cast("B", (4, 4)), array.array("H", [])])
def test_put_parts_refuses_what_is_not_flat_bytes(store, part):
    with pytest.raises(RuntimeError, match="parts must be 1-D bytes-like"):
        store.put_parts("k", b"good", part)
    assert store.is_exist("k") == 0


def test_put_batch(store):
    assert store.put_batch(["a", "b"], [b"1", bytearray(b"22")]) == 0
    assert store.get_batch(["a", "b"]) == [b"1", b"22"]
    assert store.put_batch(["c", "d"], [b"1"]) == -600 and store.put_batch([], [b"1"]) == -600
    assert store.put_batch(["c", "d"], [b"3", b""]) == -600
    assert store.is_exist("d") == 0
    assert store.put_batch([], []) == 0
    keys = [f"k{i}" for i in range(1000)]
    assert store.put_batch(keys, [key.encode() for key in keys]) == 0
    assert store.get_batch(keys) == [key.encode() for key in keys]
    with pytest.raises(TypeError):
        store.put_batch(["e", "f"], [b"1", "text"])
    assert store.is_exist("e") == 0


def exact_ints(results, wanted):
    assert type(results) is list and results == wanted
    assert all(type(result) is int for result in results)
    return True


def test_addresses(store):
    source, target = bytearray(pattern(300)), bytearray(300)
    base, to = address(source), address(target)
    assert store.put_from("k", base, 300) == 0 and store.put_from("k", base + 7, 100) == 0
    assert store.get_into("k", to, 300) == 300 and target == source
    assert store.get_into("k", to, 299) == -600 and store.get_into("none", to, 300) == MISSING
    assert exact_ints(store.batch_put_from(["a", "b", "a"], [base, base + 100, base], [100, 200, 50]), [0, 0, 0])
    target[:] = bytes(300)
    assert exact_ints(store.batch_get_into(["a", "none", "b"], [to, to, to + 100], [100, 10, 200]), [100, MISSING, 200])
    assert target == source
    assert exact_ints(store.batch_get_into(["b", "a"], [to, to + 200], [199, 100]), [-600, 100])
    assert exact_ints(store.batch_put_from([], [], []), []) and exact_ints(store.batch_get_into([], [], []), [])


def test_addresses_that_cannot_be(store):
    good = bytearray(8)
    top = 2**64 - 1
    assert store.put("k", b"value") == 0
    assert store.put_from("n", 0, 8) == -600 and store.get_into("k", 0, 8) == -600
    assert store.put_from("n", top, 8) == -600 and store.get_into("k", top, 8) == -600
    assert store.put_from("n", 4096, 2**63) == -600 and store.get_into("k", 4096, top) == -600
    assert store.put_from("n", address(good), 0) == 0 and store.put_from("n", 0, 0) == 0
    assert store.is_exist("n") == 0
    assert store.batch_put_from(["n", "m2"], [address(good)] * 2, [0, 8]) == [-600, 0] == store.batch_upsert_from(["n", "m2"], [address(good)] * 2, [0, 8])
    assert store.batch_put_from(["n", "m", "o"], [0, address(good), top], [8, 8, 8]) == [-600, 0, -600]
    assert store.batch_get_into(["m", "m"], [address(good), 0], [8, 8]) == [8, -600]
    for bad in (-1, 2**64, -(2**70)):
        with pytest.raises(TypeError):
            store.put_from("n", bad, 8)
        with pytest.raises(TypeError):
            store.batch_get_into(["k"], [4096], [bad])
        with pytest.raises(TypeError):
            store.register_buffer(bad, 8)


def test_lists_of_unequal_length(store):
    keys, base = ["a", "b", "c"], address(bytearray(8))
    for pointers, sizes in (([base], [8] * 3), ([base] * 3, [8]), ([base] * 4, [8] * 4), ([], [])):
        assert exact_ints(store.batch_put_from(keys, pointers, sizes), [-600] * 3)
        assert exact_ints(store.batch_get_into(keys, pointers, sizes), [-600] * 3)
        nested = [[pointer] for pointer in pointers], [[size] for size in sizes]
        assert exact_ints(store.batch_put_from_multi_buffers(keys, *nested), [-600] * 3)
        assert exact_ints(store.batch_get_into_multi_buffers(keys, *nested), [-600] * 3)
    assert store.batch_is_exist(keys) == [0, 0, 0]


def test_multi_buffers(store):
    source, target = bytearray(pattern(1000)), bytearray(1000)
    base, to = address(source), address(target)
    pointers, sizes = [[base, base + 10, base + 10], [base + 500]], [[10, 0, 490], [500]]
    assert exact_ints(store.batch_put_from_multi_buffers(["a", "b"], pointers, sizes, ReplicateConfig()), [0, 0])
    assert store.get("a") == source[:500] and store.get("b") == source[500:]
    scatter = [[to + 500, to], [to + 800, to + 200]]
    assert exact_ints(store.batch_get_into_multi_buffers(["a", "b"], scatter, [[300, 200], [200, 300]], False), [500, 500])
    assert target[500:800] == source[:300] and target[:200] == source[300:500]
    assert target[800:] == source[500:700] and target[200:500] == source[700:]
    results = store.batch_get_into_multi_buffers(["a", "none", "b"], [[to], [to], [to, to + 1]], [[499], [1], [1]], prefer_alloc_in_same_node=True)
    assert exact_ints(results, [-600, MISSING, -600])
    assert exact_ints(store.batch_put_from_multi_buffers(["c", "d"], [[base], []], [[1, 2], []]), [-600, -600])
    assert store.batch_is_exist(["c", "d"]) == [0, 0]
    wide = [[base + i for i in range(1000)]]
    assert store.batch_put_from_multi_buffers(["wide"], wide, [[1] * 1000]) == [0]
    assert store.get("wide") == source


def test_ranges(store):
    source, target = pattern(200_000), bytearray(100)
    assert store.put("a", source) == 0 and store.put("b", source[::-1]) == 0
    other = bytearray(50)
    results = store.get_into_ranges(
        [address(target), address(other)],
        [["a", "b"], ["none"]],
        [[[0, 10], [20, 40]], [[0]]],
        [[[0, 199_990], [70_000, 199_999]], [[0]]],
        [[[10, 10], [20, 2]], [[5]]],
    )
    assert results == [[[10, 10], [20, -600]], [[MISSING]]]
    assert target[:10] == source[:10] and target[10:20] == source[199_990:] and target[20:40] == source[::-1][70_000:70_020]
    assert other == bytes(50)
    assert store.get_into_ranges([], [], [], [], []) == []
    assert store.get_into_ranges([address(target)], [[]], [[]], [[]], [[]]) == [[]]
    assert store.get_into_ranges([0], [["a"]], [[[0]]], [[[0]]], [[[5]]]) == [[[-600]]]
    assert store.get_into_ranges([address(target)], [["a"]], [[[2**64 - 1]]], [[[0]]], [[[5]]]) == [[[-600]]]
    assert store.get_into_ranges([address(target)], [["a"]], [[[0]]], [[[2**64 - 1]]], [[[5]]]) == [[[-600]]]


def test_ranges_of_several_shapes(store):
    """What does not fit fails alone, with a result for each of its targets; the other keys are read."""
    assert store.put("a", pattern(100)) == 0
    target = bytearray(32)
    base = address(target)
    assert store.get_into_ranges([base], [["a", "a"]], [[[0], [8]]], [[[0], [0, 1]]], [[[4], [4]]]) == [[[4], [-600]]]
    assert target[:4] == pattern(100)[:4] and target[4:] == bytes(28)
    assert store.get_into_ranges([base], [["a", "a"]], [[[0], []]], [[[0, 1], []]], [[[], []]]) == [[[-600], []]]
    assert store.get_into_ranges([base], [["a"]], [[[0, 1]]], [[[0]]], [[[1]]]) == [[[-600, -600]]]
    assert store.get_into_ranges([base], [["a", "a"]], [[[0, 1, 2]]], [[[0]]], [[[1]]]) == [[[-600, -600, -600], [-600]]], "no second list"
    rest = store.get_into_ranges([base, base], [["a"], ["a"]], [[[0]], [[8]]], [[[0], [0]], [[0]]], [[[4]], [[4]]])
    assert rest == [[[-600]], [[4]]], "another buffer's lists are not its matter"
    assert store.get_into_ranges([base], [["a"]], [], [], []) == [[[-600]]]
    assert store.get_into_ranges([base, base], [["a"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]], [[-600]]]


def test_a_range_beyond_its_buffer_fails_alone(store):
    """Of a registered buffer the length is known, also when the address is inside it."""
    source, target = pattern(1000), bytearray(200)
    base = address(target)
    assert store.put("beyond", source) == 0 and store.register_buffer(base, 100) == 0

    def into(start, *offsets, size=4):
        count = len(offsets)
        return store.get_into_ranges([start], [["beyond"]], [[list(offsets)]], [[[8] * count]], [[[size] * count]])[0][0]
    assert into(base, 0, 97, 96, 100, 2000) == [4, -600, 4, -600, -600]
    assert target[100:] == bytes(100) and target[:4] == source[8:12] == target[96:100] and target[4:96] == bytes(92)
    assert into(base + 60, 36, 37) == [4, -600] and into(base, 0, size=101) == [-600] and into(base, 100, 101, size=0) == [0, -600]
    assert into(base + 100, 0) == [4] and target[100:104] == source[8:12], "of memory that is not registered nothing is known"
    assert store.register_buffer(base + 50, 150) == 0 and into(base + 60, 100) == [4], "the longest of those that it lies in"
    assert store.unregister_buffer(base + 50) == 0 and into(base + 60, 100) == [-600]
    assert store.unregister_buffer(base) == 0 and into(base, 97) == [4]


@pytest.mark.parametrize("broken", range(5))
def test_ranges_of_unequal_shape_touch_nothing(store, broken):
    assert store.put("a", pattern(100)) == 0
    target = bytearray(100)
    lists = [[address(target)], [["a"]], [[[0, 10]]], [[[0, 0]]], [[[5, 5]]]]
    lists[broken] = lists[broken] * 2 if broken < 2 else [[lists[broken][0][0] + [1]]]
    results = store.get_into_ranges(*lists)
    assert {code for outer in results for inner in outer for code in inner} == {-600}
    assert target == bytes(100)


# ---- BufferHandle ----


def test_buffer_handle_is_writable_memory_of_its_own(store):
    data = pattern(5000)
    assert store.put("k", data) == 0
    handle = store.get_buffer("k")
    view = memoryview(handle)
    assert (view.format, view.itemsize, view.ndim, view.readonly, view.nbytes) == ("b", 1, 1, False, 5000)
    assert len(handle) == handle.size() == 5000 and handle.ptr() == address(handle)
    assert ctypes.string_at(handle.ptr(), 5000) == data == bytes(handle)
    view[0] = 99
    assert store.get("k") == data
    assert isinstance(handle, BufferHandle)
    with pytest.raises(TypeError):
        BufferHandle()


def test_buffer_handle_outlives_view_store_and_object(master):
    store = joined(master)
    data = pattern(300_000)
    wait_until(lambda: store.put("outlives", data) == 0)
    views = [memoryview(handle) for handle in store.batch_get_buffer(["outlives", "outlives"])]
    assert store.remove("outlives", True) == 0
    assert store.close() == 0
    del store
    gc.collect()
    assert all(view.tobytes() == data for view in views)


def test_batch_get_buffer_has_none_for_missing(store):
    assert store.put("k", b"v") == 0
    results = store.batch_get_buffer(["none", "k", "gone"])
    assert results[0] is None and results[2] is None and bytes(results[1]) == b"v"
    assert store.get_buffer("none") is None and store.batch_get_buffer([]) == []


# ---- exist, size, remove, describe ----


def test_exist(store):
    keys = [f"k{i}" for i in range(300)]
    assert store.put_batch(keys[::2], [b"v"] * 150) == 0
    assert exact_ints(store.batch_is_exist(keys), [1, 0] * 150)
    assert exact_ints(store.batch_is_exist(tuple(keys)), [1, 0] * 150)
    assert store.batch_is_exist([]) == [] and store.batch_is_exist(["k0", "k0"]) == [1, 1]
    assert type(store.is_exist("k0")) is int and store.is_exist("k0") == 1 and store.is_exist(key="k1") == 0
    assert store.remove("k0") == 0, "an existence check takes no lease"


def test_longest_prefix(store):
    keys = [f"prefix{i}" for i in range(1500)]  # more than one question to the master
    assert store.longest_prefix([]) == 0 and store.longest_prefix(keys) == 0
    assert store.put_batch(keys[:1200], [b"v"] * 1200) == 0
    assert store.longest_prefix(keys) == 1200 and store.longest_prefix(keys=tuple(keys[:3])) == 3
    assert store.remove(keys[1100]) == 0, "it takes no lease"
    assert store.longest_prefix(keys) == 1100 and store.longest_prefix(["none", *keys]) == 0
    assert store.longest_prefix([keys[0], ""]) == -400 and store.longest_prefix(["none", ""]) == 0


def test_remove(store):
    for key in ("a", "b", "c", "d"):
        assert store.put(key, b"v") == 0
    assert store.remove("a") == 0 and store.remove("a") == MISSING and store.is_exist("a") == 0
    assert store.get("b") == b"v"
    assert store.remove("b") == -706 and store.remove("b", False) == -706
    assert exact_ints(store.batch_remove(["b", "c", "none"]), [-706, 0, MISSING])
    assert store.remove("b", force=True) == 0 and store.get("b") == b""
    assert store.get("d") == b"v"
    assert exact_ints(store.batch_remove(["d"], force=True), [0]) and store.batch_remove([]) == []


def test_remove_by_regex_and_all(store):
    keys = [f"model_{i}" for i in range(20)] + ["other"]
    assert store.put_batch(keys, [b"v"] * 21) == 0
    assert store.remove_by_regex("^model_1") == 11
    assert store.remove_by_regex("nothing like it") == 0
    assert store.remove_by_regex("(") == -600
    assert store.get("model_2") == b"v"
    removed = store.remove_by_regex(regex_pattern="del_[23]$")
    assert removed == 1 and store.is_exist("model_2") == 1
    assert store.remove_by_regex("del_[23]$", force=True) == 1
    assert store.get("other") == b"v"
    count = store.remove_all()
    assert type(count) is int and count == 7 and store.is_exist("other") == 1
    assert store.remove_all(force=True) == 1 and store.remove_all(True) == 0


def test_describe(store):
    assert store.put("k", pattern(777)) == 0
    (replica,) = store.get_replica_desc("k")
    assert replica.status == module.ReplicaStatus.COMPLETE and replica.status.name == "COMPLETE"
    assert replica.is_memory_replica() is True and replica.is_disk_replica() is False and replica.is_local_disk_replica() is False
    place = replica.get_memory_descriptor().buffer_descriptor
    assert (place.size_, place.transport_endpoint_) == (777, store.get_hostname()) and place.buffer_address_ >= 0
    assert re.fullmatch(r"127\.0\.0\.1:\d+", store.get_hostname())
    both = store.batch_get_replica_desc(["k", "none"])
    assert list(both) == ["k"] and len(both["k"]) == 1
    assert store.get_replica_desc("none") == [] and store.get_size("none") == MISSING
    assert store.health_check() == 0


def test_register_buffer(store):
    memory = bytearray(100)
    base = address(memory)
    assert store.register_buffer(base, 100) == 0
    assert store.register_buffer(base, 100) == -600
    assert store.unregister_buffer(base) == 0
    assert store.unregister_buffer(base) == -600
    assert store.register_buffer(buffer_ptr=base, size=50) == 0 and store.unregister_buffer(buffer_ptr=base) == 0
    assert store.register_buffer(base, 0) == -600 and store.register_buffer(0, 10) == -600 and store.unregister_buffer(0) == -600


# ---- arguments ----

WRONG = [
    ("put", (1, b"v")),
    ("put", (None, b"v")),
    ("put", ("k", "text")),
    ("put", ("k", 5)),
    ("put", ("k", None)),
    ("put", ("k", [b"v"])),
    ("put", ("k", b"v", {"replica_num": 1})),
    ("put", ("k", b"v", ReplicateConfig)),
    ("put", ("k",)),
    ("put", ("k", b"v", None, None)),
    ("put_parts", ()),
    ("put_parts", ("k", "text")),
    ("put_from", ("k", "address", 1)),
    ("put_from", ("k", 1.5, 1)),
    ("put_from", ("k", None, 1)),
    ("get", (bytearray(b"k"),)),
    ("get", ()),
    ("get_batch", ("text",)),
    ("get_batch", (b"text",)),
    ("get_batch", ({"a": 1},)),
    ("get_batch", ({"a"},)),
    ("get_batch", ((key for key in "ab"),)),
    ("get_batch", (None,)),
    ("batch_is_exist", (["a", 1],)),
    ("batch_is_exist", (7,)),
    ("longest_prefix", ("text",)),
    ("longest_prefix", (["a", 1],)),
    ("batch_put_from", (["a"], ["x"], [1])),
    ("batch_put_from", (["a"], [4096], [None])),
    ("batch_put_from", (["a"], 4096, [1])),
    ("batch_put_from_multi_buffers", (["a"], [4096], [[1]])),
    ("batch_get_into_multi_buffers", (["a"], [[4096]], [1])),
    ("get_into_ranges", ([4096], ["a"], [[[0]]], [[[0]]], [[[1]]])),
    ("get_into_ranges", ([4096], [["a"]], [[0]], [[[0]]], [[[1]]])),
    ("remove_by_regex", (1,)),
    ("remove", ("k", "false")),
    ("remove_all", (b"no",)),
    ("put_from", ("k", -1, 8)),
    ("get_into", ("k", 4096, 2**64)),
    ("get_hostname", (1,)),
]


@pytest.mark.parametrize("name, given", WRONG, ids=[f"{row[0]}-{i}" for i, row in enumerate(WRONG)])
def test_wrong_types_raise_type_error(store, name, given):
    with pytest.raises(TypeError):
        getattr(store, name)(*given)
    assert store.is_exist("k") == 0 and store.is_exist("a") == 0


def test_keywords_are_the_originals(store):
    memory = bytearray(b"12345")
    base = address(memory)
    assert store.put(key="a", value=b"v", config=ReplicateConfig()) == 0
    assert store.put_from(key="b", buffer_ptr=base, size=5, config=None) == 0
    assert store.batch_put_from(keys=["c"], buffer_ptrs=[base], sizes=[5], config=ReplicateConfig()) == [0]
    assert store.batch_put_from_multi_buffers(keys=["d"], all_buffer_ptrs=[[base]], all_sizes=[[5]], config=None) == [0]
    assert store.batch_get_into(keys=["c"], buffer_ptrs=[base], sizes=[5]) == [5]
    assert store.put_batch(keys=["e"], values=[b"v"]) == 0 and store.get_size(key="e") == 1
    for wrong in ({"kee": "a"}, {"key": "a", "other": 1}):
        with pytest.raises(TypeError, match="kee|other"):
            store.get(**wrong)
    with pytest.raises(TypeError, match="key"):
        store.get("a", key="a")


def test_numbers_may_be_anything_with_an_index(store):
    numpy = pytest.importorskip("numpy")
    memory = bytearray(pattern(16))
    pointers = numpy.array([address(memory)], dtype="uint64")
    assert store.batch_put_from(["k"], pointers, numpy.array([16])) == [0]
    assert store.get_into("k", pointers[0], numpy.int64(16)) == 16
    with pytest.raises(TypeError):
        store.batch_put_from(["m"], numpy.array([-1]), [1])


def test_an_index_that_empties_the_lists_does_no_harm(store):
    memory = bytearray(b"0123456789")
    lists = [[f"key {i}" for i in range(3)], [], [10] * 3]

    class Evil:
        def __index__(self):
            for each in lists:
                each.clear()
            gc.collect()
            return address(memory)

    lists[1].extend([Evil(), Evil(), Evil()])
    assert store.batch_put_from(*lists) == [0, 0, 0]
    assert store.get("key 2") == bytes(memory)


def test_exceptions_of_arguments_come_through_and_leak_nothing(store):
    class Angry:
        def __index__(self):
            raise ZeroDivisionError

        def __bool__(self):
            raise ZeroDivisionError

    for call in (
        lambda: store.put_from("k", Angry(), 1),
        lambda: store.batch_put_from(["a", "k"], [4096, Angry()], [1, 1]),
        lambda: store.get_into_ranges([Angry()], [["k"]], [[[0]]], [[[0]]], [[[1]]]),
        lambda: store.remove("k", Angry()),
        lambda: store.remove_all(force=Angry()),
    ):
        with pytest.raises(ZeroDivisionError):
            call()


# ---- ReplicateConfig and the rest of the module ----

FIELDS = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_soft_pin": False,
    "with_hard_pin": False,
    "preferred_segments": [],
    "preferred_segment": "",
    "preferred_nof_segments": [],
    "prefer_alloc_in_same_node": False,
    "data_type": ObjectDataType.UNKNOWN,
    "group_ids": None,
}


def test_replicate_config_fields():
    config = ReplicateConfig()
    assert {name: getattr(config, name) for name in FIELDS} == FIELDS
    assert all(hasattr(ReplicateConfig, name) for name in FIELDS)
    assert not hasattr(ReplicateConfig, "session_ids") and not hasattr(config, "session_ids")
    values = [2, 0, 0, SoftPinAction.ENABLE, 1000, True, True, ["h:1", "h:2"], "h:3", ["n"], True, ObjectDataType.TENSOR, ["g"]]
    for name, value in zip(FIELDS, values):
        setattr(config, name, value)
        assert getattr(config, name) == value and name in str(config)
        with pytest.raises(AttributeError):
            delattr(config, name)
    config.preferred_segments.append("a copy")
    assert config.preferred_segments == ["h:1", "h:2"]
    config.group_ids = config.soft_pin_ttl_ms = None
    for name, wrong in (("replica_num", "1"), ("replica_num", None), ("preferred_segment", 1), ("preferred_segments", "h:1"), ("group_ids", [1]),
                        ("data_type", "TENSOR"), ("soft_pin_action", None), ("soft_pin_ttl_ms", 1.5)):
        with pytest.raises(TypeError):
            setattr(config, name, wrong)
    with pytest.raises(TypeError):
        config.replica_num = -1
    with pytest.raises(ValueError):
        config.data_type = 99
    config.data_type = 2
    assert config.data_type is ObjectDataType.TENSOR
    with pytest.raises(AttributeError):
        config.session_ids = []
    with pytest.raises(TypeError):
        ReplicateConfig(replica_num=2)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"replica_num": 1, "with_hard_pin": True}, 0),
        ({"replica_num": 16}, 0),
        ({"replica_num": 2**40}, 0),
        ({"replica_num": 0}, -600),
        ({"with_soft_pin": True}, 0),
        ({"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 1000}, 0),
        ({"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 0}, 0),
        ({"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 86_400_001}, -600),
        ({"soft_pin_ttl_ms": 1000}, -600),
        ({"soft_pin_action": SoftPinAction.DISABLE, "soft_pin_ttl_ms": 0}, -600),
        ({"preferred_segment": "no such segment:1"}, 0),
        ({"preferred_segments": ["no such segment:1", "other:2"]}, 0),
        ({"preferred_segments": [str(i) for i in range(65)]}, -600),
        ({"preferred_segment": "nul\0"}, -600),
        ({"prefer_alloc_in_same_node": True}, -600),
        ({"group_ids": ["g"]}, 0),
        ({"group_ids": []}, -600),
        ({"group_ids": ["g", "h"]}, -600),
        ({"data_type": ObjectDataType.KVCACHE}, 0),
        ({"nof_replica_num": 1}, -1012),
        ({"dfs_replica_num": 1}, -1012),
    ],
)
def test_replicate_config_in_a_put(store, fields, wanted):
    config = with_fields(**fields)
    data = bytearray(b"value")
    assert store.put("a", b"value", config) == wanted
    assert store.put_parts("b", b"val", b"ue", config=config) == wanted
    assert store.put_from("c", address(data), 5, config) == wanted
    assert store.batch_put_from(["d"], [address(data)], [5], config) == [wanted]
    assert store.put_batch(["e"], [b"value"], config) == wanted
    multi = 0 if "prefer_alloc_in_same_node" in fields else wanted
    assert store.batch_put_from_multi_buffers(["f"], [[address(data)]], [[5]], config) == [multi]
    there = 1 if wanted == 0 else 0
    assert store.batch_is_exist(list("abcde")) == [there] * 5


def test_preferred_segment_and_replicas_on_two_nodes(master, store):
    other = joined(master)
    wait_until(lambda: other.put("fill", b"v", with_fields(preferred_segment=other.get_hostname())) == 0)
    wait_until(lambda: store.remove_all(True) >= 0 and other.put("probe", b"v", with_fields(preferred_segments=[other.get_hostname()])) == 0
               and store.get_replica_desc("probe")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_ == other.get_hostname())
    assert store.put("two", b"v", with_fields(replica_num=2)) == 0
    names = [replica.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for replica in store.get_replica_desc("two")]
    assert sorted(names) == sorted([store.get_hostname(), other.get_hostname()])
    assert other.close() == 0
    wait_until(lambda: len(store.get_replica_desc("two")) == 1)
    assert store.get("two") == b"v"


def test_enums():
    assert [member.name for member in SoftPinAction] == ["PRESERVE", "ENABLE", "DISABLE"]
    assert ObjectDataType.TENSOR.value == 2 == int(ObjectDataType.TENSOR) and len(ObjectDataType) == 10
    assert module.ReplicaStatus.COMPLETE.value == 3 and module.ReplicaStatus.__module__ == "mooncake.store"


def test_host_memory():
    allocator = module.MooncakeHostMemAllocator()
    base = allocator.alloc(10_000)
    assert base % 4096 == 0 and ctypes.string_at(base, 10_000) == bytes(10_000)
    ctypes.memset(base, 7, 10_000)
    child = os.fork()
    if child == 0:
        ctypes.memset(base, 8, 10)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and ctypes.string_at(base, 11) == b"\x08" * 10 + b"\x07"
    for size in (0, 2**62):
        with pytest.raises(RuntimeError, match="no memory"):
            allocator.alloc(size)
    assert module.MooncakeHostMemAllocator().free(base) == 0
    assert allocator.free(base) == -1 == allocator.free(0) == allocator.free(4096)


def test_bind_to_numa_node_never_raises():
    before = os.sched_getaffinity(0)
    for node in (-1, 0, 10**6, 10**30, None, "0"):
        assert module.bind_to_numa_node(node) is None
    assert os.sched_getaffinity(0) <= before
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="this kernel knows no NUMA nodes")
def test_bind_to_numa_node_asks_for_its_memory():
    """In a process of its own, which it is over with then."""
    script = "from mooncake.store import bind_to_numa_node\nbind_to_numa_node(node=0)\nprint(open('/proc/thread-self/numa_maps').readline())"
    done = subprocess.run([sys.executable, "-c", script], env=dict(os.environ, PYTHONPATH=os.environ["MC_PYTHONPATH"]), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1].startswith("prefer") and done.stdout.split()[1].endswith(":0")


def test_every_method_is_documented_and_stubbed():
    (stub,) = pathlib.Path(module.__file__).parent.glob("store.pyi")
    classes = {node.name: node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
    for name, stubbed in classes.items():
        real = getattr(module, name)
        names = {node.name for node in stubbed.body if isinstance(node, ast.FunctionDef)}
        names |= {node.target.id for node in stubbed.body if isinstance(node, ast.AnnAssign)}
        if not issubclass(real, int):
            public = {each for each in dir(real) if not each.startswith("_")}
            assert public == {each for each in names if not each.startswith("_")}, name
            assert all(getattr(real, each).__doc__ for each in public), name
    body = ast.parse(stub.read_text()).body
    others = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    others |= {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets}
    others |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    assert all(hasattr(module, each) for each in others - {"_Key", "_Size", "_Bytes"})
    assert {each for each in others if not each.startswith("_")} | set(classes) == {each for each in dir(module) if not each.startswith("_")}
    assert re.fullmatch(r"\d+\.\d+\.\d+\+\w+", module.__version__)


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's library is needed and exported")
def test_the_extension_stands_alone():
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    extension = module._store.__file__
    dynamic = subprocess.run(["readelf", "-dW", extension], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"Shared library: \[(.*?)\]", dynamic)) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    symbols = subprocess.run(["nm", "-D", "--defined-only", extension], capture_output=True, text=True, check=True).stdout
    assert re.findall(r" [A-Z] (\w+)", symbols) == ["PyInit__store"]
