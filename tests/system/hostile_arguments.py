"""Calls everything of mooncake.store and mooncake.engine with arguments that it was not made for. argv: the master's address, seed, calls of each method.

Ends with one JSON line: {"calls": n, "raised": {exception: an example}, "methods": n}. What it must not do is crash or hang. Addresses that could be memory
are only given as such: of those nobody can know whether they are.
"""
import ctypes
import faulthandler
import inspect
import json
import os
import random
import sys
import time
from unittest import mock

faulthandler.enable()
sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake import engine as engine_module  # noqa: E402
from mooncake import store as store_module  # noqa: E402

MASTER, SEED, TIMES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# They connect to somewhere, or take memory of the size asked for; their arguments have tests of their own.
NOT_HERE = {"setup", "setup_dummy", "init_all", "initialize", "initialize_ext", "close", "allocate_managed_buffer", "alloc", "alloc_from_mem_pool", "prewarm",
            "allocate_and_mount_segment"}
ADDRESSES = {"buffer_ptr", "buffer_ptrs", "buffer_addr", "buffer_addresses", "buffer", "buffers", "peer_buffer_address", "peer_buffer_addresses", "all_buffer_ptrs",
             "metadata_buffer_ptr", "dest_address", "source_address", "ptr", "src_ptr"}
MEMORY = ctypes.create_string_buffer(64)
ADDRESS = ctypes.addressof(MEMORY)
chance = random.Random(SEED)


class Angry:
    def _no(self, *unused):
        raise ZeroDivisionError("angry")

    __index__ = __bool__ = __len__ = __getitem__ = __iter__ = __eq__ = __int__ = _no
    __hash__ = None


class Liar(list):
    """Its length is another each time."""

    def __len__(self):
        return chance.choice([0, 1, 3, 1000])

    def __getitem__(self, at):
        if chance.random() < 0.2:
            raise IndexError
        return "k"


class Growing:
    """A number that changes the list that it is in."""

    def __init__(self, home):
        self.home = home

    def __index__(self):
        self.home.clear()
        return 0


def growing():
    home = []
    home += [Growing(home), 0, 0]
    return home


TEXTS = ["", "k", "nobody's", "\0", "\ud800", "x" * 5000, "^(", "127.0.0.1:1", "[::1", "1-2", "cpu:0", "/nonexistent", "tcp"]
NUMBERS = [0, 8, -1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, -(10**30), 1.5, float("nan")]
PLACES = [0, ADDRESS, ADDRESS, ADDRESS, -1, (1 << 64) - 1, 1 << 64, 10**30, 1.5]
ODD = [lambda: None, lambda: object(), Angry, lambda: Liar([1, 2]), growing, lambda: mock.MagicMock(spec=store_module.ReplicateConfig),
       lambda: mock.MagicMock(spec=engine_module.TransferNotify), lambda: mock.MagicMock(), lambda: {}, lambda: {"k"}, lambda: (one for one in "ab"), lambda: b"", lambda: b"bytes",
       lambda: bytearray(8), lambda: memoryview(bytearray(8))[::2], lambda: store_module.ReplicateConfig, store_module.ReplicateConfig,
       engine_module.TransferNotify, lambda: engine_module.Read, lambda: Ellipsis]


def scalar(is_address):
    kind = chance.randrange(10)
    if is_address and kind < 8:
        return chance.choice(PLACES)
    if kind < 4:
        return chance.choice(TEXTS)
    if kind < 8 and not is_address:
        return chance.choice(NUMBERS)
    return chance.choice(ODD)()


def anything(is_address, depth=0):
    if depth < 3 and chance.random() < 0.4:
        made = [anything(is_address, depth + 1) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        return tuple(made) if chance.random() < 0.2 else made
    return scalar(is_address)


def parameters(method):
    try:
        found = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return ["a", "b", "c"]
    return [one.name for one in found if one.name != "self"]


RAISED, CALLS = {}, 0


def call(name, method):
    global CALLS
    names = parameters(method)
    count = max(0, min(len(names) + 1, len(names) + chance.choice([-1, 0, 0, 0, 0, 1]))) if names else chance.randrange(2)
    given = [anything(i < len(names) and names[i] in ADDRESSES) for i in range(count)]
    more = {chance.choice(names): anything(False)} if names and chance.random() < 0.1 and not ADDRESSES & set(names) else {}
    CALLS += 1
    try:
        method(*given, **more)
    except Exception as error:
        RAISED.setdefault(type(error).__name__, f"{name}: {str(error)[:200]!r}")


def is_public(name):
    return name not in NOT_HERE and (not name.startswith("_") or name in ("_serialize_tensor", "_deserialize_tensor"))


def members(thing):
    return [name for name in dir(thing) if callable(getattr(thing, name)) and is_public(name)]


def assign(name, thing):
    fields = [field for field in dir(thing) if not field.startswith("_")]
    for _ in range(TIMES * 4):
        try:
            setattr(thing, chance.choice(fields), anything(False))
        except Exception as error:
            RAISED.setdefault(type(error).__name__, f"{name}: {str(error)[:200]!r}")


def main():
    store = store_module.MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", MASTER) == 0
    end = time.monotonic() + 20
    while store.put("k", b"12345678") != 0:  # room comes a moment after the segment does
        assert time.monotonic() < end
    engine = engine_module.TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    config = store_module.ReplicateConfig()
    things = {"store": store, "unset store": store_module.MooncakeDistributedStore(), "engine": engine, "unset engine": engine_module.TransferEngine(),
              "allocator": store_module.MooncakeHostMemAllocator(), "pool": store_module.BufferPool(store, max_bytes=1 << 20)}
    methods = [(f"{what}.{name}", getattr(thing, name)) for what, thing in things.items() for name in members(thing)]
    methods += [(f"{module.__name__}.{name}", getattr(module, name)) for module in (store_module, engine_module) for name in dir(module)
                if callable(getattr(module, name)) and is_public(name) and name not in ("MooncakeDistributedStore", "BufferPool", "RegisteredBufferPool")]
    for name, method in methods:
        for _ in range(TIMES):
            call(name, method)
        assert name.startswith("unset") or store.is_exist("k") in (0, 1), name
    assign("ReplicateConfig", config)
    assign("TransferNotify", engine_module.TransferNotify())
    print(json.dumps({"calls": CALLS, "methods": len(methods), "raised": RAISED}), flush=True)
    # Both still work.
    assert store.upsert("after", b"all") == 0 and store.get("after") == b"all"
    assert engine.register_memory(ADDRESS, 64) in (0, -7) and store.close() == 0


if __name__ == "__main__":
    main()
