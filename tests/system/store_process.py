"""A store node that is a process of its own, so that it can be killed and started again.

    node = StoreProcess(master.address, data_dir=folder).start()
    node.kill()      # kill -9; start() starts it again
    node.stop()      # closes its store and ends
"""
import os
import shlex
import subprocess
import sys
import tempfile
import time

import cluster

PROGRAM = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
host, size, address, folder, protocol, devices = sys.argv[1:]
store = MooncakeDistributedStore()
code = store.setup(host, "P2PHANDSHAKE", int(size), 1 << 20, protocol, devices, address, data_dir=folder)
print(code, flush=True)
sys.stdin.read()
sys.exit(store.close() if code == 0 else 1)
"""


# Another boot id: to us and to the others it is a process of another machine.
ELSEWHERE = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


def elsewhere(folder):
    """How to start a command as if on another machine; needs a mount namespace of its own."""
    (folder / "boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *user, "--", "sh", "-c", ELSEWHERE, str(folder / "boot_id")]


def rebooted(folder, program):
    """A program that runs `program` as if its machine had just come up: another boot id, and a CLOCK_BOOTTIME that began anew."""
    time.sleep(1)  # the offset is in whole seconds: it was down until after it was called
    uptime = int(float(open("/proc/uptime").read().split()[0]))
    command = elsewhere(folder)
    command.insert(2, f"--boottime=-{uptime}")
    command.insert(2, "--time")
    script = folder / "rebooted"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, str(program)])} "$@"\n')
    script.chmod(0o700)
    return script


class StoreProcess:
    def __init__(self, address, size=32 << 20, data_dir="", host="127.0.0.1", protocol="tcp", devices="", before=(), **environment):
        self.before = list(before)
        self.host = cluster.new_host("store") if cluster.new_host else None
        host = self.host.known_as if self.host and host == "127.0.0.1" else host
        self.arguments = [host, str(size), address, str(data_dir), protocol, devices]
        self.environment = {**os.environ, **environment}
        self.process = None
        self.log_file = tempfile.NamedTemporaryFile(prefix="mc-store-", suffix=".log")

    def start(self):
        assert self.process is None, "it runs already"
        with open(self.log_file.name, "ab") as log:
            self.process = subprocess.Popen([*self.before, sys.executable, "-c", PROGRAM, *self.arguments], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, env=self.environment,
                                            preexec_fn=self.host.enter if self.host else None)
        said = self.process.stdout.readline()
        assert said.strip() == b"0", f"setup: {said}: {self.log()}"
        return self

    def kill(self):
        process, self.process = self.process, None
        process.kill()
        process.communicate()

    def stop(self):
        process, self.process = self.process, None
        process.communicate(timeout=60)
        assert process.returncode == 0, self.log()

    def log(self):
        with open(self.log_file.name, "rb") as log:
            return log.read().decode(errors="replace")

    def __enter__(self):
        return self.start()

    def __exit__(self, *unused):
        if self.process is not None:
            self.stop()
        self.log_file.close()
