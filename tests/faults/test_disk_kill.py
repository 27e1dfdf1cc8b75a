"""A store node with a disk that is killed while it writes, over and over, and started again under another port each time: no byte is wrong, nothing
whose removal was answered comes back, and a value that was replaced is not read again. How much of that a life gets done is up to the machine; the last
one is not killed before all of it is. MC_DISK_KILLS: how often."""
import os
import pathlib
import random
import re
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import cluster
from python_cluster import MISSING, joined, wait_until
from service_process import Service

KILLS = int(os.environ.get("MC_DISK_KILLS", "1000" if os.environ.get("MC_TEST_ALL") else "15"))
SEED = int(os.environ.get("MC_DISK_SEED", "1"))
THREADS, KEYS = 8, 20
SIZES = (100, 4096, 40_000, 200_000)
MIB = 1 << 20
MEMORY, DISK = 16 * MIB, 512 * MIB  # the memory holds about all, so that also what the disk alone knows is asked for only after a kill
LIFE_S = 0.3  # of a node, from when its disk is mounted: at most
PATIENCE_S = 60


def value_of(key, version):
    """Says whose it is from its first byte to its last."""
    size = SIZES[version % len(SIZES)]
    word = f"{key}:{version};".encode()
    return (word * (size // len(word) + 1))[:size]


class Model:
    """What may be read of each key of one thread: versions. A miss always may be."""

    def __init__(self, number):
        self.draw = random.Random(SEED * THREADS + number)
        self.may = {f"key-{number}-{key}": set() for key in range(KEYS)}
        self.here = []  # put, or found, during the life of this node
        self.version = self.read = self.found = self.removed = self.replaced = 0

    def next(self):
        self.version += 1
        return self.version


def look(store, model, key):
    data = store.get(key)
    if not data:
        return
    model.read += 1
    model.here.append(key)
    head = data[:40].split(b";")[0].decode(errors="replace")
    of, version = head.split(":")
    assert of == key and data == value_of(key, int(version)), f"{key} has bytes of {head}"
    assert int(version) in model.may[key], f"{key} has version {version}, and only {sorted(model.may[key])} may be"


def act(store, model):
    key = model.draw.choice(list(model.may))
    kind = model.draw.random()
    if kind < 0.5:
        version = model.next()
        model.may[key].add(version)  # also one whose put fails may be found
        if store.put(key, value_of(key, version)) == 0:
            model.here.append(key)
    elif kind < 0.65:
        version = model.next()
        model.may[key].add(version)
        if store.upsert(key, value_of(key, version)) == 0:
            model.may[key] = {version}
            model.replaced += 1
    elif kind < 0.85:
        key = model.here.pop(model.draw.randrange(len(model.here))) if model.here else key
        if store.remove(key, True) == 0:
            model.may[key] = set()
            model.removed += 1
    else:
        look(store, model, key)


def start(master, folder):
    return Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE=MEMORY, MOONCAKE_OFFLOAD_ENABLED=1,
                   MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=DISK).spawn()


def live(store, model, is_over):
    """What one thread does during the life of one node: first it looks what is there."""
    model.here.clear()
    before = model.read
    for key in model.may:
        look(store, model, key)
    model.found += model.read - before
    while not is_over.is_set():
        act(store, model)


def mounted(master, folder):
    node = start(master, folder)
    try:
        wait_until(lambda: re.search(r"disk .* is mounted as number \d+$|the master knows what lies on disk", node.log(), re.M), PATIENCE_S)
    except AssertionError:
        print(node.log(), master.log()[-3000:])
        node.kill()
        raise
    return node


def one_life(master, store, models, folder, draw, pool):
    node = mounted(master, folder)
    is_over = threading.Event()
    lives = [pool.submit(live, store, model, is_over) for model in models]
    time.sleep(draw.uniform(0.05, LIFE_S))
    node.kill()
    is_over.set()
    for one in lives:
        one.result()
    node.log_file.close()


def replace_all(store, model):
    for key in model.may:
        version = model.next()
        model.may[key].add(version)
        wait_until(lambda: store.upsert(key, value_of(key, version)) == 0, PATIENCE_S)
        model.may[key] = {version}


def remove_half(store, model):
    for key in list(model.may)[::2]:
        wait_until(lambda: store.remove(key, True) in (0, MISSING), PATIENCE_S)  # MISSING: a try before that was not waited for
        model.may[key] = set()


def read_all(store, model):
    """What was kept lies on the disk; what was removed is nowhere once that can be read."""
    for key in sorted(model.may, key=lambda key: not model.may[key]):
        if model.may[key]:
            wait_until(lambda: store.get(key), PATIENCE_S)
        look(store, model, key)


def last_life(master, store, models, folder, pool):
    """Each call is made again until it is answered, and only then the node is killed."""
    node = mounted(master, folder)
    list(pool.map(lambda model: replace_all(store, model), models))
    wait_until(lambda: master.metrics()["file_cache_nums_"] == THREADS * KEYS, PATIENCE_S)
    list(pool.map(lambda model: remove_half(store, model), models))
    node.kill()
    node.log_file.close()
    node = mounted(master, folder)
    before = sum(model.read for model in models)
    list(pool.map(lambda model: read_all(store, model), models))
    assert sum(model.read for model in models) - before == THREADS * KEYS // 2
    node.kill()
    node.log_file.close()


@pytest.mark.timeout(120 + KILLS * 4)
def test_killed_while_it_writes(monkeypatch):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-disk-kill-"))
    draw, models = random.Random(SEED), [Model(number) for number in range(THREADS)]
    try:
        with cluster.Master("--enable_offload=true", "--default_kv_lease_ttl=0", "--client_ttl=1") as master, ThreadPoolExecutor(THREADS) as pool:
            patient = joined(master, 0)
            with monkeypatch.context() as hasty:  # it does not wait for a dead node; the nodes do wait, also to be mounted on a busy machine
                hasty.setenv("MC_RPC_TIMEOUT_MS", "100")
                store = joined(master, 0)
            wait_until(lambda: patient.remove("nobody", True) == MISSING, PATIENCE_S)  # a master answers no removal in its first seconds
            for _ in range(KILLS):
                one_life(master, store, models, folder, draw, pool)
            last_life(master, patient, models, folder, pool)
            assert store.close() == 0 and patient.close() == 0
    finally:
        shutil.rmtree(folder)
    total = {name: sum(getattr(model, name) for model in models) for name in ("version", "removed", "replaced", "found", "read")}
    print(f"{KILLS} kills: {total}")
