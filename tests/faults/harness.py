"""A cluster of real processes, which can be harmed: masters, store nodes, clients and (for more than one master) members of etcd, each on a host of
its own (network.py). What harms them is in nemesis.py, what must stay in keep.py, the course of a run and its verdict in trial.py.
"""
import functools
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import released  # noqa: E402
from nemesis import CLIENT_TTL_S  # noqa: E402
from ports import free_port  # noqa: E402

BUILD = pathlib.Path(os.environ["MC_BUILD"])
THIS = released.Release(BUILD, os.environ["MC_PYTHONPATH"])
SEGMENT = 24 << 20
CLIENT_SEGMENT = 8 << 20
SMALL_DISK = 256 << 20  # of a node: as the crowd; what it holds gives way to what is put later
LARGE_DISK = 512 << 20  # for each minute: more than is written to it
CROWD = 1500  # keys beside the others, of which the larger part has no room
CALL_MS = 3000
START_S = 30.0
NO_MASTER = "cannot join the master"  # what a node says that ends because it has waited for one in vain


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
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:
        return 0
    for task in tasks:
        try:
            with open(f"/proc/{process}/task/{task}/schedstat", encoding="ascii") as stat:
                worst = max(worst, int(stat.read().split()[1]))
        except OSError:  # it has just ended
            continue
    return worst / 1e9


def data_option():
    """The flag that gives a node a data directory, or None where there is none yet."""
    text = subprocess.run([BUILD / "mooncake_bench", "node", "--help"], capture_output=True, text=True).stdout
    return next((option for option in ("--data_dir", "--data-dir", "--data") if f"{option} " in text), None)


@functools.lru_cache(maxsize=None)
def master_knows(release, option):
    return f"--{option} " in subprocess.run([release.build / "mooncake_master", "--help"], capture_output=True, text=True).stdout


class Process:
    """Something that can be killed, stopped and started again. `release` says which build the next start is of."""
    kind = "?"

    def __init__(self, cluster, name, host):
        self.cluster, self.name, self.host = cluster, name, host
        self.release = cluster.release
        self.child = None
        self.log = cluster.folder / f"{name}.log"
        self.stops = []  # [from, to] in monotonic nanoseconds
        self.held = None  # one of its threads

    def command(self):
        raise NotImplementedError

    def environment(self):
        return {}

    def start(self, stdin=subprocess.DEVNULL, stdout=None):
        environment = {**os.environ, "MC_PYTHONPATH": str(self.release.python_path), **self.cluster.environment}
        for more in (self.environment(), self.host.environment()):
            both = [words["LD_PRELOAD"] for words in (environment, more) if words.get("LD_PRELOAD")]
            environment |= more
            if both:
                environment["LD_PRELOAD"] = ":".join(both)
        with open(self.log, "ab") as log:
            self.child = self.host.popen(self.command(), stdin=stdin, stdout=stdout or log, stderr=log, env=environment)
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

    def hold(self, thread):
        self.stops.append([time.monotonic_ns(), None])
        self.held = thread

    def let_go(self):
        if self.held is not None:
            self.held.release()
            self.held = None
            self.go_on()

    def kill(self):
        if self.child is not None:
            self.let_go()
            self.child.kill()
            self.child.wait()
            self.go_on()

    def terminate(self, seconds=10):
        """SIGTERM; the exit code, or None when it had to be killed."""
        if self.child is None:
            return None
        self.let_go()
        self.go_on()
        self.signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def next_answer(self, seconds):
        """The next line of JSON from a child that was started with pipes."""
        end = now() + seconds
        while True:
            if not select.select([self.child.stdout], [], [], max(end - now(), 0))[0]:
                raise TimeoutError(f"{self.name} did not answer within {seconds} s")
            line = self.child.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name} has ended: {self.log.read_text(errors='replace')[-2000:]}")
            if line.startswith(b"{"):
                return json.loads(line)


