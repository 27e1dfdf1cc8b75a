"""A cluster of real processes, faults, and a verdict: see run.py for the command.

Cluster starts masters, store nodes, clients and (for more than one master) three etcd members, each on a host of its own (network.py).
Nemesis draws faults and undoes them. Trial lets clients work meanwhile, watches keys that must stay, and judges the histories at the end.
"""
import http.client
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import checker  # noqa: E402
import history  # noqa: E402
import released  # noqa: E402

BUILD = pathlib.Path(os.environ["MC_BUILD"])
THIS = released.Release(BUILD, os.environ["MC_PYTHONPATH"])
SEGMENT = 96 << 20
CLIENT_SEGMENT = 16 << 20
CLIENT_TTL_S = 3.0
CALL_MS = 3000
BYTES_MS = 20  # what the deadline of the largest batch has above that for its bytes: 1 s for 64 MiB
TOLERANCE_MS = 10
RECOVER_S = 20.0  # everything must work again so long after the last fault, whatever it was
EXPRESSION_MS = 60_000  # a removal by expression goes on so much longer: it may have all keys to look at
LATE_S = 60.0     # a failed or killed put takes effect not later than this
YOUNG_S = 4.0     # so long after a failover removals wait, and with one of them a client
START_S = 30.0
JUDGED_AT_ONCE = 4  # keys
READY_LINE_MAX = 1 << 16


class Stopped(Exception):
    """Somebody wants an end, and the verdict on what there is."""


def now():
    return time.monotonic()


def say(text):
    print(text, flush=True)


def wait_for(condition, seconds, what):
    end = now() + seconds
    while True:
        value = condition()
        if value:
            return value
        if now() > end:
            raise TimeoutError(f"{what} did not come within {seconds} s")
        time.sleep(0.02)


def http_get(address, port, path, seconds=2.0):
    connection = http.client.HTTPConnection(address, port, timeout=seconds)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        text = reply.read().decode()
        if reply.status != 200 and path != "/health":  # a standby says that it is one
            raise ConnectionError(f"{path}: {reply.status} {text[:200]}")
        return text
    finally:
        connection.close()


def waited_s(process):
    """How long the thread of that process that waited longest has waited for a processor; 0 when it has ended."""
    worst = 0
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/schedstat", encoding="ascii") as stat:
                worst = max(worst, int(stat.read().split()[1]))
    except OSError:
        pass
    return worst / 1e9


def data_option():
    """The flag that gives a node a data directory, or None where there is none yet."""
    text = subprocess.run([BUILD / "mooncake_bench", "node", "--help"], capture_output=True, text=True).stdout
    return next((option for option in ("--data_dir", "--data-dir", "--data") if f"{option} " in text), None)


