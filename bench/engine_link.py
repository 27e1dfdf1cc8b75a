"""Two network namespaces of our own with a slow link between them that loses packets: `tc netem` where the kernel has it, else the switch of tests/lab."""

import os
import pathlib
import subprocess
import tempfile

import paths  # noqa: F401, before what it makes importable
from switch import Switch

DELAY_US, LOSS_PER_MILLION = 1000, 10_000  # each way


class Link:
    """`with Link(build) as link`: link.near and link.far are prefixes of commands, link.near_address and link.far_address the addresses."""

    near_address, far_address = "10.231.87.1", "10.231.87.2"

    def __init__(self, build, force_own=False, loss_per_million=LOSS_PER_MILLION):
        self.build = pathlib.Path(build)
        self.loss_per_million = loss_per_million
        self.force_own = force_own
        self.names = [f"mc-link-{os.getpid()}-{side}" for side in ("a", "b")]
        self.near, self.far = (["ip", "netns", "exec", name] for name in self.names)
        self.switch = None
        self.kind = ""

    @staticmethod
    def why_not():
        """Why there can be no such link here; empty: there can."""
        if os.geteuid() != 0:
            return "needs root, for network namespaces"
        return "" if os.path.exists("/dev/net/tun") else "needs /dev/net/tun"

    @staticmethod
    def _do(*words, check=True):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=check).returncode == 0

    def _netem(self):
        """A veth pair whose ends delay and lose what they send."""
        a, b = self.names
        if not self._do("ip", "link", "add", "link0", "netns", a, "type", "veth", "peer", "name", "link0", "netns", b, check=False):
            return False
        words = ("root", "netem", "delay", f"{DELAY_US}us", "loss", f"{self.loss_per_million / 10_000}%")
        if all(self._do("tc", "-n", name, "qdisc", "add", "dev", "link0", *words, check=False) for name in self.names):
            self.kind = "tc netem"
            return True
        self._do("ip", "-n", a, "link", "del", "link0")
        return False

    def _own(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mc-link-")
        self.switch = Switch(self.folder.name, build=self.build)
        for name, address in zip(self.names, (self.near_address, self.far_address)):
            self.switch.add(int(address.rsplit(".", 1)[1]), f"/run/netns/{name}", "link0")
        self.switch.rule("*", "*", delay_ms=DELAY_US / 1000, loss=self.loss_per_million / 1e6)
        self.kind = "own relay"

    def __enter__(self):
        try:
            for name in self.names:
                self._do("ip", "netns", "add", name)
            if self.force_own or not self._netem():
                self._own()
            for name, address in zip(self.names, (self.near_address, self.far_address)):
                self._do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "link0")
                self._do("ip", "-n", name, "link", "set", "link0", "up")
                self._do("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.switch is not None:
            self.switch.end()
            self.folder.cleanup()
        for name in self.names:
            self._do("ip", "netns", "del", name, check=False)
