"""What is done to the hosts of a laboratory while clients call.

A Harm is done to a store node, and says within what time gets of its keys must end. A Trouble is a client's own: nobody else may feel it.
"""
import ctypes
import os
import signal

from network import LIBC

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # of waitpid: also threads
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def threads_of(process, name):
    found = []
    for task in os.listdir(f"/proc/{process}/task"):
        try:
            with open(f"/proc/{process}/task/{task}/comm", encoding="ascii") as comm:
                if comm.read().strip() == name:
                    found.append(int(task))
        except OSError:  # it has just ended
            continue
    return found


class HeldThread:
    """One thread of a process stands still, the others go on. To be released by the thread that made it."""

    def __init__(self, process, name=None, task=None):
        (self.task,) = threads_of(process, name) if task is None else (task,)
        self._trace(PTRACE_SEIZE)
        self._trace(PTRACE_INTERRUPT)
        os.waitpid(self.task, WALL)

    def _trace(self, request):
        if LIBC.ptrace(request, self.task, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of {self.task}")

    def release(self):
        """Nothing happens if its process has ended meanwhile."""
        try:
            self._trace(PTRACE_DETACH)
        except ProcessLookupError:
            pass


class Harm:
    """of one node, while it lasts. limit_s: a get of a key that lies there alone must end by then, with its bytes or without."""

    KINDS = {"kill": "it is killed, and started again afterwards", "stop": "all its threads stand still (SIGSTOP)",
             "thread": "the thread that serves its data stands still, the others go on", "oneway": "nothing that it sends arrives",
             "deaf": "nothing arrives at it", "partition": "its cable is cut"}
    LIMITS_S = {"kill": 0.2}
    LIMIT_S = 1.0

    def __init__(self, kind, node, lab):
        self.kind, self.node, self.lab, self.held = kind, node, lab, None
        self.limit_s = self.LIMITS_S.get(kind, self.LIMIT_S)
        self.segment = node.segment

    def begin(self):
        if self.kind == "kill":
            self.node.kill()
        elif self.kind == "stop":
            self.node.signal(signal.SIGSTOP)
        elif self.kind == "thread":
            self.held = HeldThread(self.node.child.pid, "mc-serve")
        elif self.kind == "oneway":
            self.lab.switch.rule(self.node.host.number, "*", cut=True)
        elif self.kind == "deaf":
            self.lab.switch.rule("*", self.node.host.number, cut=True)
        else:
            self.node.host.partition()

    def undo(self):
        if self.kind == "kill":
            self.node.start()
            self.node.wait_ready()
        elif self.kind == "stop":
            self.node.signal(signal.SIGCONT)
        elif self.kind == "thread":
            self.held.release()
        elif self.kind == "oneway":
            self.lab.switch.rule(self.node.host.number, "*", cut=False)
        elif self.kind == "deaf":
            self.lab.switch.rule("*", self.node.host.number, cut=False)
        else:
            self.node.host.heal()


class Trouble:
    """of one client. Some begin with the client (it is started again), some while it calls."""

    KINDS = {"descriptors": "it may open so few files that it cannot connect to every node",
             "memory": "it gets no more memory, and its connections to nodes are gone",
             "silent": "its resolver does not answer when it asks for a node", "wrong": "its resolver gives a wrong address for each node",
             "cable": "its host's cable is cut", "deaf": "what nodes send to its host is lost, what the master sends arrives"}
    RESTARTS = ("descriptors", "memory", "silent", "wrong")
    DESCRIPTORS = 5  # what a client has open when it has joined

    def __init__(self, kind, client, lab, nodes):
        self.kind, self.client, self.lab, self.nodes = kind, client, lab, nodes

    def begin(self):
        if self.kind == "descriptors":
            self.client.descriptors = self.DESCRIPTORS + max(len(self.nodes) // 2, 1)
        elif self.kind == "memory":
            self.client.starves = True
        elif self.kind in ("silent", "wrong"):
            self.lab.resolver.mode(self.client.host, self.kind, only="node")
        elif self.kind == "cable":
            self.client.host.partition()
        else:
            for node in self.nodes:
                self.lab.switch.rule(node.host.number, self.client.host.number, cut=True)

    def calls_began(self):
        """What needs a client that calls."""
        if self.kind == "memory":
            self.client.ask(starve=True)
            for node in self.nodes:
                self.client.host.run(["ss", "-K", "dst", node.host.address])

    def undo(self):
        self.client.descriptors, self.client.starves = 0, False
        self.lab.resolver.mode(self.client.host, "well")
        self.client.host.heal()
        for node in self.nodes:
            self.lab.switch.rule(node.host.number, self.client.host.number, cut=False)
