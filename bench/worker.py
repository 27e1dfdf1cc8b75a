"""One process of the comparison: a store node or a client. The same code runs on every contestant.

    worker.py node   --address HOST:PORT --segment BYTES --protocol tcp     prints {"ready": true}, serves until stdin ends
    worker.py client --api mooncake|redis --address HOST:PORT               one step (JSON) per line in, one result (JSON) per line out

Rates are over all bytes of a step and its wall time; latencies are medians in microseconds. Whatever is read is compared byte by byte
with what was written, after the clock has stopped.
"""

import argparse
import ctypes
import json
import mmap
import statistics
import sys
import time

LIBC = ctypes.CDLL(None)
LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
BATCH = 128  # keys of one batch call
FILL_SIZE = 16 << 20  # object size with which a segment is populated
SMALL = 4096


def log(*words):
    print(*words, file=sys.stderr, flush=True)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def answer(worker):
    """Does one step (JSON) per line of stdin, by the worker's method of that name, and prints what it returns, until stdin ends."""
    for line in sys.stdin:
        step = json.loads(line)
        name = step.pop("step")
        try:
            result = getattr(worker, "step_" + name)(**step)
        except Exception as error:  # the driver must hear of it, whatever it is
            log(f"step {name}: {error!r}")
            result = {"failed_step": f"{name}: {error!r}"}
        print(json.dumps(result), flush=True)


