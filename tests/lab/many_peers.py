"""One engine, and many peers: names of one engine on another host, each of which has a connection of its own. What it costs.

    many_peers.py ADDRESS COUNT HOST PORT PLACE      peer i is 10.x.y.HOST:PORT, its memory lies from PLACE on, BLOCK bytes for each
Says what it holds before and after, as JSON, a line for each word on its standard input: `open` (a first write to each, by OPENERS threads), `write`,
`read` (a batch to each at the same time), `end`.
"""
import concurrent.futures
import ctypes
import json
import mmap
import os
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.engine import TransferEngine  # noqa: E402

BLOCK = 4096
OPENERS = 64


def name_of(number, host, port):
    """Of an address in 10.128.0.0/9; the laboratory's switch goes by the last byte."""
    return f"10.{128 + number // 256}.{number % 256}.{host}:{port}"


def held(pid="self"):
    """What a process has: private bytes, descriptors, threads."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    field = lambda name: int(text.split(name + ":")[1].split()[0])  # noqa: E731
    return {"bytes": field("RssAnon") * 1024, "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": field("Threads")}


class Most(threading.Thread):
    """Looks how many threads there are at most."""

    def __init__(self):
        super().__init__(daemon=True)
        self.is_over, self.threads = False, 0
        self.start()

    def run(self):
        while not self.is_over:
            self.threads = max(self.threads, held()["threads"])
            time.sleep(0.02)

    def end(self):
        self.is_over = True
        self.join()
        return self.threads


def main():
    address, count, host, port, place = sys.argv[1], *map(int, sys.argv[2:])
    engine = TransferEngine()
    assert engine.initialize(address, "P2PHANDSHAKE", "tcp", "") == 0
    memory = mmap.mmap(-1, count * BLOCK)
    near = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.register_memory(near, count * BLOCK) == 0
    data = random.Random(9).randbytes(count * BLOCK)
    names = [name_of(number, host, port) for number in range(count)]

    def move(call):
        begun = [call(names[i], [near + i * BLOCK], [place + i * BLOCK], [BLOCK]) for i in range(count)]
        return sum(batch <= 0 or engine.get_batch_transfer_status([batch]) != 0 for batch in begun)

    print("ready", flush=True)
    for line in sys.stdin:
        most, start, failed, wrong = Most(), time.monotonic(), 0, 0
        if line == "open\n":
            with concurrent.futures.ThreadPoolExecutor(OPENERS) as pool:
                codes = pool.map(lambda i: engine.transfer_sync_write(names[i], near + i * BLOCK, place + i * BLOCK, BLOCK), range(count))
                failed = sum(code != 0 for code in codes)
        elif line == "write\n":
            memory[:] = data
            failed = move(engine.batch_transfer_async_write)
        elif line == "read\n":
            memory[:] = bytes(len(data))
            failed = move(engine.batch_transfer_async_read)
            wrong = sum(memory[i * BLOCK:(i + 1) * BLOCK] != data[i * BLOCK:(i + 1) * BLOCK] for i in range(count))
        else:
            break
        seconds, threads = time.monotonic() - start, most.end()
        print(json.dumps({"seconds": seconds, "failed": failed, "wrong": wrong, "most_threads": threads, **held()}), flush=True)


if __name__ == "__main__":
    main()
