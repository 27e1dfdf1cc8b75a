"""Hostile words for the ports of a cluster: messages of the store's protocol by the tables of src/store/wire/rpc.def, requests to transfer engines, HTTP.
Whatever is said is valid first, and then wrong in some way, or not. What servers answer is remembered by the names of its fields, and said again."""
import base64
import collections
import contextlib
import json
import ssl
import struct

from make_corpus import EDGES, tables

RECORDS, MESSAGES = tables()
BY_NUMBER = {number: (name, head, lists) for name, number, head, lists in MESSAGES}
NUMBER = {name: number for name, number, _head, _lists in MESSAGES}
SIZES = {"U8": 1, "U16": 2, "U32": 4, "U64": 8, "I32": 4, "ID": 16}
ROLES = {0: ("SEGMENT", "SEGMENT_NAMED", "SEGMENTS", "SEGMENT_KEYS", "PUT_START", "PUT_REVOKE", "GET", "RENEW", "EXIST", "REMOVE", "REMOVE_REGEX",
             "SUSPECT", "ROTTEN", "LIVE", "PING"),
         1: ("HEARTBEAT", "PING"), 2: ("MOUNT", "UNMOUNT", "LIVE", "CLEARED", "CUT_DONE", "INVENTORY", "LOST", "FLUSH", "PING"),
         3: ("READ", "READ", "WRITE", "COMMIT", "ATTACH", "PING", "RDMA_OFFER")}
MAGIC = 0x4E4F4F4D
SOME = (0, 1, -1, 4096, 1 << 20, 1.5, "1MB", "", None, [1])  # sizes of memory that a service is to lend: what it can have it takes
EXPECTED = {"magic": MAGIC, "version_min": 1, "version_max": 1, "replica_count": 1, "last": 1, "state": 1, "block_shift": 16, "key_length": 5}


