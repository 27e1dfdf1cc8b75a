"""Hosts of a laboratory: those of tests/faults/network.py, on a network that loses, delays, reorders, limits and cuts (switch.py), each with a host
name, a boot id and a clock of its own, and with a resolver that can be slow, silent or wrong (resolver.py).

    lab = Lab.make(seed=1, loss=0.01, delay_ms=1)     # once, early, in a process without threads: it moves into a namespace of its own
    host = lab.host("node0")                          # host.address; the others know it by its name
    host.popen([...])                                 # a process there; it dies with us
    host.partition() / host.slow(megabits) / host.deafen(other) / host.heal()
    lab.switch.rule(host.number, "*", loss=0.03)      # from here to there; both can be "*"
    lab.resolver.mode(host, "silent")
    lab.end()

This process is the observer, 10.77.0.254: what it sends and receives is neither lost nor late.
"""
import ctypes
import os
import pathlib
import random
import shutil
import sys
import tempfile
import uuid

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "faults"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from clock import Clock  # noqa: E402
from network import CLONE_NEWNET, LIBC, Host, Network, call, dies_with_parent, own_namespace, unshare  # noqa: E402
from resolver import Resolver  # noqa: E402
from switch import OBSERVER, Switch  # noqa: E402

CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWUTS = 0x80, 0x20000, 0x4000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MTU = 1500
BOOT_ID = "/proc/sys/kernel/random/boot_id"
DAY_S = 86400


