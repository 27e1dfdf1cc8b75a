"""What contestants have in common: an environment of their own, processes that are pinned, watched and stopped by pid."""

import hashlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import figures

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent
STEP_SECONDS_MAX = 300
START_SECONDS_MAX = 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def affinity(mode):
    """The cores for a mode: one for "pinned", the first two of ours for "spread"."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[:1]) if mode == "pinned" else set(cores[:2])


def apt_install(*packages):
    """Installs Debian packages that are not there yet."""
    missing = [name for name in packages if subprocess.run(["dpkg", "-s", name], capture_output=True).returncode != 0]
    if not missing:
        return
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    subprocess.run([*prefix, "apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
    subprocess.run(
        [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def make_venv(path, requirements, stamp):
    """A virtual environment with the requirements (a list, or a function that makes them); made again only when `stamp` changed."""
    mark = path / "stamp"
    wanted = hashlib.sha256(f"{sys.version} {path} {stamp}".encode()).hexdigest()
    if mark.exists() and mark.read_text() == wanted:
        return
    if callable(requirements):
        requirements = requirements()
    if path.exists():
        shutil.rmtree(path)
    subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    command = [path / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"pip install {' '.join(map(str, requirements))} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    mark.write_text(wanted)


class Run:
    """A run's logs, what it says, and what went wrong in it."""

    def __init__(self, arguments, cache):
        self.quick = arguments.quick
        self.rounds = figures.rounds_of(arguments)
        self.figures = {}  # (contestant, mode, what) -> [value or result of each round]
        self.problems = []
        self.logs = cache / "bench" / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()

    def say(self, text):
        print(f"[{time.monotonic() - self.started:5.0f} s] {text}", flush=True)

    def problem(self, text):
        self.problems.append(text)
        self.say("PROBLEM: " + text)

    def attempt(self, what, call, *words):
        """True: it went well."""
        try:
            call(*words)
            return True
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            self.problem(f"{what}: {error}")
            return False

    def attempt_and_say(self, what, call, *words):
        started = time.monotonic()
        self.attempt(what, call, *words)
        self.say(f"{what} ({time.monotonic() - started:.1f} s)")


def in_turn(contestants, number):
    """In an order that rotates from round to round."""
    at = number % len(contestants)
    return contestants[at:] + contestants[:at]


class Process:
    """A child in a process group of its own, its stderr in a file. env: what it gets besides our environment, or instead of it."""

    def __init__(self, command, log, cores, env, talk=False, instead=False):
        self.log = log
        self.command = [str(word) for word in command]
        with open(log, "ab") as stderr:
            self.child = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if talk else stderr, stderr=stderr, start_new_session=True,
                env=env if instead else {**os.environ, **env}, preexec_fn=lambda: os.sched_setaffinity(0, cores))  # fmt: skip
        self.pid = self.child.pid

    def fail(self, why):
        tail = pathlib.Path(self.log).read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(self.command)}: {why}\n{tail}")

    def read(self, seconds):
        """One JSON line of the child; anything else that it prints is skipped."""
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self.child.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                self.fail(f"no answer within {seconds} s")
            line = self.child.stdout.readline()
            if not line:
                self.fail(f"ended with {self.child.wait()}")
            if line.startswith(b"{"):
                return json.loads(line)

    def ask(self, **step):
        self.child.stdin.write(json.dumps(step).encode() + b"\n")
        self.child.stdin.flush()
        result = self.read(STEP_SECONDS_MAX)
        if "failed_step" in result:
            self.fail(result["failed_step"])
        return result

    def stop(self, seconds=2):
        if self.child.stdin and not self.child.stdin.closed:
            try:
                self.child.stdin.close()
            except OSError:
                pass
        for number, wait in ((None, 0.2), (signal.SIGTERM, seconds), (signal.SIGKILL, 5)):
            if number is not None and self.child.poll() is None:
                self.child.send_signal(number)
            try:
                self.child.wait(wait)
                break
            except subprocess.TimeoutExpired:
                continue
        if self.child.stdout:
            self.child.stdout.close()


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid):
    """Time on a core of all threads, in nanosecond steps (utime of /proc/pid/stat counts in 10 ms)."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as stat:
                total += int(stat.read().split()[0])
        except OSError:
            continue
    return total / 1e9


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url, seconds=1):
    try:
        with urllib.request.urlopen(url, timeout=seconds) as reply:
            return reply.status == 200
    except (OSError, ValueError):
        return False


class Contestant:
    name = "?"
    title = "?"
    api = "mooncake"
    env: dict = {}
    python = sys.executable

    def prepare(self, cache):
        raise NotImplementedError

    def server_command(self, port, metrics_port):
        return [self.master, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics_port}"]

    def health_url(self, metrics_port):
        return f"http://127.0.0.1:{metrics_port}/metrics"

    def env_in(self, folder):
        """What its processes get besides, of a deployment whose files lie in that folder."""
        return {}

    def settle(self, folder):
        """Waits until what was put is as safe as it will be."""


class Cluster:
    """A master, a store node and a client of one contestant, all on the same cores."""

    def __init__(self, contestant, mode, logs, segment):
        self.contestant, self.logs, self.segment = contestant, logs, segment
        self.cores = affinity(mode)
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.server = self.node = self.client = None

    def process(self, role, command, talk=True):
        return Process(command, self.logs / f"{self.contestant.name}-{role}.log", self.cores, self.contestant.env, talk)

    def start_server(self):
        """Starts it and waits until the service port accepts and, where there is one, the metrics page answers."""
        self.server = self.process("server", self.contestant.server_command(self.port, self.metrics_port), talk=False)
        self.started_seconds = self.wait_server(0.001)

    def wait_server(self, pause):
        """The seconds that it took."""
        url, started = self.contestant.health_url(self.metrics_port), time.perf_counter()
        while not accepts(self.port) or (url and not answers(url)):
            if self.server.child.poll() is not None or time.perf_counter() - started > START_SECONDS_MAX:
                self.server.fail("does not answer")
            time.sleep(pause)
        return time.perf_counter() - started

    def node_command(self):
        return [self.contestant.python, HERE / "worker.py", "node", "--address", self.address, "--segment", self.segment]

    def start_node(self):
        if self.contestant.api != "redis":
            self.node = self.process("node", self.node_command())
            self.node.read(START_SECONDS_MAX)

    def start_client(self):
        self.client = self.process("client", [self.contestant.python, HERE / "worker.py", "client", "--api", self.contestant.api, "--address", self.address])
        self.client.read(START_SECONDS_MAX)

    def __enter__(self):
        return self

    def start(self):
        self.start_server()
        self.start_node()
        self.start_client()
        return self

    def __exit__(self, *_):
        for process in (self.client, self.node, self.server):
            if process is not None:
                process.stop()
