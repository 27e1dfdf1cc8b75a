"""The client of bench/faults.py, the same for every contestant: one step (JSON) per line in, one result (JSON) per line out.

    {"step": "fill", "count": N, "size": BYTES}       puts N keys; {"stored": ..., "seconds": ...}
    {"step": "watch", "fault": T, "limit_s": ...}     calls that go on from the fault (CLOCK_MONOTONIC seconds) until all is well again
    {"step": "verify"}                                gets every key and compares it
"""
import argparse
import ctypes
import json
import os
import random
import time

from worker import answer, joined

BATCH = 500
SAMPLE = 2000
SLOW_S = 0.2
STABLE_S = 8.0
DEADLINE_S = 5.0
TOLERANCE_S = 0.010


class Watcher:
    def __init__(self, address):
        self.store = joined(address, buffer=256 << 20)
        self.names, self.numbers, self.extra = [], [], 0

    def content(self, number, place):
        ctypes.memset(place, number & 0xFF, self.size)
        ctypes.memmove(place, number.to_bytes(8, "little"), 8)
        ctypes.memmove(place + self.size - 8, number.to_bytes(8, "little"), 8)

    def is_right(self, number, place):
        word = number.to_bytes(8, "little")
        return ctypes.string_at(place, 8) == word and ctypes.string_at(place + self.size - 8, 8) == word and \
            ctypes.string_at(place + 8, self.size - 16) == bytes([number & 0xFF]) * (self.size - 16)

    def step_fill(self, count, size):
        self.size = size
        self.memory = ctypes.create_string_buffer(BATCH * size)
        self.base = ctypes.addressof(self.memory)
        self.store.register_buffer(self.base, BATCH * size)
        begun, failed = time.monotonic(), 0
        for first in range(0, count, BATCH):
            numbers = list(range(first, min(first + BATCH, count)))
            places = [self.base + i * size for i in range(len(numbers))]
            for number, place in zip(numbers, places):
                self.content(number, place)
            names = [f"fault-{number}" for number in numbers]
            results = self.store.batch_put_from(names, places, [size] * len(names))
            for name, number, rc in zip(names, numbers, results):
                if rc == 0:
                    self.names.append(name)
                    self.numbers.append(number)
                else:
                    failed += 1
        return {"stored": len(self.names), "failed": failed, "seconds": time.monotonic() - begun}

    def timed(self, call, *words):
        """The result of a call, noted as slow or late when it was."""
        begun = time.monotonic()
        result = call(*words)
        took = time.monotonic() - begun
        self.calls += 1
        self.slowest = max(self.slowest, took)
        self.late += took > DEADLINE_S + TOLERANCE_S
        if took > SLOW_S:
            self.trouble = time.monotonic()
        return result

    def readable(self, index):
        length = self.timed(self.store.get_into, self.names[index], self.base, self.size)
        if length == self.size and not self.is_right(self.numbers[index], self.base):
            self.wrong += 1
        return length == self.size

    def put_one(self):
        self.extra += 1
        self.content(self.extra, self.base)
        rc = self.timed(self.store.put_from, f"extra-{self.extra}", self.base, self.size)
        if rc != 0:
            self.failed_puts += 1
            self.last_failed_put = time.monotonic()
        return rc == 0

    def step_watch(self, fault, limit_s):
        """Looks for all keys (exist) and for a sample of them (get) until each was found, puts meanwhile; ends when all is well or nothing changes."""
        self.calls = self.late = self.failed_puts = self.wrong = 0
        self.slowest, self.trouble, self.last_failed_put = 0.0, fault, fault
        count = len(self.names)
        sample = set(random.Random(3).sample(range(count), min(SAMPLE, count)))
        pending, found_at, put_ok, rounds, asked = list(range(count)), fault, False, 0, set()
        while time.monotonic() < fault + limit_s:
            rest = []
            for first in range(0, len(pending), BATCH * 10):
                part = pending[first:first + BATCH * 10]
                there = self.timed(self.store.batch_is_exist, [self.names[index] for index in part])
                now = time.monotonic()
                rest += [index for index, code in zip(part, there) if code != 1]
                # Found when it is asked about for the first time: it was never gone.
                if rounds > 0 and any(code == 1 for code in there):
                    found_at = now
                put_ok = self.put_one()
                if now > fault + limit_s:
                    rest += pending[first + BATCH * 10:]
                    break
            for index in random.Random(time.monotonic_ns()).sample(sorted(sample), min(100, len(sample))):
                if self.readable(index):
                    sample.discard(index)
                    found_at = time.monotonic() if index in asked else found_at
                asked.add(index)
                if time.monotonic() > fault + limit_s:
                    break
            pending, rounds = rest, rounds + 1
            put_ok = self.put_one()
            now = time.monotonic()
            if not pending and not sample and put_ok and now - max(self.trouble, self.last_failed_put) > 1.0:
                break
            if put_ok and now - max(found_at, self.trouble, self.last_failed_put) > STABLE_S:
                break
            time.sleep(0.005 if not pending else 0)
        return {"found_s": found_at - fault, "trouble_s": self.trouble - fault, "puts_s": self.last_failed_put - fault if put_ok else None,
                "calls": self.calls, "late": self.late, "slowest_ms": self.slowest * 1000, "failed_puts": self.failed_puts, "wrong": self.wrong}

    def step_verify(self):
        lost = wrong = 0
        for first in range(0, len(self.names), BATCH):
            names = self.names[first:first + BATCH]
            places = [self.base + i * self.size for i in range(len(names))]
            results = self.store.batch_get_into(names, places, [self.size] * len(names))
            for number, place, length in zip(self.numbers[first:], places, results):
                if length != self.size:
                    lost += 1
                elif not self.is_right(number, place):
                    wrong += 1
        return {"lost": lost, "wrong": wrong}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    watcher = Watcher(parser.parse_args().address)
    print(json.dumps({"ready": True}), flush=True)
    answer(watcher)
    os._exit(0)


if __name__ == "__main__":
    main()
