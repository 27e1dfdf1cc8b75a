"""Faults: what is done to which process or host, for how long, what it may cost, and who draws them.

    kill         SIGKILL, and started again             restart   SIGTERM, and started again
    stop         all its threads stand still            thread    one of its threads does
    partition    its host hears and is heard by nobody  deaf      nobody hears what its host sends
    slow         2 Mbit/s                               forget    a master is killed, and its state directory is gone (without an election)
    wall         the host's time of day is another one  drift     the host's clocks are up to 5 % too fast or too slow
    suspend      all of the host stands still, and its boot-time clock goes on by up to an hour
    reboot       all of the host is killed; it has another boot id, a boot-time clock that began anew, and perhaps an empty data directory

The last four need hosts with clocks of their own: a laboratory (tests/lab).
"""
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "lab"))  # behind the others: it has a run.py, too

from harm import HeldThread  # noqa: E402

CLIENT_TTL_S = 3.0
JOINED_S = 90.0  # after that a node has not joined, which is reported
STARTED_AGAIN = ("kill", "restart", "forget", "reboot")
SECONDS = (0.05, 0.3, 1.0, 2.0, 5.0)
WALL_S = (-86400.0, -60.0, -1.0, 1.0, 60.0, 86400.0)
SUSPEND_S = (1.0, 10.0, 3600.0)
DRIFT_PPM = (-50_000, -500, 500, 50_000)
MASTER_ACTS = ("mooncake_master", "mc-election")  # its threads without which it is silent


def threads(process):
    """{thread: name} of a process."""
    found = {}
    for task in os.listdir(f"/proc/{process}/task"):
        try:
            with open(f"/proc/{process}/task/{task}/comm", encoding="ascii") as comm:
                found[int(task)] = comm.read().strip()
        except OSError:  # it has just ended
            continue
    return found


@functools.lru_cache(maxsize=None)
def can_hold_threads():
    """ptrace is not allowed everywhere."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        HeldThread(child.pid, task=child.pid).release()
        return True
    except OSError:
        return False
    finally:
        child.kill()
        child.wait()


class Fault:
    """One fault: what, on whom, for how long, and what it may cost.

    On a busy machine it lasts longer than was drawn: a killed process needs a processor to die on, a new one to start on.
    """

    def __init__(self, what, target, seconds, detail="", amount=0):
        self.what, self.target, self.seconds, self.detail = what, target, seconds, detail
        self.amount = amount  # of a clock: seconds, or millionths; of a thread: which; of a reboot: whether the data directory is lost
        self.thread = ""
        self.segment = getattr(target, "segment", None)
        self.lasted = 0.0  # from before the first until after the last of what was done to the target
        self.joining, self.away = None, 0.0  # who waits until the new process has joined; how long it was away then

    def __str__(self):
        longer = f" (in fact {self.lasted:.1f} s)" if self.lasted > self.seconds + 0.5 else ""
        return f"{self.what} {self.target.name}{self.detail} for {self.seconds:.1f} s{longer}"

    def on_host(self):
        """All processes of the target's host."""
        return [process for process in self.target.cluster.processes() if process.host is self.target.host]

    def begin(self, network):
        self.begun = time.monotonic()
        target = self.target
        if self.what in ("kill", "forget"):
            target.kill()
        elif self.what == "restart":
            code = target.terminate(30)
            if code != 0 and not (target.kind == "etcd" and code == -signal.SIGTERM):  # etcd ends by the signal that it was sent
                raise RuntimeError(f"{target.name} ended with {code} after SIGTERM: {target.log.read_text(errors='replace')[-1000:]}")
        elif self.what == "stop":
            target.stop()
        elif self.what == "thread":
            self.hold()
        elif self.what == "partition":
            target.host.partition()
        elif self.what == "slow":
            target.host.slow(2)
        elif self.what == "deaf":
            for other in list(network.hosts.values()):
                if other is not target.host:
                    target.host.deafen(other)
        else:
            getattr(self, "begin_" + self.what)()

    def hold(self):
        found = sorted(threads(self.target.child.pid).items())
        task, self.thread = found[self.amount % len(found)]
        self.detail = f" ({self.thread})"
        self.target.hold(HeldThread(self.target.child.pid, task=task))

    def begin_wall(self):
        self.target.host.clock.step_wall(self.amount)

    def begin_drift(self):
        self.target.host.clock.drift(self.amount)

    def begin_suspend(self):
        for process in self.on_host():
            process.stop()
        self.target.host.clock.sleep(self.amount)

    def begin_reboot(self):
        for process in self.on_host():
            process.kill()
        self.target.host.reboot()
        if self.amount and self.target.kind == "node":
            shutil.rmtree(self.target.data)
            self.target.data.mkdir()

    def undo(self):
        target = self.target
        if self.what in ("kill", "restart"):
            target.start()
        elif self.what == "forget":
            shutil.rmtree(target.state, ignore_errors=True)
            target.start()
        elif self.what == "reboot":
            for process in self.on_host():
                process.start()
        elif self.what == "stop":
            target.go_on()
        elif self.what == "thread":
            target.let_go()
        elif self.what == "suspend":
            for process in self.on_host():
                process.go_on()
        elif self.what == "wall":
            target.host.clock.step_wall(-self.amount / 2)  # nobody sets a clock right to the second
        elif self.what == "drift":
            target.host.clock.drift(0)
        else:
            target.host.heal()
        self.lasted = time.monotonic() - self.begun
        if self.what in STARTED_AGAIN and target.kind == "node" and target.cluster.network.lossy:
            self.joining = threading.Thread(target=self.await_joined, daemon=True)
            self.joining.start()

    def await_joined(self):
        """Looks at the new process alone: what is done meanwhile to others, or waited for, takes its own time."""
        while not self.target.has_joined() and time.monotonic() < self.begun + JOINED_S:
            time.sleep(0.02)
        self.away = time.monotonic() - self.begun

    def settle(self):
        """What the new process itself needed counts against it, except what it waited for a processor. Where packets are lost it is part of the fault
        until it has joined: two of those of its start, each sent again after a second, and it was away for longer than a master waits."""
        if self.what in STARTED_AGAIN:
            for process in self.on_host() if self.what == "reboot" else [self.target]:
                process.wait_ready()
            self.lasted += getattr(self.target, "starved_s", 0.0)
            if self.joining is not None:
                self.joining.join()
                self.lasted = max(self.lasted, self.away)

    def silences(self):
        """Long enough for the master to give the target's memory up. A restart is short, but not on every machine."""
        if self.what in ("wall", "drift"):
            return False
        limit = CLIENT_TTL_S * 0.8 if self.what in STARTED_AGAIN else CLIENT_TTL_S / 2
        slept = self.amount if self.what == "suspend" else 0.0  # the host itself knows that it was away for so long
        return max(self.seconds, self.lasted) + slept > limit

    def empties(self):
        """What the target held in memory is gone, whatever the others do. Of a node with a data directory only that of a reboot."""
        return self.what == "leave" or self.what in STARTED_AGAIN and not getattr(self.target, "warm", False) or self.what == "reboot"


