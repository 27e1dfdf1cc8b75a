"""The two sides that every scenario runs against: ours, and the original's wheel from PyPI; and ours with keys, which nothing but the environment tells
the clients.

A side has a `mooncake` to import, a master, and store nodes. Scenarios run in a client's environment, as processes of their own; they get the
side by PYTHONPATH and the cluster by MC_* variables, and print one JSON line for each step (scenarios/steps.py).

    with side.cluster(node_bytes=256 << 20) as cluster:
        steps = cluster.run("lmcache_connector.py", "lmcache", "put")      # {name: {"result": ..., "seconds": ...} or {"error": ...}}
"""
import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
sys.path.insert(0, str(HERE.parent / "system"))
import cluster as ours_cluster  # noqa: E402
import keyed  # noqa: E402
from ports import free_port  # noqa: E402

CLIENTS = pathlib.Path(os.environ["MC_CLIENTS"])  # the environments
SCENARIO_SECONDS_MAX = 240
NODE_SECONDS_MAX = 60


def environment_python(name):
    """The Python of a client's environment; plain pytest's own for what needs none."""
    return sys.executable if name is None else str(CLIENTS / name / "bin/python")


class OriginalMaster:
    """mooncake_master of the original's wheel; as cluster.Master in what the lanes use of it."""

    def __init__(self, path, *flags):
        self.path = path
        self.flags = flags
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self):
        self.log_file = tempfile.NamedTemporaryFile(prefix="mc-original-", suffix=".log")
        program = self.path / "mooncake/mooncake_master"
        program.chmod(0o755)
        command = [str(program), "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", f"--metrics_port={self.metrics_port}", *self.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file)
        try:
            ours_cluster.wait_until(self._answers, 30, "the original's master")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def _answers(self):
        assert self.process.poll() is None, f"the original's master ended: {self.log()}"
        try:
            return ours_cluster.request(self.metrics_port, "GET", "/metrics", timeout_s=2)[0] == 200
        except OSError:
            return False

    def __exit__(self, *unused):
        # Not SIGTERM: what the original does then is not ours to test.
        self.process.kill()
        self.process.wait()
        self.log_file.close()

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(errors="replace")[-4000:]

    def get(self, path):
        return ours_cluster.request(self.metrics_port, "GET", path)


class Child:
    """A process of a scenario; its stdout is read line by line, its stderr lies in a file."""

    def __init__(self, command, env):
        self.stderr_file = tempfile.NamedTemporaryFile(prefix="mc-scenario-", suffix=".log")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr_file,
                                        start_new_session=True)
        self.pid = self.process.pid
        self.rest = b""
        self.pending = []  # steps that were read and not yet handed out

    def stderr(self):
        return pathlib.Path(self.stderr_file.name).read_text(errors="replace")

    def lines(self, seconds):
        """JSON lines until the end of the output; other lines are the client's own and skipped."""
        end = time.monotonic() + seconds
        while True:
            while self.pending:
                yield self.pending.pop(0)
            ready, _, _ = select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no more output within {seconds} s: {self.stderr()[-6000:]}"
            block = os.read(self.process.stdout.fileno(), 1 << 16)
            if not block:
                return
            *whole, self.rest = (self.rest + block).split(b"\n")
            for line in whole:
                if line.startswith(b'{"step"'):
                    self.pending.append(json.loads(line))

    def ask(self, word, seconds=60):
        """Says a word to a scenario that is led step by step; its step, without the name."""
        self.say(word)
        for step in self.lines(seconds):
            assert step["step"] == word, f"{step} for {word}"
            return {name: value for name, value in step.items() if name != "step"}
        return {"error": f"ended: {self.stderr()[-2000:]}"}

    def say(self, word):
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def stop(self, seconds=20):
        """Ends its input, and what does not end by itself."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and self.process.poll() is None:
                self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                break
        self.process.stdout.close()
        self.stderr_file.close()
        return self.process.returncode


class Side:
    """`ours` or `original`. key: its masters let nobody in without it, and all processes have it, in MC_AUTH_TOKEN."""

    def __init__(self, name, path, key=None):
        self.name = name
        self.path = pathlib.Path(path)  # what holds the package `mooncake`
        self.key = key

    def with_keys(self):
        return Side(self.name, self.path, keyed.Key("engines"))

    def has(self, module):
        """Whether mooncake.<module> is there as an extension or a Python file."""
        return any((self.path / "mooncake").glob(f"{module}.*"))

    def master(self, *flags):
        return ours_cluster.Master(*flags) if self.name == "ours" else OriginalMaster(self.path, *flags)

    def env(self, **more):
        env = {name: value for name, value in os.environ.items() if not re.match(r"(MOONCAKE|MC|LMCACHE|SGLANG|VLLM)_", name)}
        env.update(PYTHONPATH=os.pathsep.join([str(self.path), str(SCENARIOS)]), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", MC_SIDE=self.name,
                   OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONHASHSEED="0", LMCACHE_TRACK_USAGE="false",
                   MC_STORE_CLIENT_METRIC="0", MC_LOG_LEVEL="WARNING", GLOG_minloglevel="1", **more)
        if self.key is not None:
            env["MC_AUTH_TOKEN"] = self.key.token
        return env

    def auth(self, folder):
        """The flags of a master with keys, whose file lies in that folder; and what a client that asks its HTTP port by Python's requests finds there."""
        if self.key is None:
            return ()
        pathlib.Path(folder, "netrc").write_text(f"machine 127.0.0.1 login {self.key.name} password {self.key.secret.hex()}\n")
        return (f"--auth_file={keyed.write(pathlib.Path(folder), 'keys', self.key)}",)

    @contextlib.contextmanager
    def cluster(self, *flags, node_bytes=256 << 20):
        with tempfile.TemporaryDirectory(prefix="mc-keys-") as folder, self.master(*flags, *self.auth(folder)) as master:
            running = Cluster(self, master, metadata_of(flags), folder)
            try:
                if node_bytes:
                    running.start_node(node_bytes)
                yield running
            finally:
                running.stop()


