#!/usr/bin/env python3
"""A laboratory of hosts on this machine: a cluster whose packets are lost, late, out of order and cut, and what its clients see of it.

    ./dev lab                                                6 nodes and 12 clients, a minute, 1 % of packets lost, 1 ms each way
    ./dev lab --loss 3% --sizes 4K --minutes 10
    ./dev lab --loss 1% --fault kill --fault thread          store nodes are harmed in turn, see below
    ./dev lab --loss 0 --trouble descriptors                 two clients are in trouble of their own, see below
    ./dev lab --load replay                                  an hour of real requests (mooncake_bench replay) from every client's host
    ./dev lab --side original --sizes 4K                     the original in our place
    ./dev lab --sizes 1M --gets 1 --clients 4 --bare         beside iperf3 and a bare loop over the same links
    ./dev lab faults --minutes 60                            kills, stops and cuts of all processes, and the history checker of tests/faults

Each host is a network namespace with a name, boot id and clock of its own; the packets go through a program that follows --loss, --delay, --reorder
and --rate (tests/lab/switch.c); names are resolved by a server of the laboratory. Keys are put first; then every client gets keys (any client's) and
puts new ones. Exit code 0: no call on an existing key failed, no byte was wrong, and what a fault or trouble may cost was kept; 1: not so; 2: the
laboratory itself has failed. For how long this machine lets a process wait for a processor is measured, and not held against anybody. Whatever
ends it, nothing is left behind. The laboratory needs root and /dev/net/tun.

"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import laboratory  # noqa: E402  sets the environment and the paths
from harm import Harm, Trouble  # noqa: E402
from hosts import CLONE_NEWNS, MS_PRIVATE, MS_REC, Lab, mount  # noqa: E402
from network import LIBC, dies_with_parent, unshare  # noqa: E402
from report import WRONG_BYTES, Report, size_text, time_text  # noqa: E402
from words import add_network_options, part, sizes  # noqa: E402

CLONE_NEWPID = 0x20000000
TROUBLED = 2         # clients
P99_FACTOR, P99_SLACK_S = 2, 0.05  # more than that has changed, also on a machine that does other things
STARVED_S = 0.1      # without a processor for so long, and a node is held for dead that is not (MC_PROBE_LEAST_MS) ...
HELD_DEAD_S = 3.0    # ... at most until then
EXCUSED_PART = 0.05  # of the calls: where more fail it was something else
SETTLE_S = 30.0      # after a fault: until all segments are offered again
LOOK_S = 0.25
LINE_S = 5.0
TRACE = HERE.parent.parent / "traces" / "conversation_trace.jsonl.gz"


class Ended(Exception):
    """Somebody wants an end."""


def say(text=""):
    print(text, flush=True)


def options_of(words):
    def kinds(title, table):
        return title + "\n" + "\n".join(f"  {name:12} {text}" for name, text in table.items())
    parser = argparse.ArgumentParser(
        prog="./dev lab", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__ + "\n" + kinds("--fault, to a node drawn anew each time:", Harm.KINDS) + "\n\n"
        + kinds(f"--trouble, of {TROUBLED} clients more:", Trouble.KINDS))
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--nodes", type=int, default=6)
    cluster.add_argument("--clients", type=int, default=12)
    cluster.add_argument("--masters", type=int, default=1, choices=(1, 3), help="3: with an election by three members of etcd")
    cluster.add_argument("--segment", type=sizes, default=[256 << 20], help="memory of each node; default 256M")
    cluster.add_argument("--replicas", type=int, default=1)
    cluster.add_argument("--warm", action="store_true", help="nodes have a data directory")
    cluster.add_argument("--side", choices=("ours", "original"), default="ours")
    add_network_options(parser, loss=0.01, delay_ms=1.0)
    load = parser.add_argument_group("load")
    load.add_argument("--load", choices=("calls", "replay"), default="calls")
    load.add_argument("--minutes", type=float, default=1.0)
    load.add_argument("--sizes", type=sizes, default=[4096, 1 << 20], help="of objects; default 4K,1M")
    load.add_argument("--keys", type=int, default=0, help="existing keys of each client and size; default: 100, fewer of large ones")
    load.add_argument("--gets", type=part, default=0.8, help="part of the calls that are gets; default 0.8")
    load.add_argument("--calls", type=float, default=20, help="calls a second of each client, about; default 20; 0: one after the other")
    load.add_argument("--bare", action="store_true", help="iperf3 and a bare loop over the same links, before and after")
    harm = parser.add_argument_group("harm")
    harm.add_argument("--fault", action="append", default=[], choices=[*Harm.KINDS, "none"], help="may be given several times")
    harm.add_argument("--every", type=float, default=10.0, help="seconds of calm before each fault")
    harm.add_argument("--lasts", type=float, default=5.0, help="seconds of each fault")
    harm.add_argument("--trouble", action="append", default=[], choices=list(Trouble.KINDS), help="may be given several times")
    harm.add_argument("--spoil", choices=("missing", "bytes"), help="a key is removed, or gets other bytes, to see the check fail")
    parser.add_argument("--seed", type=int, help="draws the same losses, keys and faults again; what meets what is a matter of time")
    parser.add_argument("--patience", type=float, default=1.0, help="so many times the limits of time are the limits: for tests on a machine that does other work")
    parser.add_argument("--json", help="writes the figures to this file")
    parser.add_argument("--logs", action="store_true", help="keeps the logs also when all is well")
    options = parser.parse_args(words)
    options.fault = [kind for kind in options.fault if kind != "none"]
    options.segment = options.segment[0]
    options.seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    if options.side == "original" and (options.fault or options.masters > 1):
        parser.error("the original has no --fault and no --masters here")
    return options


# ---- the work ----

class Run:
    def __init__(self, options):
        self.options, self.problems, self.figures = options, [], {}
        self.draw = random.Random(f"harm {options.seed}")
        self.lab = self.cluster = None
        self.hidden = []  # [seconds, segment, state, what was done meanwhile, whether it was done to that segment]
        self.doing, self.victims, self.limits, self.phases = "calm", set(), {}, ["calm"]
        self.replaced = set()  # segments of nodes that were killed: those have new ones now
        self.noise, self.marks = None, []  # when each phase began: (ns, name)

    def say(self, text):
        say(f"[{time.monotonic() - self.started:6.1f} s] {text}")

    # -- the cluster --

    def start(self):
        options = self.options
        side = laboratory.Side() if options.side == "ours" else laboratory.Original()  # which may have to be fetched, over the machine's own network
        self.started = time.monotonic()
        self.lab = Lab.of(options, options.seed)
        replay = options.load == "replay"
        clients = 0 if replay else options.clients + (TROUBLED if options.trouble else 0)
        self.cluster = laboratory.LabCluster(self.lab, side, options.seed, options.masters, options.nodes, clients, options.segment, options.warm)
        self.noise = laboratory.harness.Noise(self.cluster.folder)
        self.cluster.start()
        self.say(f"{len(self.lab.hosts)} hosts are up")
        if replay:
            return
        self.troubled = self.cluster.clients[options.clients:]
        self.healthy = self.cluster.clients[:options.clients]
        self.check_room()
        self.fill()

    def groups(self):
        """Keys of each client: [size, count]."""
        return [[size, self.options.keys or max(min(100, (8 << 20) // size), 2)] for size in self.options.sizes]

    def check_room(self):
        wanted = sum(size * count for size, count in self.groups()) * len(self.healthy) * self.options.replicas
        if wanted > self.options.nodes * self.options.segment * 0.4:
            raise SystemExit(f"keys of {wanted >> 20} MiB would be evicted from nodes of {self.options.segment >> 20} MiB: --segment, --keys")

    def fill(self):
        keys = self.cluster.fill(self.groups(), self.options.replicas, clients=self.healthy)
        self.cluster.all(clients=self.troubled, know=keys)
        self.locate()
        if self.options.spoil:
            self.healthy[0].ask(spoil=self.options.spoil)
        self.say(f"{len(keys)} keys exist")

    def locate(self):
        if not self.cluster.side.hides:
            return
        unknown = max(answer["unknown"] for answer in self.cluster.all(where=True))
        if unknown:
            self.problems.append(f"{unknown} existing keys have no replica by the master's word")

    def work(self):
        return {"sizes": self.options.sizes, "gets": self.options.gets, "rate": self.options.calls}

    # -- while it runs --

    def phase(self, name, victims=()):
        self.look()  # what the masters have said until now is of the phase that ends
        self.doing, self.victims = name, set(victims)
        self.marks.append((time.monotonic_ns(), name))
        if name not in self.phases:
            self.phases.append(name)
        self.cluster.all(phase=name, victims=list(victims))

    def starved_s(self, name):
        """The longest that this machine let somebody wait in this phase who only wanted to wake: that much later may a call be, for no fault of ours."""
        ends = [began for began, _ in self.marks[1:]] + [time.monotonic_ns()]
        return max((self.noise.worst(began, end) for (began, its_name), end in zip(self.marks, ends) if its_name == name), default=0) / 1e9

    def was_starved(self, first, last):
        """Whether this machine let somebody wait so long, between these monotonic times or shortly before, that a node is held for dead."""
        return self.noise.worst(int((first - HELD_DEAD_S) * 1e9), int(last * 1e9)) > STARVED_S * 1e9

    def excused(self, report, what, calls):
        """How many of these calls failed because the machine was starved, if they are few."""
        wall = time.time() - time.monotonic()
        found = sum(event[3] == what and event[5] not in (0, WRONG_BYTES) and self.was_starved(event[0] - wall, event[0] - wall + event[6])
                    for event in report.events)
        if found:
            say(f"  {found} of {calls} {what}s failed while this machine let a process wait for more than {time_text(STARVED_S)}")
        return found if found <= calls * EXCUSED_PART else 0

    def look(self):
        for at, segment, state in self.cluster.watch.look():
            its_own = segment in self.victims or segment in self.replaced
            if state != "trusted":
                self.hidden.append([at - self.started, segment, state, self.doing, its_own])
                self.say(f"the master says that {segment} is {state}" + ("" if its_own else ", an INNOCENT node"))

    def pass_time(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(LOOK_S, max(end - time.monotonic(), 0)))
            self.look()
            self.check_alive()
            if time.monotonic() >= self.next_line:
                self.next_line = time.monotonic() + LINE_S
                self.line()

    def line(self):
        counts = self.cluster.all(clients=self.healthy, count=True)
        calls, failed = (sum(count[name] for count in counts) for name in ("calls", "failed"))
        at, before = time.monotonic(), self.last_count
        self.last_count = (at, calls)
        self.say(f"{self.doing}: {calls} calls, {(calls - before[1]) / (at - before[0]):.0f} a second, {failed} failed")

    def check_alive(self):
        for process in self.cluster.processes():
            if not process.alive() and not (process in self.troubled or process.name == self.absent):
                raise RuntimeError(f"{process.name} has ended by itself with {process.child.returncode}: "
                                   f"{process.log.read_text(errors='replace')[-1500:]}")

    def calls(self):
        options = self.options
        self.next_line, self.last_count, self.absent = time.monotonic() + LINE_S, (time.monotonic(), 0), None
        self.marks.append((time.monotonic_ns(), self.doing))
        self.cluster.all(go=self.work())
        end = time.monotonic() + options.minutes * 60
        if options.trouble:
            self.troubles(options.minutes * 60 / (1 + 1.5 * len(options.trouble)))
        elif options.fault:
            number = 0
            while number == 0 or time.monotonic() + options.every < end:
                self.pass_time(options.every)
                self.fault(options.fault[number % len(options.fault)])
                number += 1
        else:
            self.pass_time(options.minutes * 60)
        self.pause()
        self.judge()

    def fault(self, kind):
        harm = Harm(kind, self.draw.choice(self.cluster.nodes), self.lab)
        self.say(f"{kind} {harm.node.name}")
        self.absent = harm.node.name
        self.phase(kind, [harm.segment])
        self.limits[kind] = harm.limit_s
        harm.begin()
        self.pass_time(self.options.lasts)
        self.phase("afterwards", [harm.segment])
        harm.undo()
        self.victims |= {harm.node.segment}
        self.replaced |= {harm.segment} - {harm.node.segment}
        end = time.monotonic() + SETTLE_S
        while not self.cluster.serves():
            if time.monotonic() > end:
                raise RuntimeError(f"{harm.node.name} is not back {SETTLE_S:.0f} s after {kind}")
            self.pass_time(0.1)
        self.absent = None
        # Lawfully lost keys are put again; then all exist, and it is known where.
        answers = self.cluster.all(repair=SETTLE_S)
        failed = [code for answer in answers for code in answer["failed"]]
        if failed:
            self.problems.append(f"after {kind} of {harm.node.name} {len(failed)} keys could not be put again: {sorted(set(failed))}")
        self.locate()
        self.say(f"{sum(answer['repaired'] for answer in answers)} keys were lost and put again")
        self.phase("calm")

    def troubles(self, seconds):
        self.pass_time(seconds)
        for kind in self.options.trouble:
            self.say(f"{', '.join(client.name for client in self.troubled)}: {kind}")
            self.phase(kind)
            self.suffers = False
            troubles = [Trouble(kind, client, self.lab, self.cluster.nodes) for client in self.troubled]
            for trouble in troubles:
                trouble.begin()
                if kind in Trouble.RESTARTS:
                    trouble.client.kill()
                    trouble.client.start()
            for trouble in troubles:
                if kind in Trouble.RESTARTS:
                    self.introduce(trouble.client, kind)
                trouble.calls_began()
            self.pass_time(seconds)
            for trouble in troubles:
                counts = self.count_of(trouble.client)
                self.say(f"{trouble.client.name}: {counts['calls']} calls, {counts['failed']} failed" if counts else f"{trouble.client.name} is silent")
                self.suffers |= not counts or counts["failed"] > 0 or counts["calls"] < self.last_count[1] / len(self.healthy) / 4
                trouble.undo()
                trouble.client.kill()
                trouble.client.start()
            if not self.suffers:
                self.problems.append(f"{kind}: the clients in trouble did not feel it, so nothing is shown")
            for trouble in troubles:
                self.introduce(trouble.client, "calm")
            self.phase("calm")
            self.pass_time(seconds / 2)

    def introduce(self, client, phase):
        """A client that was started again learns what exists, and calls."""
        try:
            client.wait_ready()
            client.ask(know=self.cluster.keys)
            client.ask(phase=phase)
            client.ask(go=self.work())
        except (RuntimeError, TimeoutError, OSError) as error:
            self.say(f"{client.name}: {str(error).splitlines()[-1]}")

    def count_of(self, client):
        """What a client in trouble has done; None when it does not say."""
        try:
            return client.ask(within_s=20, count=True)
        except (RuntimeError, TimeoutError, OSError):
            return None

    def pause(self):
        self.cluster.all(clients=self.healthy, pause=True)
        self.look()

    # -- the verdict --

    def judge(self):
        self.noise.end()
        report = Report(self.cluster.all(clients=self.healthy, report=True))
        say()
        for line in report.lines(self.phases):
            say(line)
        say()
        say(f"  this machine let a process wait that was due: {self.noise.words()}")
        gets, puts = report.of(what="get"), report.of(what="put")
        victims = report.of(what="victim-get")
        self.figures |= {"failed gets": gets.failed, "failed puts": puts.failed, "wrong": gets.wrong + victims.wrong,
                         "innocent hidden": [event for event in self.hidden if not event[4]], "table": report.lines(self.phases)}
        if gets.failed > self.excused(report, "get", gets.calls):
            self.problems.append(f"{gets.failed} of {gets.calls} gets of existing keys failed")
        if victims.wrong:
            self.problems.append(f"{victims.wrong} gets had wrong bytes")
        calm_puts = sum(report.of(phase, "put").failed for phase in self.phases if phase not in Harm.KINDS and phase != "afterwards")
        if calm_puts > self.excused(report, "put", puts.calls):
            self.problems.append(f"{calm_puts} puts failed though nothing was done to any node")
        for kind, limit in self.limits.items():
            slowest = report.of(kind, "victim-get").quantile(1.0)
            limit, starved = limit * self.options.patience, self.starved_s(kind)
            if slowest is not None and slowest > limit + starved:
                self.problems.append(f"{kind}: a get of a key of that node ended after {time_text(slowest)}, the limit is {time_text(limit)}, "
                                     f"and a sleeper waited {time_text(starved)}")
        for kind in self.options.trouble:
            for size in self.options.sizes:
                before, then = (report.of(phase, "get", size).quantile(0.99) for phase in ("calm", kind))
                if before and then and then > (before * P99_FACTOR + P99_SLACK_S) * self.options.patience + self.starved_s(kind):
                    self.problems.append(f"{kind}: p99 of gets of {size_text(size)} by the others went from {time_text(before)} to {time_text(then)}")
        for event in self.hidden:
            if not event[4] and not self.was_starved(self.started + event[0], self.started + event[0]):
                self.problems.append(f"{event[1]} was {event[2]} at {event[0]:.1f} s ({event[3]}), and nothing had been done to it")
        metrics = self.cluster.metrics()
        say("  the masters: " + ", ".join(f"{name} {metrics.get(name, 0):.0f}" for name in sorted(metrics)
                                           if re.match(r"mooncake_(suspects|probes|probes_failed|rotten_reports)\w*_total$", name)))
        self.packets()
        if gets.failed or puts.failed:
            say("  the first calls that failed or took long (client, phase, call, size, code, time, key):")
            for event in [event for event in report.events if event[5] != 0][:10]:
                say(f"    {time.strftime('%H:%M:%S', time.localtime(event[0]))}.{event[0] % 1 * 1000:03.0f} client{event[1]} {event[2]} {event[3]} "
                    f"{size_text(event[4])} {event[5]} {time_text(event[6])} {event[7]}")

    def packets(self):
        stats = [row for pair, row in self.lab.switch.stats().items() if 254 not in pair]
        packets, lost = sum(row.packets for row in stats), sum(row.lost for row in stats)
        say(f"  the network: {packets} packets, {lost} lost ({100 * lost / max(packets, 1):.2f} %), "
            f"{sum(row.reordered for row in stats)} out of order, {sum(row.overflowed for row in stats)} that found a queue full, "
            f"{sum(row.cut for row in stats)} on a cut cable")

    # -- other loads --

    def replay(self):
        options = self.options
        hosts = [self.lab.host(f"client{i}") for i in range(options.clients)]
        running = []
        self.troubled, self.absent = [], None
        for number, host in enumerate(hosts):
            path = self.cluster.folder / f"replay{number}"
            with open(f"{path}.log", "ab") as log:
                child = host.popen([laboratory.harness.BUILD / "mooncake_bench", "replay", TRACE, "--master", self.cluster.master_address,
                                    f"--duration={options.minutes * 60}", "--workers=1", f"--replicas={options.replicas}", f"--json={path}.json"],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            running.append((host, child, path))
        end = time.monotonic() + options.minutes * 60 + 60
        while any(child.poll() is None for _, child, _ in running):
            if time.monotonic() > end:
                raise RuntimeError("the replay does not end")
            time.sleep(LOOK_S)
            self.look()
            self.check_alive()
        totals = {}
        for host, child, path in running:
            if child.returncode != 0:
                self.problems.append(f"the replay on {host.name} ended with {child.returncode}: {pathlib.Path(f'{path}.log').read_text()[-400:]}")
            if pathlib.Path(f"{path}.json").exists():
                for name, value in json.loads(pathlib.Path(f"{path}.json").read_text()).items():
                    if isinstance(value, (int, float)) and not isinstance(value, bool):
                        totals[name] = totals.get(name, 0) + value
        say("  " + ", ".join(f"{name} {value:.0f}" for name, value in totals.items() if value == int(value)))
        self.figures["replay"] = totals
        for name in ("failed_gets", "failed_lookups", "failed_puts", "wrong_blocks"):
            if totals.get(name):
                self.problems.append(f"{totals[name]} {name.replace('_', ' ')}")
        if totals.get("gone_blocks") and not self.cluster.metrics().get("master_evicted_key_count", 0):
            self.problems.append(f"{totals['gone_blocks']} blocks that were there were not there any more, and nothing was evicted")
        self.packets()

    def bare(self):
        """Bytes a second of one iperf3 stream from a node to each client at a time."""
        options, servers, clients = self.options, [], []
        seconds = max(min(options.minutes * 60, 20), 3)
        for number in range(options.clients):
            node = self.cluster.nodes[number % options.nodes].host
            port = 6000 + number
            servers.append(node.popen(["iperf3", "-s", "-1", "-p", port], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        time.sleep(0.5)
        for number in range(options.clients):
            clients.append(self.lab.host(f"client{number}").popen(
                ["iperf3", "-c", f"node{number % options.nodes}", "-p", 6000 + number, "-R", "-J", "-O", "1", "-t", round(seconds)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
        total = 0.0
        for child in clients:
            text = child.communicate(timeout=seconds + 30)[0]
            total += json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8
        for server in servers:
            server.kill()
            server.wait()
        self.say(f"iperf3, {options.clients} streams: {total / 1e6:.1f} MB/s")
        return total

    def bare_loop(self):
        """Bytes a second of clients that ask a node for one value after the other over one connection each, without a store."""
        options, servers, clients = self.options, [], []
        size, seconds = max(size for size in options.sizes), max(min(options.minutes * 60, 20), 3)
        program = [sys.executable, pathlib.Path(__file__).parent / "bare_loop.py"]
        for number in range(options.clients):
            node = self.cluster.nodes[number % options.nodes].host
            servers.append(node.popen([*program, "serve", 7000 + number, size], stdin=subprocess.DEVNULL))
        time.sleep(0.5)
        for number in range(options.clients):
            clients.append(self.lab.host(f"client{number}").popen(
                [*program, "ask", f"node{number % options.nodes}", 7000 + number, size, seconds],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
        total = sum(float(child.communicate(timeout=seconds + 60)[0]) for child in clients)
        for server in servers:
            server.kill()
            server.wait()
        self.say(f"a bare loop of {options.clients} clients: {total / 1e6:.1f} MB/s")
        return total

    def main(self):
        options = self.options
        try:
            self.start()
            before, loop_before = (self.bare(), self.bare_loop()) if options.bare else (0, 0)
            began = time.monotonic()
            self.replay() if options.load == "replay" else self.calls()
            if options.bare:
                took = time.monotonic() - began
                loop_after, after = self.bare_loop(), self.bare()
                report = Report(self.cluster.all(clients=self.healthy, report=True))
                ours = report.of().bytes / took
                self.figures |= {"goodput": ours, "iperf3": [before, after], "bare_loop": [loop_before, loop_after]}
                self.say(f"goodput {ours / 1e6:.1f} MB/s, {200 * ours / (before + after):.0f} % of iperf3's, "
                         f"{200 * ours / (loop_before + loop_after):.0f} % of the bare loop's")
        finally:
            folder = self.cluster.folder if self.cluster else None
            if self.noise:
                self.noise.end()
            if self.cluster:
                self.cluster.end()
            if self.lab:
                self.lab.end()
        return folder


def show_verdict(run, folder):
    for problem in run.problems[:20]:
        say(f"  PROBLEM: {problem}")
    if len(run.problems) > 20:
        say(f"  and {len(run.problems) - 20} more")
    bad = bool(run.problems)
    if folder and (bad or run.options.logs):
        say(f"  logs: {folder}")
    elif run.cluster:
        run.cluster.forget()
    say(f"lab: {'BAD' if bad else 'good'} (seed {run.options.seed})")
    return 1 if bad else 0


def inside(options):
    """The first process of the laboratory's own process namespace: when it ends, whatever it started has ended."""
    def end(*_):
        raise Ended
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    run = Run(options)
    folder = None
    try:
        say(f"lab: seed {options.seed}, {options.side}: {options.masters} master(s), {options.nodes} nodes, {options.clients} clients; loss "
            f"{options.loss * 100:g} %, delay {options.delay:g} ms, reorder {options.reorder * 100:g} %"
            + (f", {options.line_rate / 125e6:g} Gbit/s" if options.line_rate else ""))
        folder = run.main()
        code = show_verdict(run, folder)
    except Ended:
        say("lab: ended")
        return 130
    except (OSError, RuntimeError, TimeoutError) as error:
        say(f"lab: FAILED: {error}" + (f"; logs: {run.cluster.folder}" if run.cluster else ""))
        return 2
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({**run.figures, "problems": run.problems, "seed": options.seed}, indent=1), encoding="utf-8")
    return code


def main():
    options = options_of(sys.argv[1:])
    why = Lab.why_not()
    if why:
        raise SystemExit(f"lab: {why}")
    unshare(CLONE_NEWPID | CLONE_NEWNS)
    child = os.fork()
    if child == 0:
        dies_with_parent()
        mount(None, "/", MS_REC | MS_PRIVATE)
        if LIBC.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
            raise OSError(ctypes.get_errno(), "mount /proc")
        os._exit(inside(options))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the child has it, too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
