"""10,000 silent, slow or half-framed connections on each port in turn, and a flood of new ones: what those feel who do their work meanwhile.

    MC_BUILD=.cache/build-release MC_PYTHONPATH=.cache/pypath python bench/hostile.py [--count 10000] [--seconds 4] [--port master] [--apart]

`./dev bench hostile` runs it. Work goes on before and during each attack, in one run: a put and a get of 4 KiB over tcp, or a request of that port;
and /health is asked where a port has it. The attackers are processes of this machine with eight addresses, so on few cores they take
part of the time that is measured: the flood shows the sum of both.
"""
import argparse
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import pathlib
import selectors
import socket
import struct
import sys
import time

import paths  # noqa: F401, before what it makes importable
import cluster
import idle_peers
import wire
from connections import status
from proxy_engines import Proxy
from service_process import Service
from store_process import StoreProcess
from worker import joined, percentile

os.environ.update(MC_PATHS="tcp", MC_FORCE_TCP="1", MC_TCP_BIND_ADDRESS="127.0.0.1")

VALUE, ADDRESSES, PAUSE_S, AT_ONCE = bytes(range(256)) * 16, 8, 0.002, 500
HELLO = struct.pack("<IHHQ", 1000, wire.HELLO, 0, 1) + bytes(500)
REQUEST = b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 60
ENGINE = struct.pack("<Q", 1000) + bytes(500)  # the length of a handshake, and half of it
KINDS = ("silent", "slow", "half", "flood")
ALL_CORES, APART = os.sched_getaffinity(0), "--apart" in sys.argv


# ---- those who mean harm ----

