"""The course of a run, and its verdict: clients work, faults come and go, keys that must stay are watched, and the histories are judged at the end."""
import http.client
import random
import time
from collections import Counter

import checker
import harness
import history
from harness import CALL_MS, CLIENT_TTL_S, Client, Node, Noise, now, say, wait_for
from etcd_trouble import LED_WITHIN_S, Trouble, Troubles
from keep import INVALID, RECOVER_S, Family, Keep, Witness
from leaders import Leaders
from nemesis import Fault, Nemesis

BYTES_MS = 20  # what the deadline of the largest batch has above that for its bytes: 1 s for 64 MiB
TOLERANCE_MS = 10
EXPRESSION_MS = 60_000  # a removal by expression goes on so much longer: it may have all keys to look at
LATE_S = 60.0     # a failed or killed put takes effect not later than this
YOUNG_S = 4.0     # so long after a failover removals wait, and with one of them a client
JUDGED_AT_ONCE = 4  # keys, of those to which much happens
CROWD_PARTS = 3     # the others are judged in so many parts
CROWDED_FROM = 0.6  # of the run; before that nothing is evicted, and what is lost is lost
REMOVE_ALL = 0.05   # of the rounds
FAMILY = 0.15       # of the rounds with a crowd


class Stopped(Exception):
    """Somebody wants an end, and the verdict on what there is."""