def lost_places(faults, survives, elected):
    """What these faults may cost: (whether everything, names of segments, hosts of which all segments)."""
    everything, segments, hosts = False, set(), set()
    for fault in faults:
        kind = fault.target.kind
        # A leader that is silent is followed by one that takes up everything, and so does a new process, however late. One without an election that
        # is silent goes on, and may have given up all of them.
        silent_master = kind == "master" and fault.what not in STARTED_AGAIN and fault.silences()
        silent_master = silent_master and (fault.what != "thread" or fault.thread in MASTER_ACTS)
        if kind in ("master", "etcd") and (not survives or silent_master and not elected or getattr(fault, "forgot", False)):
            everything = True
        if kind == "node" and (fault.empties() or not survives and fault.what in STARTED_AGAIN or fault.silences()):
            segments.add(fault.segment)
        # A slow host looks silent now and then; a client's own segment is lost with it.
        whole_host = fault.what in ("suspend", "reboot")
        if (kind == "client" or whole_host) and (fault.what in STARTED_AGAIN or fault.silences()):
            hosts.add(fault.target.host.known_as)
    return everything, segments, hosts


class Nemesis:
    ANYWHERE = ("kill", "restart", "stop", "thread")
    NETWORK = ("partition", "slow", "deaf")
    CLOCKS = ("wall", "drift", "suspend", "reboot")

    def __init__(self, cluster, draw, only=()):
        self.cluster, self.draw, self.only = cluster, draw, only

    def targets(self):
        cluster = self.cluster
        return {"master": cluster.masters, "node": cluster.nodes, "client": cluster.clients, **({"etcd": cluster.etcd} if cluster.etcd else {})}

    def whats(self, kind):
        """What can be done to such a process here."""
        network, own_clocks = self.cluster.network.real, getattr(self.cluster.network, "fake_clocks", False)
        found = tuple(what for what in self.ANYWHERE if what != "thread" or can_hold_threads()) + (self.NETWORK if network else ())
        if kind == "etcd":  # its threads and its clock are not ours to judge
            return tuple(what for what in found if what not in ("thread", "restart"))
        if own_clocks:
            found += self.CLOCKS if kind != "client" else self.CLOCKS[:-1]
        if kind == "client":
            return tuple(what for what in found if what != "restart")
        return found + (("forget",) if kind == "master" and not self.cluster.etcd else ())

    def left_out(self):
        """In words: what this machine cannot do."""
        network = self.cluster.network
        left = [] if can_hold_threads() else ["single threads (no ptrace)"]
        left += [] if network.real else ["partitions and slow links (no network namespaces)"]
        left += [] if getattr(network, "fake_clocks", False) else ["clocks, suspend and reboots (they need a laboratory: ./dev lab faults)"]
        return ", ".join(left)

    def amount(self, what):
        if what == "thread":
            return self.draw.randrange(1 << 16)
        if what == "reboot":
            return self.draw.randrange(2)
        return self.draw.choice({"wall": WALL_S, "drift": DRIFT_PPM, "suspend": SUSPEND_S}.get(what, (0,)))

    def one(self, kind, what):
        members = self.targets()[kind]
        target = self.draw.choice(members)
        if kind == "master" and len(members) > 1 and self.draw.random() < 0.75:
            target = self.cluster.serving_master() or target
        amount = self.amount(what)
        detail = {"wall": f" by {amount:+.0f} s", "drift": f" by {amount / 10_000:+.2f} %", "suspend": f" and {amount:.0f} s more",
                  "reboot": " without its data" if amount and kind == "node" else ""}.get(what, "")
        seconds = SECONDS + (9.0,) * (what == "thread")  # so late a leader's loop is given up
        return Fault(what, target, self.draw.choice(seconds), detail, amount)

    def next(self):
        """One fault, sometimes two at once."""
        faults = []
        for _ in range(1 if self.draw.random() < 0.75 else 2):
            kind = self.draw.choice(list(self.targets()))
            what = self.draw.choice(self.whats(kind))
            if self.only and f"{what}:{kind}" not in self.only:
                what, kind = self.draw.choice(self.only).split(":")
                if what not in self.whats(kind):
                    continue
            fault = self.one(kind, what)
            if all(fault.target is not other.target and fault.target.host is not other.target.host for other in faults):
                faults.append(fault)
        return faults