class Process:
    """Something that can be killed, stopped and started again. `release` says which build the next start is of."""
    kind = "?"

    def __init__(self, cluster, name, host):
        self.cluster, self.name, self.host = cluster, name, host
        self.release = cluster.release
        self.child = None
        self.log = cluster.folder / f"{name}.log"
        self.stops = []  # [from, to] in monotonic nanoseconds

    def command(self):
        raise NotImplementedError

    def environment(self):
        return {}

    def start(self):
        with open(self.log, "ab") as log:
            self.child = self.host.popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         env={**os.environ, "MC_PYTHONPATH": str(self.release.python_path), **self.cluster.environment,
                                              **self.environment()})
        return self

    def wait_ready(self):
        pass

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def signal(self, number):
        if self.alive():
            self.child.send_signal(number)

    def stop(self):
        self.stops.append([time.monotonic_ns(), None])
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)
        if self.stops and self.stops[-1][1] is None:
            self.stops[-1][1] = time.monotonic_ns()

    def kill(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.go_on()

    def terminate(self, seconds=10):
        """SIGTERM; the exit code, or None when it had to be killed."""
        if self.child is None:
            return None
        self.go_on()
        self.signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


class Etcd(Process):
    kind = "etcd"

    def command(self):
        members = ",".join(f"{member.name}=http://{member.host.address}:{member.peer_port}" for member in self.cluster.etcd)
        url, peer = f"http://{self.host.address}:{self.port}", f"http://{self.host.address}:{self.peer_port}"
        return ["etcd", "--name", self.name, "--data-dir", self.cluster.folder / f"{self.name}.data", "--listen-client-urls", url,
                "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", members,
                "--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap", "--log-level", "warn", "--unsafe-no-fsync"]

    def __init__(self, cluster, name, host):
        super().__init__(cluster, name, host)
        self.port, self.peer_port = cluster.port(2379), cluster.port(2380)

    def wait_ready(self):
        def healthy():
            try:
                return "true" in http_get(self.host.address, self.port, "/health")
            except OSError:
                return False
        wait_for(healthy, START_S, f"health of {self.name}")


class Master(Process):
    kind = "master"

    def __init__(self, cluster, name, host):
        super().__init__(cluster, name, host)
        self.port, self.metrics_port = cluster.port(50051), cluster.port(9003)

    def command(self):
        words = [self.release.build / "mooncake_master", f"--rpc_address={self.host.address}", f"--rpc_port={self.port}",
                 f"--metrics_host={self.host.address}", f"--metrics_port={self.metrics_port}", f"--client_ttl={int(CLIENT_TTL_S * 1000)}ms",
                 "--default_kv_lease_ttl=300ms", "--put_start_discard_timeout_sec=5s"]
        if self.cluster.etcd:
            words += ["--enable_ha=true", f"--etcd_endpoints={self.cluster.etcd_endpoints(';')}"]
        return words + self.cluster.master_flags

    def accepts(self):
        try:
            http_get(self.host.address, self.metrics_port, "/health")
            return True
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self):
        wait_for(self.accepts, START_S, f"admin port of {self.name}")

    def metrics(self):
        lines = [line.rsplit(" ", 1) for line in http_get(self.host.address, self.metrics_port, "/metrics").splitlines() if line[:1] != "#"]
        return {name: float(value) for name, value in lines}


class Node(Process):
    kind = "node"

    def __init__(self, cluster, name, host, warm):
        super().__init__(cluster, name, host)
        self.warm = warm
        self.data = cluster.data / name
        self.data.mkdir()
        self.segment = None

    def command(self):
        words = [self.release.build / "mooncake_bench", "node", "--master", self.cluster.master_address, "--segment", SEGMENT, "--host", self.host.known_as]
        if self.warm and self.cluster.data_option:
            words += [self.cluster.data_option, self.data]
        return words

    def environment(self):
        return {"MC_DATA_DIR": str(self.data)} if self.warm else {}

    def start(self):
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        return super().start()

    def wait_ready(self):
        def ready():
            found = re.search(r"node ready (\S+)", self.log.read_bytes()[self.mark:].decode(errors="replace"))
            return found and found.group(1)
        self.segment = wait_for(ready, START_S, f"'node ready' of {self.name}")
        self.starved_s = waited_s(self.child.pid)


def instrumented():
    """Of a worker: Python is not built with the sanitizer that our libraries may be built with, so its runtime goes in first."""
    preload = os.environ.get("MC_FAULT_PRELOAD")
    return {"LD_PRELOAD": preload} if preload else {}