class Attack:
    """Keeps `count` connections open to an address, opening another for each that the other side closes."""

    def __init__(self, kind, address, count, words):
        self.kind, self.address, self.count, self.words = kind, address, count, words
        self.selector, self.said, self.opened, self.closed = selectors.DefaultSelector(), {}, 0, 0

    def open(self):
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.0.{2 + self.opened % ADDRESSES}", 0))
        self.opened += 1
        if one.connect_ex(self.address) not in (0, 115):
            one.close()
            return
        self.said[one] = 0
        self.selector.register(one, selectors.EVENT_WRITE if self.kind in ("half", "flood") else selectors.EVENT_READ)

    def drop(self, one):
        self.selector.unregister(one)
        del self.said[one]
        one.close()
        self.closed += 1

    def say(self, one, length):
        with contextlib.suppress(OSError):
            self.said[one] += one.send(self.words[self.said[one]:self.said[one] + length])

    def step(self):
        for _ in range(min(AT_ONCE, self.count - len(self.said))):
            self.open()
        for key, events in self.selector.select(0.02):
            one = key.fileobj
            if self.kind == "flood":
                self.say(one, 1)
                self.drop(one)
            elif events & selectors.EVENT_WRITE:
                self.say(one, len(self.words) // 2)
                self.selector.modify(one, selectors.EVENT_READ)
            else:
                with contextlib.suppress(BlockingIOError):
                    try:
                        if not one.recv(4096):
                            self.drop(one)
                    except BlockingIOError:
                        raise
                    except OSError:
                        self.drop(one)

    def run(self, pipe):
        if APART:
            os.sched_setaffinity(0, {min(ALL_CORES)})
        idle_peers.raise_limit()
        spoken = time.monotonic()
        while not pipe.poll():
            self.step()
            if self.kind == "slow" and time.monotonic() > spoken + 1:
                spoken = time.monotonic()
                for one in list(self.said):
                    self.say(one, 1)
        pipe.send((self.opened, self.closed, len(self.said)))


# ---- those who work ----

def store_work(address):
    store = joined(address, buffer=1 << 20)
    cluster.wait_until(lambda: store.put("warm", VALUE) == 0)
    number = 0

    def turn():
        nonlocal number
        number += 1
        return store.upsert(f"key-{number % 64}", VALUE) == 0 and store.get(f"key-{number % 64}") == VALUE
    return turn


def engine_work(target, there):
    """4 KiB to another engine over tcp."""
    from mooncake.engine import TransferEngine
    engine, memory = TransferEngine(), mmap.mmap(-1, 4096)
    here = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0 and engine.register_memory(here, 4096) == 0

    def turn(memory=memory):
        return engine.transfer_sync_write(target, here, there, 4096) == 0
    return turn


def engine_there(pipe):
    """One that only has memory."""
    from mooncake.engine import TransferEngine
    engine, memory = TransferEngine(), mmap.mmap(-1, 4096)
    there = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0 and engine.register_memory(there, 4096) == 0
    pipe.send((engine.get_rpc_port(), there, os.getpid()))
    pipe.recv()


def http_work(port, path):
    return lambda: cluster.request(port, "GET", path, timeout_s=60)[0] in (200, 404)


def went_well(turn):
    """A connection that is reset is a wrong answer, and not the end of the measurement."""
    try:
        return turn()
    except OSError as error:
        print(f"a call failed: {error!r}", file=sys.stderr, flush=True)
        return False


def work(make, arguments, health, seconds, pipe):
    """Rounds of `seconds`: how often, how often wrongly, p50 and p99 in us, and the longest answer of /health in ms."""
    turn = make(*arguments)
    pipe.send("ready")
    while pipe.recv():
        times, wrong, longest, asked, end = [], 0, 0.0, 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            wrong += not went_well(turn)
            times.append(time.monotonic() - start)
            if health and start > asked + 0.05:
                asked = start = time.monotonic()
                wrong += not went_well(lambda: cluster.request(health, "GET", "/health", timeout_s=60)[0] == 200)
                longest = max(longest, time.monotonic() - start)
            time.sleep(PAUSE_S)
        pipe.send((len(times), wrong, percentile(times, 0.5) * 1e6, percentile(times, 0.99) * 1e6, longest * 1e3))


def started(target, *arguments):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


# ---- ports ----

@contextlib.contextmanager
def ports():
    """name: (address, the words of a peer there, who works, its arguments, the port of /health or None, the process)"""
    with cluster.Master(metadata=True) as master, StoreProcess(master.address, size=64 << 20) as node, contextlib.ExitStack() as stack:
        home = "127.0.0.1"
        data = cluster.wait_until(lambda: idle_peers.segments(master.port))[0][1]  # of the node, before the service lends memory as well
        service = stack.enter_context(Service(MOONCAKE_MASTER=master.address))
        proxy = Proxy("--prefill=http://127.0.0.1:1", "--decode=http://127.0.0.1:1").start()  # whose engines are not there
        stack.callback(proxy.stop)
        stores = (store_work, (master.address,))
        engine, told = started(engine_there)
        engine_port, there, engine_pid = told.recv()
        stack.callback(engine.join)
        stack.callback(told.send, None)
        yield {
            "master": ((home, master.port), HELLO, *stores, master.metrics_port, master.pid),
            "node": (data, HELLO, *stores, None, node.process.pid),
            "metrics": ((home, master.metrics_port), REQUEST, http_work, (master.metrics_port, "/metrics/summary"), master.metrics_port, master.pid),
            "metadata": ((home, master.metadata_port), REQUEST, http_work, (master.metadata_port, "/metadata?key=a"), master.metadata_port, master.pid),
            "service": ((home, service.port), REQUEST, http_work, (service.port, "/health"), service.port, service.process.pid),
            "engine": ((home, engine_port), ENGINE, engine_work, (f"{home}:{engine_port}", there), None, engine_pid),
            "proxy": ((home, proxy.port), REQUEST, http_work, (proxy.port, "/metrics"), proxy.port, proxy.process.pid),
        }


def measure(name, port, kinds, count, seconds):
    address, words, make, arguments, health, pid = port
    process, pipe = started(work, make, arguments, health, seconds)
    assert pipe.recv() == "ready"

    def round_of():
        pipe.send(True)
        return pipe.recv()
    round_of()
    wrong = 0
    for kind in kinds:
        before, memory = round_of(), status(pid)[0]
        attacker, told = started(Attack(kind, address, count if kind != "flood" else AT_ONCE, words).run)
        time.sleep(2)
        during, after = round_of(), status(pid)
        told.send(None)
        opened, closed, kept = told.recv()
        attacker.join()
        time.sleep(1)
        wrong += during[1] + before[1]
        print(f"{name:9}{kind:8}{opened:8}{kept:7}{before[3]:10.0f}{during[3]:10.0f}{during[3] / before[3]:7.1f}{before[4]:9.1f}{during[4]:9.1f}"
              f"{(after[0] - memory) / 2**20:9.1f}{after[1]:7}{during[0]:7}{during[1]:6}", flush=True)
    pipe.send(False)
    process.join()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--port", help="only this one of master, node, metrics, metadata, service, engine, proxy")
    parser.add_argument("--kind", choices=KINDS, help="only this attack")
    parser.add_argument("--apart", action="store_true", help="the attackers have a core of their own, all else the others: what is left then is not their taking its time")
    options = parser.parse_args()
    if APART:
        os.sched_setaffinity(0, ALL_CORES - {min(ALL_CORES)})
    print(f"{'port':9}{'attack':8}{'opened':>8}{'there':>7}{'p99 us':>10}{'attacked':>10}{'ratio':>7}{'health':>9}{'ms':>9}{'+ MiB':>9}{'files':>7}{'done':>7}{'wrong':>6}")
    wrong = 0
    with ports() as all_ports:
        for name, port in all_ports.items():
            if options.port in (None, name):
                wrong += measure(name, port, [options.kind] if options.kind else KINDS, options.count, options.seconds)
    print(f"{pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').count('processor')} cores; wrong or refused: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
