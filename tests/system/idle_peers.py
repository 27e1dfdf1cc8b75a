"""Many connections to a node or a master that were of use once, and then say nothing."""
import os
import resource
import socket
import struct

import wire

SEGMENTS, SEGMENTS_REPLY, PING, ROLE_DATA = 33, 34, 67, 3


def raise_limit():
    """As many descriptors as this process may have; returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def hello(role, node, nonce=0):
    said = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, role, 0, node, 1, nonce) + wire.data(b"idle") + wire.data(b"")
    return wire.frame(wire.HELLO, 1, wire.record(said))


def segments(port):
    """[(nonce, (host, port))] of the data connections of every segment that the master tells of."""
    connection = wire.Connection(port, wire.ROLE_CALL, os.urandom(16))
    reply = connection.call(SEGMENTS, SEGMENTS_REPLY, wire.record(struct.pack("<Q16s", 0, bytes(16))))
    connection.close()
    reply.record()
    found = []
    for one in reply.list():
        layout = "<iI16sQ16sQIQ16s"
        nonce = struct.unpack_from(layout, one)[7]
        at = struct.calcsize(layout)
        texts = []
        for _ in range(2):
            (size,) = struct.unpack_from("<H", one, at)
            texts.append(one[at + 2:at + 2 + size].decode())
            at += 2 + size
        host, _, data_port = texts[1].rpartition(":")
        found.append((nonce, (host, int(data_port))))
    return found


class IdlePeers:
    """`count` connections to that address. codes: how many were answered with what; None: closed without an answer."""

    def __init__(self, address, count, role, nonce=0, node=None):
        self.sockets, self.codes = [], {}
        for start in range(0, count, 500):
            batch = [socket.create_connection(address, timeout=20) for _ in range(min(500, count - start))]
            for one in batch:
                one.sendall(hello(role, node or os.urandom(16), nonce))
            for one in batch:
                code = self.answer(one)
                self.codes[code] = self.codes.get(code, 0) + 1
            if role == ROLE_DATA and set(self.codes) == {0}:  # each has been used
                for one in batch:
                    one.sendall(wire.frame(PING, 2, wire.record()))
                for one in batch:
                    assert len(one.recv(4096)) > 0
            self.sockets += batch

    @staticmethod
    def answer(connection):
        said = b""
        try:
            while len(said) < 22:
                part = connection.recv(4096)
                if not part:
                    return None
                said += part
        except OSError:
            return None
        return struct.unpack_from("<i", said, 18)[0]

    def open(self):
        """How many of them the other side has not closed."""
        count = 0
        for one in self.sockets:
            one.setblocking(False)
            try:
                count += one.recv(1) != b""
            except BlockingIOError:
                count += 1
            except OSError:
                pass
        return count

    def close(self):
        for one in self.sockets:
            one.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
