"""A client process of the harness.

    worker.py load   --master A --client N --seed S --keys K --history FILE     random operations, recorded, until SIGTERM
    worker.py keeper --master A --history FILE                                  does what it is told: commands as JSON lines, see Keeper

A load has a few keys, to each of which much happens, and with --crowd (or from SIGUSR1 on) many more, whose values have no room in the pool together.

The bytes of a value are a function of its key and number, at every place, so that a mixture of two values, or of two keys, is seen.
"""
import argparse
import ctypes
import json
import os
import random
import signal
import struct
import sys
import time

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

import history  # noqa: E402
from history import A_DISK, BY_EXPRESSION, EXIST, GET, PUT, REMOVE, UPSERT, WRONG_BYTES  # noqa: E402

LIBC = ctypes.CDLL(None)
LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
BASE_BYTES = 1 << 20
SIZES = (64, 100, 4096, 5000, 65536, 65537, 300_000)
SIZE_MAX = max(SIZES)
HEADER = struct.Struct("<QQQ")
MASK = (1 << 64) - 1
BATCH = 4
CROWD_SHARE = 0.6  # of the calls, when there is one
CROWD_BYTES = 65536  # its values are not smaller
PIECES = ((0, 24), (24, 16), (40, 24))  # of every value: its header, and what must be of the same value
PREFIX = sum(length for _, length in PIECES)


class Content:
    """Bytes of (key, value): a header that names them, and a piece of one long random text whose place depends on both."""

    def __init__(self):
        self.text = ctypes.create_string_buffer(random.Random(20).randbytes(BASE_BYTES + SIZE_MAX), BASE_BYTES + SIZE_MAX)
        self.base = ctypes.addressof(self.text)

    @staticmethod
    def size(value):
        return SIZES[(value * 0x9E3779B97F4A7C15 & MASK) % 1009 % len(SIZES)]

    def _piece(self, key, value):
        return self.base + ((key * 0xD1B54A32D192ED03 + value * 0x9E3779B97F4A7C15 & MASK) >> 44)

    def write(self, key, value, address):
        size = self.size(value)
        ctypes.memmove(address, HEADER.pack(value, key, size), HEADER.size)
        ctypes.memmove(address + HEADER.size, self._piece(key, value), size - HEADER.size)
        return size

    def read(self, key, address, length):
        """The value that these bytes are, or None."""
        if length < HEADER.size:
            return None
        value, found, size = HEADER.unpack(ctypes.string_at(address, HEADER.size))
        if found != key or size != length or self.size(value) != size:
            return None
        same = LIBC.memcmp(address + HEADER.size, self._piece(key, value), size - HEADER.size) == 0
        return value if same else None

    def prefix(self, key, address):
        """The value whose first PREFIX bytes these are, or None."""
        value, found, size = HEADER.unpack(ctypes.string_at(address, HEADER.size))
        if found != key or self.size(value) != size:
            return None
        same = LIBC.memcmp(address + HEADER.size, self._piece(key, value), PREFIX - HEADER.size) == 0
        return value if same else None


def join(master, host, segment=0, seconds=30):
    from mooncake.store import MooncakeDistributedStore
    end = time.monotonic() + seconds
    while True:
        store = MooncakeDistributedStore()
        rc = store.setup(host, "P2PHANDSHAKE", segment, 32 << 20, "tcp", "", master)
        if rc == 0:
            return store
        store.close()
        if time.monotonic() > end:
            raise SystemExit(f"setup at {master}: {rc}")
        time.sleep(0.1)


def group_of(key):
    """Every writer names the same one; some keys are in none."""
    return "" if key % 2 else f"group-{key // 8}"


def config_of(count, keys=(), pinned=False):
    from mooncake.store import ReplicateConfig
    config = ReplicateConfig()
    config.replica_num, config.with_hard_pin = count, pinned
    groups = [key if isinstance(key, str) else group_of(key) for key in keys]
    if any(groups):
        config.group_ids = groups
    return config


