"""Two leaders are seen: histories made by hand, and masters that lie."""
import http.client
import json
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from harness import wait_for
from ports import free_port
from leaders import HEAD, Ack, Judge, Leaders
from wire import EXIST_REPLY, HELLO, HELLO_REPLY, data, frame, record

HERE = pathlib.Path(__file__).resolve().parent
STILL_S = 9.0  # as long as a trial stops a master

GOOD = {
    "nothing": [],
    "one": [Ack("a", 1, 1, 2), Ack("a", 1, 3, 4)],
    "one after the other": [Ack("a", 1, 1, 2), Ack("b", 2, 3, 4)],
    "and back": [Ack("a", 1, 1, 2), Ack("b", 2, 3, 4), Ack("a", 3, 5, 6)],
    "it was asked before the other had answered": [Ack("a", 1, 1, 9), Ack("a", 1, 3, 9), Ack("b", 2, 3, 4)],
    "the same moment": [Ack("a", 1, 4, 5), Ack("b", 2, 3, 4)],
}
BAD = {
    "two at once": [Ack("a", 1, 1, 2), Ack("b", 2, 3, 4), Ack("a", 1, 5, 6)],
    "for a moment": [Ack("a", 1, 1, 2), Ack("b", 2, 3, 4), Ack("a", 1, 4.001, 4.002), Ack("b", 2, 5, 6)],
    "for one moment": [Ack("a", 1, 1, 2), Ack("b", 5, 3, 4), Ack("a", 1, 5, 6)],
    "though its epoch is lower": [Ack("a", 5, 1, 2), Ack("b", 4, 3, 4), Ack("a", 5, 5, 6)],
    "an epoch that falls": [Ack("a", 5, 1, 2), Ack("b", 4, 3, 4)],
    "an epoch that falls, of one master": [Ack("a", 5, 1, 2), Ack("a", 4, 3, 4)],
    "one epoch for two": [Ack("a", 1, 1, 2), Ack("b", 1, 3, 4)],
}


def violations(acks):
    judge = Judge()
    for ack in acks:
        judge.take(ack)
    return judge.violations()


@pytest.mark.parametrize("name", GOOD)
def test_good(name):
    assert violations(GOOD[name]) == [] == violations(reversed(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_bad(name):
    for acks in (BAD[name], reversed(BAD[name])):
        (found,) = violations(acks)
        assert found.startswith({"an": "an epoch that falls", "one": "epoch 1 is acknowledged by a and b"}.get(name.split()[0], "two leaders: "))


def test_what_is_forgotten_may_fall():
    """But never are there two at once."""
    judge = Judge()
    judge.take(Ack("a", 5, 1, 2))
    judge.take(Ack("b", 4, 5, 6))
    assert judge.violations([(2, 4)]) == [] == judge.violations([(1.5, 4)]) and len(judge.violations([(7, 9)])) == len(judge.violations([(0, 0.5)])) == 1
    judge.take(Ack("a", 5, 7, 8))
    assert [text.split(":")[0] for text in judge.violations([(2, 4)])] == ["two leaders"]


class Liar:
    """A master that always leads, or says that it does not."""

    def __init__(self, name, epoch):
        self.name, self.epoch, self.host = name, epoch, SimpleNamespace(address="127.0.0.1")
        self.leads, self.connections = True, []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                self.connections.append(self.listener.accept()[0])
                threading.Thread(target=self.answer, args=(self.connections[-1],), daemon=True).start()
        except OSError:
            pass

    def answer(self, connection):
        got = b""
        try:
            while part := connection.recv(65536):
                self.goes_on.wait()
                got += part
                while len(got) >= HEAD.size and len(got) >= HEAD.size + HEAD.unpack_from(got)[0]:
                    length, kind, _flags, number = HEAD.unpack_from(got)
                    got = got[HEAD.size + length:]
                    code = 0 if self.leads else -1010
                    said = struct.pack("<iHHQ16sQQII", code, 1, 1, 0, bytes(16), 1, self.epoch, 0, 0) + data(b"") + data(b"")
                    connection.sendall(frame(HELLO_REPLY, number, record(said)) if kind == HELLO else frame(EXIST_REPLY, number, record(b"")))
        except OSError:
            pass

    def end(self):
        for one in [self.listener, *self.connections]:
            one.close()


@pytest.mark.parametrize("first_leads", (True, False))
def test_masters_that_lie(first_leads):
    """Both lead under epochs of their own; or one of them says that it does not."""
    liars = [Liar("first", 1), Liar("second", 2)]
    liars[0].leads = first_leads
    leaders = Leaders(liars)
    leaders.start()
    try:
        start = time.monotonic()
        wait_for(lambda: leaders.judge.count > 40 and 2 in leaders.judge.reigns, 20, "acknowledgements")
        wait_for(lambda: leaders.since(time.monotonic() - 0.2), 10, "one of now")
        assert leaders.since(time.monotonic() + 60) is None and leaders.since(start, before=start) is None
    finally:
        leaders.end()
        for liar in liars:
            liar.end()
    assert all(text.startswith("two leaders: ") for text in leaders.violations()) and bool(leaders.violations()) == first_leads


def test_one_that_stands_still_for_longer_than_a_lease():
    """And then answers what it was asked meanwhile, when another had led; who asks it anew is told that it does not."""
    liars = [Liar("first", 1), Liar("second", 2)]
    liars[1].leads = False
    leaders = Leaders(liars)
    leaders.start()
    try:
        wait_for(lambda: leaders.judge.count > 20, 20, "acknowledgements")
        liars[0].goes_on.clear()
        liars[0].leads, liars[1].leads = False, True
        wait_for(lambda: 2 in leaders.judge.reigns, 20, "the second")
        time.sleep(STILL_S)
        assert leaders.violations() == []
        liars[0].goes_on.set()
        wait_for(leaders.violations, 5, "what the first says")
    finally:
        leaders.end()
        for liar in liars:
            liar.goes_on.set()
            liar.end()
    assert all(text.startswith("two leaders: first") for text in leaders.violations())


def test_the_way_to_etcd():
    """Late requests, late answers, none; and what is under way arrives when that ends."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        try:
            while True:
                connection = server.accept()[0]
                threading.Thread(target=answer, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def answer(connection):
        while connection.recv(65536):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    threading.Thread(target=serve, daemon=True).start()
    port = free_port()
    way = subprocess.Popen([sys.executable, "-B", str(HERE / "way.py"), "127.0.0.1", str(port), str(server.getsockname()[1])],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def set_way(**state):
        way.stdin.write(json.dumps(state).encode() + b"\n")
        way.stdin.flush()
        time.sleep(0.1)

    def took(timeout=5.0):
        connection, start = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout), time.monotonic()
        connection.request("POST", "/", b"x")
        assert connection.getresponse().read() == b"ok"
        return time.monotonic() - start
    try:
        assert way.stdout.readline() == b"ready\n"
        quick = took()
        for name in ("requests", "answers"):
            set_way(**{name: 1.0})
            assert took() >= 1.0 > quick
        set_way(mute=True)
        with pytest.raises(OSError):
            took(0.5)
        set_way(answers=60.0)
        threading.Timer(0.5, set_way).start()
        assert took(30.0) < 20.0
    finally:
        way.kill()
        way.wait()
        server.close()
