"""The network of the laboratory, from Python: starts lab_switch (switch.c) and tells it what to do.

    switch = Switch(folder, seed=1)
    switch.add(3, "/proc/123/ns/net", "eth0")
    switch.rule("*", "*", loss=0.01, delay_ms=1, reorder=0.001)     # of packets from, to; "*" is every host but the observer
    switch.rule(3, 4, cut=True)
    switch.port(3, rate=125e6)                                      # of all that it sends, and of all that it receives
    switch.stats()                                                  # {(from, to): Pair}
"""
import collections
import os
import pathlib
import socket
import subprocess

OBSERVER = 254  # the number of the host that looks on: its packets are left alone
HERE = pathlib.Path(__file__).resolve().parent
QUEUE_MS = 20.0  # before a line with a rate, as a switch's own memory holds
Pair = collections.namedtuple("Pair", "packets bytes lost overflowed reordered cut")


def words_of(**rule):
    """A rule in the switch's own words."""
    made = []
    for name, value in rule.items():
        if name in ("loss", "reorder"):
            made += [f"{name}_ppm", round(value * 1e6)]
        elif name.endswith("_ms"):
            made += [f"{name[:-3]}_us", round(value * 1000)]
        else:  # rate, in bytes a second, and cut
            made += [name, int(value)]
    return made


class Switch:
    queue_ms = QUEUE_MS

    def __init__(self, folder, seed=1, build=None):
        program = pathlib.Path(build or os.environ["MC_BUILD"]) / "tests/lab_switch"
        self.path = pathlib.Path(folder) / "switch"
        self.process = subprocess.Popen([str(program), str(self.path), str(seed)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            self.end()
            raise OSError(f"{program} does not start")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(self.path))
        self.tell("set * * reorder_us 3000 queue_us", round(QUEUE_MS * 1000))

    def tell(self, *words):
        self.socket.send(" ".join(map(str, words)).encode())
        answer = self.socket.recv(1 << 17).decode()
        if answer.startswith("error"):
            raise OSError(f"lab_switch: {' '.join(map(str, words))}: {answer}")
        return answer

    def add(self, number, namespace, device):
        self.tell("host", number, namespace, device)
        self.port(number, queue_ms=QUEUE_MS)

    def remove(self, number):
        self.tell("gone", number)

    def rule(self, sender, receiver, **rule):
        self.tell("set", sender, receiver, *words_of(**rule))

    def port(self, number, **rule):
        self.tell("port", number, *words_of(**rule))

    def stats(self):
        rows = [list(map(int, line.split())) for line in self.tell("stats").splitlines() if line != "none"]
        return {(row[0], row[1]): Pair(*row[2:]) for row in rows}

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if hasattr(self, "socket"):
            self.socket.close()