class Way(Process):
    """To a member of etcd: way.py."""
    kind = "way"

    def __init__(self, cluster, member):
        super().__init__(cluster, f"way-{member.name}", member.host)
        self.member = member

    def command(self):
        return [sys.executable, "-B", HERE / "way.py", self.host.address, self.member.port, self.member.own_port]

    def start(self):
        return super().start(stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait_ready(self):
        if not select.select([self.child.stdout], [], [], START_S)[0] or self.child.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.name} does not begin: {self.log.read_text(errors='replace')[-1000:]}")

    def set(self, state):
        self.child.stdin.write(json.dumps(state).encode() + b"\n")
        self.child.stdin.flush()


class Etcd(Process):
    kind = "etcd"

    def command(self):
        url = f"http://{self.host.address}:{self.own_port}"
        return ["etcd", "--name", self.name, "--data-dir", self.data, "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url, "--initial-cluster", self.all_peers(),
                "--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap", "--log-level", "warn", "--unsafe-no-fsync",
                *self.cluster.etcd_flags]

    def __init__(self, cluster, name, host):
        super().__init__(cluster, name, host)
        self.port, self.peer_port = cluster.port(2379), cluster.port(2380)
        self.data, self.peer_url = cluster.folder / f"{name}.data", f"http://{host.address}:{self.peer_port}"
        self.own_port, self.way = self.port, None

    def behind_a_way(self):
        self.own_port = self.cluster.port(12379)
        self.way = Way(self.cluster, self)
        return self.way

    def all_peers(self):
        return ",".join(f"{member.name}={member.peer_url}" for member in self.cluster.etcd)

    def wait_ready(self):
        def healthy():
            try:
                return "true" in http_get(self.host.address, self.own_port, "/health")
            except OSError:
                return False
        wait_for(healthy, START_S, f"health of {self.name}")


