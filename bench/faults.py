#!/usr/bin/env python3
"""The same faults on the original and on this tree, side by side: time to recover, keys lost, calls past their deadline, slowest call.

    ./dev bench faults [--quick] [--rounds N] [--only WHO] [--keep] [--busy]

Ours with and without data directories for its nodes, and the original as it is and with the snapshots of its deployment guide, taken every five
seconds: the fault comes when one has been written after the last put, and each key has a lease, which is the best case for it. Four store nodes, a million keys of 512 bytes for ours and a tenth of it for the original (it puts them more slowly; a quarter of both with
--quick, which is one round; else it is three). The faults: the master is killed and started again; a store node is killed; stopped for five seconds; killed and started again.

"recovered" is the time from the fault until the last key that came back at all had come back, puts succeeded, and calls took less than 200 ms.
"keys lost" is what cannot be read at the end. The deadline is 5 s for both: ours promises it, the original has no such setting.
"""
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time

import figures
from contestants import Cluster, Original, OriginalSnapshot, Ours
from contestants.base import HERE, ROOT, START_SECONDS_MAX, Process, Run

NODES = 4
SIZE = 512
SLOT_BYTES = 2048
KEYS = {"ours": 1_000_000, "original": 100_000}
STOPPED_S = 5.0
SETTLE_S = 1.0
FAULTS = ("master killed, restarted", "node killed", "node stopped 5 s", "node killed, restarted")
ROWS = (
    ("recovered", "recovered after s", "{:.2f}"), ("lost", "keys lost", "{:d}"), ("lost_percent", "keys lost %", "{:.1f}"),
    ("late", "calls past 5 s", "{:d}"), ("slowest_ms", "slowest call ms", "{:.0f}"), ("failed_puts", "failed puts", "{:d}"), ("wrong", "wrong bytes", "{:d}"),
)  # fmt: skip


