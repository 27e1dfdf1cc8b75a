"""A client of the pool while its pods are replaced: puts objects, gets them again all the time, compares every byte. Tells what it saw as JSON when
its stdin ends, after it has looked for every object that was acknowledged.

load.py ADDRESS HOST SEED OBJECTS BYTES [PUTS_PER_SECOND]     first line of stdout: "ready" when its first OBJECTS are there
"""
import ctypes
import hashlib
import json
import os
import random
import select
import sys
import time

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore  # noqa: E402

MISSING = -704
SMALL = 16 << 10
SETTLE_S = 30


class Client:
    def __init__(self, address, host, seed):
        self.store, self.seed = MooncakeDistributedStore(), seed
        self.random = random.Random(seed)
        code = self.store.setup(host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address)
        assert code == 0, f"setup: {code}"
        self.buffer = ctypes.create_string_buffer(1 << 20)
        assert self.store.register_buffer(ctypes.addressof(self.buffer), len(self.buffer)) == 0
        self.sizes, self.failed, self.wrong, self.calls, self.slowest = {}, [], 0, 0, 0.0
        self.seconds = {}  # second: [hits, gets]

    def value(self, key):
        return hashlib.shake_128(f"{self.seed} {key}".encode()).digest(self.sizes[key])

    def call(self, name, function, *given):
        start = time.monotonic()
        answer = function(*given)
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.calls += 1
        if answer < 0 and answer != MISSING:
            self.failed.append([round(start, 3), name, answer])
        return answer

    def put(self, size):
        key = f"{self.seed}-{len(self.sizes)}"
        self.sizes[key] = size
        if self.call("put", self.store.put, key, self.value(key)) != 0:
            del self.sizes[key]

    def get(self, key):
        """True: it is there, False: it is not, None: the call failed."""
        got = self.call("get", self.store.get_into, key, ctypes.addressof(self.buffer), len(self.buffer))
        if got < 0:
            return False if got == MISSING else None
        if self.buffer.raw[:got] != self.value(key):
            self.wrong += 1
        return True

    def some(self):
        key = self.random.choice(list(self.sizes))
        hits = self.seconds.setdefault(int(time.monotonic()), [0, 0])
        found = self.get(key)
        if found is not None:
            hits[0] += found
            hits[1] += 1

    def lost(self):
        """Acknowledged, and not there: what is on its way back, with a node or a disk, has a moment."""
        left, end = list(self.sizes), time.monotonic() + SETTLE_S
        while True:
            left = [key for key in left if not self.get(key)]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.2)


def main(address, host, seed, objects, size, puts_per_s="0"):
    client = Client(address, host, int(seed))
    while len(client.sizes) < int(objects):
        before = len(client.sizes)
        client.put(int(size))
        if len(client.sizes) == before:  # no room yet: a segment is made ready in the background
            time.sleep(0.05)
            client.failed.clear()
    print("ready", flush=True)
    pause, due = (1 / float(puts_per_s) if float(puts_per_s) else 0), time.monotonic()
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        if pause and time.monotonic() >= due:
            client.put(SMALL)
            due += pause
        client.some()
    during = {"calls": client.calls, "failed": client.failed, "wrong": client.wrong, "slowest_s": round(client.slowest, 2), "seconds": client.seconds,
              "objects": len(client.sizes)}
    lost = client.lost()
    print(json.dumps({**during, "wrong": client.wrong, "lost": lost}), flush=True)
    return client.store.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
