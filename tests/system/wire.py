"""The master's protocol, spoken by hand: a second, independent writer of what src/store/wire/rpc.def says, for tests that need a node without memory.

    owner = FakeOwner(master.port, "node:1", capacity=64 << 20)   # mounts a segment
    owner.put([b"key"], 4096)                                     # makes objects visible
"""
import os
import select
import struct
import time

import secured

HELLO, HELLO_REPLY, MOUNT, MOUNT_REPLY, LIVE, CLEAR, CLEARED = 1, 2, 20, 21, 24, 25, 26
PUT_START, PUT_GRANTED, PUT_DONE, GET, GET_FOUND, EXIST, EXIST_REPLY, REMOVE, REMOVE_REPLY = 40, 41, 43, 44, 45, 47, 48, 49, 50
SEGMENTS, SEGMENTS_REPLY = 33, 34
FAILED, TRACE = 3, 7
HINT, HINT_REPLY = 55, 56
SOFT_PIN, FIRM_PIN = 2, 32  # flags of PUT_START
DISKS, FIRM_PINS, HINTS = 2, 64, 256  # bits of features
ROLE_CALL, ROLE_OWNER = 0, 2


def data(value):
    return struct.pack("<H", len(value)) + value


def record(body=b""):
    return struct.pack("<H", len(body)) + body


def records(bodies):
    return struct.pack("<I", len(bodies)) + b"".join(record(body) for body in bodies)


def frame(kind, request_id, body):
    return struct.pack("<IHHQ", len(body), kind, 0, request_id) + body


class Reader:
    def __init__(self, body):
        self.body, self.at = body, 0

    def record(self):
        (size,) = struct.unpack_from("<H", self.body, self.at)
        self.at += 2 + size
        return self.body[self.at - size:self.at]

    def list(self):
        (count,) = struct.unpack_from("<I", self.body, self.at)
        self.at += 4
        return [self.record() for _ in range(count)]


def hello(port, timeout_s=1.0, seen_epoch=0):
    """(code, epoch, leader) of a first hello; None when nobody answers."""
    try:
        with secured.connection("127.0.0.1", port, timeout_s) as connection:
            said = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, os.urandom(16), 1, 0) + data(b"t") + data(b"") + struct.pack("<QI", seen_epoch, 0)
            connection.sendall(frame(HELLO, 7, record(said)))
            body = b""
            while len(body) < 16 or len(body) < 16 + struct.unpack_from("<I", body)[0]:
                part = connection.recv(65536)
                if not part:
                    return None
                body += part
    except OSError:
        return None
    length, kind, _flags, request_id = struct.unpack_from("<IHHQ", body)
    assert kind == HELLO_REPLY and request_id == 7
    reply = Reader(body[16:16 + length]).record()
    code, _low, _high, _features, _node, _incarnation, epoch = struct.unpack_from("<iHHQ16sQQ", reply)
    at = struct.calcsize("<iHHQ16sQQII")
    (size,) = struct.unpack_from("<H", reply, at)
    at += 2 + size
    leader = b""
    if at < len(reply):
        (size,) = struct.unpack_from("<H", reply, at)
        leader = reply[at + 2:at + 2 + size]
    return code, epoch, leader.decode()


class Connection:
    """One connection to a master, after the hello."""

    def __init__(self, port, role, node, name=b"test", host="127.0.0.1", features=0):
        self.socket = secured.connection(host, port, 20)
        self.request_id = 0
        hello = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, role, features, node, 1, 0) + data(name) + data(b"")
        self.greeting = self.call(HELLO, HELLO_REPLY, record(hello)).record()
        code = struct.unpack_from("<i", self.greeting)[0]
        assert code == 0, code

    def send(self, kind, body):
        self.request_id += 1
        self.socket.sendall(frame(kind, self.request_id, body))
        return self.request_id

    def next(self):
        """Kind and body of the next frame."""
        length, kind, _flags, _id = struct.unpack("<IHHQ", self.exactly(16))
        return kind, Reader(self.exactly(length))

    def receive(self, kind):
        """The next frame of that kind; others are skipped."""
        while True:
            got, body = self.next()
            if got == kind:
                return body

    def exactly(self, length):
        parts = bytearray()
        while len(parts) < length:
            part = self.socket.recv(length - len(parts))
            assert part, "the master has closed the connection"
            parts += part
        return bytes(parts)

    def call(self, kind, reply, body):
        self.send(kind, body)
        return self.receive(reply)

    def cluster(self):
        """What the answer to the hello says; 16 bytes of zero: nothing."""
        at = struct.calcsize("<iHHQ16sQQII")
        for behind in (0, struct.calcsize("<BQ"), struct.calcsize("<I")):  # text, leader, build
            at += 2 + struct.unpack_from("<H", self.greeting, at)[0] + behind
        return self.greeting[at:at + 16]

    def close(self):
        self.socket.close()


