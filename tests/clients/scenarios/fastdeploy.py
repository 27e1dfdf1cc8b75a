"""FastDeploy's documented call sequence as a transcript: keyword setup, warm-up of 1 MiB, batches from pinned memory, remove. argv: "first" or "second"."""
import os
import sys
import time

import numpy
from mooncake.store import MooncakeDistributedStore
from steps import MASTER, digest, pattern, scenario, step

BLOCKS, BLOCK = 8, 64 << 10
KEYS = [f"lane_fastdeploy_{i:02}_key" for i in range(BLOCKS)]


def codes(values):
    """The values, and that they are real ints in a real list: FastDeploy calls results.count(0)."""
    return [type(values).__name__, sorted({type(value).__name__ for value in values}), list(values)]


def main():
    os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    store = MooncakeDistributedStore()
    step("setup, by keywords")(lambda: store.setup(
        local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", global_segment_size=64 << 20, local_buffer_size=16 << 20, protocol="tcp",
        rdma_devices="", master_server_addr=MASTER))
    warm_up(store)
    memory = numpy.zeros(2 * BLOCKS * BLOCK, dtype=numpy.uint8)
    base = memory.ctypes.data
    step("register")(lambda: store.register_buffer(base, memory.nbytes))
    sources = [base + i * BLOCK for i in range(BLOCKS)]
    targets = [base + (BLOCKS + i) * BLOCK for i in range(BLOCKS)]
    sizes = [BLOCK] * BLOCKS
    if sys.argv[1] == "first":
        memory[: BLOCKS * BLOCK] = numpy.frombuffer(pattern(BLOCKS * BLOCK, 9), dtype=numpy.uint8)
        step("which exist")(lambda: codes(store.batch_is_exist(KEYS)))
        step("put")(lambda: codes(store.batch_put_from(KEYS, sources, sizes)))
        step("put, results.count(0)")(lambda: store.batch_put_from(KEYS, sources, sizes).count(0))
    step("which exist now")(lambda: codes(store.batch_is_exist(KEYS + ["nobody's"])))
    step("get")(lambda: codes(store.batch_get_into(KEYS, targets, sizes)))
    step("bytes")(lambda: digest(memory[BLOCKS * BLOCK:]))
    step("bytes are those put")(lambda: memory[BLOCKS * BLOCK:].tobytes() == pattern(BLOCKS * BLOCK, 9))
    step("get of a miss between")(lambda: codes(store.batch_get_into([KEYS[0], "nobody's"], targets[:2], sizes[:2])))
    step("get into too little")(lambda: codes(store.batch_get_into(KEYS[:1], targets[:1], [100])))
    step("nothing at all")(lambda: [codes(store.batch_is_exist([])), codes(store.batch_put_from([], [], [])), codes(store.batch_get_into([], [], []))])
    if sys.argv[1] == "second":
        step("remove right after get")(lambda: store.remove(KEYS[0]))
        step("remove until it goes")(lambda: until(lambda: store.remove(KEYS[0]) == 0))
        step("remove what is not there")(lambda: store.remove("nobody's"))
        # Each name once: what the first process warmed up with is still there.
        step("remove all returns how many")(lambda: until(lambda: store.remove_all(True) >= 0))
        step("none is left")(lambda: codes(store.batch_is_exist(KEYS)))
    step("end")(lambda: True)
    sys.stdin.readline()


def until(condition, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def warm_up(store):
    key, value = f"fastdeploy_warmup_{sys.argv[1]}", bytes(1 << 20)

    def put():
        end = time.monotonic() + 30
        while (code := store.put(key, value)) != 0 and time.monotonic() < end:
            time.sleep(0.1)
        return code

    step("warm-up: put")(put)
    step("warm-up: exists")(lambda: store.is_exist(key))
    step("warm-up: get")(lambda: store.get(key) == value)
    step("warm-up: remove right after get")(lambda: store.remove(key))


if __name__ == "__main__":
    with scenario():
        main()
