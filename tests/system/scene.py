"""A place to run the documents' command lines as they are written: their ports are free and their addresses are this machine's.

    with Scene(folder, ports=[15001], addresses=["192.168.0.137"]) as scene:
        master = scene.start("mooncake_master --port=15001", "Master service started")
        scene.run("curl -s http://localhost:15003/metrics")     # stdout; a failure unless it exits with 0

That is a network and mount namespace of its own (root is needed). Where there is none, the ports become free ones and the addresses 127.0.0.1: `scene.real` says which.
"""
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from cluster import BUILD, START_S, wait_until
from ports import free_ports

LIBC = ctypes.CDLL(None, use_errno=True)
TOOLS = ("curl", "etcd", "find", "grep", "jq", "lsof", "netstat", "ps", "ss", "xargs")
CLONE_NEWNS, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x20000, 0x40000000, 1
# What a holder of the namespaces does first. An own /dev/shm: a document tells how to empty it.
HOLDER = """
import ctypes, subprocess, sys, time
libc = ctypes.CDLL(None)
libc.prctl(1, 9)
if libc.unshare(0x20000 | 0x40000000) != 0:
    sys.exit(1)
for words in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], ["ip", "link", "set", "lo", "up"],
              *(["ip", "address", "add", one + "/32", "dev", "lo"] for one in sys.argv[1:])):
    subprocess.run(words, check=True)
print("ready", flush=True)
sys.stdin.read()
"""


class Running:
    """A started command: log(), stop()."""

    def __init__(self, process, log, ends_well):
        self.process, self.file, self.ends_well = process, log, ends_well

    def log(self):
        return os.pread(self.file.fileno(), 4 << 20, 0).decode(errors="replace")

    def stop(self):
        """SIGTERM to the shell and to what it started; a command of ours that is alone in it must exit with 0."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise
        assert code == 0 or not self.ends_well, f"exit code {code}: {self.log()[-4000:]}"


class Scene:
    def __init__(self, folder, ports=(), addresses=(), path=(), python_path=()):
        self.folder, self.running, self.namespaces, self.holder = folder, [], [], None
        self.addresses = list(addresses)
        self._enter_namespaces()
        self.real = bool(self.namespaces)
        self.ports = dict(zip(ports, ports if self.real else free_ports(len(ports))))
        kept = {name: value for name, value in os.environ.items() if not re.match(r"MOONCAKE_|LOCAL_HOSTNAME$|ADMIN_API_KEY$|VLLM_|LMCACHE_", name)}
        names = self.folder / "bin"
        names.mkdir(exist_ok=True)
        for name in ("python", "python3"):  # a machine with Python has them
            (names / name).write_text(f'#!/bin/sh\nexec {sys.executable} -B "$@"\n')
        for name in TOOLS if os.environ.get("LD_PRELOAD") else ():  # the sanitizer's runtime is for what is ours: curl hangs with it
            (names / name).write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {shutil.which(name)} "$@"\n')
        for path_of_name in names.iterdir():
            path_of_name.chmod(0o755)
        self.environment = {**kept, "PATH": ":".join([str(names), *map(str, path), str(BUILD), kept["PATH"]]), "PYTHONUNBUFFERED": "1",
                            "PYTHONPATH": ":".join([*map(str, python_path), os.environ["MC_PYTHONPATH"]])}

    def _enter_namespaces(self):
        if os.geteuid() != 0 or not shutil.which("ip") or os.environ.get("MC_NO_NAMESPACES"):
            return
        self.holder = subprocess.Popen([sys.executable, "-c", HOLDER, *self.addresses], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
        if self.holder.stdout.readline() == b"ready\n":
            self.namespaces = [(os.open(f"/proc/{self.holder.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC), flag)
                               for kind, flag in (("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS))]

    def _enter(self):
        """In a child between fork and exec."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for fd, flag in self.namespaces:
            if LIBC.setns(fd, flag) != 0:
                os._exit(126)
        os.chdir(self.folder)

    def text(self, text, changes=()):
        """A document's text, with other sizes, (old, new), each of which must be in it, and without a namespace with other ports and addresses."""
        for old, new in changes:
            assert old in text, (old, text)
            text = text.replace(old, new)
        if not self.real:
            text = self._mapped(text)
        return text

    def _mapped(self, text):
        for address in self.addresses:
            text = text.replace(address, "127.0.0.1")
        text = re.sub(r"(?<![\d.])\d{4,5}(?![\d.])", lambda found: str(self.ports.get(int(found.group()), found.group())), text)
        for command, flag, port, unless in (("mooncake_master", "rpc_port", 50051, "port"), ("mooncake_master", "metrics_port", 9003, "metrics_port"),
                                            ("mooncake_http_metadata_server", "port", 8080, "port"), ("vllm serve", "port", 8000, "--port"),
                                            ("python examples/online", "port", 8000, "--port")):
            if re.search(rf"^({command})", text, re.M) and not re.search(rf"{unless}\b[= ]", text) and port in self.ports:
                text += f" --{flag}={self.ports[port]}"
        return text

    def _popen(self, text, out, err, environment):
        return subprocess.Popen(["sh", "-c", text], stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=self._enter, start_new_session=True,
                                env={**self.environment, **{name: str(value) for name, value in environment.items()}})

    def start(self, text, words, **environment):
        """A command that goes on, when its log holds the words."""
        alone = re.match(r"mooncake_|mc_", text) is not None
        log = tempfile.TemporaryFile()
        one = Running(self._popen("exec " + text if alone else text, log, log, environment), log, alone)
        self.running.append(one)
        wait_until(lambda: words in one.log() or one.process.poll() is not None, START_S, f"{words!r} from {text!r}")
        assert words in one.log(), f"{text}: exit code {one.process.poll()}: {one.log()}"
        return one

    def run(self, text, code=0, **environment):
        """A command that ends; its stdout."""
        process = self._popen(text, subprocess.PIPE, subprocess.PIPE, environment)
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        assert code is None or process.returncode == code, f"{text}: exit code {process.returncode}: {out.decode()} {err.decode()}"
        return out.decode()

    def stop(self, one):
        self.running.remove(one)
        one.stop()
        one.file.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        try:
            while self.running:
                if kind is not None:
                    print(f"---- {self.running[-1].process.args[-1][:200]}\n{self.running[-1].log()[-3000:]}")
                self.stop(self.running[-1])
        finally:
            for one in self.running:  # one did not end well: the others must not stay
                if one.process.poll() is None:
                    os.killpg(one.process.pid, signal.SIGKILL)
                    one.process.wait()
            for fd, _ in self.namespaces:
                os.close(fd)
            if self.holder is not None:
                self.holder.stdin.close()
                self.holder.stdout.close()
                self.holder.wait(timeout=30)
