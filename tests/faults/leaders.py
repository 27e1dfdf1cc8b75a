"""Who leads, as the masters themselves acknowledge it: each is asked all the time, whoever it says that it is, and never are there two at once.

A call over a connection is under the epoch that the master named in its hello. An answer proves that this master served under that epoch at one moment
between the sending of the call and the coming of the answer. These are the laws:
  - one epoch is led by one process, and only once;
  - who has acknowledged under an epoch is followed, not accompanied: of two leaderships one is over when the other begins;
  - the later has the higher epoch, unless all that was known of the other is lost meanwhile (etcd, from a copy, and masters that have just started).
For every epoch the earliest answer and the latest call that was answered are all that this needs.

    leaders = Leaders(masters)            # with .name, .port and .host.address; leaders.start(), leaders.end()
    leaders.since(moment)                 # when somebody had acknowledged what was asked after that moment; None: nobody has
    leaders.violations()                  # texts; empty = good
"""
import os
import select
import socket
import struct
import threading
import time
from collections import namedtuple

from wire import EXIST, EXIST_REPLY, HELLO, HELLO_REPLY, ROLE_CALL, Reader, data, frame, record, records

ASK_S = 0.02
SILENT_S = 12.0  # a connection over which nothing came for so long is left: longer than a master is made to stand still
HELLO_S = 0.5
PAUSE_S = 0.03
KEPT_S = 120.0   # of acknowledgements one by one
HEAD = struct.Struct("<IHHQ")
QUESTION = record() + records([data(b"who leads")])

Ack = namedtuple("Ack", "master epoch asked answered")  # master: its name and its process; times: monotonic


class Reign:
    """What is known of one epoch."""

    def __init__(self, ack):
        self.masters = {ack.master}
        self.first, self.last = ack, ack  # the answer that came first, the call that was asked last

    def take(self, ack):
        self.masters.add(ack.master)
        if ack.answered < self.first.answered:
            self.first = ack
        if ack.asked > self.last.asked:
            self.last = ack


class Judge:
    def __init__(self):
        self.reigns = {}
        self.count = 0

    def take(self, ack):
        self.count += 1
        if ack.epoch in self.reigns:
            self.reigns[ack.epoch].take(ack)
        else:
            self.reigns[ack.epoch] = Reign(ack)

    def violations(self, forgets=()):
        """forgets: spans of time in which epochs may be lost."""
        found = []
        reigns = sorted(self.reigns.items(), key=lambda item: item[1].first.answered)
        for number, (epoch, reign) in enumerate(reigns):
            if len(reign.masters) > 1:
                found.append(f"epoch {epoch} is acknowledged by {' and '.join(sorted(reign.masters))}")
            for before, earlier in reigns[:number]:
                together = earlier.last.asked - reign.first.answered
                if together > 0:
                    found.append(f"two leaders: {earlier.last.master} acknowledges under epoch {before} what was asked {together:.3f} s "
                                 f"after {reign.first.master} had acknowledged under epoch {epoch}")
                elif before > epoch and reign.last.asked > earlier.first.answered and not any(begin < reign.first.answered and end > earlier.first.asked for begin, end in forgets):
                    found.append(f"an epoch that falls: {reign.first.master} acknowledges under {epoch} after {earlier.last.master} did under {before}")
        return found


class Asker:
    """Asks one master, without waiting for the answers: what is asked while it stands still is there when it goes on."""

    def __init__(self, master, take):
        self.master, self.take = master, take
        self.node = os.urandom(16)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.is_over.is_set():
            try:
                with socket.create_connection((self.master.host.address, self.master.port), timeout=HELLO_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.converse(connection)
            except OSError:
                pass
            self.is_over.wait(PAUSE_S)

    def converse(self, connection):
        """Until it ends, or is refused."""
        self.asked, self.count, self.got, self.epoch = {}, 0, b"", 0
        said = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, self.node, 1, 0) + data(b"asker") + data(b"")
        self.send(connection, HELLO, record(said))
        heard, due = time.monotonic(), 0
        while not self.is_over.is_set() and time.monotonic() < heard + (SILENT_S if self.epoch else HELLO_S):
            if self.epoch and time.monotonic() >= due:
                self.send(connection, EXIST, QUESTION)
                due = time.monotonic() + ASK_S
            if select.select([connection], [], [], ASK_S)[0]:
                part = connection.recv(65536)
                if not part:
                    return
                heard, self.got = time.monotonic(), self.got + part
                if not self.hear(heard):
                    return

    def send(self, connection, kind, body):
        self.count += 1
        self.asked[self.count] = time.monotonic()
        connection.sendall(frame(kind, self.count, body))

    def hear(self, now):
        """False when it is refused."""
        while len(self.got) >= HEAD.size:
            length, kind, _flags, number = HEAD.unpack_from(self.got)
            if len(self.got) < HEAD.size + length:
                return True
            body, self.got = self.got[HEAD.size:HEAD.size + length], self.got[HEAD.size + length:]
            asked = self.asked.pop(number, None)
            if asked is None:
                continue  # it says something by itself
            if kind == HELLO_REPLY:
                code, _low, _high, _features, node, _incarnation, epoch = struct.unpack_from("<iHHQ16sQQ", Reader(body).record())
                if code != 0:
                    return False
                self.epoch, self.name = epoch, f"{self.master.name}/{node.hex()[:8]}"
            elif kind != EXIST_REPLY:
                continue  # no answer, or one that it cannot give now
            self.take(Ack(self.name, self.epoch, asked, now))
        return True


class Leaders:
    def __init__(self, masters):
        self.judge, self.kept, self.lock = Judge(), [], threading.Lock()
        self.askers = [Asker(master, self.take) for master in masters]

    def start(self):
        for asker in self.askers:
            asker.thread.start()

    def end(self):
        for asker in self.askers:
            asker.is_over.set()
        for asker in self.askers:
            if asker.thread.is_alive():
                asker.thread.join()

    def take(self, ack):
        with self.lock:
            self.judge.take(ack)
            self.kept.append(ack)
            if len(self.kept) > 1 << 16:
                self.kept = [kept for kept in self.kept if kept.answered > ack.answered - KEPT_S]

    def since(self, moment, before=float("inf")):
        with self.lock:
            return min((ack.answered for ack in self.kept if ack.asked >= moment and ack.answered <= before), default=None)

    def violations(self, forgets=()):
        with self.lock:
            return self.judge.violations(forgets)
