"""A process of the laboratory's load, for this tree and for the original alike: only mooncake.store is used.

    load.py node   --master A --host NAME --segment BYTES       lends memory until its stdin ends
    load.py client --master A --host NAME --number N            commands as JSON lines, each answered by one, see Client

Every call is timed; what it returns is compared with what was put, after the clock has stopped. A key that was put and never removed exists: any
other answer than its bytes is a failed call.
"""
import argparse
import ctypes
import json
import math
import os
import random
import resource
import struct
import sys
import threading
import time

if os.environ.get("MC_PYTHONPATH"):
    sys.path.insert(0, os.environ["MC_PYTHONPATH"])

LIBC = ctypes.CDLL(None)
LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
LIBC.malloc.restype = ctypes.c_void_p
SIZE_MAX = 4 << 20
TEXT_BYTES = 1 << 20  # of random text: where the bytes of a key begin in it
HEADER = struct.Struct("<QQ")
EVENTS_MAX = 2000     # calls that failed or took long, told one by one
SLOW_S = 0.2
PUTS_KEPT = 8         # of this client's own puts; older ones are removed
STEPS = 200           # of the histogram, to a factor of e: half a percent
WRONG_BYTES = 1       # instead of a code


class Content:
    """The bytes of a key: its number and size, and a piece of one long random text."""

    def __init__(self):
        text = random.Random(20).randbytes(TEXT_BYTES)
        self.text = ctypes.create_string_buffer(text * (SIZE_MAX // TEXT_BYTES + 2))
        self.base = ctypes.addressof(self.text)

    def _piece(self, number):
        return self.base + number * 0x9E3779B97F4A7C15 % TEXT_BYTES

    def write(self, number, size, place):
        ctypes.memmove(place, HEADER.pack(number, size), HEADER.size)
        ctypes.memmove(place + HEADER.size, self._piece(number), size - HEADER.size)

    def is_right(self, number, size, place):
        return (ctypes.string_at(place, HEADER.size) == HEADER.pack(number, size)
                and LIBC.memcmp(place + HEADER.size, self._piece(number), size - HEADER.size) == 0)


def histogram_index(seconds):
    return round(math.log(max(seconds, 1e-7)) * STEPS)


def histogram_seconds(index):
    return math.exp(index / STEPS)


class Kept:
    """A key that exists. Its name says all: which client put it, which of its keys, and how many bytes."""

    def __init__(self, client, index, size):
        self.client, self.index, self.size = client, index, size
        self.name = f"lab-{client}-{size}-{index}"
        self.number = client << 40 | index << 24 | size >> 10
        self.place = None  # the segments of its replicas, as far as they are known


class Client:
    """{"fill": [[size, count], ...], "replicas": R, "seconds": S} -> {"failed": codes of the puts that could not be made in time}
    {"know": [[client, size, index], ...]}            these exist, too (all of another client)     -> {"known": number}
    {"where": true}                     where they lie                          -> {"where": {segment name: keys}}
    {"go": {"sizes": [...], "gets": 0.8, "rate": calls a second or 0}}          starts calling      -> {"going": true}
    {"phase": name, "victims": [segment names]}   from here on calls count to this phase; keys that lie on victims alone count apart  -> {"phase": name}
    {"count": true}                     calls so far                            -> {"calls": N, "failed": N}
    {"pause": true}                     no calls any more, when the present one is over             -> {"paused": true}
    {"repair": seconds}                 puts those of its own keys again that are not there         -> {"repaired": N, "failed": [codes]}
    {"starve": true}                    gets no more memory, and has used up what it had         -> {"taken": bytes}
    {"spoil": "missing" or "bytes"}     removes the first of its own keys, or puts other bytes under its name, to see the check fail  -> {"spoilt": name}
    {"report": true}                    -> {"series": {"phase what size": {"index": count}}, "codes": ..., "events": [[time, ...]], "bytes": ...}
    """

    def __init__(self, options):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        self.number = options.number
        self.draw = random.Random(f"{options.seed} {options.number}")
        self.content = Content()
        self.buffer = ctypes.create_string_buffer(SIZE_MAX)
        self.place = ctypes.addressof(self.buffer)
        self.kept, self.own_puts = [], []
        self.replicas, self.config_type = 1, ReplicateConfig
        self.series, self.codes, self.events, self.bytes, self.calls, self.failed = {}, {}, [], {}, 0, 0
        self.phase, self.victims, self.work, self.puts = "calm", frozenset(), None, 0
        self.calling = threading.Lock()  # held by the thread that calls, except between two calls
        if options.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (options.descriptors, options.descriptors))
        self.store = MooncakeDistributedStore()
        end = time.monotonic() + options.join_seconds
        while True:
            code = self.store.setup(options.host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", options.master)
            if code == 0:
                break
            if time.monotonic() > end:
                raise SystemExit(f"setup at {options.master}: {code}")
            self.store.close()
            self.store = MooncakeDistributedStore()
            time.sleep(0.2)
        code = self.store.register_buffer(self.place, SIZE_MAX)
        if code != 0:
            raise SystemExit(f"register_buffer: {code}")

    # -- calls --

    def config(self):
        config = self.config_type()
        config.replica_num = self.replicas
        return config

    def note(self, what, size, started, took, code, name):
        self.calls += 1
        key = f"{self.phase} {what} {size}"
        series = self.series.setdefault(key, {})
        index = histogram_index(took)
        series[index] = series.get(index, 0) + 1
        if code != 0:
            codes = self.codes.setdefault(key, {})
            codes[code] = codes.get(code, 0) + 1
        if code == 0:
            self.bytes[key] = self.bytes.get(key, 0) + size
        if (code != 0 or took > SLOW_S) and len(self.events) < EVENTS_MAX:
            self.events.append([started, self.number, self.phase, what, size, code, took, name])

    def get(self, kept):
        # Told apart by what held when the call began.
        is_victim = bool(self.victims) and kept.place is not None and all(name in self.victims for name in kept.place)
        clock, started = time.time(), time.perf_counter()
        length = self.store.get_into(kept.name, self.place, SIZE_MAX)
        took = time.perf_counter() - started
        code = 0 if length == kept.size else length if length < 0 else WRONG_BYTES
        if code == 0 and not self.content.is_right(kept.number, kept.size, self.place):
            code = WRONG_BYTES
        self.failed += code != 0 and (not is_victim or code == WRONG_BYTES)
        self.note("victim-get" if is_victim else "get", kept.size, clock, took, code, kept.name)

    def put(self, size):
        self.puts += 1
        name = f"put-{self.number}-{self.puts}"
        self.content.write(self.puts, size, self.place)
        clock, started = time.time(), time.perf_counter()
        code = self.store.put_from(name, self.place, size)
        self.note("put", size, clock, time.perf_counter() - started, code, name)
        self.failed += code != 0 and not self.victims
        self.own_puts.append(name)
        if len(self.own_puts) > PUTS_KEPT:
            self.store.remove(self.own_puts.pop(0))

    def call(self):
        while True:
            with self.calling:
                work = self.work
                if work is not None:
                    size = self.draw.choice(work["sizes"])
                    if self.draw.random() < work["gets"]:
                        self.get(self.draw.choice(self.of_size[size]))
                    else:
                        self.put(size)
            pause = 0.05 if work is None else self.draw.random() * 2 / work["rate"] if work["rate"] else 0
            time.sleep(pause)

    # -- commands --

    def put_until(self, kept, end, name=None):
        """0, or the last code of a put that could not be made until then."""
        while True:
            self.content.write(kept.number, kept.size, self.place)
            code = self.store.put_from(name or kept.name, self.place, kept.size, self.config())
            if code == 0 or time.monotonic() > end:
                return code
            time.sleep(0.02)

    def do_fill(self, groups, replicas=1, seconds=60):
        self.replicas = replicas
        failed, end = [], time.monotonic() + seconds
        for size, count in groups:
            for index in range(count):
                kept = Kept(self.number, index, size)
                code = self.put_until(kept, end)
                if code == 0:
                    self.kept.append(kept)
                else:
                    failed.append(code)
        return {"failed": failed, "keys": [[kept.client, kept.index, kept.size] for kept in self.kept]}

    def do_know(self, keys):
        self.kept += [Kept(*key) for key in keys if key[0] != self.number]
        return {"known": len(self.kept)}

    def do_where(self, _):
        found = self.store.batch_get_replica_desc([kept.name for kept in self.kept])
        names = {}
        for kept in self.kept:
            kept.place = frozenset(d.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for d in found.get(kept.name, [])) or None
            for name in kept.place or ():
                names[name] = names.get(name, 0) + 1
        return {"where": names, "unknown": sum(kept.place is None for kept in self.kept)}

    def do_go(self, work):
        self.of_size = {size: [kept for kept in self.kept if kept.size == size] for size in work["sizes"]}
        if self.work is None and threading.active_count() == 1:
            threading.Thread(target=self.call, daemon=True).start()
        self.work = work
        return {"going": True}

    def do_phase(self, name, victims=()):
        with self.calling:  # whoever harms a node next does not harm a call that counts as one before
            self.victims = frozenset(victims)
            self.phase = name
        return {"phase": name}

    def do_count(self, _):
        return {"calls": self.calls, "failed": self.failed}

    def do_pause(self, _):
        self.work = None
        with self.calling:
            return {"paused": True}

    def do_repair(self, seconds):
        repaired, failed, end = 0, [], time.monotonic() + seconds
        with self.calling:
            for kept in self.kept:
                if kept.client != self.number:
                    continue
                while True:  # no answer is no loss
                    length = self.store.get_into(kept.name, self.place, SIZE_MAX)
                    if length >= 0 or length == -704 or time.monotonic() > end:
                        break
                    time.sleep(0.05)
                if length == kept.size:
                    continue
                code = self.put_until(kept, end)
                repaired += 1
                if code != 0:
                    failed.append(code)
        return {"repaired": repaired, "failed": failed}

    def do_starve(self, _):
        with open("/proc/self/statm", encoding="ascii") as file:
            has = int(file.read().split()[0]) * resource.getpagesize()
        spare = [bytes(100) for _ in range(50_000)]  # room for Python's own small objects, which it keeps when they are freed
        self.spare = spare[::1000]
        del spare
        resource.setrlimit(resource.RLIMIT_AS, (has, has))
        taken = 0
        for size in (1 << 20, 1 << 16, 48 << 10):  # what is smaller is left to Python, too; a connection needs more
            while LIBC.malloc(ctypes.c_size_t(size)):
                taken += size
        return {"taken": taken}

    def do_spoil(self, how):
        kept = self.kept[0]
        self.store.remove(kept.name, True)
        if how == "bytes":
            self.put_until(Kept(kept.client + 1, kept.index, kept.size), 0, kept.name)
        return {"spoilt": kept.name}

    def do_report(self, _):
        return {"series": self.series, "codes": self.codes, "events": self.events, "bytes": self.bytes, "calls": self.calls, "failed": self.failed}

    def run(self):
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            name = next(iter(command))
            try:
                answer = getattr(self, "do_" + name)(command.pop(name), **command)
            except Exception as error:  # whoever asked must hear of it
                answer = {"error": repr(error)}
            print(json.dumps(answer), flush=True)
        self.work = None
        with self.calling:
            os._exit(0 if self.store.close() == 0 else 1)


def run_node(options):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    code = store.setup(options.host, "P2PHANDSHAKE", options.segment, 16 << 20, "tcp", "", options.master)
    if code != 0:
        raise SystemExit(f"setup at {options.master}: {code}")
    name = getattr(store, "get_hostname", lambda: options.host)()
    print(f"node ready {name}", flush=True)
    sys.stdin.read()
    store.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("node", "client"))
    parser.add_argument("--master", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--number", type=int, default=1)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--join_seconds", type=float, default=60)
    parser.add_argument("--descriptors", type=int, default=0, help="limit of open files, set before anything is opened")
    options = parser.parse_args()
    run_node(options) if options.role == "node" else Client(options).run()


if __name__ == "__main__":
    main()
