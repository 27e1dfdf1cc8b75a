"""A cluster on the hosts of a laboratory, each process on a host of its own: masters (and etcd), store nodes, clients that get and put (load.py).

The processes that are the product's are those of tests/faults/harness.py. The original (bench/contestants) takes their place for a comparison.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import places  # noqa: E402

places.use("lab", "faults", "system")
import harness  # noqa: E402
from harness import START_S, http_get, now, wait_for  # noqa: E402

ANSWER_S = 120.0
LEASE_MS = 5000


class Side:
    """What is measured: this tree."""
    name = "ours"
    python = sys.executable
    environment = {"MC_LOG_LEVEL": "INFO"}
    hides = True  # its master says which segments it offers

    def master_command(self, master):
        return [harness.BUILD / "mooncake_master", f"--rpc_address={master.host.address}", f"--rpc_port={master.port}",
                f"--metrics_host={master.host.address}", f"--metrics_port={master.metrics_port}", f"--default_kv_lease_ttl={LEASE_MS}ms"]

    def node_command(self, node):
        words = [harness.BUILD / "mooncake_bench", "node", "--master", node.cluster.master_address, "--segment", node.segment_bytes,
                 "--host", node.host.known_as]
        return words + (["--data_dir", node.data] if node.warm else [])


class Original:
    """The original from PyPI, of one version for all comparisons (bench/contestants/original.py)."""
    name = "original"
    environment = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "1", "MC_STORE_CLIENT_METRIC": "0", "MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_PYTHONPATH": ""}
    hides = False

    def __init__(self, cache=places.ROOT / ".cache"):
        sys.path.insert(0, str(places.ROOT / "bench"))
        from contestants.original import Original as Wheel
        wheel = Wheel()
        wheel.prepare(pathlib.Path(cache))
        self.python, self.program = wheel.python, wheel.master

    def master_command(self, master):
        return [self.program, f"--rpc_address={master.host.address}", f"--rpc_port={master.port}", f"--metrics_port={master.metrics_port}"]

    def node_command(self, node):
        return [self.python, "-B", HERE / "load.py", "node", "--master", node.cluster.master_address, "--segment", node.segment_bytes,
                "--host", node.host.known_as]


class LabMaster(harness.Master):
    def command(self):
        words = self.cluster.side.master_command(self)
        if self.cluster.etcd:
            words += ["--enable_ha=true", f"--etcd_endpoints={self.cluster.etcd_endpoints(';')}"]
        return words + self.cluster.master_flags


class LabNode(harness.Node):
    def __init__(self, cluster, name, host, segment_bytes, warm=False):
        super().__init__(cluster, name, host, warm)
        self.segment_bytes = segment_bytes

    def command(self):
        return self.cluster.side.node_command(self)

    def environment(self):
        return {}

    def start(self):
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:  # the node of load.py ends when its stdin does
            self.child = self.host.popen(self.command(), stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, **self.cluster.environment})
        return self


class LabClient(harness.Process):
    """A client of load.py, which does what it is told: tell() and then hear(), or ask() for both."""
    kind = "client"

    def __init__(self, cluster, name, host, number):
        super().__init__(cluster, name, host)
        self.number, self.descriptors, self.starves = number, 0, False

    def command(self):
        return [self.cluster.side.python, "-B", HERE / "load.py", "client", "--master", self.cluster.master_address, "--host", self.host.known_as,
                "--number", self.number, "--seed", self.cluster.seed, "--descriptors", self.descriptors]

    def environment(self):
        return {"MALLOC_ARENA_MAX": "1"} if self.starves else {}  # the room of further arenas is there beforehand, and is not limited

    def start(self):
        with open(self.log, "ab") as log:
            self.child = self.host.popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                         env={**os.environ, **self.cluster.environment, **self.environment()})
        return self

    def wait_ready(self):
        self.hear(2 * START_S)

    def tell(self, **command):
        self.child.stdin.write(json.dumps(command).encode() + b"\n")
        self.child.stdin.flush()

    def hear(self, seconds=ANSWER_S):
        answer = self.next_answer(seconds)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, within_s=ANSWER_S, **command):
        self.tell(**command)
        return self.hear(within_s)


class Watch:
    """What the masters say of the segments meanwhile: their logs, read as they grow."""

    LINE = re.compile(r"segment \d+ \((\S+?)\) is (suspect|trusted|gone)")

    def __init__(self, masters):
        self.logs = {master.log: 0 for master in masters}
        self.seen = []  # [seconds, segment, suspect | trusted | gone]

    def look(self):
        """What was said since the last look."""
        found = []
        for log, mark in self.logs.items():
            with open(log, "rb") as file:
                file.seek(mark)
                text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.logs[log] = mark + len(whole)
            found += [[now(), *match.groups()] for match in self.LINE.finditer(whole.decode(errors="replace"))]
        self.seen += found
        return found


class LabCluster(harness.Cluster):
    def __init__(self, lab, side, seed=1, masters=1, nodes=6, clients=12, segment_bytes=256 << 20, warm=False, master_flags=(), environment=None):
        self.network, self.side, self.seed = lab, side, seed
        self.master_flags = list(master_flags)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-lab-"))
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="mc-lab-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.environment = {**side.environment, **(environment or {})}
        self.etcd = [harness.Etcd(self, f"etcd{i}", lab.host(f"etcd{i}")) for i in range(3 if masters > 1 else 0)]
        self.masters = [LabMaster(self, f"master{i}", lab.host(f"master{i}")) for i in range(masters)]
        self.nodes = [LabNode(self, f"node{i}", lab.host(f"node{i}"), segment_bytes, warm) for i in range(nodes)]
        self.clients = [LabClient(self, f"client{i}", lab.host(f"client{i}"), i) for i in range(clients)]
        self.watch = Watch(self.masters)

    def processes(self):
        return self.etcd + self.masters + self.nodes + self.clients

    def start(self, clients=True):
        for group in (self.etcd, self.masters, self.nodes, self.clients if clients else []):
            for process in group:
                process.start()
            for process in group:
                process.wait_ready()
        if self.side.hides:
            wait_for(self.serves, START_S, "a serving master with all segments")
        return self

    def all(self, within_s=ANSWER_S, clients=None, **command):
        """The same command to all clients at once; their answers."""
        clients = self.clients if clients is None else clients
        for client in clients:
            client.tell(**command)
        return [client.hear(within_s) for client in clients]

    def fill(self, groups, replicas=1, seconds=60, clients=None):
        """Each client puts its keys, then all know all."""
        answers = self.all(within_s=seconds + ANSWER_S, clients=clients, fill=groups, replicas=replicas, seconds=seconds)
        failed = [code for answer in answers for code in answer["failed"]]
        if failed:
            raise RuntimeError(f"{len(failed)} keys could not be put within {seconds} s: codes {sorted(set(failed))}")
        keys = [key for answer in answers for key in answer["keys"]]
        self.all(clients=clients, know=keys)
        self.keys = keys
        return keys

    def metrics(self):
        """Of all masters, added up."""
        total = {}
        for master in self.masters:
            try:
                for name, value in master.metrics().items():
                    total[name] = total.get(name, 0) + value
            except (OSError, ValueError, http.client.HTTPException):
                continue
        return total

    def end(self):
        for process in reversed(self.processes()):
            process.kill()
        shutil.rmtree(self.data, ignore_errors=True)


__all__ = ["LabClient", "LabCluster", "LabMaster", "LabNode", "Original", "Side", "Watch", "http_get", "wait_for"]