class Master(Process):
    kind = "master"

    def __init__(self, cluster, name, host):
        super().__init__(cluster, name, host)
        self.port, self.metrics_port = cluster.port(50051), cluster.port(9003)
        self.state = cluster.folder / f"{name}.state"

    def command(self):
        words = [self.release.build / "mooncake_master", f"--rpc_address={self.host.address}", f"--rpc_port={self.port}",
                 f"--metrics_host={self.host.address}", f"--metrics_port={self.metrics_port}", f"--client_ttl={int(CLIENT_TTL_S * 1000)}ms",
                 "--default_kv_lease_ttl=300ms", "--put_start_discard_timeout_sec=5s"]
        if self.cluster.etcd:
            words += ["--enable_ha=true", f"--etcd_endpoints={self.cluster.etcd_endpoints(';')}"]
        elif master_knows(self.release, "state_dir"):
            words += [f"--state_dir={self.state}"]
        if self.cluster.disks:
            words += ["--enable_offload=true"]
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
        self.data, self.disk = cluster.data / name, cluster.folder / f"{name}.disk"
        self.data.mkdir()
        self.disk.mkdir()
        self.segment = None

    def command(self):
        words = [self.release.build / "mooncake_bench", "node", "--master", self.cluster.master_address, "--segment", SEGMENT, "--host", self.host.known_as]
        if self.warm and self.cluster.data_option:
            words += [self.cluster.data_option, self.data]
        if self.cluster.disks:
            words += ["--disk", self.disk, "--disk_bytes", self.cluster.disks]
        return words

    def environment(self):
        return {"MC_DATA_DIR": str(self.data)} if self.warm else {}

    def start(self):
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        return super().start()

    def said(self):
        return self.log.read_bytes()[self.mark:].decode(errors="replace")

    def has_joined(self):
        """Its segment's name once a master has mounted it."""
        found = re.search(r"node ready (\S+)", self.said())
        return found and found.group(1)

    def wait_ready(self):
        def ready():
            if not self.alive():
                if NO_MASTER not in self.said():
                    raise RuntimeError(f"{self.name} has ended with {self.child.returncode}: {self.said()[-1000:]}")
                self.start()  # as who runs it would
            return self.has_joined()
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
                "--rate", self.cluster.rate, "--slow_ms", CALL_MS, "--history", path, "--crowd", self.cluster.crowd,
                *(["--crowded"] if self.cluster.crowded else []),
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
    """A client that does what it is told, tell() and then hear(), or ask() for both; not a target of faults."""
    kind = "keeper"
    owed = 0  # answers that nobody has heard

    def command(self):
        self.history = self.cluster.folder / f"history-{self.name}"
        return [sys.executable, "-B", HERE / "worker.py", "keeper", "--master", self.cluster.master_address, "--host", self.host.known_as,
                "--history", self.history]

    def environment(self):
        return instrumented()

    def start(self):
        return super().start(stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def hear(self, seconds=120.0):
        answer = self.next_answer(seconds)
        self.owed -= 1
        return answer

    def wait_ready(self):
        self.owed = 1
        self.hear(START_S)

    def tell(self, command, argument):
        """An answer to what was told before, which nobody wants any more, is not taken for that of this."""
        while self.owed:
            self.hear()
        self.owed = 1
        self.child.stdin.write(json.dumps({command: argument}).encode() + b"\n")
        self.child.stdin.flush()

    def ask(self, command, argument, seconds=120.0):
        self.tell(command, argument)
        return self.hear(seconds)


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

    def words(self):
        """How it was, of all tenths of a second of every core: a delay below these is none of the product's."""
        late = sorted(late for _, late in self.samples)
        if not late:
            return "not known"
        return (f"in half of the tenths of a second at most {late[len(late) // 2] / 1e6:.1f} ms, in 99 % {late[len(late) * 99 // 100] / 1e6:.1f} ms, "
                f"never above {late[-1] / 1e6:.1f} ms")


class Cluster:
    release = THIS  # of what is started from now on
    crowded = False  # so are its clients: they use the crowd of keys that has no room in the pool

    def __init__(self, network, seed=1, masters=1, nodes=3, clients=3, warm=True, keys=16, rate=1000.0, master_flags=(), environment=None,
                 release=THIS, crowd=CROWD, members=3, etcd_flags=None, disks=0):
        """members: of etcd, for several masters; etcd_flags: there is trouble with it, and these are its flags. disks: each node has one of so many bytes."""
        self.disks, self.disks_keep = disks, disks > SMALL_DISK  # what they have, until it is removed
        self.release = release
        self.network, self.seed, self.keys, self.crowd, self.rate = network, seed, keys, crowd, rate
        self.master_flags = list(master_flags)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-faults-"))
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="mc-faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.environment = {"MC_RPC_TIMEOUT_MS": str(CALL_MS), "MC_LOG_LEVEL": "INFO", **(environment or {})}
        self.clients_made = 0
        self.used_ports = set()
        self.data_option = data_option()
        self.etcd, self.ways, self.etcd_flags = [], [], etcd_flags or []
        if masters > 1:
            self.etcd += [Etcd(self, f"etcd{i}", network.host(f"etcd{i}")) for i in range(members)]
        if etcd_flags is not None:
            self.ways += [member.behind_a_way() for member in self.etcd]
        self.masters = [Master(self, f"master{i}", network.host(f"master{i}")) for i in range(masters)]
        # The first node and the first client share a host, and so memory; the others are reached by TCP.
        self.nodes = [Node(self, f"node{i}", network.host(f"host{i}"), warm) for i in range(nodes)]
        self.clients = [Client(self, f"client{i}", network.host("host0" if i == 0 else f"client{i}"), CLIENT_SEGMENT if i == 1 else 0)
                        for i in range(clients)]
        self.keeper, self.witness = (Keeper(self, name, network.host(name)) for name in ("keeper", "witness"))

    def port(self, wanted):
        """Hosts of our own have all ports free; without them it is one that nobody has."""
        if self.network.real:
            return wanted
        while True:
            port = free_port()
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
        return self.ways + self.etcd + self.masters + self.nodes + self.clients + [self.keeper, self.witness]

    def start(self, load=True):
        groups = [self.ways, self.etcd, self.masters, self.nodes, [self.keeper, self.witness]] + ([self.clients] if load else [])
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

    def begin_crowd(self):
        self.crowded = True
        for client in self.clients:
            client.signal(signal.SIGUSR1)

    def end(self):
        for process in reversed(self.processes()):
            process.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def forget(self):
        shutil.rmtree(self.folder, ignore_errors=True)
