#!/usr/bin/env python3
"""What a disk costs those who do not read it, and how soon it is there again.

    ./dev bench disk-life [--path FOLDER] [--objects 1000000] [--only restart,latency] [--rounds N] [--busy]

restart: so many objects of 3 KiB are put through 256 MiB of memory until all lie on the disk; the node is killed (-9) and started again with
another process id and port. When does setup() return, when does the master know 99.9 % of the keys again, when can they be read (each 500th is).
Also what an object costs in memory: the owner's and the master's anonymous memory before the fill and after it.
latency: p50 and p99 of gets of 4 KiB from memory by another process over shared memory: alone; while values of 1 MiB are put that go to no disk;
while as many are put with a disk that they go to, as fast as it takes them; and while they go to no disk and fio writes as much to it, which is
what the machine makes of any writer. In turn, so that what the machine has else to do falls on all.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import paths  # noqa: F401, before what it makes importable
import cluster
import figures
from contestants.base import apt_install
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
SIZE, BATCH, EACH = 3000, 500, 500
NODE = """
import os, sys, time
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store, started = MooncakeDistributedStore(), time.monotonic()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 1 << 20, "tcp", "", sys.argv[2], enable_ssd_offload=True, ssd_offload_path=sys.argv[3])
print(code, time.monotonic() - started, flush=True)
sys.stdin.read()
"""


class Node:
    def __init__(self, master, folder, memory, disk):
        with open(folder.parent / (folder.name + ".log"), "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", NODE, str(memory), master.address, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, env={**os.environ, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(disk)})  # fmt: skip
        code, seconds = self.process.stdout.readline().split()
        assert int(code) == 0, f"setup: {code}"
        self.setup_s, self.pid = float(seconds), self.process.pid

    def kill(self):
        self.process.kill()
        self.process.communicate()


def anonymous(pid):
    """Bytes of its own memory: without shared segments."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def client(master):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 * MIB, "tcp", "", master.address) == 0
    return store