class Deployment(Cluster):
    """A master, nodes and a client of one contestant, in a folder of their own."""

    def __init__(self, contestant, logs, keys):
        # Half as much again as is needed, so that nothing is evicted: ours has a slot for each SLOT_BYTES of capacity.
        super().__init__(contestant, "spread", logs, max(256 << 20, (keys * max(SIZE + 512, SLOT_BYTES) * 3 // 2 // NODES + (1 << 20) - 1 >> 20) << 20))
        self.cores = os.sched_getaffinity(0)
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="mc-bench-faults-", dir="/dev/shm"))
        self.nodes = []

    def process(self, role, command, talk=True):
        env = {**self.contestant.env, **self.contestant.env_in(self.data)}
        return Process(command, self.logs / f"faults-{self.contestant.name}-{role}.log", self.cores, env, talk)

    def start_master(self):
        self.server = self.process("master", self.contestant.server_command(self.port, self.metrics_port), talk=False)

    def start_node(self, number):
        command = self.node_command()
        bench = getattr(self.contestant, "bench", None)
        if bench and self.contestant.keeps_files:
            folder = self.data / str(number)
            folder.mkdir(exist_ok=True)
            command = [bench, "node", "--master", self.address, "--segment", self.segment, "--data_dir", folder]
        return self.process(f"node{number}", command)

    def start(self):
        self.start_master()
        self.wait_server(0.005)
        self.nodes = [self.start_node(number) for number in range(NODES)]
        time.sleep(SETTLE_S * 3)
        for node in self.nodes:
            if node.child.poll() is not None:
                node.fail("has ended")
        self.client = self.process("client", [self.contestant.python, HERE / "faults_worker.py", "--address", self.address])
        self.client.read(START_SECONDS_MAX)

    def __exit__(self, *_):
        for process in [self.client, *self.nodes, self.server]:
            if process is not None:
                if process.child.poll() is None:
                    process.child.send_signal(signal.SIGCONT)
                    process.child.kill()
                process.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    # -- faults --

    def break_it(self, fault):
        """Does it; returns what undoes it later, or None."""
        if fault.startswith("master"):
            self.server.child.kill()
            self.server.child.wait()
            self.start_master()
            return None
        victim = self.nodes[0]
        if "stopped" in fault:
            victim.child.send_signal(signal.SIGSTOP)
            timer = threading.Timer(STOPPED_S, victim.child.send_signal, [signal.SIGCONT])
            timer.start()
            return timer
        victim.child.kill()
        victim.child.wait()
        if "restarted" in fault:
            self.nodes[0] = self.start_node(0)
        return None


def measure(contestant, fault, keys, limit_s, logs):
    with Deployment(contestant, logs, keys) as deployment:
        deployment.start()
        filled = deployment.client.ask(step="fill", count=keys, size=SIZE)
        if filled["stored"] < keys // 2:
            raise RuntimeError(f"only {filled['stored']} of {keys} keys could be put")
        time.sleep(SETTLE_S)
        deployment.client.ask(step="verify")  # a get of each key, which the original needs: a lease keeps them in its snapshot
        contestant.settle(deployment.data)
        at = time.monotonic()
        timer = deployment.break_it(fault)
        result = deployment.client.ask(step="watch", fault=at, limit_s=limit_s)
        if timer is not None:
            timer.join()
            time.sleep(2 * SETTLE_S)
        final = deployment.client.ask(step="verify")
    times = (result["found_s"], result["trouble_s"], result["puts_s"])
    stored = filled["stored"]
    return {
        "keys": stored, "put_keys_per_s": stored / max(filled["seconds"], 1e-9), "recovered": None if None in times else max(times),
        "lost": final["lost"], "lost_percent": 100.0 * final["lost"] / stored, "late": result["late"], "slowest_ms": result["slowest_ms"],
        "failed_puts": result["failed_puts"], "wrong": result["wrong"] + final["wrong"], "calls": result["calls"],
    }  # fmt: skip


def text_of(values, form):
    def one(value):
        return "never" if value is None else form.format(value)
    if len(values) == 1:
        return one(values[0])
    ordered = sorted(values, key=lambda value: float("inf") if value is None else value)
    return f"{one(ordered[len(ordered) // 2])} ({one(ordered[0])}-{one(ordered[-1])})"


def report(results, contestants):
    lines = [f"{'fault':28}{'':22}" + "".join(f"{contestant.title:>40}" for contestant in contestants)]
    for fault in FAULTS:
        runs = {contestant.name: results.get((contestant.name, fault), []) for contestant in contestants}
        if not any(runs.values()):
            continue
        keys = "".join(f"{text_of([run['keys'] for run in runs[c.name]], '{:d}') if runs[c.name] else 'failed':>40}" for c in contestants)
        lines.append(f"{fault:28}{'keys':22}{keys}")
        for name, title, form in ROWS:
            cells = "".join(f"{text_of([run[name] for run in runs[c.name]], form) if runs[c.name] else '-':>40}" for c in contestants)
            lines.append(f"{'':28}{title:22}{cells}")
    return [*lines, "Median, least and most of the rounds where there is more than one."]


def main():
    parser = figures.parser_of(__doc__, "one round, a quarter of the keys")
    parser.add_argument("--only", choices=("ours", "ours-plain", "original", "original-snapshot"), action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--keys", type=int, help="instead of the usual number, for all")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a fault is not waited for any longer")
    parser.add_argument("--ours-build", type=pathlib.Path, help="a build folder (with MC_PYTHONPATH) instead of the wheel of this tree")
    options = parser.parse_args()
    conditions, cache = figures.Conditions(options), ROOT / ".cache"
    run = Run(options, cache)
    for old in run.logs.glob("faults-*.log"):
        old.unlink()
    contestants = [one for one in (Ours(), Ours(keeps_files=False), Original(), OriginalSnapshot()) if not options.only or one.name in options.only]
    for contestant in contestants:
        if isinstance(contestant, Ours) and options.ours_build:
            contestant.use_build(sys.executable, os.environ.get("MC_PYTHONPATH"), options.ours_build / "mooncake_master",
                                 options.ours_build / "mooncake_bench")
        else:
            contestant.prepare(cache)
    results = {}

    def once(contestant, fault):
        keys = options.keys or KEYS[contestant.name.split("-")[0]] // (4 if options.quick else 1)
        results.setdefault((contestant.name, fault), []).append(measure(contestant, fault, keys, options.limit, run.logs))

    conditions.begin()
    for number in range(run.rounds):
        for fault in options.fault or FAULTS:
            for contestant in contestants if number % 2 == 0 else contestants[::-1]:
                run.attempt_and_say(f"round {number + 1}: {contestant.name}, {fault}", once, contestant, fault)
    lines = report(results, contestants)
    titles = {contestant.name: contestant.title for contestant in contestants}
    rows = [{"contestant": name, "title": titles[name], "fault": fault, "runs": runs} for (name, fault), runs in results.items()]
    return figures.finish("faults", options, conditions.end(run.rounds, [], run.problems), lines, {"results": rows}, run.problems)


if __name__ == "__main__":
    sys.exit(main())
