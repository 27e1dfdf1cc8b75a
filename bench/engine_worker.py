"""One process of `./dev bench engine`: a target, which has memory that others write and read, or an initiator. The same code for every contestant.

    engine_worker.py target    --api mooncake|nixl|nixl-bold --size BYTES [--bare LIBRARY] [--huge] [--allocated]
    engine_worker.py initiator --api mooncake|nixl|nixl-bold --size BYTES [--bare LIBRARY] [--library libmooncake.so] [--huge]

First line out: what the other side needs to know. Then one step (JSON) per line in, one result (JSON) per line out, until stdin ends.
Calls rotate over the whole buffer; a rate is all bytes over the time of all calls, a latency the median call.
"""

import argparse
import base64
import ctypes
import json
import mmap
import os
import statistics
import threading
import time
import zlib

from worker import LIBC, Memory, answer, fill, percentile

CALLS_MAX = 1 << 20
HANDLES_MAX = 2048  # of NIXL, made before the clock starts


class Loop(ctypes.Structure):
    """engine_bare.c's struct loop."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("near", "far", "size", "slots", "length_ns", "ns", "ns_max")] + [("is_write", ctypes.c_int32)]


def make_memory(arguments):
    memory = Memory(arguments.size, False)
    if arguments.huge:  # after the first touch, so once more
        memory.map.madvise(mmap.MADV_DONTNEED)
        memory.map.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(memory.address, 0xEE, arguments.size)
    return memory


class Allocated:
    """Memory that the engine allocated; as worker.Memory."""

    def __init__(self, address, size):
        self.address, self.size = address, size
        self.map = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        ctypes.memset(address, 0xEE, size)

    def view(self, offset, size):
        return self.map[offset : offset + size]


class Mooncake:
    """`mooncake.engine`, ours or the original's. Without memory it allocates `size` bytes itself."""

    def __init__(self, memory, size):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0 or memory and self.engine.register_memory(memory.address, memory.size) != 0:
            raise SystemExit("the engine does not start")
        self.memory = memory = memory or Allocated(self.engine.allocate_managed_buffer(size), size)
        self.me = {"name": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": memory.address}

    def meet(self, other):
        self.other = other

    def prepare(self, write, size, batch, offsets):
        """What one call needs, for each offset."""
        near, far, part = self.memory.address, self.other["address"], size // batch
        if batch == 1:
            return [(near + at, far + at, size) for at in offsets]
        return [([near + at + i * part for i in range(batch)], [far + at + i * part for i in range(batch)], [part] * batch) for at in offsets]

    def call(self, write, batch):
        engine, target = self.engine, self.other["name"]
        kind = "write" if write else "read"
        function = getattr(engine, f"transfer_sync_{kind}" if batch == 1 else f"batch_transfer_sync_{kind}")

        def one(near, far, length):
            return function(target, near, far, length)

        return one

    def register(self, addresses, lengths):
        engine = self.engine
        started = time.perf_counter()
        errors = sum(engine.register_memory(address, length) != 0 for address, length in zip(addresses, lengths))
        single = time.perf_counter() - started
        errors += sum(engine.unregister_memory(address) != 0 for address in addresses)
        started = time.perf_counter()
        errors += engine.batch_register_memory(addresses, lengths) != 0
        return {"single_ms": single * 1e3, "batch_ms": (time.perf_counter() - started) * 1e3, "errors": errors}


class Nixl:
    """NIXL's Python API on its UCX backend. Requests are prepared before the clock starts, as its users do. `is_bold`: its best
    here, without the check for a peer's end (so that UCX takes process_vm), and at the initiator without the progress thread."""

    def __init__(self, memory, is_bold, is_target):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(f"bench-{os.getpid()}", nixl_agent_config(enable_prog_thread=is_target or not is_bold, backends=[]))
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": "none"} if is_bold else {})
        self.memory = memory
        self.kept = self.agent.register_memory([(memory.address, memory.size, 0, "")], "DRAM")
        self.me = {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "address": memory.address}

    def meet(self, other):
        self.other = other
        self.peer = self.agent.add_remote_agent(base64.b64decode(other["metadata"]))
        self.peer = self.peer.decode() if isinstance(self.peer, bytes) else self.peer

    def prepare(self, write, size, batch, offsets):
        part, handles = size // batch, []
        for at in offsets[:HANDLES_MAX]:
            near = self.agent.get_xfer_descs([(self.memory.address + at + i * part, part, 0) for i in range(batch)], "DRAM")
            far = self.agent.get_xfer_descs([(self.other["address"] + at + i * part, part, 0) for i in range(batch)], "DRAM")
            handles.append((self.agent.initialize_xfer("WRITE" if write else "READ", near, far, self.peer),))
        return handles

    def call(self, write, batch):
        transfer, check = self.agent.transfer, self.agent.check_xfer_state

        def one(handle):
            state = transfer(handle)
            while state == "PROC":
                state = check(handle)
            return 0 if state == "DONE" else state

        return one

    def register(self, addresses, lengths):
        started = time.perf_counter()
        kept = self.agent.register_memory([(address, length, 0, "") for address, length in zip(addresses, lengths)], "DRAM")
        took = time.perf_counter() - started
        self.agent.deregister_memory(kept)
        return {"single_ms": took * 1e3, "batch_ms": took * 1e3, "errors": 0}


class Bare:
    """Loops in C: the machine's limits, and our engine by its C API."""

    def __init__(self, arguments, memory):
        self.memory = memory
        self.lib = ctypes.CDLL(arguments.bare)
        for name in ("bare_copy", "bare_vm", "bare_tcp", "bare_engine"):
            getattr(self.lib, name).restype = ctypes.c_int64
        self.ns = (ctypes.c_uint64 * CALLS_MAX)()
        self.library = ctypes.CDLL(arguments.library) if arguments.library else None
        self.engine = ctypes.c_void_p()
        self.fd = -1

    def serve(self):
        return self.lib.bare_tcp_serve(ctypes.c_uint64(self.memory.address), ctypes.c_uint64(self.memory.size))

    def meet(self, other):
        self.other = other
        self.fd = self.lib.bare_tcp_connect(ctypes.c_uint16(other["bare_port"]))
        config = (ctypes.c_char_p * 4)(b"127.0.0.1", b"P2PHANDSHAKE", b"tcp", b"")
        if self.fd < 0 or self.library.mc_transfer_open(config, ctypes.byref(self.engine)) != 0:
            raise SystemExit("the bare loops do not start")
        self.second = Memory(min(self.memory.size, 256 << 20), False)  # what memcpy copies to and from

    def run(self, how, write, size, batch, slots, seconds):
        loop = Loop(self.memory.address, self.other["address"], size, slots, int(seconds * 1e9), ctypes.addressof(self.ns), CALLS_MAX, write)
        if how == "copy":
            loop.far = self.second.address
            count = self.lib.bare_copy(ctypes.byref(loop))
        elif how == "vm":
            count = self.lib.bare_vm(ctypes.byref(loop), ctypes.c_int32(self.other["pid"]))
        elif how == "tcp":
            count = self.lib.bare_tcp(ctypes.byref(loop), ctypes.c_int32(self.fd))
        else:
            name = self.other["name"].encode()
            count = self.lib.bare_engine(ctypes.byref(loop), self.library.mc_transfer_run, self.engine, name, ctypes.c_uint32(batch))
        if count < 0:
            raise RuntimeError(f"{how} failed")
        return [value / 1e9 for value in self.ns[:count]]


def make_api(arguments, memory):
    return Mooncake(memory, arguments.size) if arguments.api == "mooncake" else Nixl(memory, arguments.api == "nixl-bold", arguments.role == "target")


class Initiator:
    def __init__(self, arguments):
        self.memory = make_memory(arguments)
        self.api = make_api(arguments, self.memory)
        self.bare = Bare(arguments, self.memory) if arguments.bare else None

    def step_meet(self, other):
        self.api.meet(other)
        if self.bare:
            self.bare.meet(other)
        return {}

    def step_fill(self, size, salt):
        fill(self.memory, size, salt, 1 << 16)
        return {"crc": zlib.crc32(self.memory.view(0, size))}

    def step_clear(self, size):
        ctypes.memset(self.memory.address, 0xEE, size)
        return {}

    def step_crc(self, size):
        return {"crc": zlib.crc32(self.memory.view(0, size))}

    def _python(self, write, size, batch, offsets, seconds, calls=0):
        """calls: exactly so many; else for so long, at least two."""
        prepared = self.api.prepare(write, size, batch, offsets)
        one, clock, took, number = self.api.call(write, batch), time.perf_counter, [], 0
        end = clock() + seconds
        while number < calls if calls else number < 2 or clock() < end:
            words = prepared[number % len(prepared)]
            started = clock()
            rc = one(*words)
            took.append(clock() - started)
            if rc != 0:
                raise RuntimeError(f"call {number} of {size} bytes: {rc}")
            number += 1
        return took

    def step_once(self, write, size, batch, count):
        """Each of the first blocks once, for a comparison afterwards."""
        self._python(write, size, batch, [item * size for item in range(count)], 0, count)
        return {}

    def step_move(self, write, size, batch, hows, seconds, slices):
        """size is of the whole batch. Ways are taken in turn, slice by slice."""
        slots = self.memory.size // size
        offsets = [item * size for item in range(min(slots, 8192))]
        rates, times, cpu = {how: [] for how in hows}, {how: [] for how in hows}, {how: [] for how in hows}
        for number in range(slices + 1):
            for how in hows:
                used = time.process_time()
                if how == "python":
                    took = self._python(write, size, batch, offsets, seconds)
                else:
                    took = self.bare.run(how, write, size, batch, slots, seconds)
                used = time.process_time() - used
                if number > 0:  # the first warms up
                    rates[how].append(size * len(took) / sum(took) / 1e9)
                    times[how].extend(took)
                    cpu[how].append(used / (size * len(took) / 1e9))
        return {
            how: {"gbps": statistics.median(rates[how]), "p50_us": statistics.median(times[how]) * 1e6, "cpu_s_per_gb": statistics.median(cpu[how])}
            for how in hows
        }

    def step_calls(self, seconds):
        """Small writes, one after the other: how long they took."""
        took = self._python(True, 4096, 1, [item * 4096 for item in range(256)], seconds)
        return {"calls": len(took), "p50_us": percentile(took, 0.5) * 1e6, "p99_us": percentile(took, 0.99) * 1e6, "slowest_us": max(took) * 1e6}

    def step_reach(self, other):
        if self.api.engine.transfer_sync_write(other["name"], self.memory.address, other["address"], 8) != 0:
            raise RuntimeError("the other target cannot be reached")
        return {}

    def step_beside(self, stopped, seconds, callers, size):
        """The same while so many threads of this process, and as many batches in the background, wait for a peer that is stopped. Its calls are
        those of `stopped`; each ends by its deadline, and is followed by the next."""
        engine, ended, stop = self.api.engine, [], threading.Event()
        target, near, far = stopped["name"], self.memory.address, stopped["address"]

        def call():
            while not stop.is_set():
                started = time.perf_counter()
                code = engine.transfer_sync_write(target, near, far, size)
                ended.append((time.perf_counter() - started, code))

        threads = [threading.Thread(target=call) for _ in range(callers)]
        batches = [engine.batch_transfer_async_write(target, [near], [far], [size]) for _ in range(callers)]
        for thread in threads:
            thread.start()
        result = self.step_calls(seconds)
        stop.set()
        for thread in threads:
            thread.join()
        codes = [engine.get_batch_transfer_status([batch]) for batch in batches]
        moved = sum(code == 0 for _, code in ended) + sum(code == 0 for code in codes)
        return {**result, "stopped_calls": len(ended), "stopped_s": [round(took, 3) for took, _ in ended], "stopped_slowest_s": max(took for took, _ in ended), "stopped_moved": moved}

    def step_register(self, count, size):
        memory = mmap.mmap(-1, count * size * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.registered = memory  # stays: it is registered
        ctypes.memset(base, 1, count * size * 2)
        return self.api.register([base + item * size * 2 for item in range(count)], [size] * count)


class Target:
    def __init__(self, arguments):
        self.api = make_api(arguments, None if arguments.allocated else make_memory(arguments))
        self.memory = self.api.memory
        self.bare = Bare(arguments, self.memory) if arguments.bare else None

    step_clear, step_crc, step_fill = Initiator.step_clear, Initiator.step_crc, Initiator.step_fill


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("target", "initiator"))
    parser.add_argument("--api", default="mooncake", choices=("mooncake", "nixl", "nixl-bold"))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--bare")
    parser.add_argument("--library")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--allocated", action="store_true", help="target: memory of the engine's own")
    arguments = parser.parse_args()
    LIBC.prctl(0x59616D61, ctypes.c_ulong(-1 % (1 << 64)), 0, 0, 0)  # PR_SET_PTRACER, any: UCX and the bare loop reach in where Yama is on
    worker = (Target if arguments.role == "target" else Initiator)(arguments)
    hello = {"ready": True, "pid": os.getpid(), **worker.api.me}
    if arguments.role == "target" and worker.bare:
        hello["bare_port"] = worker.bare.serve()
    print(json.dumps(hello), flush=True)
    answer(worker)
    os._exit(0)


if __name__ == "__main__":
    main()