class FakeOwner:
    """A store node without memory: mounts a segment, and says of every put that it is live."""

    def __init__(self, port, name, capacity=64 << 20, slots=16384, features=0):
        node = os.urandom(16)
        self.owner = Connection(port, ROLE_OWNER, node, features=features)
        self.caller = Connection(port, ROLE_CALL, node, features=features)
        self.segment = self.mount(name, capacity, slots)

    def mount(self, name, capacity, slots=16384, directory=None):
        """One more segment, with a directory a disk; its number."""
        mount = os.urandom(16) + struct.pack("<QQIQQ16s", capacity, capacity, slots, 1, 0, b"h" * 16) + data(name.encode()) + data(b"127.0.0.1:9") + data(b"")
        mount += struct.pack("<IIB", 0, 0, 1) + data(directory.encode()) if directory else b""
        code, segment, _epoch = struct.unpack_from("<iIQ", self.owner.call(MOUNT, MOUNT_REPLY, record(mount)).record())
        assert code == 0, code
        return segment

    def put(self, keys, length, replicas=1, flags=0, pin_ms=0):
        """Codes of the puts; at most 1024 keys at once. Only the own segment may be there."""
        items = records([struct.pack("<Q", length) + data(key) for key in keys])
        granted = self.caller.call(PUT_START, PUT_GRANTED, record(struct.pack("<BIQ16sQ", replicas, flags, 0, bytes(16), pin_ms)) + items + records([]) + records([]))
        granted.record()
        codes = [struct.unpack_from("<i", head)[0] for head in granted.list()]
        places = [struct.unpack_from("<IIQQ", place) for place in granted.list()]
        if places:
            assert {place[0] for place in places} == {self.segment}
            self.owner.send(LIVE, record(struct.pack("<I", self.segment)) +
                            records([struct.pack("<IiQ", slot, 0, generation) for _segment, slot, generation, _offset in places]))
            done = self.caller.receive(PUT_DONE)
            done.record()
            codes = [struct.unpack_from("<i", code)[0] for code in done.list()]
        return codes

    def hint(self, hint, keys):
        """Codes; hint as in mooncake.h."""
        told = self.caller.call(HINT, HINT_REPLY, record(struct.pack("<BQ", hint, 0)) + records([data(key) for key in keys]))
        told.record()
        return [struct.unpack_from("<i", code)[0] for code in told.list()]

    def remove(self, keys):
        """Codes of the removals, by force; it clears whatever the master tells it to clear meanwhile."""
        body, codes = record(b"\1") + records([data(key) for key in keys]), None
        self.caller.send(REMOVE, body)
        while codes is None:
            ready, _, _ = select.select([self.owner.socket, self.caller.socket], [], [], 20)
            assert ready, "the master does not answer a removal"
            if self.owner.socket in ready:
                kind, told = self.owner.next()
                if kind == CLEAR:
                    self.owner.send(CLEARED, told.body)
            if self.caller.socket in ready:
                kind, told = self.caller.next()
                if kind == FAILED:  # it does not know yet what may come back
                    time.sleep(0.05)
                    self.caller.send(REMOVE, body)
                elif kind == REMOVE_REPLY:
                    told.record()
                    codes = [struct.unpack_from("<i", code)[0] for code in told.list()]
        return codes

    def close(self):
        self.caller.close()
        self.owner.close()