def metadata_of(flags):
    """What clients of a master with these flags are told as their metadata server."""
    port = next((flag.split("=")[1] for flag in flags if flag.startswith("--http_metadata_server_port=")), None)
    return "P2PHANDSHAKE" if port is None else f"http://127.0.0.1:{port}/metadata"


class Cluster:
    """A master, its store nodes, and the processes of scenarios that were started beside it."""

    def __init__(self, side, master, metadata, folder):
        self.side = side
        self.master = master
        self.metadata = metadata
        self.netrc = f"{folder}/netrc"
        self.children = []

    def start(self, script, environment, *words, **env):
        """A scenario in its environment, not waited for."""
        env.setdefault("MC_TEST_MASTER", self.master.address)
        env.setdefault("LANE_METADATA", self.metadata)
        env.setdefault("MC_METRICS_PORT", str(self.master.metrics_port))
        env.setdefault("MC_MASTER_PID", str(self.master.process.pid))
        env.setdefault("NETRC", self.netrc)
        if "LANE_PATH" in env:
            env["PYTHONPATH"] = os.pathsep.join([str(self.side.path), str(SCENARIOS), env.pop("LANE_PATH")])
        command = [environment_python(environment), "-u", str(SCENARIOS / script), *words]
        child = Child(command, {**self.side.env(), **env})
        self.children.append(child)
        return child

    def start_node(self, size):
        """A process that lends `size` bytes; returns when an object has been put and removed."""
        child = self.start("node.py", None, str(size))
        for step in child.lines(NODE_SECONDS_MAX):
            assert step.get("result") == "ready", step
            return child
        raise AssertionError(f"the node ended: {child.stderr()[-4000:]}")

    def start_daemon(self, size):
        """A mooncake_client that lends `size` bytes, with the flags that SGLang's own fixture gives it; the address for setup_dummy."""
        program = ours_cluster.BUILD / "mooncake_client" if self.side.name == "ours" else self.side.path / "mooncake/mooncake_client"
        program.chmod(0o755)
        port, http_port = free_port(), free_port()
        command = [str(program), "--host=127.0.0.1", f"--port={port}", f"--master_server_address={self.master.address}", f"--metadata_server={self.metadata}",
                   "--protocol=tcp", "--device_names=", f"--global_segment_size={size}", "--enable_http_server=true", f"--http_port={http_port}"]
        child = Child(command, {**self.side.env(), "MC_MS_AUTO_DISC": "0", "MC_LOG_LEVEL": "INFO"})
        self.children.append(child)

        def serves():
            assert child.process.poll() is None, f"mooncake_client ended: {child.stderr()[-4000:]}"
            try:
                return ours_cluster.request(http_port, "GET", "/health", timeout_s=2)[0] == 200
            except OSError:
                return False

        ours_cluster.wait_until(serves, NODE_SECONDS_MAX, "mooncake_client")
        return f"127.0.0.1:{port}"

    def run(self, script, environment, *words, seconds=SCENARIO_SECONDS_MAX, **env):
        """Runs a scenario to its end; its steps by name. A scenario that ends badly has a step "end" with an error."""
        child = self.start(script, environment, *words, **env)
        return self.finish(child, seconds)

    def finish(self, child, seconds=SCENARIO_SECONDS_MAX):
        steps = {}
        for step in child.lines(seconds):
            name = step.pop("step")
            assert name not in steps, f"two steps {name}"
            steps[name] = step
        code = child.process.wait(30)
        if code != 0 or not steps:
            steps["end"] = {"error": f"exit code {code}", "log": child.stderr()[-3000:]}
        self.children.remove(child)
        child.stop()
        return steps

    def stop(self):
        # The last started first: clients before the nodes whose memory they read.
        for child in reversed(self.children):
            child.stop()
        self.children.clear()


def sides():
    return {"ours": Side("ours", os.environ["MC_PYTHONPATH"]), "original": Side("original", CLIENTS / "original")}