def fill(memory, size, salt, length=1 << 20):
    """A pattern that differs at every 64 bytes, from one `length` to the next, and with the salt."""
    block = b"".join(b"%016x" % ((number + salt) * 0x9E3779B97F4A7C15 % (1 << 64)) for number in range(length // 16))
    for at in range(0, size, len(block)):
        part = min(len(block), size - at)
        memory.map[at : at + part] = block[:part]
        memory.map[at : at + 8] = (at + salt).to_bytes(8, "little")


class Memory:
    """Private anonymous memory with every page touched; filled with a pattern, or with bytes that are all the same."""

    def __init__(self, size, pattern):
        self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if pattern:
            fill(self, size, 0)
        else:
            ctypes.memset(self.address, 0xEE, size)

    def view(self, offset, size):
        return memoryview(self.map)[offset : offset + size]


def joined(address, segment=0, protocol="tcp", buffer=64 << 20):
    """A store client of whichever package is there."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, protocol, "", address)
    if rc != 0:
        raise SystemExit(f"setup at {address} returned {rc}")
    return store


class MooncakeApi:
    def __init__(self, address, segment=0, protocol="tcp", buffer=64 << 20):
        self.store = joined(address, segment, protocol, buffer)
        for name in ("put", "get", "is_exist", "batch_is_exist"):
            setattr(self, name, getattr(self.store, name))

    def register(self, memory):
        rc = self.store.register_buffer(memory.address, memory.size)
        if rc != 0:
            raise SystemExit(f"register_buffer returned {rc}")

    def put_from(self, key, memory, offset, size):
        return self.store.put_from(key, memory.address + offset, size)

    def get_into(self, key, memory, offset, size):
        return self.store.get_into(key, memory.address + offset, size)

    def batch_put(self, keys, memory, offsets, size):
        return self.store.batch_put_from(keys, [memory.address + offset for offset in offsets], [size] * len(keys))

    def batch_get(self, keys, memory, offsets, size):
        return self.store.batch_get_into(keys, [memory.address + offset for offset in offsets], [size] * len(keys))

    def clear(self):
        self.store.remove_all(True)

    def close(self):
        self.store.close()


class RedisApi:
    def __init__(self, address):
        import redis

        host, port = address.rsplit(":", 1)
        self.client = redis.Redis(host=host, port=int(port), socket_timeout=60)
        self.client.ping()
        self.get = self.client.get

    def register(self, memory):
        pass

    def put(self, key, value):
        return 0 if self.client.set(key, value) else -1

    def is_exist(self, key):
        return self.client.exists(key)

    def batch_is_exist(self, keys):
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            pipe.exists(key)
        return pipe.execute()

    def put_from(self, key, memory, offset, size):
        return 0 if self.client.set(key, memory.view(offset, size)) else -1

    def get_into(self, key, memory, offset, size):
        value = self.client.get(key)
        if value is None:
            return -704
        memory.view(offset, size)[: len(value)] = value
        return len(value)

    def batch_put(self, keys, memory, offsets, size):
        pipe = self.client.pipeline(transaction=False)
        for key, offset in zip(keys, offsets):
            pipe.set(key, memory.view(offset, size))
        return [0 if ok else -1 for ok in pipe.execute()]

    def batch_get(self, keys, memory, offsets, size):
        results = []
        for offset, value in zip(offsets, self.client.mget(keys)):
            memory.view(offset, size)[: len(value)] = value
            results.append(len(value))
        return results

    def clear(self):
        self.client.flushdb()

    def close(self):
        self.client.close()


class Client:
    """The steps. Each returns a dict of figures; `errors` counts calls that did not do what they should."""

    def __init__(self, api):
        self.api = api
        self.source = self.target = None

    def step_buffers(self, size):
        """Private memory that the transfers rotate over, both directions."""
        self.source, self.target = Memory(size, True), Memory(size, False)
        self.api.register(self.source)
        self.api.register(self.target)
        return {"bytes": size}

    def step_fill(self, capacity):
        """Writes as much as the segment holds, so that every page of it exists, and removes it again."""
        started = time.perf_counter()
        for number in range(capacity // FILL_SIZE):
            offset = number * FILL_SIZE % max(self.source.size - FILL_SIZE + 1, 1)
            deadline = time.monotonic() + 5
            while self.api.put_from(f"fill-{number}", self.source, offset, FILL_SIZE) != 0:
                if number * FILL_SIZE > capacity * 0.8 or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        seconds = time.perf_counter() - started
        self.api.clear()
        return {"seconds": seconds}

    def step_transfer(self, size, total, passes=1):
        """put_from of total/size objects from rotating buffers, then get_into of all into others."""
        count = max(total // size, 1)
        slots = self.source.size // size
        put_seconds = get_seconds = 0.0
        put_us, get_us, errors = [], [], 0
        clock = time.perf_counter
        for number in range(passes):
            keys = [f"transfer-{size}-{number}-{item}" for item in range(count)]
            errors += self._timed(keys, slots, size, self.api.put_from, self.source, 0, put_us)
            put_seconds += sum(put_us[-count:])
            started = clock()
            errors += self._timed(keys, slots, size, self.api.get_into, self.target, size, get_us)
            get_seconds += min(clock() - started, sum(get_us[-count:]))
            errors += self._different(min(count, slots) * size)
            self.api.clear()
        moved = count * size * passes / 1e9
        return {
            "put_gbps": moved / put_seconds,
            "get_gbps": moved / get_seconds,
            "put_us": statistics.median(put_us) * 1e6,
            "get_us": statistics.median(get_us) * 1e6,
            "errors": errors,
        }

    @staticmethod
    def _timed(keys, slots, size, call, memory, expected, seconds):
        clock = time.perf_counter
        errors = 0
        for item, key in enumerate(keys):
            offset = item % slots * size
            started = clock()
            rc = call(key, memory, offset, size)
            seconds.append(clock() - started)
            if rc != expected:
                errors += 1
                if errors == 1:
                    log(f"{call.__name__} {key}: {rc}")
        return errors

    def _different(self, size):
        """1 when the first `size` bytes of what came back are not those that were sent."""
        differs = LIBC.memcmp(self.source.address, self.target.address, size) != 0
        ctypes.memset(self.target.address, 0xEE, size)
        return 1 if differs else 0

    def step_small(self, count):
        """put and get of 4 KiB as Python bytes."""
        values = [bytes(self.source.view(item % 1024 * SMALL, SMALL)) for item in range(min(count, 1024))]
        put_us, get_us, errors = [], [], 0
        clock = time.perf_counter
        put, get = self.api.put, self.api.get
        keys = [f"small-{item}" for item in range(count)]
        for item, key in enumerate(keys):
            value = values[item % len(values)]
            started = clock()
            rc = put(key, value)
            put_us.append(clock() - started)
            errors += rc != 0
        for item, key in enumerate(keys):
            started = clock()
            value = get(key)
            get_us.append(clock() - started)
            errors += value != values[item % len(values)]
        self.api.clear()
        return {
            "put_us": statistics.median(put_us) * 1e6,
            "get_us": statistics.median(get_us) * 1e6,
            "put_p99_us": percentile(put_us, 0.99) * 1e6,
            "get_p99_us": percentile(get_us, 0.99) * 1e6,
            "errors": errors,
        }

    def step_exist(self, seconds):
        """is_exist of one key after another, then batches of 128; half of the keys exist."""
        count = 1024
        keys = [f"exist-{item:034d}" for item in range(count)]
        errors = sum(self.api.put(key, b"x" * 64) != 0 for key in keys[::2])
        clock = time.perf_counter
        one = self.api.is_exist
        calls = 0
        started = clock()
        while clock() - started < seconds:
            for item in range(0, 256):
                errors += one(keys[item]) != (item + 1) % 2
            calls += 256
        single = calls / (clock() - started)
        many = self.api.batch_is_exist
        groups = [keys[at : at + BATCH] for at in range(0, count, BATCH)]
        wanted = [(item + 1) % 2 for item in range(BATCH)]
        calls = 0
        started = clock()
        while clock() - started < seconds:
            for group in groups:
                errors += many(group) != wanted
            calls += len(groups)
        batched = calls * BATCH / (clock() - started)
        self.api.clear()
        return {"exist_per_s": single, "batch_exist_keys_per_s": batched, "errors": errors}

    def step_batch(self, batches):
        """Batches of 128 x 4 KiB, put and get."""
        put_seconds, get_seconds, errors = [], [], 0
        clock = time.perf_counter
        span = BATCH * SMALL
        groups = [[f"batch-{number:06d}-{item:03d}" for item in range(BATCH)] for number in range(batches)]
        for call, memory, wanted, seconds in (
            (self.api.batch_put, self.source, 0, put_seconds),
            (self.api.batch_get, self.target, SMALL, get_seconds),
        ):
            for number, keys in enumerate(groups):
                base = number * span % (memory.size - span + 1)
                offsets = [base + item * SMALL for item in range(BATCH)]
                started = clock()
                results = call(keys, memory, offsets, SMALL)
                seconds.append(clock() - started)
                errors += list(results) != [wanted] * BATCH
        errors += self._different(min(batches * span, self.source.size))
        self.api.clear()
        return {
            "batch_put_per_s": BATCH * batches / sum(put_seconds),
            "batch_get_per_s": BATCH * batches / sum(get_seconds),
            "batch_put_us": statistics.median(put_seconds) * 1e6,
            "batch_get_us": statistics.median(get_seconds) * 1e6,
            "errors": errors,
        }

    def step_full(self, capacity, size, times):
        """Puts into an empty store up to 70 % of it, then on and on: `times` the capacity. Nothing is read, so all is evictable."""
        slots = self.source.size // size
        rates, failed = [], 0
        number = 0
        clock = time.perf_counter
        for target in (int(capacity * 0.7), int(capacity * times)):
            stored = 0
            failed = 0
            started = clock()
            for _ in range(target // size):
                if self.api.put_from(f"full-{size}-{number}", self.source, number % slots * size, size) == 0:
                    stored += 1
                else:
                    failed += 1
                number += 1
            rates.append(stored / (clock() - started))
        self.api.clear()
        return {"empty_per_s": rates[0], "full_per_s": rates[1], "failed": failed, "tried": int(capacity * times) // size}

    def step_many(self, count, size):
        """`count` objects with keys of 40 bytes, in batches."""
        stored, errors = 0, 0
        started = time.perf_counter()
        offsets = [item * size for item in range(BATCH)]
        for at in range(0, count, BATCH):
            keys = [f"many-objects-in-one-store-{item:014d}" for item in range(at, min(at + BATCH, count))]
            results = self.api.batch_put(keys, self.source, offsets[: len(keys)], size)
            bad = sum(result != 0 for result in results)
            errors += bad
            stored += len(keys) - bad
        return {"stored": stored, "errors": errors, "seconds": time.perf_counter() - started}


def run_node(arguments):
    api = MooncakeApi(arguments.address, arguments.segment, arguments.protocol, 0)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.read()
    api.close()


def run_client(arguments):
    started = time.perf_counter()
    api = RedisApi(arguments.address) if arguments.api == "redis" else MooncakeApi(arguments.address, 0, arguments.protocol)
    print(json.dumps({"ready": True, "setup_seconds": time.perf_counter() - started}), flush=True)
    answer(Client(api))
    api.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("node", "client"))
    parser.add_argument("--api", default="mooncake", choices=("mooncake", "redis"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--protocol", default="tcp")
    arguments = parser.parse_args()
    run_node(arguments) if arguments.role == "node" else run_client(arguments)


if __name__ == "__main__":
    main()
