"""FastDeploy's own MooncakeStore, as its file has it, beside an engine's pinned memory. argv: "first" or "second", the checkout.

What is stubbed has nothing to do with the store: where its log goes, which platform it is on, the names of RDMA devices, and a type of Paddle's
that only annotates. The package's __init__ files, which import the whole engine, are not run.
"""
import importlib
import logging
import os
import pathlib
import sys
import types

import numpy
from steps import MASTER, METADATA, digest, pattern, scenario, step

BLOCKS, BLOCK = 8, 64 << 10
FOLDER = pathlib.Path(sys.argv[2])
K_KEYS, V_KEYS = ([f"prefix{i}_{kind}_0" for i in range(BLOCKS // 2)] for kind in ("key", "value"))
KEYS = K_KEYS + V_KEYS


def stub(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


def own_store():
    for name in "fastdeploy", "fastdeploy.cache_manager", "fastdeploy.cache_manager.transfer_factory", "fastdeploy.cache_manager.transfer_factory.mooncake_store":
        stub(name, __path__=[str(FOLDER.joinpath(*name.split(".")))])
    stub("paddle", Tensor=type("Tensor", (), {}))
    stub("fastdeploy.utils", get_logger=lambda name, file: logging.getLogger(name))
    stub("fastdeploy.platforms", current_platform=types.SimpleNamespace(is_cuda=lambda: False))
    stub("fastdeploy.cache_manager.transfer_factory.utils", get_rdma_nics=lambda: "")
    return importlib.import_module("fastdeploy.cache_manager.transfer_factory.mooncake_store.mooncake_store").MooncakeStore


def use(store, who):
    memory = numpy.zeros(2 * BLOCKS * BLOCK, dtype=numpy.uint8)
    base = memory.ctypes.data
    sources, targets = ([base + (part * BLOCKS + i) * BLOCK for i in range(BLOCKS)] for part in (0, 1))
    sizes = [BLOCK] * BLOCKS
    step("register")(lambda: store.register_buffer(base, memory.nbytes))
    if who == "first":
        memory[: BLOCKS * BLOCK] = numpy.frombuffer(pattern(BLOCKS * BLOCK, 9), dtype=numpy.uint8)
        step("query before")(lambda: store.query(K_KEYS, V_KEYS))
        step("set")(lambda: store.batch_set(KEYS, sources, sizes))
        step("set again")(lambda: store.batch_set(KEYS, sources, sizes))
    step("query")(lambda: store.query(K_KEYS, V_KEYS))
    step("query, the third is nobody's")(lambda: store.query(K_KEYS[:2] + ["nobody's"], V_KEYS[:3]))
    step("exists")(lambda: store.exists([KEYS[0], "nobody's"]))
    step("get")(lambda: store.batch_get(KEYS, targets, sizes))
    step("bytes")(lambda: digest(memory[BLOCKS * BLOCK:]) == digest(pattern(BLOCKS * BLOCK, 9)))
    step("get with a miss")(lambda: store.batch_get([KEYS[0], "nobody's"], targets[:2], sizes[:2]))
    if who == "second":
        step("delete")(lambda: store.delete(KEYS[0], timeout=15))
        step("query when the first is gone")(lambda: store.query(K_KEYS, V_KEYS))
        step("delete what is not there")(lambda: store.delete("nobody's", timeout=1))
        step("clear")(store.clear)
    step("close")(store.close)


def main():
    # As its document sets them.
    os.environ.update(MOONCAKE_MASTER_SERVER_ADDR=MASTER, MOONCAKE_METADATA_SERVER=METADATA, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_PROTOCOL="tcp",
                      MOONCAKE_GLOBAL_SEGMENT_SIZE=str(64 << 20), MOONCAKE_LOCAL_BUFFER_SIZE=str(16 << 20), MC_TCP_BIND_ADDRESS="127.0.0.1")
    holder = []
    step("import, set up, warm up")(lambda: holder.append(own_store()()))
    if holder:
        use(holder[0], sys.argv[1])
    step("end")(lambda: True)
    sys.stdin.readline()


if __name__ == "__main__":
    with scenario():
        main()
