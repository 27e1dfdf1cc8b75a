"""10,000 idle connections to a store node and 10,000 to its master: what they cost each party, and what 50 threads that work meanwhile feel.

    MC_BUILD=.cache/build-release MC_PYTHONPATH=.cache/pypath python bench/connections.py [--count 10000] [--seconds 5]

`./dev bench connections` runs it. Alone, with the idle ones, and alone again, in one run: gets of 4 KiB over tcp, each thread with a pause
of 20 ms between two. docs/connections.md has the table that follows from it.
"""
import argparse
import multiprocessing
import os
import pathlib
import sys
import threading
import time

import paths  # noqa: F401, before what it makes importable
import cluster
import idle_peers
import wire
from store_process import StoreProcess
from worker import joined, percentile

os.environ["MC_PATHS"] = "tcp"

THREADS, PAUSE_S, KEYS, VALUE = 50, 0.02, 64, bytes(range(256)) * 16


def status(pid):
    """(private resident bytes, descriptors, threads)"""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    field = lambda name: int(text.split(name + ":")[1].split()[0])  # noqa: E731
    return field("RssAnon") * 1024, len(os.listdir(f"/proc/{pid}/fd")), field("Threads")


def kernel_slab():
    return int(pathlib.Path("/proc/meminfo").read_text().split("Slab:")[1].split()[0]) * 1024


def hold(address, count, role, nonce, pipe):
    """A process that has so many idle connections until it is told to end."""
    idle_peers.raise_limit()
    with idle_peers.IdlePeers(address, count, role, nonce) as peers:
        pipe.send(peers.codes)
        pipe.recv()
        pipe.send(peers.open())


def work(address, seconds, pipe):
    """One client with THREADS threads."""
    store = joined(address, buffer=1 << 20)
    for i in range(KEYS):
        cluster.wait_until(lambda: store.put(f"key-{i}", VALUE) == 0)
    pipe.send("ready")
    while pipe.recv():
        times, failures, threads, end = [], [], [], time.monotonic() + seconds

        def run(number):
            turn = number
            while time.monotonic() < end:
                start = time.monotonic()
                right = store.get(f"key-{turn % KEYS}") == VALUE
                times.append(time.monotonic() - start)
                if not right:
                    failures.append(turn)
                turn += 1
                time.sleep(PAUSE_S)

        for number in range(THREADS):
            threads.append(threading.Thread(target=run, args=(number,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        pipe.send((len(times), len(failures), *(percentile(times, share) * 1e6 for share in (0.5, 0.99, 0.999)), status(os.getpid())))
    store.close()


def started(target, *arguments):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


def measure(count, seconds):
    """Rows: (when, gets, failures, p50, p99, p999 in us), and the parties before and with the idle connections."""
    with cluster.Master() as master, StoreProcess(master.address, size=64 << 20) as node:
        _, worker = started(work, master.address, seconds)
        worker.recv()
        nonce, address = idle_peers.segments(master.port)[0]
        rows, parties = [], []

        def round_of(when):
            worker.send(True)
            rows.append((when, *worker.recv()))
            parties.append((status(node.process.pid), status(master.pid), kernel_slab()))

        round_of("warming up")
        rows.clear()
        parties.clear()
        round_of("alone")
        holders = [started(hold, address, count, idle_peers.ROLE_DATA, nonce),
                   started(hold, ("127.0.0.1", master.port), count, wire.ROLE_CALL, 0)]
        for _, pipe in holders:
            codes = pipe.recv()
            assert codes == {0: count}, codes
        time.sleep(2)
        round_of("idle ones there")
        for process, pipe in holders:
            pipe.send(None)
            still = pipe.recv()
            assert still == count, f"{count - still} idle connections were closed"
            process.join()
        time.sleep(1)
        round_of("alone again")
        worker.send(False)
        return rows, parties


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    rows, parties = measure(options.count, options.seconds)
    print(f"{options.count} idle connections to the node and as many to the master; {THREADS} threads get 4 KiB over tcp")
    print(f"{'':18}{'gets':>8}{'failed':>8}{'p50 us':>9}{'p99 us':>9}{'p99.9 us':>10}")
    for when, gets, failed, p50, p99, p999, _ in rows:
        print(f"{when:18}{gets:8}{failed:8}{p50:9.0f}{p99:9.0f}{p999:10.0f}")
    print(f"{'':18}{'private MiB':>12}{'descriptors':>12}{'threads':>8}{'bytes a connection':>20}")
    for name, index in (("node", 0), ("master", 1)):
        for when, party in (("alone", parties[0]), ("with idle ones", parties[1])):
            memory, descriptors, threads = party[index]
            each = f"{(memory - parties[0][index][0]) / options.count:.0f}" if party is parties[1] else ""
            print(f"{name + ', ' + when:18}{memory / 2**20:12.1f}{descriptors:12}{threads:8}{each:>20}")
    slab = parties[1][2] - parties[0][2]
    print(f"kernel, both ends of a connection, by the growth of its caches (the whole machine's): {slab / 2 / options.count:.0f} bytes")
    print(f"client of {THREADS} threads: {rows[0][6][1]} descriptors, {rows[0][6][2]} threads")
    return 1 if any(row[2] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