class Client(Process):
    """A load worker. Every incarnation is a client of its own in the history."""
    kind = "client"

    def __init__(self, cluster, name, host, segment=0):
        super().__init__(cluster, name, host)
        self.segment_bytes = segment
        self.incarnations = []  # [number, history file, stops, time of death or None]

    def command(self):
        number = self.cluster.next_client()
        path = self.cluster.folder / f"history-{number}"
        self.stops = []
        self.incarnations.append([number, path, self.stops, None])
        return [sys.executable, "-B", HERE / "worker.py", "load", "--master", self.cluster.master_address, "--host", self.host.known_as,
                "--client", number, "--seed", f"{self.cluster.seed}-{number}", "--keys", self.cluster.keys, "--segment", self.segment_bytes,
                "--rate", self.cluster.rate, "--slow_ms", CALL_MS, "--history", path,
                *(["--ranges"] if self.release is THIS else [])]  # the last release mixes values in them

    def environment(self):
        return instrumented()

    def ended(self):
        if self.incarnations:
            self.incarnations[-1][3] = time.monotonic_ns()

    def kill(self):
        super().kill()
        self.ended()

    def terminate(self, seconds=10):
        code = super().terminate(seconds)
        self.ended()
        return code


class Keeper(Process):
    """The client that watches the keys that must stay; not a target of faults."""
    kind = "keeper"

    def command(self):
        return [sys.executable, "-B", HERE / "worker.py", "keeper", "--master", self.cluster.master_address, "--host", self.host.known_as]

    def start(self):
        with open(self.log, "ab") as log:
            self.child = self.host.popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                         env={**os.environ, "MC_PYTHONPATH": str(self.release.python_path), **self.cluster.environment,
                                              **instrumented()})
        return self

    def _line(self, seconds):
        end = now() + seconds
        while True:
            if not select.select([self.child.stdout], [], [], max(end - now(), 0))[0]:
                raise TimeoutError(f"the keeper did not answer within {seconds} s")
            line = self.child.stdout.readline()
            if not line:
                raise RuntimeError(f"the keeper has ended: {self.log.read_text(errors='replace')[-2000:]}")
            if line.startswith(b"{"):
                return json.loads(line)

    def wait_ready(self):
        self._line(START_S)

    def ask(self, command, argument, seconds=120.0):
        self.child.stdin.write(json.dumps({command: argument}).encode() + b"\n")
        self.child.stdin.flush()
        return self._line(seconds)


class Noise:
    """How long this machine lets a process wait that only wants to wake: one sleeper on each core, the worst of every tenth of a second."""

    SCRIPT = ("import os,sys,time\nos.sched_setaffinity(0,{int(sys.argv[1])})\nworst=0;mark=time.monotonic_ns()\n"
              "while True:\n a=time.monotonic_ns();time.sleep(.001);b=time.monotonic_ns();worst=max(worst,b-a-1000000)\n"
              " if b-mark>100000000:print(mark,worst,flush=True);mark=b;worst=0\n")

    def __init__(self, folder):
        self.files, self.children = [], []
        for core in sorted(os.sched_getaffinity(0))[:4]:
            path = folder / f"noise-{core}"
            self.files.append(path)
            with open(path, "wb") as out:
                self.children.append(subprocess.Popen([sys.executable, "-c", self.SCRIPT, str(core)], stdout=out, stdin=subprocess.DEVNULL))

    def end(self):
        for child in self.children:
            child.kill()
            child.wait()
        self.samples = sorted(tuple(map(int, line.split())) for path in self.files for line in path.read_text().splitlines() if line.count(" ") == 1)

    def worst(self, first=0, last=1 << 63):
        return max((late for at, late in self.samples if at + 100_000_000 >= first and at <= last), default=0)


