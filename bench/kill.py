"""kill -9 (or SIGSTOP) of one of four store nodes under load: how long gets of its keys take, what the others feel, how long it is still offered.

    MC_BUILD=.cache/build-release MC_PYTHONPATH=.cache/pypath python bench/kill.py [--stop] [--paths shm,tcp] [--replicas 1] [--json FILE]

`./dev bench kill` runs it for both paths and both signals. measure() is also what tests/system/test_kill.py asserts on.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import paths  # noqa: F401, before what it makes importable
import cluster
from worker import joined, percentile

NODES, KEYS, SIZE = 4, 1000, 64 << 10
MISSING = -704
HIDDEN_S = 0.2  # after that nobody is sent to the node any more


class Node:
    """One `mooncake_bench node` process."""

    def __init__(self, master, segment_bytes):
        self.process = subprocess.Popen(
            [str(cluster.BUILD / "mooncake_bench"), "node", "--master", master.address, "--segment", str(segment_bytes)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.name = self.process.stdout.readline().split()[-1]  # node ready NAME

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        with self.process:
            self.process.kill()


def load(store, buffer, keys, seconds, content):
    """Random gets for so long: [(start, key index, seconds, result, bytes right)]."""
    samples, end = [], time.monotonic() + seconds
    address = ctypes.addressof(buffer)
    draw = random.Random(7)
    while True:
        start = time.monotonic()
        if start >= end:
            return samples
        index = draw.randrange(len(keys))
        result = store.get_into(keys[index], address, SIZE)
        took = time.monotonic() - start
        right = result != SIZE or buffer.raw[:8] == content[index][:8] and buffer.raw[-8:] == content[index][-8:]
        samples.append((start, index, took, result, right))


def sleeper(worst, end):
    """The worst wait of a thread that only wanted to wake: what this machine costs whoever measures times."""
    while not end.is_set():
        start = time.monotonic()
        time.sleep(0.001)
        worst[0] = max(worst[0], time.monotonic() - start - 0.001)


def bystander(address, keys, pipe):
    """A client that has read every key and then waits; from a moment on it gets as told: [(start, index, seconds, result)] in a process of its own."""
    store = joined(address, buffer=16 << 20)
    buffer = ctypes.create_string_buffer(SIZE)
    place = ctypes.addressof(buffer)
    for key in keys:
        store.get_into(key, place, SIZE)
    pipe.send("ready")
    at, chosen = pipe.recv()
    time.sleep(max(at - time.monotonic(), 0))
    samples = []
    for index in chosen:
        start = time.monotonic()
        result = store.get_into(keys[index], place, SIZE)
        samples.append((start, index, time.monotonic() - start, result))
    pipe.send(samples)
    store.close()


def measure(number=signal.SIGKILL, replicas=1, before_s=3.0, after_s=4.0):
    """Figures of one run, times in milliseconds. Uses MC_PATHS of the environment for the client."""
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    nodes = []
    store = MooncakeDistributedStore()
    pipe, theirs = multiprocessing.Pipe()
    other, worst, end = None, [0.0], threading.Event()
    with cluster.Master() as master:
        try:
            nodes = [Node(master, KEYS * SIZE * 2) for _ in range(NODES)]
            cluster.wait_until(lambda: len(master.get("/get_all_segments")[1].split()) == NODES, 30, "the nodes")
            cluster.wait_until(lambda: master.metrics().get("mooncake_populated_bytes", KEYS * SIZE * 2 * NODES) >= KEYS * SIZE * 2 * NODES, 60)
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.address) == 0
            config = ReplicateConfig()
            config.replica_num = replicas
            keys = [f"kill-{i}" for i in range(KEYS)]
            content = [i.to_bytes(8, "little") * (SIZE // 8) for i in range(KEYS)]
            for key, value in zip(keys, content):
                assert store.put(key, value, config) == 0
            where = {key: [d.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for d in found]
                     for key, found in store.batch_get_replica_desc(keys).items()}
            victim = where[keys[0]][0]
            node = next(one for one in nodes if one.name == victim)
            buffer = ctypes.create_string_buffer(SIZE)
            lost = {i for i, key in enumerate(keys) if where[key] == [victim]}
            touched = {i for i, key in enumerate(keys) if victim in where[key]}
            other = multiprocessing.get_context("spawn").Process(target=bystander, args=(master.address, keys, theirs))
            other.start()
            theirs.close()
            assert pipe.recv() == "ready"
            threading.Thread(target=sleeper, args=(worst, end)).start()
            load(store, buffer, keys, 1.0, content)
            before = load(store, buffer, keys, before_s, content)
            killed = time.monotonic()
            node.signal(number)
            # The other one has met nothing yet: from HIDDEN_S on it must be told of another place, or of none.
            pipe.send((killed + HIDDEN_S, sorted(touched)[:50]))
            after = load(store, buffer, keys, 1.0, content)
            offered = [d.get_memory_descriptor().buffer_descriptor.transport_endpoint_
                       for found in store.batch_get_replica_desc(keys).values() for d in found]
            puts = [store.put(f"after-{i}", content[0]) for i in range(100)]
            after += load(store, buffer, keys, after_s - 1.0, content)
            told = pipe.recv()
            node.signal(signal.SIGCONT)
        finally:
            end.set()
            store.close()
            if other is not None and other.pid is not None:
                if sys.exc_info()[0] is not None:
                    other.kill()
                other.join()
            for node in nodes:
                node.end()

    def of(samples, chosen, first=0.0, last=1e9):
        return [took * 1000 for start, index, took, _, _ in samples if (index in chosen) and first <= start - killed < last]

    others = set(range(KEYS)) - touched
    return {
        "signal": signal.Signals(number).name, "replicas": replicas, "keys of the victim": len(touched), "only there": len(lost),
        "gets before": len(before), "gets after": len(after),
        "another client, from 200 ms on: slowest get ms": max((took * 1000 for _, _, took, _ in told), default=0.0),
        "another client, from 200 ms on: gets": len(told),
        "another client, from 200 ms on: misses": sum(result == MISSING for *_, result in told),
        "another client, from 200 ms on: failed gets": sum(result < 0 and result != MISSING for *_, result in told),
        "a sleeper waited ms": worst[0] * 1000,
        "wrong bytes": sum(not right for *_, right in before + after),
        "victim's keys: slowest get ms": max(of(after, touched), default=0.0),
        "victim's keys: hits after": sum(result == SIZE for _, index, _, result, _ in after if index in touched),
        "victim's keys: misses after": sum(result < 0 for _, index, _, result, _ in after if index in touched),
        "others: p50 before ms": percentile(of(before, others, -1e9), 0.50), "others: p50 after ms": percentile(of(after, others), 0.50),
        "others: p99 before ms": percentile(of(before, others, -1e9), 0.99),
        "others: p99 first second ms": percentile(of(after, others, 0.0, 1.0), 0.99),
        "others: p99 later ms": percentile(of(after, others, 1.0), 0.99),
        "others: failed gets": sum(result < 0 for _, index, _, result, _ in after if index in others),
        "offered 1 s after": sum(name == victim for name in offered), "puts failed 1 s after": sum(rc != 0 for rc in puts),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = []
    for paths in ("shm,tcp", "tcp"):
        os.environ["MC_PATHS"] = paths
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for replicas in (1, 2):
                for _ in range(options.rounds):
                    results.append({"paths": paths, **measure(number, replicas)})
    names = [name for name in results[0] if name not in ("paths", "signal", "replicas")]
    for start in range(0, len(results), options.rounds):
        rows = results[start:start + options.rounds]
        print(f"\n{rows[0]['signal']}, paths {rows[0]['paths']}, {rows[0]['replicas']} replica(s); min / median / max of {len(rows)}")
        for name in names:
            values = sorted(row[name] for row in rows)
            print(f"  {name:34} {values[0]:10.3f} {values[len(values) // 2]:10.3f} {values[-1]:10.3f}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