def mount(source, target, flags):
    if LIBC.mount(source and str(source).encode(), str(target).encode(), None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


class LabHost(Host):
    SPACES = (("time_for_children", CLONE_NEWTIME), ("uts", CLONE_NEWUTS), ("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS))

    def __init__(self, lab, name, number):
        draw = random.Random(f"{lab.seed} {name}")
        self.spaces, self.slowed = [], False
        self.boot_id = str(uuid.UUID(int=draw.getrandbits(128), version=4))
        # A clock never runs backwards at its start: later ones than the machine's.
        monotonic_s = draw.randrange(30 * DAY_S) if lab.clocks == "all" else 0
        slept_s = draw.randrange(30 * DAY_S) if lab.clocks else 0
        self.offsets = {"monotonic": monotonic_s, "boottime": monotonic_s + slept_s}
        self.folder = lab.folder / name
        super().__init__(lab, name, number)
        self.known_as = name
        self.clock = Clock(self.folder / "clock", lab.build, self.offsets["boottime"]) if lab.fake_clocks else None
        lab.resolver.name(name, self.address)

    def _files(self):
        """What this host has instead of the machine's own: {path: text}."""
        return {BOOT_ID: self.boot_id + "\n", "/etc/hosts": f"127.0.0.1 localhost\n", "/etc/nsswitch.conf": "hosts: files dns\n",
                "/etc/resolv.conf": f"nameserver 10.77.0.{OBSERVER}\n"}

    def _make(self):
        self.folder.mkdir()
        for path, text in self._files().items():
            (self.folder / pathlib.Path(path).name).write_text(text, encoding="ascii")
        super()._make()
        self.spaces = [(os.open(f"/proc/{self.holder.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag) for name, flag in self.SPACES]

    def _alone(self):
        dies_with_parent()
        unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWTIME)
        name = self.name.encode()
        if LIBC.sethostname(name, len(name)) != 0:
            raise OSError(ctypes.get_errno(), "sethostname")
        with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
            file.write("".join(f"{clock} {seconds} 0\n" for clock, seconds in self.offsets.items()))
        mount(None, "/", MS_REC | MS_PRIVATE)
        for path in self._files():
            if os.path.exists(path):
                mount(self.folder / pathlib.Path(path).name, os.path.realpath(path), MS_BIND)

    def _plug(self):
        self.network.switch.add(self.number, f"/proc/{self.holder.pid}/ns/net", "eth0")
        self.network.switch.port(self.number, rate=self.network.rate)
        call("nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "ip", "link", "set", "eth0", "mtu", self.network.mtu, "txqueuelen", 10000)

    def enter(self):
        dies_with_parent()
        folder = os.getcwd()
        for space, flag in self.spaces or [(self.namespace, CLONE_NEWNET)]:
            if LIBC.setns(space, flag) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        os.chdir(folder)  # another mount namespace begins at its root

    def environment(self):
        """What processes need to be told so that they go by this host's clock."""
        return self.clock.environment() if self.clock else {}

    # -- faults --

    def reboot(self):
        """While nothing runs here."""
        self.boot_id = str(uuid.uuid4())
        (self.folder / "boot_id").write_text(self.boot_id + "\n", encoding="ascii")
        self.clock.boot()

    def partition(self):
        self.network.switch.port(self.number, cut=True)

    def deafen(self, other):
        self.deaf_to.add(other)
        self.network.switch.rule(self.number, other.number, cut=True)

    def slow(self, megabits):
        self.slowed = True
        self.network.switch.port(self.number, rate=megabits * 125_000, queue_ms=500)

    def heal(self):
        self.network.switch.port(self.number, cut=False, rate=self.network.rate, queue_ms=self.network.queue_ms)
        for other in self.deaf_to:
            self.network.switch.rule(self.number, other.number, cut=False)
        self.deaf_to.clear()

    def end(self):
        if self.holder is not None:
            self.network.switch.remove(self.number)
            for space, _ in self.spaces:
                os.close(space)
            if self.clock:
                self.clock.end()
        super().end()


class Lab(Network):
    """clocks: "all" gives each host a monotonic and a boot-time clock of its own, "boot" the second alone (the histories of tests/faults compare
    monotonic times of several processes), "" none. fake_clocks: each host's can be set, too (clock.py). rate: bytes a second of each host's port, 0: as fast as this machine can."""

    def __init__(self, seed, rate, mtu, clocks, build, fake_clocks):
        super().__init__(True)
        self.seed, self.rate, self.mtu, self.clocks, self.fake_clocks = seed, rate, mtu, clocks, fake_clocks
        self.build = build or os.environ["MC_BUILD"]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-lab-"))
        self.switch = self.resolver = None
        try:
            own_namespace()
            call("ip", "link", "set", "lo", "up")
            self.switch = Switch(self.folder, seed, build)
            self.queue_ms = self.switch.queue_ms
            self.switch.add(OBSERVER, "/proc/self/ns/net", "observer")
            call("ip", "address", "add", f"10.77.0.{OBSERVER}/24", "dev", "observer")
            call("ip", "link", "set", "observer", "mtu", mtu, "txqueuelen", 10000, "up")
            self.resolver = Resolver(f"10.77.0.{OBSERVER}")
        except BaseException:
            self.end()
            raise

    @classmethod
    def make(cls, seed=1, rate=0, mtu=MTU, clocks="all", build=None, fake_clocks=False, **rule):
        """rule: what holds between any two hosts, see Switch.rule."""
        lab = cls(seed, rate, mtu, clocks, build, fake_clocks)
        if rule:
            lab.switch.rule("*", "*", **rule)
        lab.lossy = rule.get("loss", 0) > 0
        return lab

    @classmethod
    def of(cls, options, seed, **more):
        """As a command line says, see words.py."""
        return cls.make(seed, options.line_rate, options.mtu, loss=options.loss, delay_ms=options.delay, reorder=options.reorder, **more)

    @staticmethod
    def why_not():
        """Why there can be no laboratory here; empty: there can."""
        if not os.path.exists("/dev/net/tun"):
            return "needs /dev/net/tun"
        if os.geteuid() != 0:
            return "needs root, for namespaces"
        return "" if shutil.which("ip") and shutil.which("nsenter") else "needs ip and nsenter"

    def host(self, name):
        if name not in self.hosts:
            self.made += 1
            self.hosts[name] = LabHost(self, name, self.made)
        return self.hosts[name]

    def end(self):
        super().end()
        for part in (self.resolver, self.switch):
            if part is not None:
                part.end()
        shutil.rmtree(self.folder, ignore_errors=True)
