#!/usr/bin/env python3
"""The comparison of transfer engines: ours, the original, and NIXL, in turn, in one run, beside bare loops over the same buffers.

    ./dev bench engine [--quick] [--only same-host,tcp,register,stopped,netem] [--huge]        (= python3 bench/engine.py)

Every contestant is two processes, a target and an initiator; all are there from the start, and those whose turn it is not are stopped
(SIGSTOP). Each row runs every contestant in an order that rotates, all processes on one core ("pinned") and over two ("spread"). The table
shows medians with min and max over the rounds, ratios per round, and for each bar met or missed.
"Ours, allocated" is the same call on memory that the target's engine has allocated itself (a memfd), and its ratio to the original. JSON and the table as text:
.cache/bench/engine-<date>.{json,txt}. Exit code 0 when all was measured and no byte was wrong, also with bars missed; 1 otherwise.
"""

import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

import contestants.base
import figures
from contestants.base import ROOT, Process, affinity, apt_install, cpu_seconds, in_turn, make_venv
from contestants.original import Original
from engine_link import Link
from figures import spread_of, times_as_good

HERE = pathlib.Path(__file__).resolve().parent
KIB, MIB = 1 << 10, 1 << 20
BUFFER = 256 * MIB  # on each side
NIXL_VERSION = "1.5.1"
MODES = ("pinned", "spread")
PARTS = ("same-host", "tcp", "register", "stopped", "netem")
BATCH, SMALL = 128, 4 * KIB
REGISTERED, REGISTERED_SIZE = 10_000, 16 * KIB
STOPPED_CALLERS, STOPPED_SIZE, STOPPED_LIMIT_S = 4, 8 * MIB, 5  # MC_TRANSFER_TIMEOUT: 5 is its least
QUIET = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2", "MC_TCP_BIND_ADDRESS": "127.0.0.1", "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error"}


@dataclasses.dataclass
class Row:
    path: str  # same-host or tcp
    write: bool
    size: int  # of one call
    batch: int = 1
    figure: str = "gbps"  # p50_us, cpu_s_per_gb: less is better
    factor: float = 0.0  # at least so many times as good as the original
    nixl: bool = False  # at least as good as NIXL's best
    bare_part: float = 0.0  # the C API: at least this part of the bare loop
    limit: float = None  # at most this

    @property
    def lower(self):
        return self.figure != "gbps"

    @property
    def unit(self):
        return {"gbps": "GB/s", "p50_us": "us", "cpu_s_per_gb": "s/GB"}[self.figure]

    @property
    def title(self):
        size = f"{self.batch} x {size_text(self.size // self.batch)}" if self.batch > 1 else size_text(self.size)
        what = {"gbps": "", "p50_us": " p50", "cpu_s_per_gb": " CPU of the initiator"}[self.figure]
        return f"{'write' if self.write else 'read'} {size}{what}"

    @property
    def work(self):
        return self.path, self.write, self.size, self.batch