class Reader:
    """Of bytes that a server has said: whatever it is, nothing is raised."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        part = self.data[self.at:self.at + size]
        self.at += size
        return part

    def number(self, size):
        return int.from_bytes(self.take(size), "little")

    def record(self, name):
        inside, found = Reader(self.take(self.number(2))), {}
        for kind, field in RECORDS[name]:
            found[field] = inside.take(inside.number(2)) if kind == "BYTES" else inside.take(SIZES[kind])
        return found


class Words:
    """All that one hostile party says, from one seed, and what it has learnt."""

    def __init__(self, rng, keys):
        self.rng = rng
        self.keys = keys  # names of objects that others have
        self.learnt = collections.defaultdict(lambda: collections.deque(maxlen=24))
        self.segments = collections.deque(maxlen=8)  # SEGMENT_REPLY records
        self.secured = collections.deque(maxlen=8)  # the same of nodes whose ports take TLS alone
        self.documents = collections.deque(maxlen=4)  # of engines
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False

    # ---- the store's protocol ----

    def learn(self, frame, by_tls=False):
        """A frame that a server has said."""
        kind = struct.unpack_from("<IH", frame)[1]
        if kind not in BY_NUMBER:
            return
        _name, head, lists = BY_NUMBER[kind]
        reader = Reader(frame[16:])
        found = [(head, reader.record(head))]
        for one in lists:
            found += [(one, reader.record(one)) for _ in range(min(reader.number(4), 64))]
        for name, record in found:
            for field, value in record.items():
                if value.strip(b"\0"):
                    self.learnt[field].append(value)
            if name == "segment_reply" and record["tcp_address"]:
                (self.secured if by_tls else self.segments).append(record)

    def field(self, kind, name):
        rng = self.rng
        way = rng.random()
        if way < 0.6 and self.learnt[name]:
            value = rng.choice(self.learnt[name])
        elif way < 0.8:
            value = self.expected(kind, name)
        elif kind == "BYTES":
            value = rng.choice((b"", b"\0", b"127.0.0.1:9", b"@mooncake", rng.randbytes(rng.choice((1, 16, 32, 33, 255, 2000))), b"(a+)+$", rng.choice(self.keys)))
        else:
            number = rng.choice((*EDGES, rng.getrandbits(64), rng.randrange(64), -rng.randrange(2000)))
            value = (number % (1 << 8 * SIZES[kind])).to_bytes(SIZES[kind], "little")
        if kind == "BYTES":
            return struct.pack("<H", len(value)) + value
        return value[:SIZES[kind]].ljust(SIZES[kind], b"\0")

    def expected(self, kind, name):
        if kind == "BYTES":
            return {"key": self.rng.choice(self.keys), "pattern": b"^nobodys-", "name": b"hostile:1", "tcp_address": b"127.0.0.1:9"}.get(name, b"")
        if kind == "ID":
            return self.rng.randbytes(16)
        return EXPECTED.get(name, self.rng.randrange(4)).to_bytes(SIZES[kind], "little")

    def record(self, name, **given):
        if name == "put_start_item":  # a value of its own under the name of another's would be no wrong byte
            given = {"key": struct.pack("<H", 9) + b"nobodys-" + bytes([self.rng.randrange(48, 58)]), **given}
        body = b"".join(given[field] if field in given else self.field(kind, field) for kind, field in RECORDS[name])
        way = self.rng.random()
        if way < 0.02:
            body = body[:self.rng.randrange(len(body) + 1)]
        elif way < 0.04:
            body += self.rng.randbytes(self.rng.randrange(40))
        return struct.pack("<H", len(body)) + body

    def message(self, name, **given):
        """A frame of that name: whole, or cut, or of another length or type than it says."""
        rng = self.rng
        number, head, lists = next((number, head, lists) for one, number, head, lists in MESSAGES if one == name)
        body = self.record(head, **given)
        for one in lists:
            count = rng.choice((0, 1, 1, 2, 3, rng.randrange(40)))
            said = count if rng.random() > 0.02 else rng.choice((*EDGES, count + 1)) % (1 << 32)
            body += struct.pack("<I", said) + b"".join(self.record(one) for _ in range(count))
        way = rng.random()
        length = len(body) if way > 0.02 else rng.choice((*EDGES, len(body) + 1, max(len(body) - 1, 0))) % (1 << 32)
        frame = struct.pack("<IHHQ", length, number if way > 0.03 else rng.randrange(90), rng.choice((0, 0, rng.getrandbits(16))), rng.choice((1, 2, rng.getrandbits(64)))) + body
        if name == "WRITE":
            frame += rng.randbytes(rng.choice((0, 10, 4096)))
        return frame[:rng.randrange(len(frame))] if rng.random() < 0.02 else frame * rng.choice((1,) * 12 + (2, 5))

    def near_epoch(self):
        """None, or one that is a little below or above a master's: the first is of before it, the other says that it is of the past."""
        if not self.learnt["epoch"] or self.rng.random() < 0.6:
            return bytes(8)
        epoch = int.from_bytes(self.rng.choice(self.learnt["epoch"])[:8], "little")
        return ((epoch + self.rng.choice((0, 0, -1, 1, 2, -100, 100, 6000, -(1 << 20)))) % (1 << 64)).to_bytes(8, "little")

    def hello(self, role, nonce=None):
        given = {"magic": struct.pack("<I", MAGIC), "version_min": b"\1\0", "version_max": b"\1\0", "role": bytes([role]), "build": b"\0\0", "tenant": b"\0\0",
                 "token": b"\0\0", "holds": b"\0", "cluster": bytes(16), "seen_epoch": self.near_epoch()}
        if nonce is not None:
            given["nonce"] = nonce
        body = struct.pack("<H", 0)
        fields = b"".join(given[field] if field in given and self.rng.random() > 0.02 else self.field(kind, field) for kind, field in RECORDS["hello"])
        body = struct.pack("<H", len(fields)) + fields
        return struct.pack("<IHHQ", len(body), NUMBER["HELLO"], 0, 1) + body

    def of_role(self, role):
        """Something that such a connection may say, or, now and then, something of any other."""
        name = self.rng.choice(ROLES[role]) if self.rng.random() < 0.9 else self.rng.choice(MESSAGES)[0]
        return self.message(name)

    # ---- transfer engines ----

    def handshake(self):
        rng = self.rng
        text = rng.choice(("{}", "", "[]", json.dumps({"name": "n" * rng.randrange(300), "notify_msg": "m" * rng.randrange(3000)}), "{\"a\":" * rng.randrange(200),
                           json.dumps({"local_nic_path": "a@b", "qp_num": [rng.getrandbits(32)] * rng.randrange(20), "local_lid": 1, "local_gid": "00:" * 16}),
                           rng.choice(self.documents).decode("latin1") if self.documents else "{}"))
        body = text.encode("latin1")
        if body and rng.random() < 0.2:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(1) + body[at + 1:]
        kind = rng.choice((b"\0", b"\1", b"\1", b"\2", b"\3", b"\4", b"", b"\xff"))
        length = len(kind + body) if rng.random() > 0.1 else rng.choice(EDGES)
        return struct.pack("<Q", length % (1 << 64)) + kind + body

    def transfer(self, may_write):
        """A header of the data port, for memory that there is as far as a document has said so."""
        rng = self.rng
        buffers = [one for text in self.documents for one in self.buffers_of(text)] or [(0, 4096)]
        address, size = rng.choice(buffers)
        address = (address + rng.choice((0, 1, size - 1, size, -1, rng.randrange(max(size, 1))))) % (1 << 64)
        length = rng.choice((0, 1, 8, 4096, size, *EDGES)) % (1 << 64)
        opcode = rng.choice((0, 0x80, 2, 0x82, 0x7F, 0xFF) + ((1, 0x81) if may_write else ()))
        return struct.pack("<QQB", length, address, opcode) + rng.choice((bytes(7), rng.randbytes(7))) + rng.randbytes(rng.choice((0, 8, 4096)))

    @staticmethod
    def buffers_of(text):
        try:
            return [(one["addr"], one["length"]) for one in json.loads(text)["buffers"]]
        except (ValueError, KeyError, TypeError):
            return []

    # ---- TLS: what comes before a handshake is done, or in place of it ----

    def client_hello(self):
        """A real one."""
        out = ssl.MemoryBIO()
        one = self.context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=self.rng.choice((None, "localhost", "a" * 60 + ".b")))
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
        return out.read()

    def before_tls(self, plain):
        """plain: something that the port would hear without TLS."""
        rng = self.rng
        record = struct.pack(">BHH", rng.choice((20, 21, 22, 22, 23, 24, 0, 255)), rng.choice((0x301, 0x303, 0x304, 0x300, 0x200)), rng.choice((0, 1, 2, 16384, 16641, 65535)))
        way = rng.random()
        if way < 0.2:
            return plain
        if way < 0.4:
            return record + rng.randbytes(rng.choice((0, 1, 2, 100, 16384)))
        if way < 0.5:
            return rng.choice((b"\x15\3\3\0\2\2\x28", b"\x14\3\3\0\1\1", b"\x80\x2e\1\3\1\0\x15\0\0\0\x10", b"\x16\3\1\0\4\1\xff\xff\xff"))
        hello = self.client_hello()
        if way < 0.7:
            return hello
        if way < 0.8:
            return hello[:rng.randrange(len(hello))]
        at, length = rng.randrange(len(hello)), rng.randrange(4)
        return hello[:at] + rng.randbytes(length) + hello[at + length:]

    # ---- subscribers of KV events: ZMTP ----

    def zmtp_greeting(self):
        greeting = b"\xff" + bytes(8) + b"\x7f\3" + bytes([self.rng.choice((0, 1))]) + b"NULL".ljust(20, b"\0") + bytes(32)
        if self.rng.random() < 0.1:
            at = self.rng.randrange(64)
            greeting = greeting[:at] + self.rng.randbytes(1) + greeting[at + 1:self.rng.choice((64, 64, at + 1))]
        return greeting

    def zmtp(self):
        rng = self.rng
        if rng.random() < 0.1:  # asks for the past
            return b"\1\0\0\10" + rng.choice((bytes(8), rng.randbytes(8)))
        topic = rng.choice((b"", b"", b"x", rng.randbytes(rng.randrange(300))))
        flags, body = rng.choice(((4, b"\5READY\13Socket-Type\0\0\0\3SUB"), (4, b"\5READY" + rng.randbytes(rng.randrange(40))), (4, b"\11SUBSCRIBE" + topic), (4, b"\6CANCEL" + topic),
                                  (4, b"\4PING\0\1" + topic[:20]), (4, b"\4PONG" + topic), (0, b"\1" + topic), (0, b"\0" + topic), (1, topic), (4, rng.randbytes(rng.randrange(20)))))
        if rng.random() < 0.02:
            flags, body = 4, b"\5ERROR\3bad"
        if rng.random() < 0.05:
            flags = rng.randrange(256)
        if flags & 2 or len(body) > 255 or rng.random() < 0.1:
            length = len(body) if rng.random() > 0.1 else rng.choice(EDGES) % (1 << 64)
            return bytes([flags | 2]) + struct.pack(">Q", length) + body
        return bytes([flags, len(body)]) + body

    # ---- HTTP ----

    def request(self, paths, key):
        rng = self.rng
        method, path = rng.choice(paths)
        path = path.replace("KEY", rng.choice(self.keys).decode()).replace("N", str(rng.choice((0, 1, rng.getrandbits(64)))))
        if rng.random() < 0.1:
            path += rng.choice(("?", "&key=", "%", "%00", "/..", "?key=" + "k" * 3000, "#", "?" + "&" * 500))
        if rng.random() < 0.05:
            method = rng.choice(("PATCH", "HEAD", "OPTIONS", "TRACE", "get", "G" * 500))
        body = b"" if method == "GET" and rng.random() < 0.9 else self.body()
        headers = [("Host", "x"), ("Content-Length", str(len(body)))]
        if key is not None:
            word = f"Bearer {key.token}" if rng.random() < 0.5 else "Basic " + base64.b64encode(key.token.encode()).decode()
            headers.append(("Authorization", word if rng.random() > 0.1 else word[:-rng.randrange(1, 9)]))
        way = rng.random()
        if way < 0.1:
            headers[1] = ("Transfer-Encoding", "chunked")
            body = b"".join(b"%x\r\n%s\r\n" % (len(body[at:at + 7]), body[at:at + 7]) for at in range(0, len(body), 7)) + rng.choice((b"0\r\n\r\n", b"0\r\n", b"-1\r\n", b"ffffffffffffffff\r\n"))
        elif way < 0.2:
            headers.append(rng.choice((("Content-Length", "7"), ("X", "x" * rng.randrange(70000)), ("Expect", "100-continue"), ("Connection", "close"), ("Origin", "http://other"),
                                       ("Content-Length", "-1"), ("Transfer-Encoding", "gzip"), ("Authorization", "Bearer " + "a" * 5000))))
        elif way < 0.25:
            headers[1] = ("Content-Length", str(rng.choice(EDGES)))
        text = f"{method} {path} HTTP/1.{rng.choice('0111')}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
        whole = text.encode() + body
        return whole if rng.random() > 0.05 else whole[:rng.randrange(len(whole))]

    def body(self):
        rng = self.rng
        value = rng.choice(({}, [], "text", {"key": f"nobodys-{rng.randrange(9)}", "value": "v" * rng.randrange(5000)}, {"segments": ["a", "b"]}, {"size": rng.choice(SOME)},
                            {"name": "shm", "size": rng.choice(SOME), "path": "/../x"}, {"model": "m", "prompt": "p" * rng.randrange(3000), "stream": rng.random() < 0.5},
                            {"model": "m", "messages": [{"role": "user", "content": "c"}]}, {"job_id": rng.getrandbits(64)}, {"prefill": ["127.0.0.1:9"]},
                            {"tenant_id": "t", "quota": rng.choice(("1GB", -1, "9" * 40))}, {"id": "1-1", "segment_id": "1-1", "grace_ms": rng.choice(EDGES)}))
        text = json.dumps(value).encode()
        way = rng.random()
        if way < 0.15:
            at = rng.randrange(len(text))
            text = text[:at] + rng.randbytes(rng.randrange(4)) + text[at + 1:]
        elif way < 0.2:
            text = b"[" * rng.randrange(5000)
        elif way < 0.25:
            text = rng.randbytes(rng.randrange(300))
        return text
