"""Plays the requests of a trace: what disk_trace.py runs for each contestant. One JSON object a line each way."""
import argparse
import gzip
import json
import os
import sys
import time

from disk_e2e_worker import MIB, STEP, Area, compare
from mooncake.store import MooncakeDistributedStore

BATCH = 32  # blocks of a call, as `mooncake_bench replay` has it
TRIES, PAUSE_S = 50, 0.01  # of a put that finds no room: the original says so and makes some meanwhile


def requests_of(path, limit):
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        lines = [json.loads(line) for _, line in zip(range(limit or 1 << 30), file)]
    return [(line["timestamp"] / 1000, line["hash_ids"]) for line in lines]


class Player:
    def __init__(self, options):
        self.size, self.speed, self.at, self.began = options.block, options.speed, 0, 0.0
        self.requests = requests_of(options.trace, options.limit)
        blocks = 1 + max(block for _, ids in self.requests for block in ids)
        self.base, self.target = Area(self.size + blocks * STEP), Area(BATCH * self.size)
        for at in range(0, len(self.base.map), MIB):
            end = min(at + MIB, len(self.base.map))
            self.base.map[at:end] = os.urandom(end - at)
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 256 * MIB, "tcp", "", options.address)
        if code != 0:
            raise SystemExit(f"setup: {code}")
        for area in (self.base, self.target):
            if self.store.register_buffer(area.address, len(area.map)) != 0:
                raise SystemExit("register_buffer failed")

    def play(self, count):
        """The next requests, each not before its time; the time for which nobody asked does not count."""
        chosen = self.requests[self.at : self.at + count]
        self.at += count
        result = dict.fromkeys(("requests", "blocks", "hits", "wrong", "failed_puts"), 0)
        result["requests"] = len(chosen)
        began = time.monotonic()
        for when, blocks in chosen:
            time.sleep(max(0.0, began + (when - chosen[0][0]) / self.speed - time.monotonic()))
            for at in range(0, len(blocks), BATCH):
                self.one(blocks[at : at + BATCH], result)
        return result

    def place(self, block):
        return self.base.address + block * STEP

    def one(self, blocks, result):
        keys = [f"block-{block}" for block in blocks]
        targets = [self.target.address + number * self.size for number in range(len(blocks))]
        got = self.store.batch_get_into(keys, targets, [self.size] * len(keys))
        found = [number for number, length in enumerate(got) if length == self.size]
        result["blocks"] += len(blocks)
        result["hits"] += len(found)
        result["wrong"] += sum(compare(self.place(blocks[number]), targets[number], self.size) != 0 for number in found)
        missing = [block for number, block in enumerate(blocks) if got[number] != self.size]
        for _ in range(TRIES):
            if not missing:
                return
            codes = self.store.batch_put_from([f"block-{block}" for block in missing], [self.place(block) for block in missing], [self.size] * len(missing))
            missing = [block for block, code in zip(missing, codes) if code != 0]
            time.sleep(PAUSE_S if missing else 0)
        result["failed_puts"] += len(missing)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", required=True)
    parser.add_argument("--block", type=int, required=True)
    parser.add_argument("--speed", type=float, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--address", required=True)
    player = Player(parser.parse_args())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(player.play(json.loads(line)["count"])), flush=True)
    player.store.close()


if __name__ == "__main__":
    main()