def waited_ns():
    """How long all threads of this process have waited for a processor."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as stat:
                total += int(stat.read().split()[1])
        except OSError:
            continue
    return total


class Load:
    """Random operations on few keys, each recorded before and after."""

    def __init__(self, options):
        self.draw = random.Random(options.seed)
        self.keys, self.crowd, self.crowded = options.keys, options.crowd, options.crowded
        self.names = [f"fault-{key}" for key in range(options.keys)] + [f"crowd-{key}" for key in range(options.crowd)]
        self.content = Content()
        self.buffers = [ctypes.create_string_buffer(SIZE_MAX) for _ in range(BATCH)]
        self.places = [ctypes.addressof(buffer) for buffer in self.buffers]
        self.history = history.Writer(options.history)
        self.next_value = (options.client << 32) + 1
        self.slow_ns = options.slow_ms * 1_000_000
        self.pause = 1.0 / options.rate
        self.waited = waited_ns()
        self.ended = False
        self.store = join(options.master, options.host, options.segment)
        self.steps = [(self.put, 20), (self.get, 36), (self.remove, 8), (self.exist, 12), (self.batch, 8), (self.upsert, 9), (self.remove_some, 1)]
        if options.ranges:
            self.steps += [(self.ranges, 4), (self.session, 2)]
            self.store.register_buffer(self.places[0], SIZE_MAX)
        self.crowd_steps = [(self.put, 45), (self.get, 35), (self.upsert, 10), (self.remove, 4), (self.exist, 6)]

    def config(self, *keys):
        return config_of(self.draw.choice((1, 2)), keys)

    def finish(self, record, code, value=0, now=None):
        now = now or time.monotonic_ns()
        noise = 0
        if now - struct.unpack_from("<Q", self.history.map, record)[0] > self.slow_ns:
            waited = waited_ns()
            noise, self.waited = max(waited - self.waited, 1), waited
        self.history.done(record, code, value, noise, now)
        return code

    def value(self, key):
        while True:
            value, self.next_value = self.next_value, self.next_value + 1
            if key < self.keys or self.content.size(value) >= CROWD_BYTES:
                return value

    def read(self, record, key, place, length):
        now = time.monotonic_ns()
        if length < 0:
            return self.finish(record, length, 0, now)
        value = self.content.read(key, place, length)
        return self.finish(record, WRONG_BYTES, 0, now) if value is None else self.finish(record, length, value, now)

    def put(self, key):
        value = self.value(key)
        size = self.content.write(key, value, self.places[0])
        record = self.history.invoke(PUT, key, value)
        return self.finish(record, self.store.put_from(self.names[key], self.places[0], size, self.config(key)), value)

    def get(self, key):
        record = self.history.invoke(GET, key)
        return self.read(record, key, self.places[0], self.store.get_into(self.names[key], self.places[0], SIZE_MAX))

    def remove(self, key):
        record = self.history.invoke(REMOVE, key)
        return self.finish(record, self.store.remove(self.names[key], self.draw.random() < 0.7))

    def exist(self, key):
        record = self.history.invoke(EXIST, key)
        return self.finish(record, self.store.is_exist(self.names[key]))

    def upsert(self, key):
        value = self.value(key)
        size = self.content.write(key, value, self.places[0])
        record = self.history.invoke(UPSERT, key, value)
        return self.finish(record, self.store.upsert_from(self.names[key], self.places[0], size, self.config(key)), value)

    def remove_some(self, _):
        """By an expression. Every key that it matches was without a value at one moment, if it says that it is done."""
        keys = self.draw.sample(range(self.keys), min(BATCH, self.keys))
        records = [self.history.invoke(REMOVE, key, BY_EXPRESSION) for key in keys]
        code = self.store.remove_by_regex(f"^fault-({'|'.join(map(str, keys))})$", True)
        for record in records:
            self.finish(record, min(code, 0), BY_EXPRESSION)
        return min(code, 0)

    def pieces(self, record, key, codes):
        """What reading PIECES one behind the other has given: a value, of which all of them are."""
        now = time.monotonic_ns()
        if min(codes) < 0:
            return self.finish(record, min(codes), 0, now)
        value = self.content.prefix(key, self.places[0])
        return self.finish(record, WRONG_BYTES if value is None else PREFIX, value or 0, now)

    def ranges(self, key):
        offsets, sizes = [list(one) for one in zip(*PIECES)]
        record = self.history.invoke(GET, key)
        (codes,), = self.store.get_into_ranges([self.places[0]], [[self.names[key]]], [[offsets]], [[offsets]], [[sizes]])
        return self.pieces(record, key, codes)

    def session(self, key):
        """Pieces of an object over some time, in which it may be replaced: then those of one call are of one value."""
        name, (offsets, sizes) = self.names[key], [list(one) for one in zip(*PIECES)]
        code = self.store.batch_get_session_start([name])[0]
        for _ in range(3 if code == 0 else 0):
            record = self.history.invoke(GET, key)
            code = self.store.batch_get_into_multi_buffer_ranges([name], [[self.places[0] + offset for offset in offsets]], [sizes], [offsets])[0]
            self.pieces(record, key, [code])
        self.store.batch_get_session_end([name])
        return code

    def batch(self, _):
        keys = self.draw.sample(range(self.keys), min(BATCH, self.keys))
        names = [self.names[key] for key in keys]
        places = self.places[:len(keys)]
        if self.draw.random() < 0.5:
            values = [self.value(key) for key in keys]
            sizes = [self.content.write(*item) for item in zip(keys, values, places)]
            kind, call = self.draw.choice(((PUT, self.store.batch_put_from), (UPSERT, self.store.batch_upsert_from)))
            records = [self.history.invoke(kind, *item) for item in zip(keys, values)]
            results = call(names, places, sizes, self.config(*keys))
            return min([self.finish(*item) for item in zip(records, results, values)])
        records = [self.history.invoke(GET, key) for key in keys]
        results = self.store.batch_get_into(names, places, [SIZE_MAX] * len(keys))
        return min([self.read(*item) for item in zip(records, keys, places, results)])

    def step(self):
        crowded = self.crowded and self.crowd and self.draw.random() < CROWD_SHARE
        what = self.draw.choices(*zip(*(self.crowd_steps if crowded else self.steps)))[0]
        code = what(self.keys + self.draw.randrange(self.crowd) if crowded else self.draw.randrange(self.keys))
        # A call that cannot be done now comes back at once: no use in asking ten thousand times a second.
        time.sleep(0.01 if code < 0 and code not in (-704, -706) else self.pause * self.draw.random() * 2)

    def run(self):
        def end(*_):
            self.ended = True

        def crowd(*_):
            self.crowded = True
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGUSR1, crowd)
        print(json.dumps({"ready": True}), flush=True)
        count = 0
        while not self.ended:
            count += 1
            if count % 256 == 0:
                self.waited = waited_ns()
            self.step()
        self.store.close()


class Keeper:
    """Does what it is told. A key is a text that ends with a number, by which its bytes go.

    {"put": [[key, value, replicas, pinned, group], ...]}   -> {"codes": [...]}; "upsert" likewise
    {"look": [key, ...]}                     -> {"found": [value, 0 for a miss, or a code], "slowest_ms": ...}
    {"where": [key, ...]}                    -> {"where": [[segment name, ...], ...]}
    {"remove": [key, ...]}                   -> {"codes": [...]}
    {"remove_all": count}                    -> {"code": ...}; recorded as a removal of each of the load's keys, of which there are so many
    {"write": {"plan": [[number, replicas, [[operation, value], ...]], ...], "seconds": ...}}
        evenly over these seconds, not longer, recorded            -> {"written": [[number, where, [[operation, value, code], ...]], ...]}
    """

    def __init__(self, options):
        self.content = Content()
        self.buffer = ctypes.create_string_buffer(SIZE_MAX)
        self.place = ctypes.addressof(self.buffer)
        self.history = history.Writer(options.history)
        self.store = join(options.master, options.host)

    @staticmethod
    def number(key):
        return int(key.rsplit("-", 1)[1])

    def store_one(self, call, key, value, config):
        size = self.content.write(self.number(key), value, self.place)
        return call(key, self.place, size, config)

    def put(self, items):
        return {"codes": [self.store_one(self.store.put_from, key, value, config_of(replicas, [group], pinned))
                          for key, value, replicas, pinned, group in items]}

    def upsert(self, items):
        return {"codes": [self.store_one(self.store.upsert_from, key, value, config_of(replicas, [group], pinned))
                          for key, value, replicas, pinned, group in items]}

    def look_at(self, key):
        """(code, value)"""
        length = self.store.get_into(key, self.place, SIZE_MAX)
        if length < 0:
            return length, 0
        value = self.content.read(self.number(key), self.place, length)
        return (WRONG_BYTES, 0) if value is None else (length, value)

    def look(self, keys):
        found, slowest = [], 0.0
        for key in keys:
            start = time.monotonic()
            code, value = self.look_at(key)
            slowest = max(slowest, time.monotonic() - start)
            found.append(value if code > 0 else 0 if code == -704 else code)
        return {"found": found, "slowest_ms": slowest * 1000}

    def where(self, keys):
        found = self.store.batch_get_replica_desc(keys)
        return {"where": [[self.place_of(replica) for replica in found.get(key, [])] for key in keys]}

    @staticmethod
    def place_of(replica):
        """The name of a segment; a disk is a place that no end of a process costs."""
        return replica.get_memory_descriptor().buffer_descriptor.transport_endpoint_ if replica.is_memory_replica() else A_DISK

    def remove(self, keys):
        return {"codes": [self.store.remove(key, True) for key in keys]}

    def remove_all(self, count):
        records = [self.history.invoke(REMOVE, key, BY_EXPRESSION) for key in range(count)]
        code = self.store.remove_all(True)
        now = time.monotonic_ns()
        for record in records:
            self.history.done(record, min(code, 0), BY_EXPRESSION, 0, now)
        return {"code": code}

    def write_one(self, key, operation, value, replicas):
        """(code, value)"""
        record = self.history.invoke(operation, history.WITNESS + self.number(key), value)
        if operation == GET:
            code, value = self.look_at(key)
        elif operation == REMOVE:
            code = self.store.remove(key, True)
        else:
            code = self.store_one(self.store.put_from if operation == PUT else self.store.upsert_from, key, value, config_of(replicas, pinned=True))
        self.history.done(record, code, value)
        return code, value

    def write(self, argument):
        plan, start, written = argument["plan"], time.monotonic(), []
        for number, replicas, steps in plan:
            if time.monotonic() > start + argument["seconds"]:
                break
            time.sleep(max(start + argument["seconds"] * len(written) / len(plan) - time.monotonic(), 0))
            key, done = f"witness-{number}", []
            for operation, value in steps:
                code, value = self.write_one(key, operation, value, replicas)
                done.append([operation, value, code])
            written.append([number, self.where([key])["where"][0], done])
        return {"written": written}

    def run(self):
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            (command, argument), = json.loads(line).items()
            print(json.dumps(getattr(self, command)(argument)), flush=True)
        self.store.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("load", "keeper"))
    parser.add_argument("--master", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--client", type=int, default=1)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--slow_ms", type=int, default=1000)
    parser.add_argument("--ranges", action="store_true", help="also reads pieces, in sessions and without")
    parser.add_argument("--crowd", type=int, default=0, help="so many keys more, whose values have no room in the pool together")
    parser.add_argument("--crowded", action="store_true", help="they are used from the start, not from SIGUSR1 on")
    parser.add_argument("--history")
    options = parser.parse_args()
    {"load": Load, "keeper": Keeper}[options.role](options).run()


if __name__ == "__main__":
    main()