def value_of(number, size=SIZE):
    word = b"%d;" % number
    return (word * (size // len(word) + 1))[:size]


def stored(master):
    return int(master.metrics()["file_cache_nums_"])


def wait(condition, seconds, what):
    return cluster.wait_until(condition, seconds, what)


def fill(master, store, count, ahead=20_000):
    number = there = 0
    while number < count:
        if number - there > ahead:
            time.sleep(0.01)
            there = stored(master)
            continue
        batch = range(number, min(number + BATCH, count))
        if store.put_batch([f"k{one}" for one in batch], [value_of(one) for one in batch]) == 0:
            number = batch[-1] + 1
    wait(lambda: stored(master) >= count, 60, "the last on the disk")


def restart(folder, arguments):
    count, disk = arguments.objects, max(2 << 30, arguments.objects * 17_000)
    with cluster.Master("--enable_offload=true", "--default_kv_lease_ttl=0") as master:
        node = Node(master, folder, 256 * MIB, disk)
        store = client(master)
        wait(lambda: master.metrics()["mooncake_disks"] == 1, 20, "the disk")
        before, started = (anonymous(node.pid), master.resident_bytes()), time.monotonic()
        fill(master, store, count)
        after = anonymous(node.pid), master.resident_bytes()
        yield f"filled: {count} objects in {time.monotonic() - started:.1f} s; memory an object: owner {(after[0] - before[0]) / count:.0f} B with its buffers, master {(after[1] - before[1]) / count:.0f} B with key and all"
        keys = [f"k{number}" for number in range(count)]
        for number in range(arguments.rounds):
            node.kill()
            killed = time.monotonic()
            node = Node(master, folder, 256 * MIB, disk)
            up = time.monotonic()

            def known():
                return sum(sum(one == 1 for one in store.batch_is_exist(keys[at : at + 20_000])) for at in range(0, count, 20_000))
            most = wait(lambda: (lambda now: now if now >= count * 0.999 else 0)(known()), 60, "99.9 % of the keys")
            seconds, read = time.monotonic() - killed, 0
            sample = range(number, count, EACH)
            for one in sample:
                data = store.get(keys[one])
                assert not data or data == value_of(one), f"wrong bytes of {keys[one]}"
                read += bool(data)
            yield f"round {number + 1}: setup() returned after {node.setup_s:.3f} s, {most} of {count} known {seconds:.2f} s after the kill ({time.monotonic() - up:.2f} s after setup all of the sample was read: {read} of {len(sample)})"
            yield f"round {number + 1}: owner {anonymous(node.pid) / MIB:.0f} MiB of anonymous memory in all"
        node.kill()
        store.close()


def percentiles(store, seconds):
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        data = store.get(f"small-{len(took) % 64}")
        took.append(time.perf_counter() - started)
        assert len(data) == 4096
    took.sort()
    return took[len(took) // 2] * 1e6, took[len(took) * 99 // 100] * 1e6


WRITER = """
import os, sys, time
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", sys.argv[1]) == 0
value = os.urandom(1 << 20)
print("ready", flush=True)
number = 0
for line in sys.stdin:
    end = time.monotonic() + float(line)
    while time.monotonic() < end:
        if store.put(f"large-{os.getpid()}-{number}", value) == 0:
            number += 1
        time.sleep(1 / 400)
    print(number, flush=True)
"""


class Pool:
    """A master, a node, a process that puts, and a store that gets, which is this process's."""

    def __init__(self, folder, *flags):
        self.master = cluster.Master("--default_kv_lease_ttl=5000", *flags).start()
        self.node = Node(self.master, folder, 512 * MIB, 4 << 30)
        self.store = client(self.master)
        for number in range(64):
            wait(lambda number=number: self.store.put(f"small-{number}", os.urandom(4096)) == 0, 10, "a put")
        self.writer = subprocess.Popen([sys.executable, "-c", WRITER, self.master.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.writer.stdout.readline()

    def beside(self):
        """(p50, p99) while values are put, MiB a second that come to the disk."""
        before = self.master.metrics()["mooncake_offload_done_total"]
        self.writer.stdin.write("5\n")
        self.writer.stdin.flush()
        time.sleep(0.5)
        found = percentiles(self.store, 4)
        self.writer.stdout.readline()
        return found, (self.master.metrics()["mooncake_offload_done_total"] - before) / 5

    def end(self):
        self.writer.communicate("")
        self.store.close()
        self.node.kill()
        self.master.__exit__()


def fio_writes(folder, speed):
    """Writes so many MiB a second for as long as Pool.beside() lasts."""
    return subprocess.Popen(["fio", "--name=x", f"--filename={folder / 'fio'}", "--size=2G", "--bs=1M", "--iodepth=8", "--ioengine=io_uring", "--direct=1", "--rw=write",
                             "--time_based", "--runtime=6", f"--rate={max(1, int(speed))}m"], stdout=subprocess.DEVNULL)  # fmt: skip


def latency(folder, arguments):
    apt_install("fio")
    (folder / "disk").mkdir()
    plain, disk = Pool(folder), Pool(folder / "disk", "--enable_offload=true")
    wait(lambda: disk.master.metrics()["mooncake_disks"] == 1, 20, "the disk")
    ratios, of_fio = [], []
    for number in range(arguments.rounds):
        alone, (memory, _), (both, speed) = percentiles(plain.store, 4), plain.beside(), disk.beside()
        with fio_writes(folder, speed) as writes:
            raw, _ = plain.beside()
        assert writes.returncode == 0, "fio failed"
        ratios.append(both[1] / memory[1])
        of_fio.append(both[1] / raw[1])
        yield (f"round {number + 1}: p50 and p99 alone {alone[0]:.0f} and {alone[1]:.0f} us; beside puts into memory {memory[0]:.0f} and {memory[1]:.0f} us; "
               f"beside puts of which {speed:.0f} MiB/s go to the disk {both[0]:.0f} and {both[1]:.0f} us; "
               f"beside puts into memory and as much by fio {raw[0]:.0f} and {raw[1]:.0f} us")
    yield f"p99 beside puts that go to the disk, of that beside puts that do not: {figures.text_of(ratios, form='{:.2f}')}"
    yield f"and of that beside puts that do not, and fio: {figures.text_of(of_fio, form='{:.2f}')}"
    for pool in (plain, disk):
        pool.end()


def main():
    parser = figures.parser_of(__doc__, "100,000 objects, one round", keep=False)
    parser.add_argument("--path", type=pathlib.Path, default=figures.ROOT / ".cache" / "bench" / "disk")
    parser.add_argument("--objects", type=int)
    parser.add_argument("--only", default="restart,latency")
    arguments = parser.parse_args()
    arguments.rounds = figures.rounds_of(arguments)
    arguments.objects = arguments.objects or (100_000 if arguments.quick else 1_000_000)
    arguments.path.mkdir(parents=True, exist_ok=True)
    conditions = figures.Conditions(arguments, "disk-life").begin()
    lines = []
    for part in (restart, latency):
        if part.__name__ not in arguments.only.split(","):
            continue
        folder = pathlib.Path(tempfile.mkdtemp(prefix=part.__name__ + "-", dir=arguments.path))
        try:
            for line in part(folder, arguments):
                print(line, flush=True)
                lines.append(f"{part.__name__}: {line}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    arguments.keep = False
    return figures.finish("disk-life", arguments, conditions.end(arguments.rounds, [], []), [], {"lines": lines})


if __name__ == "__main__":
    sys.exit(main())
