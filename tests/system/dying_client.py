"""Clients to be killed: for each line "KIND FIRST" on stdin a child joins the cluster, says its pid on stdout, and makes calls of that kind until it is killed.

argv: the master's address, the hostnames of two segments. FIRST is the number of the first value: a value of a number is that number in all its words, and
lies under "w-<number>" (written by clients) or "r-<number>" (there to be read).
"""
import ctypes
import os
import sys

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402

MASTER, HERE, THERE = sys.argv[1:]
SIZE = 512 << 10
READABLE = 8
BATCH = 4


def value(number):
    return number.to_bytes(8, "little") * (SIZE // 8)


class Client:
    def __init__(self, first):
        self.store = MooncakeDistributedStore()
        assert self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", MASTER) == 0
        self.number = first
        self.memory = ctypes.create_string_buffer(BATCH * SIZE)
        self.places = [ctypes.addressof(self.memory) + i * SIZE for i in range(BATCH)]
        self.sizes = [SIZE] * BATCH

    def next(self, count=1):
        """Numbers of new values, which lie in memory too."""
        numbers = range(self.number, self.number + count)
        self.number += count
        for number, place in zip(numbers, self.places):
            ctypes.memmove(place, value(number), SIZE)
        return list(numbers)

    def new(self, count=1):
        numbers = self.next(count)
        return [f"w-{number}" for number in numbers], [value(number) for number in numbers]

    def old(self):
        first = self.number % (READABLE - BATCH + 1)
        self.number += 1
        return [f"r-{i}" for i in range(first, first + BATCH)]

    def halves(self):
        return [[place, place + SIZE // 2] for place in self.places], [[SIZE // 2, SIZE // 2]] * BATCH

    # ---- what is killed ----

    def put(self):
        keys, values = self.new()
        self.store.put(keys[0], values[0])

    def put_parts(self):
        keys, values = self.new()
        self.store.put_parts(keys[0], values[0][:1000], values[0][1000:])

    def put_batch(self):
        self.store.put_batch(*self.new(BATCH))

    def put_from(self):
        self.store.put_from(self.new()[0][0], self.places[0], SIZE)

    def batch_put_from(self):
        self.store.batch_put_from(self.new(BATCH)[0], self.places, self.sizes)

    def batch_put_from_multi_buffers(self):
        self.store.batch_put_from_multi_buffers(self.new(BATCH)[0], *self.halves())

    def upsert(self):
        number = self.next()[0]
        self.store.upsert(f"w-{number % 4}", value(number))

    def upsert_batch(self):
        numbers = self.next(BATCH)
        self.store.upsert_batch([f"w-{i}" for i in range(BATCH)], [value(number) for number in numbers])

    def batch_upsert_from(self):
        self.next(BATCH)
        self.store.batch_upsert_from([f"w-{i}" for i in range(BATCH)], self.places, self.sizes)

    def put_session(self):
        keys, _ = self.new(BATCH)
        self.store.batch_put_session_start(keys, self.sizes)
        for half in range(2):
            at = half * SIZE // 2
            self.store.batch_put_from_multi_buffer_ranges(keys, [[place + at] for place in self.places], [[SIZE // 2]] * BATCH, [[at]] * BATCH)
        self.store.batch_put_session_end(keys)

    def get(self):
        self.store.get(self.old()[0])

    def get_batch(self):
        self.store.get_batch(self.old())

    def get_buffer(self):
        self.store.get_buffer(self.old()[0])

    def batch_get_buffer(self):
        self.store.batch_get_buffer(self.old())

    def get_into(self):
        self.store.get_into(self.old()[0], self.places[0], SIZE)

    def batch_get_into(self):
        self.store.batch_get_into(self.old(), self.places, self.sizes)

    def batch_get_into_multi_buffers(self):
        self.store.batch_get_into_multi_buffers(self.old(), *self.halves())

    def get_session(self):
        keys = self.old()
        self.store.batch_get_session_start(keys)
        for half in range(2):
            at = half * SIZE // 2
            self.store.batch_get_into_multi_buffer_ranges(keys, [[place + at] for place in self.places], [[SIZE // 2]] * BATCH, [[at]] * BATCH)
        self.store.batch_get_session_end(keys)

    def exist(self):
        self.store.batch_is_exist(self.old())
        self.store.longest_prefix(self.old())
        self.store.get_size(self.old()[0])
        self.store.batch_get_replica_desc(self.old())

    def pin(self):
        keys, config = self.old(), ReplicateConfig()
        config.firm_pin_ms = 100
        self.store.batch_pin(keys, config)
        self.store.firm_pin_left(keys[0])

    def hint(self):
        keys = self.old()
        self.store.hint(keys, "pause", 1000)
        self.store.hint(keys, "resume")

    def remove(self):
        keys, values = self.new()
        self.store.put(keys[0], values[0])
        self.store.remove(keys[0], True)

    def batch_remove(self):
        keys, values = self.new(BATCH)
        self.store.put_batch(keys, values)
        self.store.batch_remove(keys, True)

    def remove_by_regex(self):
        keys, values = self.new(BATCH)
        self.store.put_batch(keys, values)
        self.store.remove_by_regex("^w-", True)

    def copy_task(self):
        self.store.create_copy_task(self.old()[0], [THERE])
        self.store.batch_replica_clear(self.old(), THERE)

    def move_task(self):
        key = self.old()[0]
        self.store.create_move_task(key, *((HERE, THERE) if self.number % 2 else (THERE, HERE)))

    def mount(self):
        made = self.store.allocate_and_mount_segment(16 << 20)
        keys, values = self.new()
        self.store.put(keys[0], values[0])
        self.store.unmount_segment(made["segment_ids"])

    def setup_and_close(self):
        self.store.close()
        self.store = MooncakeDistributedStore()
        self.store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", MASTER)
        keys, values = self.new()
        self.store.put(keys[0], values[0])


def main():
    for line in sys.stdin:
        kind, first = line.split()
        child = os.fork()
        if child == 0:
            client = Client(int(first))
            call = getattr(client, kind)
            call()
            print(os.getpid(), flush=True)
            while True:
                call()
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    main()
