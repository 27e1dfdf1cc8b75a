"""A store node with a disk, and its readers, in one process: what disk-e2e.py runs for each contestant. One JSON object a line each way.

Every value is a piece of one random base at an offset of its own, so that bytes of another key, or of another place, are found out.
"""
import argparse
import ctypes
import json
import mmap
import os
import sys
import threading
import time
import urllib.request

from mooncake.store import MooncakeDistributedStore

STEP = 64  # between the pieces of two keys
MIB = 1 << 20
compare = ctypes.CDLL(None, use_errno=True).memcmp
compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Area:
    """Memory that is there."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        ctypes.memset(self.address, 1, size)


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    return 0.0


class Node:
    def __init__(self, options):
        self.options = options
        self.size, self.count = options.size, options.total // options.size
        self.base = Area(self.size + self.count * STEP)
        for at in range(0, len(self.base.map), MIB):
            end = min(at + MIB, len(self.base.map))
            self.base.map[at:end] = os.urandom(end - at)
        self.target = Area(options.total)
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", options.memory, 64 * MIB, "tcp", "", options.address, enable_ssd_offload=True, ssd_offload_path=options.path)
        if code != 0:
            raise SystemExit(f"setup: {code}")
        for area in (self.base, self.target):
            if self.store.register_buffer(area.address, len(area.map)) != 0:
                raise SystemExit("register_buffer failed")
        self.key = f"key-{os.getpid()}-"
        while options.ours and metric(options.metrics, "mooncake_disks") == 0:
            time.sleep(0.01)

    def stored(self):
        """Objects that the master says are on the disk; bytes there, of one that does not say it."""
        if self.options.ours:
            return int(metric(self.options.metrics, "file_cache_nums_"))
        return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(self.options.path) for name in names) // self.size

    def write(self):
        """As many puts ahead of the disk as a quarter of the memory holds: what would go faster would be evicted unstored."""
        ahead, stored, refused = max(3, self.options.memory // 4 // self.size), 0, 0
        started = time.monotonic()
        number, last = 0, started
        while stored < self.count and time.monotonic() < last + 60:
            if number < self.count and number - stored < ahead:
                code = self.store.put_from(f"{self.key}{number}", self.base.address + number * STEP, self.size)
                refused += code != 0
                number += code == 0
                if code == 0:
                    continue
            now = self.stored()
            last = time.monotonic() if now > stored else last
            stored = max(stored, now)
            time.sleep(0.002)
        failed = {name: metric(self.options.metrics, f"mooncake_offload_{name}_total") for name in ("failed", "skipped") if self.options.ours}
        return {"seconds": time.monotonic() - started, "stored": stored, "refused": refused, "failed": failed}

    def read(self, readers):
        """Every key but the last ones, which lie in memory, once, in no order."""
        keys = max(readers, (self.options.total - 2 * self.options.memory) // self.size)
        order = [number * 7919 % keys if keys % 7919 else number for number in range(keys)]
        took, results, lock, at = [], {}, threading.Lock(), iter(order)

        def run():
            while True:
                with lock:
                    number = next(at, None)
                if number is None:
                    return
                started = time.monotonic()
                result = self.store.get_into(f"{self.key}{number}", self.target.address + number * self.size, self.size)
                took.append(time.monotonic() - started)
                results[number] = result
        ctypes.memset(self.target.address, 0, len(self.target.map))
        threads = [threading.Thread(target=run) for _ in range(readers)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - started
        read = [number for number, result in results.items() if result == self.size]
        wrong = sum(compare(self.base.address + number * STEP, self.target.address + number * self.size, self.size) != 0 for number in read)
        took.sort()
        return {"seconds": seconds, "read": len(read), "missed": keys - len(read), "wrong": wrong, "median_ms": took[len(took) // 2] * 1e3, "slowest_ms": took[-1] * 1e3}

    def forget(self):
        """Of the kernel's cache of the files, for whoever reads through it."""
        for folder, _, names in os.walk(self.options.path):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {}


def main():
    parser = argparse.ArgumentParser()
    for name in ("size", "total", "memory", "metrics"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--ours", action="store_true")
    node = Node(parser.parse_args())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        step = json.loads(line)
        result = node.read(step["readers"]) if step["step"] == "read" else getattr(node, step["step"])()
        print(json.dumps(result), flush=True)
    node.store.close()


if __name__ == "__main__":
    main()
