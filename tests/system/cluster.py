"""Real processes for the system tests. MC_BUILD is the folder that holds mooncake_master.

    with Master("--default_kv_lease_ttl=1s") as master:
        master.address           # "127.0.0.1:40001" for clients
        master.get("/health")    # (200, b"...") from the admin port
        master.kill()            # kill -9; master.start() starts it again, on the same ports

With MC_LAB each is on a host of its own (tests/lab/placed.py). Ports are chosen by the kernel and read from the log. Only processes that were started here are ever signalled, by their pid.
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import secured
from ports import free_ports

if os.environ.get("MC_LAB"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lab"))
    from placed import here, new_host
    OWN_NAME = here.known_as
else:
    new_host = None
    OWN_NAME = "127.0.0.1"  # of the host that the tests run on

BUILD = pathlib.Path(os.environ.get("MC_BUILD", "."))
MASTER = BUILD / "mooncake_master"
SANITIZED = bool(os.environ.get("MC_SANITIZER"))
START_S = 60 if SANITIZED else 20


def wait_until(condition, timeout_s=10.0, what="the condition"):
    """Polls until condition() is true and returns its value; fails after timeout_s."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come within {timeout_s} s"
        time.sleep(0.01)


def says(process, words):
    """Waits until its log has them: who asked may have its answer before the line is written."""
    wait_until(lambda: words in process.log(), START_S, f"'{words}' in the log")


def thread_states(pid):
    """Of its threads, as a set: R (runs, or waits for a processor), S (waits), T (is stopped)... Empty: one has just ended."""
    try:
        return {pathlib.Path(f"/proc/{pid}/task/{task}/stat").read_text().rsplit(")", 1)[1].split()[0] for task in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()


def hold_still(pid):
    """SIGSTOP; returns when it has stopped: on a busy machine its threads go on until each has had a processor to stop on."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: thread_states(pid) == {"T"}, START_S, f"a stop of process {pid}")


def request(port, method, path, body=None, headers=None, timeout_s=20, host="127.0.0.1"):
    """One HTTP request on a connection of its own: (status, body)."""
    connection = secured.http_connection(host, port, timeout_s)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def samples_of(body):
    """All samples of a page of metrics by their name and labels, as floats."""
    lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def resident_bytes_of(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Child:
    """A process of ours in self.process, None while it does not run; it writes to self.log_file."""

    def __enter__(self):
        return self.start()

    def __exit__(self, *unused):
        if self.process is not None:
            code = self.stop()
            assert code == 0, f"exit code {code}: {self.log()[-4000:]}"
        self.log_file.close()

    def stop(self, number=signal.SIGTERM):
        """SIGTERM, or another signal; returns the exit code. One that does not end is killed, and that is a failure."""
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            return process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self):
        """kill -9."""
        process, self.process = self.process, None
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def or_end(self):
        """Around what waits for its start: if that fails it does not stay, and its log is shown. No __exit__ would end it."""
        try:
            yield
        except BaseException:
            if self.process.poll() is None:
                self.kill()
            print(self.log()[-4000:])
            raise


class Master(Child):
    """One mooncake_master. After start(): port, metrics_port, metadata_port (None when it does not run), pid."""

    def __init__(self, *flags, metadata=False, program=MASTER, environment=None, before=()):
        self.flags = list(flags)
        self.program = program
        self.before = before  # words that run it, as "prlimit ..."
        self.environment = environment or {}
        self.host = new_host("master") if new_host else None
        self.bound, self.name = (self.host.address, self.host.known_as) if self.host else ("127.0.0.1", "127.0.0.1")
        # Not the kernel's: while it is dead somebody's connection could have one of its numbers.
        self.port, self.metrics_port, metadata_port = free_ports(3)
        self.metadata_port = metadata_port if metadata else None
        self.process = None
        self.log_file = None
        self.state_dir = tempfile.TemporaryDirectory(prefix="mc-state-")

    # -- life --

    def start(self):
        """Starts it, always on the same ports, and returns when it answers. Flags given by the test come last and win."""
        assert self.process is None, "it runs already"
        arguments = [*self.before, str(self.program), f"--rpc_address={self.bound}", f"--metrics_host={self.bound}", f"--rpc_port={self.port}",
                     f"--metrics_port={self.metrics_port}"]
        if self.metadata_port is not None:
            arguments += [f"--http_metadata_server_host={self.bound}", f"--http_metadata_server_port={self.metadata_port}"]
        if self.log_file is None:
            self.log_file = tempfile.NamedTemporaryFile(prefix="mc-master-", suffix=".log")
        self.log_start = os.path.getsize(self.log_file.name)
        # O_APPEND: after a restart the log goes on behind the old one.
        with open(self.log_file.name, "ab") as log:
            self.process = subprocess.Popen(arguments + self.flags, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                            preexec_fn=self.host.enter if self.host else None,
                                            env={**os.environ, "STATE_DIRECTORY": self.state_dir.name, **self.environment})
        with self.or_end():
            self.port = self._wait_port(r"Master service started on port (\d+)")
            self.metrics_port = self._wait_port(r"HTTP metrics server started on port (\d+)")
            if self.metadata_port is not None:
                self.metadata_port = self._wait_port(r"HTTP metadata server started on \S+:(\d+)")
        return self

    def _wait_port(self, pattern):
        def look():
            found = re.search(pattern, self.log())
            assert found or self.process.poll() is None, f"mooncake_master has ended: {self.log()}"
            return found
        return int(wait_until(look, START_S, f"'{pattern}' in the log").group(1))

    def __exit__(self, *unused):
        super().__exit__()
        self.state_dir.cleanup()

    # -- looking --

    @property
    def pid(self):
        return self.process.pid

    @property
    def address(self):
        return f"{self.name}:{self.port}"

    def log(self):
        """What it wrote since its last start."""
        with open(self.log_file.name, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def get(self, path, **more):
        """GET from the admin port: (status, body)."""
        return request(self.metrics_port, "GET", path, host=self.bound, **more)

    def metrics(self):
        """All samples of /metrics by their name and labels, as floats."""
        status, body = self.get("/metrics")
        assert status == 200
        return samples_of(body)

    def resident_bytes(self):
        return resident_bytes_of(self.pid)

    def cpu_seconds(self):
        """User and system time of all its threads."""
        with open(f"/proc/{self.pid}/schedstat") as stat:
            first = int(stat.read().split()[0]) / 1e9
        total = 0.0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/schedstat") as stat:
                    total += int(stat.read().split()[0]) / 1e9
            except OSError:  # it has just ended
                continue
        return max(first, total)