def size_text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def make_rows(quick):
    rows = []
    sizes = [64 * KIB, MIB, 16 * MIB, 256 * MIB] if quick else [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
    for write in (True, False):
        rows += [Row("same-host", write, size, factor=5, nixl=True, bare_part=0.8) for size in sizes]
        rows.append(Row("same-host", write, SMALL, figure="p50_us", limit=3))
        rows.append(Row("same-host", write, BATCH * SMALL, BATCH, factor=20))
    for write in (True, False):
        rows.append(Row("tcp", write, SMALL, figure="p50_us", factor=2))
        rows.append(Row("tcp", write, 64 * KIB, factor=2))
        rows += [Row("tcp", write, size, factor=1.4, bare_part=0.9) for size in sizes if size >= 4 * MIB]
        rows.append(Row("tcp", write, BATCH * SMALL, BATCH, factor=8))
        rows.append(Row("tcp", write, 16 * MIB, figure="cpu_s_per_gb", factor=2))
    return rows


def threads_to(pid, cores):
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:
            continue


class Pair:
    """A contestant: its two processes, stopped while it is not their turn."""

    def __init__(self, name, python, logs, api="mooncake", env=None, bare=None, library=None, huge=False, allocated=False):
        self.name = name
        words = [python, HERE / "engine_worker.py"]
        more = ["--api", api, "--size", BUFFER, *(["--bare", bare] if bare else []), *(["--huge"] if huge else [])]
        env = {**QUIET, **(env or {})}
        cores = affinity("spread")
        self.target = Process([*words, "target", *more, *(["--allocated"] if allocated else [])], logs / f"{name}-target.log", cores, env, talk=True)
        self.initiator = None
        try:
            hello = self.target.read(120)
            more += ["--library", library] if library else []
            self.initiator = Process([*words, "initiator", *more], logs / f"{name}-initiator.log", cores, env, talk=True)
            self.initiator.read(120)
            self.initiator.ask(step="meet", other=hello)
        except BaseException:
            self.stop()
            raise

    def processes(self):
        return [process for process in (self.target, self.initiator) if process is not None]

    def signal(self, number):
        for process in self.processes():
            process.child.send_signal(number)

    def turn(self, cores):
        for process in self.processes():
            threads_to(process.pid, cores)
        self.signal(signal.SIGCONT)

    def stop(self):
        self.signal(signal.SIGCONT)
        for process in self.processes():
            process.stop()


class Run(contestants.base.Run):
    def __init__(self, arguments, cache):
        super().__init__(arguments, cache)
        self.seconds = 0.06 if self.quick else 0.15  # of one slice
        self.slices = 2 if self.quick else 3
        self.other = {}  # title -> [(contestant, text)]

    # --- bytes ---

    def compare(self, pair):
        """Before anything is timed: whole buffers, and some of each size, there and back; the target's bytes, not what we are told."""
        pair.turn(affinity("spread"))
        ask, far = pair.initiator.ask, pair.target.ask
        for salt, (size, batch, count) in enumerate([(16 * MIB, 1, 16), (SMALL, 1, 64), (64 * KIB, 1, 16), (BATCH * SMALL, BATCH, 4), (BUFFER, 1, 1)]):
            length = size * count
            written = ask(step="fill", size=length, salt=salt)["crc"]
            ask(step="once", write=True, size=size, batch=batch, count=count)
            if far(step="crc", size=length)["crc"] != written:
                self.problem(f"{pair.name}: {count} writes of {size} bytes left other bytes at the target")
            ask(step="clear", size=length)
            ask(step="once", write=False, size=size, batch=batch, count=count)
            if ask(step="crc", size=length)["crc"] != written:
                self.problem(f"{pair.name}: {count} reads of {size} bytes brought other bytes")
        pair.signal(signal.SIGSTOP)

    # --- rates ---

    def measure(self, pair, hows, mode, work):
        path, write, size, batch = work
        pair.turn(affinity(mode))
        try:
            target = cpu_seconds(pair.target.pid)
            result = pair.initiator.ask(step="move", write=write, size=size, batch=batch, hows=hows, seconds=self.seconds, slices=self.slices)
            target = cpu_seconds(pair.target.pid) - target
        finally:
            pair.signal(signal.SIGSTOP)
        for how, figures in result.items():
            name = pair.name if how == "python" else f"{pair.name} {how}"
            self.figures.setdefault((name, mode, work), []).append({**figures, "target_cpu_s": target})

    def everything(self, pairs, works):
        for number in range(self.rounds):
            for mode in MODES:
                for work in works:
                    for pair in in_turn([pair for pair in pairs if takes_part(pair.name, work[0])], number):
                        self.attempt(f"{pair.name}, {mode}, {work}", self.measure, pair, ways(pair.name, work), mode, work)
                self.say(f"round {number + 1} of {self.rounds}, {mode}")

    def register(self, pairs):
        for pair in pairs:
            if pair.name in ("ours", "original", "nixl"):
                pair.turn(affinity("spread"))
                result = pair.initiator.ask(step="register", count=REGISTERED, size=REGISTERED_SIZE)
                pair.signal(signal.SIGSTOP)
                self.other.setdefault("registered", []).append({"contestant": pair.name, **result})
                if result["errors"]:
                    self.problem(f"{pair.name}: {result['errors']} of {REGISTERED} buffers were not registered")

    # --- a peer that is stopped ---

    def stopped(self, words, name, python):
        """Small writes to one peer over tcp, alone, and while calls to another that was stopped run into their deadlines."""
        more = {"MC_FORCE_TCP": "1", "MC_TRANSFER_TIMEOUT": str(STOPPED_LIMIT_S)}
        pair = Pair(f"{name}-stopped", python, self.logs, **{**words, "env": {**words.get("env", {}), **more}})
        env = {**QUIET, **words.get("env", {}), **more}
        other = Process([python, HERE / "engine_worker.py", "target", "--api", "mooncake", "--size", BUFFER], self.logs / f"{name}-other.log", affinity("spread"), env, talk=True)
        try:
            hello = other.read(120)
            pair.turn(affinity("spread"))
            ask = pair.initiator.ask
            for _ in range(self.rounds):
                ask(step="reach", other=hello)
                before = ask(step="calls", seconds=2)
                other.child.send_signal(signal.SIGSTOP)
                beside = ask(step="beside", stopped=hello, seconds=STOPPED_LIMIT_S + 1, callers=STOPPED_CALLERS, size=STOPPED_SIZE)
                other.child.send_signal(signal.SIGCONT)
                after = ask(step="calls", seconds=2)
                self.other.setdefault("stopped", []).append({"contestant": name, "before": before, "beside": beside, "after": after})
                self.say(f"{name}: p99 beside a stopped peer {beside['p99_us']:.0f} us, alone {before['p99_us']:.0f} and {after['p99_us']:.0f} us")
                if beside["stopped_moved"]:
                    self.problem(f"{name}: {beside['stopped_moved']} transfers to a stopped peer say that they are done")
        finally:
            other.child.send_signal(signal.SIGCONT)
            other.stop()
            pair.stop()

    # --- a link that loses packets ---

    def netem(self, build):
        why = Link.why_not()
        if why:
            self.say(f"netem: left out, {why}")
            return
        apt_install("iperf3", "iproute2")
        with Link(build) as link:
            for number in range(self.rounds):
                for lanes in (1, 4):
                    self.over_link(build, link, lanes)
                self.say(f"netem, round {number + 1} of {self.rounds}, {link.kind}")

    def over_link(self, build, link, lanes):
        """Ours in each direction beside iperf3 with as many streams, in turn."""
        seconds = 4 if self.quick else 8
        bench, env = build / "mooncake_bench", {**os.environ, "MC_TCP_LANES_PER_PEER": str(lanes)}
        target = subprocess.Popen([*link.far, bench, "engine", "--mode=target", f"--local_name={link.far_address}", "--total=64M"], stdout=subprocess.PIPE, text=True, env=env)
        server = subprocess.Popen([*link.far, "iperf3", "-s", "-p", "5201"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            name = target.stdout.readline().split()[-1]
            for write in (True, False):
                command = [*link.near, bench, "engine", f"--target={name}", f"--local_name={link.near_address}", "--total=64M", "--sizes=16M",
                           f"--operation={'write' if write else 'read'}", f"--seconds={seconds}", "--json=-"]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=True)
                ours = json.loads(done.stdout)["steps"][0]["gbps"] * 1e3
                command = [*link.near, "iperf3", "-c", link.far_address, "-p", "5201", "-P", lanes, "-t", seconds, "-J", *([] if write else ["-R"])]
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=True)
                iperf = json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8e6
                self.note_link(link, "write" if write else "read", lanes, ours, iperf)
        finally:
            for process in (target, server):
                process.terminate()
                process.wait(10)
            target.stdout.close()

    def note_link(self, link, work, lanes, ours, iperf):
        items = self.other.setdefault("netem", [])
        found = next((item for item in items if (item["work"], item["lanes"]) == (work, lanes)), None)
        if found is None:
            found = {"link": f"1 ms and 1 % loss each way ({link.kind})", "work": work, "lanes": lanes, "ours": [], "iperf": []}
            items.append(found)
        found["ours"].append(ours)
        found["iperf"].append(iperf)


def takes_part(name, path):
    return name in {"same-host": ("ours", "ours-allocated", "original", "nixl", "nixl-bold", "nixl-tcp"), "tcp": ("ours-tcp", "original", "nixl-tcp")}[path]


def ways(name, work):
    """What a session of ours runs beside Python, in turn with it: the C API, and the loop that bounds it."""
    path, _, _, batch = work
    if not name.startswith("ours") or name == "ours-allocated":
        return ["python"]
    bare = [] if batch > 1 else ["vm", "copy"] if path == "same-host" else ["tcp"]
    return ["python", "c", *bare]


# --- report ---


def collect(run, row, mode):
    def values(name):
        return [result[row.figure] for result in run.figures.get((name, mode, row.work), [])]

    ours = "ours" if row.path == "same-host" else "ours-tcp"
    nixl = [values("nixl"), values("nixl-bold"), values("nixl-tcp")] if row.path == "same-host" else [values("nixl-tcp")]
    nixl = [item for item in nixl if item]
    best = [(min if row.lower else max)(items) for items in zip(*nixl)] if nixl else []
    bare = values(f"{ours} vm") if row.path == "same-host" else values(f"{ours} tcp")
    return {"ours": values(ours), "c": values(f"{ours} c"), "original": values("original"), "nixl": best, "bare": bare, "memcpy": values(f"{ours} copy"), "allocated": values("ours-allocated") if row.path == "same-host" else []}


def judge(row, found):
    checks = []
    if row.limit is not None and found["ours"]:
        checks.append((f"<= {row.limit:g} {row.unit}", statistics.median(found["ours"]) <= row.limit))
    for name, least, words in (("original", row.factor, f"{row.factor:g}x original"), ("nixl", 1.0 if row.nixl else 0, "NIXL")):
        if least and found["ours"] and found[name]:
            checks.append((words, statistics.median(times_as_good(row.lower, found["ours"], found[name])) >= least))
    if row.bare_part and found["c"] and found["bare"]:
        checks.append((f"{row.bare_part * 100:.0f} % bare", statistics.median(times_as_good(row.lower, found["c"], found["bare"])) >= row.bare_part))
    return ", ".join(f"{words} {'met' if good else 'MISSED'}" for words, good in checks), [good for _, good in checks]


def report(run, rows):
    form = "{:<34} {:<5} {:<18} {:<18} {:<7} {:<18} {:<7} {:<18} {:<18} {:<7} {:<18} {:<7} {:<18} {}"
    lines, table, met, missed = [], [], 0, []
    for mode in MODES:
        for path in ("same-host", "tcp"):
            some = [row for row in rows if row.path == path]
            if not any(run.figures.get((name, mode, row.work)) for row in some for name in ("ours", "ours-tcp")):
                continue
            where = "all processes of a contestant on one core" if mode == "pinned" else "over two cores"
            lines += ["", f"{path}, {mode}: {where}; median (min-max) of {run.rounds} round(s)"]
            bare = "process_vm" if path == "same-host" else "bare TCP"
            lines.append(form.format("work", "unit", "ours", "original", "ratio", "NIXL's best", "ratio", "ours from C", bare, "C/bare", "ours, allocated" if path == "same-host" else "", "ratio" if path == "same-host" else "", "memcpy", "bars").rstrip())
            for row in some:
                found = collect(run, row, mode)
                bar, verdicts = judge(row, found)
                met += sum(verdicts)
                missed += [f"{mode}: {row.path} {row.title}: {bar}"] if not all(verdicts) else []
                ratio = {name: times_as_good(row.lower, found["c" if name == "bare" else "ours"], found[name]) for name in ("original", "nixl", "bare")}
                ratio["allocated"] = times_as_good(row.lower, found["allocated"], found["original"])
                shown = {name: spread_of(values) for name, values in found.items()}
                over = {name: spread_of(values and [statistics.median(values)], *((100, "{:.0f}", " %") if name == "bare" else (1, "{:.2f}", "x"))) for name, values in ratio.items()}
                cells = [shown["ours"], shown["original"], over["original"], shown["nixl"], over["nixl"], shown["c"], shown["bare"], over["bare"], shown["allocated"],
                         over["allocated"], shown["memcpy"]]  # fmt: skip
                lines.append(form.format(row.title, row.unit, *cells, bar).rstrip())
                table.append({"mode": mode, "path": path, "work": row.title, "unit": row.unit, **found, "ratios": ratio, "bars": bar})
    for item in run.other.get("registered", []):
        bar = ""
        if item["contestant"] == "ours":
            good = max(item["single_ms"], item["batch_ms"]) <= 50
            bar = f"   <= 50 ms {'met' if good else 'MISSED'}"
            met += good
            missed += [] if good else ["10,000 buffers registered"]
        lines.append(f"{REGISTERED} buffers registered, {item['contestant']}: one by one {item['single_ms']:.1f} ms, in one call {item['batch_ms']:.1f} ms{bar}")
    for name in dict.fromkeys(item["contestant"] for item in run.other.get("stopped", [])):
        line, checks = stopped_line(name, [item for item in run.other["stopped"] if item["contestant"] == name])
        if name != "ours":
            checks = []
        met += sum(good for _, good in checks)
        missed += ["beside a stopped peer"] if not all(good for _, good in checks) else []
        lines.append((line + "   " + ", ".join(f"{words} {'met' if good else 'MISSED'}" for words, good in checks)).rstrip())
    for item in run.other.get("netem", []):
        good = statistics.median(mine / other for mine, other in zip(item["ours"], item["iperf"])) >= 0.7
        met += good
        missed += [] if good else [f"netem {item['work']}, {item['lanes']} lane(s)"]
        part = spread_of([mine / other * 100 for mine, other in zip(item["ours"], item["iperf"])], form="{:.0f}")
        lines.append(
            f"{item['link']}, {item['work']}: ours {spread_of(item['ours'])} MB/s on {item['lanes']} lane(s),"
            f" iperf3 {spread_of(item['iperf'])} MB/s on as many streams, {part} %   >= 70 % {'met' if good else 'MISSED'}"
        )
    lines += ["", f"{met} bars met, in {len(missed)} rows some missed" + (":" if missed else "")]
    lines += [f"  {text}" for text in missed] + [f"  PROBLEM: {text.splitlines()[0]}" for text in run.problems]
    return lines, table


def stopped_line(name, rounds):
    """What small writes to one peer took while another was stopped, and whether they suffered: round by round, against the slower of before and after."""
    p99 = {phase: [item[phase]["p99_us"] for item in rounds] for phase in ("before", "beside", "after")}
    part = statistics.median(beside / max(before, after) for before, beside, after in zip(p99["before"], p99["beside"], p99["after"]))
    slowest = max(item["beside"]["stopped_slowest_s"] for item in rounds)
    line = (
        f"4 KiB writes over tcp, {name}: p99 {spread_of(p99['before'])} us; while {STOPPED_CALLERS} threads and {STOPPED_CALLERS} batches wait for a stopped peer {spread_of(p99['beside'])} us; afterwards"
        f" {spread_of(p99['after'])} us; slowest of {sum(item['beside']['stopped_calls'] for item in rounds)} calls to it {slowest:.2f} s, deadline {STOPPED_LIMIT_S} s"
    )
    return line, [("p99 <= 1.5x", part <= 1.5), ("ends by the deadline", slowest <= STOPPED_LIMIT_S + 0.1)]


def write_results(run, rows, arguments, conditions):
    lines, table = report(run, rows)
    all_of_it = [{"contestant": name, "mode": mode, "work": work, "rounds": values} for (name, mode, work), values in run.figures.items()]
    return figures.finish("engine", arguments, conditions.end(run.rounds, MODES, run.problems), lines,
                          {"quick": run.quick, "huge": arguments.huge, "rows": table, "other": run.other, "figures": all_of_it}, run.problems)  # fmt: skip


# --- all of it ---


def start_pairs(run, arguments, cache, build):
    """Those that take part in what was asked for; what cannot start is a problem, not the end."""
    wanted = set(arguments.contestants.split(",")) if arguments.contestants else {"ours", "ours-allocated", "ours-tcp", "original", "nixl", "nixl-bold", "nixl-tcp"}
    original = Original()
    if "original" in wanted:
        original.prepare(cache)
    nixl = cache / "bench-nixl"
    if wanted & {"nixl", "nixl-bold", "nixl-tcp"}:  # without what it depends on: 5 GB of torch, which its API does not load
        make_venv(nixl, ["--no-deps", f"nixl-cu12=={NIXL_VERSION}", "numpy"], NIXL_VERSION)
    mine = {"PYTHONPATH": os.environ["MC_PYTHONPATH"]}
    loops = {"bare": build / "bench/libengine_bare.so", "library": build / "libmooncake.so"}
    plans = [
        ("ours", sys.executable, {"env": mine, **loops}),
        ("ours-allocated", sys.executable, {"env": mine, "allocated": True, **loops}),
        ("ours-tcp", sys.executable, {"env": {**mine, "MC_FORCE_TCP": "1"}, **loops}),
        ("original", original.python, {"env": {**original.env, "MC_FORCE_TCP": "1"}}),
        ("nixl", nixl / "bin/python", {"api": "nixl"}),
        ("nixl-bold", nixl / "bin/python", {"api": "nixl-bold"}),
        ("nixl-tcp", nixl / "bin/python", {"api": "nixl", "env": {"UCX_TLS": "tcp"}}),
    ]
    pairs = []
    for name, python, words in plans:
        if name in wanted:
            run.attempt(name, lambda: pairs.append(Pair(name, python, run.logs, huge=arguments.huge, **words)))
            if pairs and pairs[-1].name == name:
                run.attempt(f"{name}, bytes", run.compare, pairs[-1])
    run.say("processes are ready: " + ", ".join(pair.name for pair in pairs))
    return pairs


def stand_still(run, arguments, cache, build):
    wanted = arguments.contestants.split(",") if arguments.contestants else ["ours", "original"]
    if "ours" in wanted:
        run.attempt("ours, stopped", run.stopped, {"env": {"PYTHONPATH": os.environ["MC_PYTHONPATH"]}, "library": build / "libmooncake.so"}, "ours", sys.executable)
    if "original" in wanted:
        original = Original()
        if run.attempt("original", original.prepare, cache):
            run.attempt("original, stopped", run.stopped, {"env": original.env}, "original", original.python)


def main():
    parser = figures.parser_of(__doc__, "one round, fewer sizes, less of everything: about two minutes")
    parser.add_argument("--only", help=f"parts, comma separated: {','.join(PARTS)}")
    parser.add_argument("--contestants", help="comma separated: ours,ours-allocated,ours-tcp,original,nixl,nixl-bold,nixl-tcp")
    parser.add_argument("--huge", action="store_true", help="buffers of huge pages, for every contestant")
    arguments = parser.parse_args()
    parts = arguments.only.split(",") if arguments.only else PARTS
    if set(parts) - set(PARTS):
        parser.error(f"--only {arguments.only}: parts are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    cache, build = ROOT / ".cache", pathlib.Path(os.environ["MC_BUILD"])
    run = Run(arguments, cache)
    rows = [row for row in make_rows(arguments.quick) if row.path in parts]
    conditions = figures.Conditions(arguments).begin()
    pairs = []
    try:
        if rows or "register" in parts:
            pairs = start_pairs(run, arguments, cache, build)
            run.everything(pairs, list(dict.fromkeys(row.work for row in rows)))
            if "register" in parts:
                run.attempt("register", run.register, pairs)
    finally:
        for pair in pairs:
            pair.stop()
    if "stopped" in parts:
        stand_still(run, arguments, cache, build)
    if "netem" in parts:
        run.attempt("netem", run.netem, build)
    return write_results(run, rows, arguments, conditions)


if __name__ == "__main__":
    sys.exit(main())
