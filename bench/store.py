#!/usr/bin/env python3
"""The comparison: the same work on the original, on this tree, and on Redis, in turn, in one run, beside what the machine can do at all.

    ./dev bench store [--quick]        (= python3 bench/store.py)

Every round runs every contestant once with all its processes on one core ("pinned") and once over two ("spread"), in an order that rotates.
The table shows medians with min and max over the rounds, ratios per round, and for each bar PASS or MISS. The bars hold pinned; spread must
not be behind the original. .cache/bench/store-<date>.{txt,json}; --keep: see figures.py. Exit code 0 when all was measured, also with bars
missed; 1 otherwise.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import contestants.base
import figures
from contestants import Cluster, Original, Ours, RedisServer, affinity
from contestants.base import ROOT, cpu_seconds, in_turn, resident_bytes
from figures import spread_of, times_as_good

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROTATED = 512 * MIB  # buffers that transfers and the raw copies rotate over
SEGMENT = 3 * GIB // 2
FULL_SEGMENT = 512 * MIB
MANY_SEGMENT = 3 * GIB  # holds the index of a million objects
MODES = ("pinned", "spread")
IDLE_SECONDS = 5.0
SIZES = {"64K": 64 * KIB, "1M": MIB, "4M": 4 * MIB, "16M": 16 * MIB, "64M": 64 * MIB}


@dataclasses.dataclass
class Row:
    key: str  # figure of a session
    title: str
    unit: str
    ours: str = "ours"  # which of our two sessions
    factor: float = 0.0  # at least so many times as good as the original
    raw: str = ""  # figure of the machine
    raw_part: float = 0.0  # at least this part of it
    limit: float = None  # at most this, whatever the original does
    floor: float = None  # at least this
    lower: bool = False  # less is better
    scale: float = 1.0
    modes: tuple = MODES


def transfer_rows():
    for size, part in (("16M", 0.70), ("1M", 0.60)):
        yield Row(f"put_{size}", f"put_from {size[:-1]} MiB", "GB/s", factor=4, raw=f"to_shared_{size}", raw_part=part)
        yield Row(f"get_{size}", f"get_into {size[:-1]} MiB", "GB/s", factor=4, raw=f"from_shared_{size}", raw_part=part)
    yield Row("put_64K", "TCP put_from 64 KiB", "GB/s", ours="ours-tcp", factor=2)
    yield Row("get_64K", "TCP get_into 64 KiB", "GB/s", ours="ours-tcp", factor=2)
    for size in ("4M", "16M", "64M"):
        for key, word in (("put", "put_from"), ("get", "get_into")):
            title = f"TCP {word} {size[:-1]} MiB"
            yield Row(f"{key}_{size}", title, "GB/s", ours="ours-tcp", factor=1.3, raw=f"tcp_{size}", raw_part=0.85)


ROWS = [
    *transfer_rows(),
    Row("small_put_us", "put 4 KiB, p50", "us", factor=4, lower=True),
    Row("small_get_us", "get 4 KiB, p50", "us", factor=4, lower=True),
    Row("exist_per_s", "is_exist, one client", "k/s", factor=2, scale=1e-3),
    Row("batch_exist_keys_per_s", "batch_is_exist of 128", "k keys/s", factor=5, scale=1e-3),
    Row("batch_put_per_s", "batch put 128 x 4 KiB", "k/s", factor=10, scale=1e-3),
    Row("batch_get_per_s", "batch get 128 x 4 KiB", "k/s", factor=10, scale=1e-3),
    Row("start_ms", "master: start to first answer", "ms", limit=100, lower=True, modes=("spread",)),
    Row("idle_mb", "master: resident when idle", "MB", limit=16, lower=True, modes=("spread",)),
    Row("idle_cpu_percent", "master: CPU when idle", "%", limit=0.1, lower=True, modes=("spread",)),
    Row("bytes_per_object", "master: RSS / objects", "B", limit=200, lower=True, modes=("spread",)),
    Row("full_failed_1M", "full store, 1 MiB: failed puts", "", limit=0, lower=True),
    Row("full_rate_1M", "full store, 1 MiB: rate / empty", "x", floor=0.8),
    Row("full_failed_64K", "full store, 64 KiB: failed puts", "", limit=0, lower=True),
    Row("full_rate_64K", "full store, 64 KiB: rate / empty", "x", floor=0.8),
]


class Run(contestants.base.Run):
    def note(self, name, mode, values):
        for key, value in values.items():
            self.figures.setdefault((name, mode, key), []).append(value)

    # --- one contestant, one mode ---

    def transfers(self, name, client, sizes):
        figures, errors = {}, 0
        for size in sizes:
            amount = SIZES[size]
            total = ROTATED if amount >= MIB else ROTATED // 4
            if name == "redis" and amount >= 4 * MIB or self.quick and amount < MIB:
                total //= 2
            result = client.ask(step="transfer", size=amount, total=total)
            figures[f"put_{size}"], figures[f"get_{size}"] = result["put_gbps"], result["get_gbps"]
            figures[f"put_us_{size}"], figures[f"get_us_{size}"] = result["put_us"], result["get_us"]
            errors += result["errors"]
        return figures, errors

    def session(self, contestant, mode):
        """The data and the control path."""
        name = contestant.name
        sizes = dict.fromkeys(("ours", "before", "redis"), ("16M", "1M", "64K")).get(name, ("16M", "1M", "64K", "4M", "64M"))
        with Cluster(contestant, mode, self.logs, SEGMENT) as cluster:
            cluster.start()
            client = cluster.client
            client.ask(step="buffers", size=ROTATED)
            client.ask(step="fill", capacity=SEGMENT if name != "redis" else ROTATED)
            figures, errors = self.transfers(name, client, sizes)
            small = client.ask(step="small", count=500 if self.quick else 2000)
            figures.update({f"small_{key}": value for key, value in small.items() if key != "errors"})
            exist = client.ask(step="exist", seconds=0.3 if self.quick else 0.7)
            batch = client.ask(step="batch", batches=32 if self.quick else 64)
            errors += small["errors"] + exist.pop("errors") + batch.pop("errors")
            figures.update(exist, **batch)
        if errors:
            self.problem(f"{name}, {mode}: {errors} calls failed or gave wrong bytes; see {self.logs}")
        self.note(name, mode, figures)

    def full(self, contestant, mode):
        """A store that is full of objects that nobody uses."""
        figures = {}
        with Cluster(contestant, mode, self.logs, FULL_SEGMENT) as cluster:
            cluster.start()
            client = cluster.client
            client.ask(step="buffers", size=64 * MIB)
            client.ask(step="fill", capacity=FULL_SEGMENT)
            for size, amount in (("1M", MIB), ("64K", 64 * KIB)):
                result = client.ask(step="full", capacity=FULL_SEGMENT, size=amount, times=2 if self.quick else 3)
                figures[f"full_failed_{size}"] = result["failed"]
                figures[f"full_rate_{size}"] = result["full_per_s"] / result["empty_per_s"]
                figures[f"full_put_per_s_{size}"] = result["full_per_s"]
                figures[f"empty_put_per_s_{size}"] = result["empty_per_s"]
        self.note(contestant.name, mode, figures)

    def masters(self, contestants):
        """Start, memory and CPU of masters that nobody talks to; all of them idle at the same time."""
        running = []
        try:
            for contestant in contestants:
                cluster = Cluster(contestant, "spread", self.logs, 0)
                running.append(cluster)
                cluster.start_server()
            time.sleep(1)
            before = [cpu_seconds(cluster.server.pid) for cluster in running]
            time.sleep(IDLE_SECONDS)
            for cluster, used in zip(running, before):
                pid = cluster.server.pid
                values = {
                    "start_ms": cluster.started_seconds * 1e3,
                    "idle_mb": resident_bytes(pid) / 1e6,
                    "idle_cpu_percent": (cpu_seconds(pid) - used) / IDLE_SECONDS * 100,
                }
                self.note(cluster.contestant.name, "spread", values)
        finally:
            for cluster in running:
                cluster.__exit__()

    def many(self, contestant):
        """Memory of a master that knows many objects, everything counted."""
        count = 200_000 if self.quick else 1_000_000
        with Cluster(contestant, "spread", self.logs, MANY_SEGMENT) as cluster:
            cluster.start()
            empty = resident_bytes(cluster.server.pid)
            cluster.client.ask(step="buffers", size=16 * MIB)
            cluster.client.ask(step="fill", capacity=MANY_SEGMENT)
            result = cluster.client.ask(step="many", count=count, size=KIB)
            resident = resident_bytes(cluster.server.pid)
        if result["errors"]:
            self.problem(f"{contestant.name}: {result['errors']} of {count} objects were not stored")
        stored = max(result["stored"], 1)
        values = {"bytes_per_object": resident / stored, "bytes_per_object_added": (resident - empty) / stored, "objects": stored}
        self.note(contestant.name, "spread", values)

    def raw(self, bench, mode):
        sizes = ",".join(SIZES)
        command = [str(bench), "raw", "--sizes", sizes, "--total", str(ROTATED), "--json", "-"]
        cores = affinity(mode)
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores), timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-1000:]}")
        result = json.loads(done.stdout)
        figures = {"round_trip_us": result["round_trip_us"]}
        for name, amount in SIZES.items():
            for item in result["sizes"]:
                if item["bytes"] == amount:
                    figures[f"to_shared_{name}"] = item["memcpy_to_shared_gbps"]
                    figures[f"from_shared_{name}"] = item["memcpy_from_shared_gbps"]
                    figures[f"tcp_{name}"] = item["tcp_gbps"]
        self.note("raw", mode, figures)

    # --- all of it ---

    def everything(self, contestants, bench):
        stores = [contestant for contestant in contestants if contestant.api == "mooncake" and contestant.name != "ours-tcp"]
        for number in range(self.rounds):
            turn = in_turn(contestants, number)
            for mode in MODES:
                if bench:
                    self.attempt_and_say(f"round {number + 1} {mode}: raw", self.raw, bench, mode)
                for contestant in turn:
                    self.attempt_and_say(f"round {number + 1} {mode}: {contestant.name}", self.session, contestant, mode)
                for contestant in turn:
                    if contestant in stores:
                        self.attempt_and_say(f"round {number + 1} {mode}: {contestant.name}, full", self.full, contestant, mode)
            self.attempt_and_say(f"round {number + 1}: masters idle", self.masters, stores)
        for contestant in stores:
            self.attempt_and_say(f"many objects: {contestant.name}", self.many, contestant)


# --- report ---


def judge(row, mode, ours, original, raw):
    """(text of the bar, verdict) for one row and mode."""
    if not ours:
        return "", "-"
    middle = statistics.median(ours)
    checks = []
    if row.limit is not None:
        checks.append((f"<= {row.limit:g}", (max(ours) if row.limit == 0 else middle) <= row.limit))
    if row.floor is not None:
        checks.append((f">= {row.floor:g}", middle >= row.floor))
    factor = row.factor if mode == "pinned" else (1.0 if row.factor else 0)
    if factor and original:
        checks.append((f">= {factor:g}x", statistics.median(times_as_good(row.lower, ours, original)) >= factor))
    if row.raw_part and raw and mode == "pinned":
        checks.append((f">= {row.raw_part * 100:.0f} % raw", statistics.median(times_as_good(row.lower, ours, raw)) >= row.raw_part))
    return ", ".join(text for text, _ in checks), "PASS" if all(good for _, good in checks) else "MISS"


def report(run):
    def values(name, mode, key):
        return run.figures.get((name, mode, key), [])

    lines, table = [], []
    for mode in MODES:
        lines.append("")
        where = "all processes of a contestant on one core" if mode == "pinned" else "over two cores"
        lines.append(f"{mode}: {where}; median (min-max) of {run.rounds} round(s)")
        form = "{:<33} {:<8} {:<19} {:<19} {:<18} {:<19} {:<15} {:<19} {:<22} {}"
        lines.append(form.format("work", "unit", "ours", "original", "ours/original", "raw limit", "ours/raw", "Redis", "bar", "").rstrip())
        for row in ROWS:
            if mode not in row.modes:
                continue
            ours, original = values(row.ours, mode, row.key), values("original", mode, row.key)
            redis, raw = values("redis", mode, row.key), values("raw", mode, row.raw)
            bar, verdict = judge(row, mode, ours, original, raw)
            over = times_as_good(row.lower, ours, original) if row.limit != 0 else []
            part, original_part = ([value * 100 for value in times_as_good(row.lower, mine, raw)] for mine in (ours, original))
            cells = [spread_of(ours, row.scale), spread_of(original, row.scale), spread_of(over, form="{:.2f}", unit="x"), spread_of(raw),
                     spread_of(part, form="{:.0f}", unit=" %"), spread_of(redis, row.scale)]  # fmt: skip
            lines.append(form.format(row.title, row.unit, *cells, bar, verdict).rstrip())
            table.append({
                "work": row.title, "mode": mode, "unit": row.unit, "scale": row.scale, "ours": ours, "original": original, "redis": redis, "raw": raw,
                "ours_over_original": over, "percent_of_raw": part, "original_percent_of_raw": original_part, "bar": bar, "verdict": verdict,
            })  # fmt: skip
    judged = [item for item in table if item["verdict"] != "-"]
    missed = [item for item in judged if item["verdict"] == "MISS"]
    lines.append("")
    lines.append(f"{len(judged) - len(missed)} of {len(judged)} bars reached" + ("; missed:" if missed else ""))
    lines.extend(f"  {item['mode']}: {item['work']} ({item['bar']})" for item in missed)
    lines.extend(f"  PROBLEM: {text.splitlines()[0]}" for text in run.problems)
    return lines, table


def choose(arguments, cache):
    """The contestants that were asked for, installed, and the command that measures the machine."""
    wanted = set(arguments.only.split(",")) if arguments.only else {"original", "ours", "ours-tcp", "redis"}
    contestants = [item for item in (Original(), Ours(), Ours(tcp=True), RedisServer()) if item.name in wanted]
    bench = arguments.bench
    for contestant in contestants:
        if isinstance(contestant, Ours) and arguments.ours_build:
            build = pathlib.Path(arguments.ours_build).resolve()
            contestant.use_build(sys.executable, arguments.ours_python or build / "python", build / "mooncake_master", build / "mooncake_bench")
        else:
            print(f"installing {contestant.title} …", flush=True)
            contestant.prepare(cache)
        if isinstance(contestant, Ours):
            bench = bench or contestant.bench
    return contestants, bench


def main():
    parser = figures.parser_of(__doc__, "one round, less of everything: a few minutes")
    parser.add_argument("--only", help="contestants, comma separated: original,ours,ours-tcp,redis")
    parser.add_argument("--ours-build", help="a build directory to take ours from instead of building a wheel")
    parser.add_argument("--ours-python", help="with --ours-build: the directory that holds the package mooncake")
    parser.add_argument("--bench", help="the mooncake_bench that measures the machine; default: that of ours")
    arguments = parser.parse_args()
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    conditions = figures.Conditions(arguments)
    contestants, bench = choose(arguments, cache)
    run = Run(arguments, cache)
    for old in run.logs.glob("*.log"):
        old.unlink()
    conditions.begin()
    run.everything(contestants, bench)
    lines, table = report(run)
    all_of_it = [{"contestant": name, "mode": mode, "key": key, "values": values} for (name, mode, key), values in run.figures.items()]
    return figures.finish("store", arguments, conditions.end(run.rounds, MODES, run.problems), lines,
                          {"quick": run.quick, "rows": table, "figures": all_of_it}, run.problems)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
