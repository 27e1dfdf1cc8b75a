#!/usr/bin/env python3
"""Objects that are put, evicted from memory, and read again from a disk, beside what fio reaches on the same file system, and the original.

    ./dev bench disk-e2e [--path FOLDER] [--quick] [--rounds N] [--only ours,original] [--sizes 1M,16M] [--readers 1,8] [--total 1G] [--busy]

A master, and one process that is a store node with a disk and its own readers, for each contestant in turn; in every round fio first: sequential
writes with eight under way and random reads with one and with eight, with O_DIRECT by io_uring, of a file as large as all objects. "store" is
the time from the first put until the master knows all of them to be on the disk, "read" that of random gets of what is not in memory any more,
each once, with so many threads. All bytes are compared. "of fio" is round by round. Memory is a quarter of the total. Nothing is put before the
master is a few seconds old: one that follows another evicts nothing until then, and what was measured would be puts that wait for that.

The original is asked to do its best: a heartbeat each second, buckets of 16 MiB; its reads go through the kernel's cache unless it uses
io_uring (--original_uring), so its files are dropped from there before each pass.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import figures
from contestants import Original, Ours
from contestants.base import HERE, ROOT, START_SECONDS_MAX, Process, Run, accepts, apt_install, free_port

CACHE = ROOT / ".cache"
MIB = 1 << 20
SETTLED_SECONDS = 4  # from then on a master evicts, whatever it has followed (docs/ordering.md, depart_ms)
UNITS = {"K": 1 << 10, "M": MIB, "G": 1 << 30}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def size_text(size):
    return f"{size // MIB} MiB"


def fio(folder, size, total, depth, is_read, seconds):
    """Bytes a second."""
    command = ["fio", "--name=x", f"--filename={folder / 'fio'}", f"--size={total}", f"--bs={size}", f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1",
               f"--rw={'randread' if is_read else 'write'}", f"--runtime={seconds}", *(["--time_based"] if is_read else []), "--output-format=json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]["read" if is_read else "write"]["bw_bytes"]


class Deployment:
    def __init__(self, contestant, folder, size, arguments, logs):
        self.ours = isinstance(contestant, Ours)
        port, metrics = free_port(), free_port()
        cores, env = os.sched_getaffinity(0), {**contestant.env, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(arguments.total * 2)}
        if not self.ours:
            env.update({"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder), "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
                        "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(16 * MIB), "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(max(1, 16 * MIB // size)),
                        "MOONCAKE_OFFLOAD_USE_URING": "true" if arguments.original_uring else "false"})  # fmt: skip
        stem = f"disk-e2e-{contestant.name}"
        self.master = Process([*contestant.server_command(port, metrics), "--enable_offload=true", "--default_kv_lease_ttl=100"], logs / f"{stem}-master.log", cores, env)
        self.worker = None
        until = time.monotonic() + START_SECONDS_MAX
        while not accepts(port) and time.monotonic() < until:
            time.sleep(0.02)
        self.settled = time.monotonic() + SETTLED_SECONDS
        command = [contestant.python, "-B", HERE / "disk_e2e_worker.py", "--size", size, "--total", arguments.total, "--memory", arguments.total // 4,
                   "--metrics", metrics, "--address", f"127.0.0.1:{port}", "--path", folder, *(["--ours"] if self.ours else [])]  # fmt: skip
        self.worker = Process(command, logs / f"{stem}-worker.log", cores, env, talk=True)

    def __enter__(self):
        self.worker.read(START_SECONDS_MAX)
        time.sleep(max(0, self.settled - time.monotonic()))
        return self

    def __exit__(self, *_):
        self.worker.stop(10)
        self.master.stop(10)


def measure(run, contestant, size, arguments):
    """What one contestant does in one round, in bytes a second."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=contestant.name + "-", dir=arguments.path))
    note = run.figures.setdefault
    try:
        with Deployment(contestant, folder, size, arguments, run.logs) as deployment:
            written = deployment.worker.ask(step="write")
            note((contestant.name, size, "store"), []).append(written["stored"] * size / written["seconds"])
            if written["stored"] < arguments.total // size:
                run.problem(f"{contestant.name}: only {written['stored']} of {arguments.total // size} objects came to the disk: {written}")
            for readers in arguments.readers:
                deployment.worker.ask(step="forget")
                time.sleep(1)  # leases
                read = deployment.worker.ask(step="read", readers=readers)
                note((contestant.name, size, readers), []).append(read["read"] * size / read["seconds"])
                if read["wrong"]:
                    run.problem(f"{contestant.name}: {read['wrong']} objects with wrong bytes")
                if read["missed"]:
                    run.say(f"{contestant.name}, {size_text(size)}, {readers} reader(s): {read['missed']} of {read['missed'] + read['read']} gets missed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_fio(run, size, arguments):
    (arguments.path / "fio").unlink(missing_ok=True)  # the first pass writes to a new file, as a new disk does
    for work, depth in [("store", 8), *((readers, readers) for readers in arguments.readers)]:
        speed = fio(arguments.path, size, arguments.total, depth, work != "store", arguments.fio_seconds)
        run.figures.setdefault(("fio", size, work), []).append(speed)


def table(run, names, arguments):
    lines = ["| work | fio MiB/s | " + " | ".join(f"{name} MiB/s | of fio" for name in names) + " |", "|---|---" * 1 + "|---|---" * len(names) + "|"]
    for size in arguments.sizes:
        for work in ("store", *arguments.readers):
            base = run.figures.get(("fio", size, work), [])
            title = f"{size_text(size)}, " + ("store" if work == "store" else f"read, {work} at a time")
            cells = [title, figures.spread_of(base, 1 / MIB)]
            for name in names:
                values = run.figures.get((name, size, work), [])
                cells += [figures.spread_of(values, 1 / MIB), figures.spread_of([value / one for value, one in zip(values, base)], 100, "{:.0f}", " %")]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def main():
    parser = figures.parser_of(__doc__, "one round", keep=False)
    parser.add_argument("--path", type=pathlib.Path, default=CACHE / "bench" / "disk", help="a folder on the disk that is meant")
    parser.add_argument("--only", default="ours,original")
    parser.add_argument("--sizes", default="1M,16M")
    parser.add_argument("--readers", default="1,8")
    parser.add_argument("--total", default="1G", help="bytes of all objects")
    parser.add_argument("--fio_seconds", type=int, default=3)
    parser.add_argument("--original_uring", action="store_true")
    arguments = parser.parse_args()
    arguments.sizes = [bytes_of(text) for text in arguments.sizes.split(",")]
    arguments.readers = [int(text) for text in arguments.readers.split(",")]
    arguments.total = bytes_of(arguments.total)
    arguments.keep = False
    arguments.path.mkdir(parents=True, exist_ok=True)
    apt_install("fio")
    contestants = []
    for contestant in (Ours(), Original()):
        if contestant.name in arguments.only.split(","):
            contestants.append(contestant)
            if contestant.name == "ours":
                build = pathlib.Path(os.environ["MC_BUILD"])
                contestant.use_build(sys.executable, os.environ["MC_PYTHONPATH"], build / "mooncake_master", build / "mooncake_bench")
            else:
                contestant.prepare(CACHE)
    conditions = figures.Conditions(arguments, "disk-e2e").begin()
    run = Run(arguments, CACHE)
    for number in range(run.rounds):
        for size in arguments.sizes:
            run.attempt_and_say(f"round {number + 1}, {size_text(size)}, fio", measure_fio, run, size, arguments)
            for contestant in contestants:
                run.attempt_and_say(f"round {number + 1}, {size_text(size)}, {contestant.name}", measure, run, contestant, size, arguments)
    (arguments.path / "fio").unlink(missing_ok=True)
    rows = [{"who": who, "size": size, "work": work, "bytes_a_second": values, "median": statistics.median(values)} for (who, size, work), values in run.figures.items()]
    return figures.finish("disk-e2e", arguments, conditions.end(run.rounds, [], run.problems), table(run, [one.name for one in contestants], arguments), {"rows": rows}, run.problems)


if __name__ == "__main__":
    sys.exit(main())