class Trial:
    """Clients, faults and the verdict."""

    def __init__(self, cluster, minutes, survives, only=(), quiet=False, upgrade=None):
        self.upgrade = upgrade  # of a rolling restart: what everything is of after it; None: nothing changes
        self.cluster, self.minutes, self.survives, self.quiet = cluster, minutes, survives, quiet
        self.draw = random.Random(f"nemesis-{cluster.seed}")
        self.nemesis = (Troubles if getattr(cluster, "ways", None) else Nemesis)(cluster, self.draw, only)
        # Where packets are lost and clocks differ the laboratory judges by what clients see alone.
        self.leaders = Leaders(cluster.masters if getattr(cluster, "etcd", None) and not cluster.network.lossy else [])
        self.forgets = []  # when etcd forgot, and when all was well again
        self.led = []  # (when all was well again after a trouble of etcd, when somebody led, after what)
        self.faults = Counter()
        self.problems = []
        self.recoveries = []
        self.rounds = 0
        self.evicted = Counter()  # by master and its process: the most that it has said
        self.family = Family(cluster)
        self.absent_removes_prove = True
        self.ending = self.stopped = False

    def stop(self, *_):
        """Of a signal: the faults end here, once; what comes after is not disturbed."""
        if not self.ending:
            self.ending = self.stopped = True
            raise Stopped

    def say(self, text):
        if not self.quiet:
            say(f"[{now() - self.started:6.1f} s] {text}")

    def rolling(self, keep, witness):
        """Every process in turn is told to end and started again; then a node more joins, and one leaves."""
        cluster = self.cluster
        cluster.release = self.upgrade or cluster.release
        for process in cluster.etcd + cluster.masters + cluster.nodes + cluster.clients:
            time.sleep(0.3)
            process.release = cluster.release
            self.round(keep, witness, [Fault("restart", process, 0.2)])
        more = Node(cluster, "joins", cluster.network.host("joins"), True)
        cluster.nodes.append(more)
        more.start().wait_ready()
        wait_for(cluster.serves, RECOVER_S, "the node that joins")
        self.say("a node has joined")
        time.sleep(1)
        leaves = cluster.nodes.pop(0)
        fault = Fault("leave", leaves, 0.0)
        if leaves.terminate(30) != 0:
            self.problems.append("the node that leaves did not end well")
        self.faults["leave node"] += 1
        keep.check([fault])
        self.say("a node has left")

    def round(self, keep, witness, faults=None):
        """One fault or two from beginning to end. Meanwhile everything is removed, or the witness writes."""
        removes = faults is None and self.draw.random() < REMOVE_ALL
        faults = self.nemesis.next() if faults is None else faults
        lasts = max((fault.seconds for fault in faults), default=0) + 0.5
        self.rounds += bool(faults)
        if removes:
            self.faults["remove all"] += 1
            self.cluster.keeper.tell("remove_all", self.cluster.keys + self.cluster.crowd)
        else:
            witness.begin(lasts)
        for fault in faults:
            self.faults[f"{fault.what} {fault.target.kind}"] += 1
            fault.begin(self.cluster.network)
        begun = now()
        for fault in sorted(faults, key=lambda fault: fault.seconds):
            time.sleep(max(fault.seconds - (now() - begun), 0))
            fault.undo()
        healed = now()
        words = ", ".join(map(str, faults))
        try:
            self.await_leader(faults, healed, words)
            for fault in faults:
                fault.settle()
            wait_for(self.cluster.serves, RECOVER_S, "a master with all segments")
            if removes:
                keep.remove_all(self.cluster.keeper.hear())
            _, gone = keep.check(faults)
            took = now() - healed
            if not removes:
                witness.check(faults, witness.finish())
        except TimeoutError as error:
            self.problems.append(f"{words}: {error}")
            self.say(f"PROBLEM {self.problems[-1]}")
            return
        self.recoveries.append((took, words))
        self.say(f"{words}{' while everything is removed' if removes else ''}; all well after {took:.2f} s" + (f", {gone} kept keys lost" if gone else ""))
        self.count_evictions()

    def await_leader(self, faults, healed, words):
        """After a trouble of etcd. One member that is of no use is none: somebody leads meanwhile."""
        for fault in faults:
            if not isinstance(fault, Trouble):
                continue
            if fault.forgets():
                self.forgets.append((fault.begun, healed))
            wait_for(lambda: self.leaders.since(healed), RECOVER_S, "a leader")
            self.led.append((healed, self.leaders.since(healed), words))
            fault.led(self.led[-1][1])
            alone = len(faults) == 1 and len(fault.members) < len(self.cluster.etcd) and fault.seconds > LED_WITHIN_S + 1
            if alone and not self.leaders.since(fault.begun + LED_WITHIN_S, before=healed):
                raise TimeoutError("nobody led with two members of three")

    def count_evictions(self):
        for master in self.cluster.masters:
            try:
                self.evicted[master.name, master.child.pid] = master.metrics().get("master_evicted_key_count", 0)
            except (OSError, ValueError, http.client.HTTPException):
                continue

    def crowd(self, keep):
        self.cluster.begin_crowd()
        keep.crowded = True
        self.say("from here on there is no room for all that is put")

    def run(self):
        self.started = now()
        noise = Noise(self.cluster.folder)
        try:
            self.cluster.start()
            self.leaders.start()
            if self.cluster.ways:
                self.nemesis.snapshots.save_resigned()
                wait_for(self.cluster.serves, RECOVER_S, "a master with all segments")
            keep, witness = Keep(self.cluster, self.survives), Witness(self.cluster, self.survives)
            if self.nemesis.left_out():
                self.say(f"left out here: {self.nemesis.left_out()}")
            start, length = now(), self.minutes * 60
            if self.minutes == 0:
                self.rolling(keep, witness)
            while now() < start + length and len(self.problems) < 5:
                time.sleep(self.draw.random() * 0.8)
                if not keep.crowded and self.cluster.crowd and now() > start + length * CROWDED_FROM:
                    self.crowd(keep)
                if keep.crowded and self.draw.random() < FAMILY:
                    self.family.check()
                self.round(keep, witness)
                self.check_alive()
            self.finale(keep)
            self.check_that_it_was_hard(keep, witness, length)
        except Stopped:
            self.say("told to stop: judging what there is")
            self.cluster.network.heal()
        except (TimeoutError, RuntimeError, OSError) as error:
            self.problems.append(str(error))
        finally:
            self.ending = True
            noise.end()
            self.leaders.end()
            for client in self.cluster.clients:
                if client.alive():
                    code = client.terminate()
                    if code != 0:
                        self.problems.append(f"{client.name} ended with {code}: {client.log.read_text(errors='replace')[-500:]}")
            self.cluster.end()
        return self.verdict(noise, keep if "keep" in locals() else None, witness if "witness" in locals() else None)

    def check_that_it_was_hard(self, keep, witness, length):
        """A run that did not do what it is for has shown nothing."""
        if length >= 60 and self.cluster.crowd and not sum(self.evicted.values()):
            self.problems.append("nothing was evicted, though there is no room for all that was put")
        if self.rounds >= 5 and not witness.acknowledged:
            self.problems.append("nothing was acknowledged while a fault was on")
        if self.leaders.askers and self.leaders.judge.count < 2 * length:
            self.problems.append(f"masters have acknowledged no more than {self.leaders.judge.count} questions")
        if self.rounds and not keep.strange:
            self.problems.append("no upsert that names another group was refused")

    def check_alive(self):
        for process in self.cluster.processes():
            if not process.alive():
                self.problems.append(f"{process.name} has ended by itself with {process.child.returncode}")
                self.say(f"PROBLEM {self.problems[-1]}: {process.log.read_text(errors='replace')[-1000:]}")
                process.ended() if isinstance(process, Client) else None
                process.start()
                process.wait_ready()

    def finale(self, keep):
        """No faults any more: everything must work, for everybody, and all space that waits must come back."""
        self.cluster.network.heal()
        keep.check([])
        time.sleep(YOUNG_S if self.cluster.etcd else 0)
        marks = [(client, len(history.read(client.incarnations[-1][1]))) for client in self.cluster.clients]
        time.sleep(3)
        for client, mark in marks:
            later = [o for o in history.read(client.incarnations[-1][1])[mark:] if o.returned is not None]
            bad = Counter(o.code for o in later if o.code < 0 and o.code not in (-704, -706, -703, -705))
            if len(later) < 20 or sum(bad.values()) > len(later) // 20:
                self.problems.append(f"{client.name} does not work after all faults: {len(later)} calls, failures {dict(bad)}")
        for client in self.cluster.clients:
            client.stop()

        def settled():
            master = self.cluster.serving_master()
            try:
                metrics = master.metrics() if master else None
            except (OSError, http.client.HTTPException):
                metrics = None
            self.waiting = metrics and {name: metrics.get(name, 0) for name in ("mooncake_clearing_bytes", "mooncake_quarantine_bytes")}
            return metrics and not any(self.waiting.values())
        try:
            # Clients stand still in the middle of whatever they did: puts that were begun are discarded after 5 s.
            wait_for(settled, 15, "no space that waits")
        except TimeoutError:
            self.problems.append(f"space does not come back: {self.waiting}")
        for client in self.cluster.clients:
            client.go_on()

    # -- the verdict --

    def overdue(self, operations, stops, noise):
        """Calls that took longer than their deadline, less what the machine and our own stops took."""
        late = []
        for o in operations:
            may_ms = CALL_MS + BYTES_MS + (EXPRESSION_MS if o.operation == history.REMOVE and o.value == history.BY_EXPRESSION else 0)
            if o.returned is None or o.returned - o.invoked <= (may_ms + TOLERANCE_MS) * 1_000_000:
                continue
            if any(first <= o.returned and (last is None or last >= o.invoked) for first, last in stops):
                continue
            excess = o.returned - o.invoked - may_ms * 1_000_000 - o.noise - noise.worst(o.invoked, o.returned)
            if excess > TOLERANCE_MS * 1_000_000:
                late.append((excess / 1e6, o))
        return late

    def parts(self):
        """Of the keys, few at a time: the operations of an hour would not fit into memory at once, and keys have nothing to do with each other."""
        keys, crowd = self.cluster.keys, self.cluster.crowd
        for first in range(0, keys, JUDGED_AT_ONCE):
            yield range(first, min(first + JUDGED_AT_ONCE, keys))
        for part in range(CROWD_PARTS if crowd else 0):
            yield range(keys + crowd * part // CROWD_PARTS, keys + crowd * (part + 1) // CROWD_PARTS)
        yield range(history.WITNESS, 1 << 32)

    def judge(self, files, died):
        whole = checker.Report()
        for keys in self.parts():
            own = (o for number, path, _, _ in files for o in history.records(path, number, keys))
            whole.take(checker.check(own, absent_removes_prove=self.absent_removes_prove, late_ns=int(LATE_S * 1e9), died=died))
        return whole

    def told(self):
        """The histories of those that are not targets, as incarnations."""
        return [[-number, process.history, [], None] for number, process in enumerate((self.cluster.keeper, self.cluster.witness), 1)
                if process.child is not None and process.history.exists()]

    def verdict(self, noise, keep, witness):
        late, codes, slowest, unended, refused = [], Counter(), 0.0, 0, 0
        files = [incarnation for client in self.cluster.clients for incarnation in client.incarnations if incarnation[1].exists()] + self.told()
        died = {number: death for number, _, _, death in files if death is not None}
        for number, path, stops, _ in files:
            late += self.overdue(history.records(path, number), stops, noise)
            for o in history.records(path, number):
                if o.returned is None:
                    unended += 1
                    continue
                refused += o.code == INVALID
                codes[history.NAMES[o.operation], o.code if o.code < 0 else "ok"] += 1
                slowest = slowest if stops else max(slowest, (o.returned - o.invoked) / 1e6)
        report = self.judge(files, died)
        watched = [part for part in (keep, witness, self.family) if part is not None]
        if refused:
            self.problems.append(f"{refused} calls were refused as invalid, among them none that names another group than its key has")
        recoveries = sorted(self.recoveries, reverse=True)
        self.problems += self.leaders.violations(self.forgets)
        late_leaders = [(led - well - noise.worst(int(well * 1e9), int(led * 1e9)) / 1e9, words) for well, led, words in self.led]
        self.problems += [f"no leader for {took:.2f} s after {words}" for took, words in late_leaders if took > LED_WITHIN_S]
        result = {
            "seed": self.cluster.seed, "minutes": self.minutes, "operations": report.operations, "clients": self.cluster.clients_made,
            "unended": unended, "stopped early": self.stopped,
            "faults": dict(self.faults), "fault count": sum(self.faults.values()),
            "violations": report.count, "late calls": len(late), "slowest call ms": slowest, "worst wait of a sleeper ms": noise.worst() / 1e6,
            "kept keys lost": keep.lost["unlawful"] if keep else None, "kept keys lost, allowed": keep.lost["lawful"] if keep else None,
            "acknowledged during faults": witness.acknowledged if witness else None, "of them lost": witness.lost["unlawful"] if witness else None,
            "acknowledged to those who ask": self.leaders.judge.count, "leaderships": len(self.leaders.judge.reigns),
            "slowest leader after trouble of etcd s": max((took for took, _ in late_leaders), default=None),
            "evicted": int(sum(self.evicted.values())), "groups evicted": self.family.evicted,
            "other groups refused": keep.strange if keep else None, "removals of everything acknowledged": keep.emptied if keep else None,
            "slowest recovery s": recoveries[0][0] if recoveries else None, "slowest recovery": recoveries[0][1] if recoveries else None,
            "codes": {f"{name} {code}": count for (name, code), count in sorted(codes.items(), key=str)},
            "problems": self.problems + [wrong for part in watched for wrong in part.wrong] + ([] if report.operations else ["no operations"]),
        }
        self.report, self.late = report, late
        result["good"] = not (report.count or late or result["problems"] or not self.faults)
        return result

    def show(self, result):
        say("")
        for name, value in result.items():
            if name == "problems":
                for problem in value:
                    say(f"  PROBLEM: {problem}")
            elif isinstance(value, dict):
                say(f"  {name}: " + ", ".join(f"{word} {count}" for word, count in value.items()))
            else:
                say(f"  {name}: {value:.1f}" if isinstance(value, float) else f"  {name}: {value}")
        if self.report.count:
            say(str(self.report))
        for excess, o in sorted(self.late, key=lambda item: -item[0])[:20]:
            say(f"  late by {excess:.1f} ms: {checker.describe(o)}, waited {o.noise / 1e6:.1f} ms for a processor")
