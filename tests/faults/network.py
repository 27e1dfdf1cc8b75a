"""Hosts of our own: network namespaces on one bridge, all of which vanish with this process. Where that is not allowed everything is 127.0.0.1.

    network = Network.make()          # once, early, in a process without threads: it moves into a namespace of its own
    host = network.host("n0")         # host.address
    host.popen([...])                 # a process there; it dies with us
    host.partition() / host.slow(megabits) / host.deafen(other) / host.heal()

A host without a namespace cannot be partitioned or slowed: network.real says which it is. tests/lab/hosts.py makes hosts whose network loses packets.
"""
import ctypes
import os
import signal
import subprocess

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG = 1


def call(*words, check=True):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done


def unshare(flags):
    if LIBC.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def own_namespace():
    """Into a network namespace of this process's own; without root by way of a user namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        unshare(CLONE_NEWNET)
        return
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def dies_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    def __init__(self, network, name, number):
        self.network, self.name, self.number = network, name, number
        self.address = self.known_as = f"10.77.0.{number}" if network.real else "127.0.0.1"
        self.port_name = f"p{number}"
        self.mac = f"02:4d:43:00:00:{number:02x}"
        self.namespace = self.holder = None
        self.deaf_to = set()
        if network.real:
            self._make()

    def _make(self):
        self.holder = subprocess.Popen(["sleep", "infinity"], preexec_fn=self._alone, stdin=subprocess.DEVNULL)
        self.namespace = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._plug()
        for words in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", f"{self.address}/24", "dev", "eth0"],
                      ["ip", "link", "set", "eth0", "up"]):
            self.run(words)

    def _alone(self):
        """Of the process that holds this host's namespaces, before it is executed."""
        dies_with_parent()
        unshare(CLONE_NEWNET)

    def _plug(self):
        """Makes eth0."""
        call("ip", "link", "add", self.port_name, "type", "veth", "peer", "name", "eth0", "address", self.mac, "netns", self.holder.pid)
        call("ip", "link", "set", self.port_name, "master", "switch", "up")

    def enter(self):
        """For preexec_fn: from here on in this host, and dead when our parent is."""
        dies_with_parent()
        if self.namespace is not None and LIBC.setns(self.namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def run(self, words, check=True):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, preexec_fn=self.enter)
        if check and done.returncode != 0:
            raise OSError(f"{self.name}: {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done

    def popen(self, words, **more):
        return subprocess.Popen([str(word) for word in words], preexec_fn=self.enter, **more)

    def environment(self):
        return {}

    # -- faults --

    def partition(self):
        """Nothing in, nothing out, and nobody is told: the link stays up."""
        call("bridge", "link", "set", "dev", self.port_name, "state", "0")

    def deafen(self, other):
        """What this host sends to `other` is lost, what comes from it arrives: its frames go to an address that nobody has."""
        self.deaf_to.add(other)
        self.run(["ip", "neigh", "replace", other.address, "lladdr", "02:4d:43:ff:ff:ff", "dev", "eth0", "nud", "permanent"])

    def slow(self, megabits):
        """Both directions through a queue of so many Mbit/s, up to half a second long."""
        shape = ["root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "500ms"]
        call("tc", "qdisc", "replace", "dev", self.port_name, *shape)
        self.run(["tc", "qdisc", "replace", "dev", "eth0", *shape])

    def heal(self):
        if not self.network.real:
            return
        call("bridge", "link", "set", "dev", self.port_name, "state", "3")
        call("tc", "qdisc", "del", "dev", self.port_name, "root", check=False)
        self.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=False)
        for other in self.deaf_to:
            self.run(["ip", "neigh", "del", other.address, "dev", "eth0"], check=False)
        self.deaf_to.clear()

    def end(self):
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            os.close(self.namespace)


class Network:
    lossy = False

    def __init__(self, real):
        self.real = real
        self.hosts = {}
        self.made = 0

    @classmethod
    def make(cls):
        try:
            own_namespace()
            call("ip", "link", "set", "lo", "up")
            call("ip", "link", "add", "switch", "type", "bridge", "stp_state", "0")
            call("ip", "link", "set", "switch", "up")
            call("ip", "address", "add", "10.77.0.254/24", "dev", "switch")
            network = cls(True)
            probe = network.host("probe")
            probe.partition()
            probe.slow(10)
            probe.deafen(network.host("probe2"))
            for name in ("probe", "probe2"):
                network.hosts[name].heal()
                network.hosts.pop(name).end()
            return network
        except (OSError, FileNotFoundError) as error:
            print(f"no network namespaces here ({error}): partitions and slow links are left out", flush=True)
            try:
                call("ip", "link", "set", "lo", "up")
            except (OSError, FileNotFoundError):
                pass
            return cls(False)

    def host(self, name):
        if name not in self.hosts:
            self.made += 1  # a number is not used again: the links of a dead namespace go a moment after it
            self.hosts[name] = Host(self, name, self.made)
        return self.hosts[name]

    def heal(self):
        for host in self.hosts.values():
            host.heal()

    def end(self):
        for host in self.hosts.values():
            host.end()