class Cluster:
    release = THIS  # of what is started from now on

    def __init__(self, network, seed=1, masters=1, nodes=3, clients=3, warm=True, keys=16, rate=1000.0, master_flags=(), environment=None,
                 release=THIS):
        self.release = release
        self.network, self.seed, self.keys, self.rate = network, seed, keys, rate
        self.master_flags = list(master_flags)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-faults-"))
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="mc-faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.environment = {"MC_RPC_TIMEOUT_MS": str(CALL_MS), "MC_LOG_LEVEL": "INFO", **(environment or {})}
        self.clients_made = 0
        self.used_ports = set()
        self.data_option = data_option()
        self.etcd = []
        if masters > 1:
            self.etcd += [Etcd(self, f"etcd{i}", network.host(f"etcd{i}")) for i in range(3)]
        self.masters = [Master(self, f"master{i}", network.host(f"master{i}")) for i in range(masters)]
        # The first node and the first client share a host, and so memory; the others are reached by TCP.
        self.nodes = [Node(self, f"node{i}", network.host(f"host{i}"), warm) for i in range(nodes)]
        self.clients = [Client(self, f"client{i}", network.host("host0" if i == 0 else f"client{i}"), CLIENT_SEGMENT if i == 1 else 0)
                        for i in range(clients)]
        self.keeper = Keeper(self, "keeper", network.host("keeper"))

    def port(self, wanted):
        """Hosts of our own have all ports free; without them the kernel must choose."""
        if self.network.real:
            return wanted
        import socket
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            if port not in self.used_ports:
                self.used_ports.add(port)
                return port

    def next_client(self):
        self.clients_made += 1
        return self.clients_made

    def etcd_endpoints(self, separator):
        return separator.join(f"{member.host.known_as}:{member.port}" for member in self.etcd)

    @property
    def master_address(self):
        if self.etcd:
            return "etcd://" + self.etcd_endpoints(",")
        return f"{self.masters[0].host.known_as}:{self.masters[0].port}"

    def processes(self):
        return self.etcd + self.masters + self.nodes + self.clients + [self.keeper]

    def start(self, load=True):
        groups = [self.etcd, self.masters, self.nodes, [self.keeper]] + ([self.clients] if load else [])
        for group in groups:
            for process in group:
                process.start()
            for process in group:
                process.wait_ready()
        wait_for(self.serves, START_S, "a serving master with all segments")
        return self

    def serving_master(self):
        """The one with segments, or None."""
        best = None
        for master in self.masters:
            if not master.alive():
                continue
            try:
                count = len(http_get(master.host.address, master.metrics_port, "/get_all_segments", 0.5).split())
            except (OSError, http.client.HTTPException):
                continue
            if count > 0 and (best is None or count > best[1]):
                best = (master, count)
        return best and best[0]

    def serves(self):
        master = self.serving_master()
        if master is None:
            return False
        try:
            found = http_get(master.host.address, master.metrics_port, "/get_all_segments", 1.0).split()
        except (OSError, http.client.HTTPException):
            return False
        return all(node.segment in found for node in self.nodes)

    def end(self):
        for process in reversed(self.processes()):
            process.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def forget(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Fault:
    """One fault: what, on whom, for how long, and what it may cost.

    On a busy machine it lasts longer than was drawn: a killed process needs a processor to die on, a new one to start on.
    """

    def __init__(self, what, target, seconds, detail=""):
        self.what, self.target, self.seconds, self.detail = what, target, seconds, detail
        self.lasted = 0.0  # from before the first until after the last of what was done to the target

    def __str__(self):
        longer = f" (in fact {self.lasted:.1f} s)" if self.lasted > self.seconds + 0.5 else ""
        return f"{self.what} {self.target.name}{self.detail} for {self.seconds:.1f} s{longer}"

    def begin(self, network):
        self.begun = now()
        target = self.target
        if self.what == "kill":
            target.kill()
        elif self.what == "restart":
            code = target.terminate(30)
            if code != 0 and not (target.kind == "etcd" and code == -signal.SIGTERM):  # etcd ends by the signal that it was sent
                raise RuntimeError(f"{target.name} ended with {code} after SIGTERM: {target.log.read_text(errors='replace')[-1000:]}")
        elif self.what == "stop":
            target.stop()
        elif self.what == "partition":
            target.host.partition()
        elif self.what == "slow":
            target.host.slow(2)
        elif self.what == "deaf":
            for other in list(network.hosts.values()):
                if other is not target.host:
                    target.host.deafen(other)

    def undo(self):
        target = self.target
        if self.what in ("kill", "restart"):
            target.start()
        elif self.what == "stop":
            target.go_on()
        else:
            target.host.heal()
        self.lasted = now() - self.begun

    def settle(self):
        """What the new process itself needed counts against it, except what it waited for a processor."""
        if self.what in ("kill", "restart"):
            self.target.wait_ready()
            self.lasted += getattr(self.target, "starved_s", 0.0)

    def silences(self):
        """Long enough for the master to give the target's memory up. A restart is short, but not on every machine."""
        limit = CLIENT_TTL_S * 0.8 if self.what in ("kill", "restart") else CLIENT_TTL_S / 2
        return self.what in ("kill", "restart", "stop", "partition", "slow", "deaf") and max(self.seconds, self.lasted) > limit


class Nemesis:
    WHATS = ("kill", "stop", "partition", "slow", "deaf")

    def __init__(self, cluster, draw, only=()):
        self.cluster, self.draw, self.only = cluster, draw, only

    def targets(self):
        cluster = self.cluster
        return [("master", cluster.masters), ("node", cluster.nodes), ("client", cluster.clients)] + ([("etcd", cluster.etcd)] if cluster.etcd else [])

    def next(self):
        """One fault, sometimes two at once."""
        faults = []
        for _ in range(1 if self.draw.random() < 0.75 else 2):
            kind, members = self.draw.choice(self.targets())
            what = self.draw.choice(self.WHATS if self.cluster.network.real else self.WHATS[:2])
            if self.only and f"{what}:{kind}" not in self.only:
                what, kind = self.draw.choice(self.only).split(":")
                members = dict(self.targets()).get(kind)
                if not members or what in self.WHATS[2:] and not self.cluster.network.real:
                    continue
            target = self.draw.choice(members)
            if kind == "master" and len(members) > 1 and self.draw.random() < 0.75:
                target = self.cluster.serving_master() or target
            if all(target is not fault.target and target.host is not fault.target.host for fault in faults):
                faults.append(Fault(what, target, self.draw.choice((0.05, 0.3, 1.0, 2.0, 5.0))))
        return faults


class Keep:
    """The keys that stay: put once, looked at after every fault."""

    COUNT = 60

    def __init__(self, cluster, survives):
        self.cluster, self.survives = cluster, survives
        self.values = {}  # key -> (value, replicas)
        self.where = {}
        self.next_value = 1
        self.lost = Counter()
        self.wrong = []
        self.put_missing()

    def put_missing(self):
        keys = [key for key in range(self.COUNT) if key not in self.values]
        end = now() + RECOVER_S
        while keys:
            items = []
            for key in keys:
                items.append([key, self.next_value, 1 + key % 2])
                self.next_value += 1
            # A failed put may still take effect: the key is emptied first, so that what is there is what we put.
            self.cluster.keeper.ask("remove", keys)
            codes = self.cluster.keeper.ask("put", items)["codes"]
            for item, code in zip(items, codes):
                if code == 0:
                    self.values[item[0]] = item[1]
            keys = [item[0] for item, code in zip(items, codes) if code != 0]
            if keys and now() > end:
                raise TimeoutError(f"puts fail {RECOVER_S} s after the last fault: {sorted(set(codes))}")
            time.sleep(0.05 if keys else 0)
        keys = sorted(self.values)
        self.where = dict(zip(keys, self.cluster.keeper.ask("where", keys)["where"]))

    def may_lose(self, key, faults):
        """Whether these faults may cost the key: all of its replicas lay where memory was lost, or may have been given up."""
        gone = set()
        for fault in faults:
            kind = fault.target.kind
            # A leader that is silent is followed by one that takes up everything. One without an election goes on, and may have given up all of them.
            if kind in ("master", "etcd") and (not self.survives or fault.silences() and kind == "master" and not self.cluster.etcd):
                return True
            if kind == "node" and (fault.what == "leave" or fault.what in ("kill", "restart") and not (self.survives and fault.target.warm) or fault.silences()):
                gone.add(fault.segment)
            # A slow host looks silent now and then; a client's own segment is lost with it.
            if kind == "client" and (fault.what in ("kill", "restart") or fault.silences()):
                gone |= {name for name in self.where[key] if name.startswith(fault.target.host.known_as + ":")}
        return all(name in gone for name in self.where[key])

    def check(self, faults):
        """Until all keys are there, or RECOVER_S is over. Returns (seconds until no key was missing that must be there, lawfully lost)."""
        start, keys = now(), sorted(self.values)
        must = [key for key in keys if not self.may_lose(key, faults)]
        may = [key for key in keys if key not in set(must)]
        missing = must
        while missing:
            found = self.cluster.keeper.ask("look", missing)["found"]
            self.judge(missing, found)
            missing = [key for key, value in zip(missing, found) if value != self.values[key]]
            if missing and now() - start > RECOVER_S:
                break
            time.sleep(0.05 if missing else 0)
        took = now() - start
        if missing:
            self.lost["unlawful"] += len(missing)
            places = "; ".join(f"{key} at {' '.join(self.where[key])}" for key in missing[:10])
            self.wrong.append(f"lost {len(missing)} kept keys after {', '.join(map(str, faults))}: {places}")
        time.sleep(0.5 if may else 0)
        found = self.cluster.keeper.ask("look", may)["found"]
        end = now() + RECOVER_S
        while any(value < 0 and value != history.WRONG_BYTES for value in found) and now() < end:  # no answer is no loss
            time.sleep(0.05)
            found = self.cluster.keeper.ask("look", may)["found"]
        self.judge(may, found)
        gone = [key for key, value in zip(may, found) if value != self.values[key]]
        self.lost["lawful"] += len(gone)
        for key in gone + missing:
            del self.values[key]
        self.put_missing()
        return took, len(gone)

    def judge(self, keys, found):
        for key, value in zip(keys, found):
            if value > 0 and value != self.values[key] or value == history.WRONG_BYTES:
                self.wrong.append(f"kept key {key} has value {value}, not {self.values[key]}")


class Trial:
    """Clients, faults and the verdict."""

    def __init__(self, cluster, minutes, survives, only=(), quiet=False, upgrade=None):
        self.upgrade = upgrade  # of a rolling restart: what everything is of after it; None: nothing changes
        self.cluster, self.minutes, self.survives, self.quiet = cluster, minutes, survives, quiet
        self.draw = random.Random(f"nemesis-{cluster.seed}")
        self.nemesis = Nemesis(cluster, self.draw, only)
        self.faults = Counter()
        self.problems = []
        self.recoveries = []
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

    def rolling(self, keep):
        """Every process in turn is told to end and started again; then a node more joins, and one leaves."""
        cluster = self.cluster
        cluster.release = self.upgrade or cluster.release
        for process in cluster.etcd + cluster.masters + cluster.nodes + cluster.clients:
            time.sleep(0.3)
            process.release = cluster.release
            self.round(keep, [Fault("restart", process, 0.2)])
        more = Node(cluster, "joins", cluster.network.host("joins"), True)
        cluster.nodes.append(more)
        more.start().wait_ready()
        wait_for(cluster.serves, RECOVER_S, "the node that joins")
        self.say("a node has joined")
        time.sleep(1)
        leaves = cluster.nodes.pop(0)
        fault = Fault("leave", leaves, 0.0)
        fault.segment = leaves.segment
        if leaves.terminate(30) != 0:
            self.problems.append("the node that leaves did not end well")
        self.faults["leave node"] += 1
        keep.check([fault])
        self.say("a node has left")

    def round(self, keep, faults=None):
        faults = self.nemesis.next() if faults is None else faults
        for fault in faults:
            fault.segment = getattr(fault.target, "segment", None)
            self.faults[f"{fault.what} {fault.target.kind}"] += 1
            fault.begin(self.cluster.network)
        begun = now()
        for fault in sorted(faults, key=lambda fault: fault.seconds):
            time.sleep(max(fault.seconds - (now() - begun), 0))
            fault.undo()
        healed = now()
        try:
            for fault in faults:
                fault.settle()
            wait_for(self.cluster.serves, RECOVER_S, "a master with all segments")
            _, gone = keep.check(faults)
        except TimeoutError as error:
            self.problems.append(f"{', '.join(map(str, faults))}: {error}")
            self.say(f"PROBLEM {self.problems[-1]}")
            return
        took = now() - healed
        self.recoveries.append((took, ", ".join(map(str, faults))))
        self.say(f"{', '.join(map(str, faults))}; all well after {took:.2f} s" + (f", {gone} kept keys lost" if gone else ""))

    def run(self):
        self.started = now()
        noise = Noise(self.cluster.folder)
        try:
            self.cluster.start()
            keep = Keep(self.cluster, self.survives)
            end = now() + self.minutes * 60
            if self.minutes == 0:
                self.rolling(keep)
            while now() < end and len(self.problems) < 5:
                time.sleep(self.draw.random() * 0.8)
                self.round(keep)
                self.check_alive()
            self.finale(keep)
        except Stopped:
            self.say("told to stop: judging what there is")
            self.cluster.network.heal()
        except (TimeoutError, RuntimeError, OSError) as error:
            self.problems.append(str(error))
        finally:
            self.ending = True
            noise.end()
            for client in self.cluster.clients:
                if client.alive():
                    code = client.terminate()
                    if code != 0:
                        self.problems.append(f"{client.name} ended with {code}: {client.log.read_text(errors='replace')[-500:]}")
            self.cluster.end()
        return self.verdict(noise, keep if "keep" in locals() else None)

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

    def judge(self, files, died):
        """A few keys at a time: the operations of an hour would not fit into memory at once, and keys have nothing to do with each other."""
        whole = checker.Report()
        for first in range(0, self.cluster.keys, JUDGED_AT_ONCE):
            keys = range(first, first + JUDGED_AT_ONCE)
            own = (o for number, path, _, _ in files for o in history.records(path, number, keys))
            whole.take(checker.check(own, absent_removes_prove=self.absent_removes_prove, late_ns=int(LATE_S * 1e9), died=died))
        return whole

    def verdict(self, noise, keep):
        late, codes, slowest, unended = [], Counter(), 0.0, 0
        files = [incarnation for client in self.cluster.clients for incarnation in client.incarnations if incarnation[1].exists()]
        died = {number: death for number, _, _, death in files if death is not None}
        for number, path, stops, _ in files:
            late += self.overdue(history.records(path, number), stops, noise)
            for o in history.records(path, number):
                if o.returned is None:
                    unended += 1
                    continue
                codes[history.NAMES[o.operation], o.code if o.code < 0 else "ok"] += 1
                slowest = slowest if stops else max(slowest, (o.returned - o.invoked) / 1e6)
        report = self.judge(files, died)
        recoveries = sorted(self.recoveries, reverse=True)
        result = {
            "seed": self.cluster.seed, "minutes": self.minutes, "operations": report.operations, "clients": self.cluster.clients_made,
            "unended": unended, "stopped early": self.stopped,
            "faults": dict(self.faults), "fault count": sum(self.faults.values()),
            "violations": report.count, "late calls": len(late), "slowest call ms": slowest, "worst wait of a sleeper ms": noise.worst() / 1e6,
            "kept keys lost": keep.lost["unlawful"] if keep else None, "kept keys lost, allowed": keep.lost["lawful"] if keep else None,
            "slowest recovery s": recoveries[0][0] if recoveries else None, "slowest recovery": recoveries[0][1] if recoveries else None,
            "codes": {f"{name} {code}": count for (name, code), count in sorted(codes.items(), key=str)},
            "problems": self.problems + (keep.wrong if keep else []) + ([] if report.operations else ["no operations"]),
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
