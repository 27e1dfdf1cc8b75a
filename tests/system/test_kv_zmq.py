"""KV events by ZMQ: what a SUB socket of ZMTP 3 gets, written by hand as libzmq does it."""
import re
import socket
import struct

import pytest

import keyed
from certificates import Authority
from cluster import Master, wait_until
from idle_peers import raise_limit
from test_kv_events import get, keys, truth
from wire import FakeOwner

ON = ("--enable_kv_events=true", "--client_ttl=600", "--kv_events_bind_endpoint=tcp://127.0.0.1:0", "--kv_events_backend_id=pool-1")


def unpack(data, at=0):
    """(value, where it ends) of the msgpack that the original writes."""
    kind = data[at]
    at += 1

    def number(form):
        return struct.unpack_from(">" + form, data, at)[0], at + struct.calcsize(form)

    def items(count, at):
        found = []
        for _ in range(count):
            value, at = unpack(data, at)
            found.append(value)
        return found, at

    def text(length, at):
        return data[at:at + length].decode(), at + length

    if kind < 0x80:
        return kind, at
    if kind < 0x90 or kind == 0xde:
        count, at = (kind & 15, at) if kind < 0x90 else number("H")
        flat, at = items(2 * count, at)
        assert len(set(flat[::2])) == count
        return dict(zip(flat[::2], flat[1::2])), at
    if kind < 0xa0 or kind == 0xdc:
        return items(*((kind & 15, at) if kind < 0xa0 else number("H")))
    if kind < 0xc0 or kind in (0xd9, 0xda):
        return text(*((kind & 31, at) if kind < 0xc0 else number("B" if kind == 0xd9 else "H")))
    if kind == 0xc0:
        return None, at
    return number({0xcc: "B", 0xcd: "H", 0xce: "I", 0xcf: "Q", 0xd3: "q"}[kind])


class Subscriber:
    def __init__(self, port, minor=0, topic=b"", source=None, subscribes=True):
        self.socket = socket.create_connection(("127.0.0.1", port), 30, source and (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\3" + bytes([minor]) + b"NULL".ljust(20, b"\0") + bytes(32))
        greeting = self.exactly(64)
        assert greeting[0] == 0xff and greeting[9:12] == b"\x7f\3\0" and greeting[12:32] == b"NULL".ljust(20, b"\0")
        self.frame(4, b"\5READY\13Socket-Type\0\0\0\3SUB\10Identity\0\0\0\0")
        flags, body = self.next()
        assert flags == 4 and body == b"\5READY\13Socket-Type\0\0\0\3PUB"
        if minor and subscribes:
            self.frame(4, b"\11SUBSCRIBE" + topic)
        elif subscribes:
            self.frame(0, b"\1" + topic)
        self.frame(4, b"\4PING\0\1context")
        assert self.next() == (4, b"\4PONGcontext"), "so the subscription has been read"

    def frame(self, flags, body):
        self.socket.sendall(bytes([flags, len(body)]) + body)

    def exactly(self, length):
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, "the publisher has closed the connection"
            data += part
        return data

    def next(self):
        flags, length = self.exactly(2)
        if flags & 2:
            length = struct.unpack(">Q", bytes([length]) + self.exactly(7))[0]
        return flags, self.exactly(length)

    def message(self):
        """Number and batch of the next message."""
        topic, number, payload = self.next(), self.next(), self.next()
        assert topic == (1, b"") and number[0] == 1 and payload[0] & ~2 == 0
        batch, end = unpack(payload[1])
        assert end == len(payload[1]) and len(batch) == 3 and batch[2] == 0
        return struct.unpack(">Q", number[1])[0], batch[1]

    def events(self, count):
        """The next so many, in messages whose numbers rise by one."""
        found, last = [], None
        while len(found) < count:
            number, batch = self.message()
            assert last is None or number == last + 1
            last = number
            found += batch
        return found

    def close(self):
        self.socket.close()


def port_of(master):
    return int(wait_until(lambda: re.search(r"KV events are published on tcp://127.0.0.1:(\d+)", master.log()), 30, "the port").group(1))


def test_what_is_published():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        subscribers = [Subscriber(port_of(master), minor) for minor in (0, 1)]
        assert owner.put([b"a" * 300, b"18446744073709551615", b"0x1F", b"18446744073709551616"], 4096) == [0] * 4
        assert owner.remove([b"0x1F"]) == [0]
        for subscriber in subscribers:
            told = subscriber.events(5)
            assert [one["event_id"] for one in told] == [1, 2, 3, 4, 5]
            assert [one["event_type"] for one in told] == ["stored"] * 4 + ["removed"]
            assert [one["type"] for one in told] == ["BlockStored"] * 4 + ["BlockRemoved"]
            assert [one["object_key"] for one in told] == ["a" * 300, "18446744073709551615", "0x1F", "18446744073709551616", "0x1F"]
            assert [one["seq_hashes"] for one in told] == [[], [2**64 - 1], [31], [], [31]]
            assert [one["block_hashes"] for one in told] == [[], [-1], [31], [], [31]]
            assert all((one["medium"], one["backend_id"], one["tenant_id"]) == ("cpu", "pool-1", "default") and one["timestamp"] > 1.6e12 for one in told)
            nothing = {"model_name", "block_size", "additional_salt", "lora_name", "group_id", "dp_rank"}
            assert all(one[name] is None for one in told for name in nothing)
            stored = nothing | {"event_id", "timestamp", "event_type", "type", "tenant_id", "backend_id", "medium", "object_key", "seq_hashes", "block_hashes", "base_block_idx"}
            assert set(told[4]) == stored and set(told[0]) == stored | {"parent_hash", "token_ids", "parent_block_hash"}
            assert told[0]["base_block_idx"] == 0 and told[4]["base_block_idx"] is None
            subscriber.close()
        status = wait_until(lambda: (lambda told: told if told["skipped_unparsed_keys"] else None)(get(master, "/kv_events/status")[1]), 30, "the count")
        assert status["published_batches"] > 0 and status["skipped_unparsed_keys"] == 2 and status["published_events"] == 5
        owner.close()


def test_a_key_that_is_not_utf8():
    """Who reads msgpack refuses the whole batch, with all events of others in it."""
    with Master(*ON, "--kv_events_backend_id=pool \udcff") as master:
        owner, subscriber = FakeOwner(master.port, "127.0.0.1:9"), Subscriber(port_of(master))
        assert owner.put([b"a", b"b\xff\xc3", "\u20ac".encode()], 4096) == [0] * 3
        told = subscriber.events(3)
        assert [one["object_key"] for one in told] == ["a", "b\ufffd\ufffd", "\u20ac"] and told[0]["backend_id"] == "pool \ufffd"
        subscriber.close()
        owner.close()


def test_the_index_of_a_subscriber():
    with Master(*ON, "--kv_events_emit_legacy_compat=false") as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        subscribers, index = [Subscriber(port_of(master)) for _ in range(30)], set()
        other = Subscriber(port_of(master), topic=b"x")
        assert owner.put([b"k%d" % number for number in range(900)], 4096) == [0] * 900
        assert owner.remove([b"k%d" % number for number in range(0, 900, 3)]) == [0] * 300
        for number, subscriber in enumerate(subscribers):
            told = subscriber.events(1200)
            assert [one["event_id"] for one in told] == list(range(1, 1201)) and "type" not in told[0]
            if number == 0:  # before the others: who has no subscription to ours has ten seconds
                other.frame(4, b"\4PING\0\1")
                assert other.next() == (4, b"\4PONG"), "of another topic there is nothing"
        for one in told:
            (index.add if one["event_type"] == "stored" else index.remove)(one["object_key"])
        assert keys(*index) == truth(master)
        for subscriber in subscribers:
            subscriber.close()
        owner.close()


def test_a_subscriber_that_was_away_sees_the_leap():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        subscriber = Subscriber(port_of(master))
        owner.put([b"a"], 4096)
        number, _ = subscriber.message()
        subscriber.close()
        # Whoever comes while nobody is there begins with what is new: until it was noticed that nobody is, all is told.
        def leapt():
            owner.put([b"b%d" % leapt.count], 4096)
            leapt.count += 1
            one = Subscriber(port_of(master))
            owner.put([b"c%d" % leapt.count], 4096)
            found, events = one.message()
            one.close()
            return events[-1]["object_key"].startswith("c") and found > number + 1
        leapt.count = 0
        assert wait_until(leapt, 30, "a leap")
        owner.close()


def test_strangers():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        port = port_of(master)
        for said in (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), b"\xff" + bytes(8) + b"\x7f\1", bytes(64), b"\xff" + bytes(8) + b"\x7f\3\0PLAIN".ljust(64, b"\0"),
                     b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(54, b"\0") + bytes(1) + b"\2" + b"\xff" * 8):
            with socket.create_connection(("127.0.0.1", port), 30) as stranger:
                stranger.sendall(said.ljust(64, b"\0"))
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
        subscriber = Subscriber(port)
        owner.put([b"a"], 4096)
        assert subscriber.events(1)[0]["object_key"] == "a"
        subscriber.close()
        owner.close()


def test_who_says_nothing_is_let_go():
    with Master(*ON) as master, socket.create_connection(("127.0.0.1", port_of(master)), 60) as silent:
        subscriber = Subscriber(port_of(master))
        greeting = b""
        while more := silent.recv(4096):
            greeting += more
        assert len(greeting) == 64 and greeting[:1] == b"\xff"
        owner = FakeOwner(master.port, "127.0.0.1:9")
        owner.put([b"a"], 4096)
        assert subscriber.events(1)[0]["object_key"] == "a", "who has said what it wants stays"
        subscriber.close()
        owner.close()


def test_who_subscribes_to_nothing_is_let_go():
    with Master(*ON) as master:
        port = port_of(master)
        subscriber, idler, canceller = Subscriber(port), Subscriber(port, subscribes=False), Subscriber(port)
        canceller.frame(0, b"\0")
        for one in (idler, canceller):
            one.socket.settimeout(60)
            assert one.socket.recv(64) == b""
        owner = FakeOwner(master.port, "127.0.0.1:9")
        owner.put([b"a"], 4096)
        assert subscriber.events(1)[0]["object_key"] == "a"
        subscriber.close()
        owner.close()


@pytest.mark.parametrize("subscribe", [True, False])
def test_all_places_are_no_two_addresses(subscribe):
    """Two addresses that have taken all give one to who comes from a third: first one that wants nothing, else the newest."""
    if raise_limit() < 10000:
        pytest.skip("too few descriptors here")
    with Master(*ON) as master:
        owner, port = FakeOwner(master.port, "127.0.0.1:9"), port_of(master)
        many = [Subscriber(port, source=source, subscribes=subscribe or place == 0)
                for source, count in (("127.0.0.2", 3072), ("127.0.0.3", 1024)) for place in range(count)]
        new = [Subscriber(port, source="127.0.0.4") for _ in range(3)]
        owner.put([b"a"], 4096)
        for one in (many[0], many[3072], *new):
            assert one.events(1)[0]["object_key"] == "a"
        gone = []
        for at, one in enumerate(many):
            one.socket.setblocking(False)
            try:
                if one.socket.recv(1) == b"":
                    gone.append(at)
            except BlockingIOError:
                pass
        assert gone == ([3069, 3070, 3071] if subscribe else [1, 2, 3])
        for one in (*new, *many):
            one.close()
        owner.close()


def test_an_address_has_its_share():
    """Three quarters of the places, also if each is rightly a subscriber; who comes from another one has one."""
    if raise_limit() < 8000:
        pytest.skip("too few descriptors here")
    with Master(*ON) as master:
        owner, port = FakeOwner(master.port, "127.0.0.1:9"), port_of(master)
        many = [Subscriber(port, source="127.0.0.2") for _ in range(3072)]
        with socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0)) as more:
            assert more.recv(64) == b""
        subscriber = Subscriber(port, source="127.0.0.3")
        owner.put([b"a"], 4096)
        assert subscriber.events(1)[0]["object_key"] == "a"
        many.pop().close()

        def has_place():
            with socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0)) as one:
                return one.recv(64) != b""
        wait_until(has_place, 30, "the place of the one that has left")
        for one in (subscriber, *many):
            one.close()
        owner.close()


def test_without_a_place_it_serves_all_the_same():
    with Master("--enable_kv_events=true", "--kv_events_bind_endpoint=ipc:///tmp/x") as master:
        wait_until(lambda: "kv_events_bind_endpoint is not tcp://HOST:PORT" in master.log(), 30, "the warning")
        assert get(master, "/kv_events/status")[1]["enabled"]


@pytest.mark.parametrize("by", ["keys", "tls"])
def test_it_is_not_opened_where_others_are_to_prove_who_they_are(tmp_path, by):
    if by == "keys":
        flags = ("--auth_file=" + keyed.write(tmp_path, "keys", keyed.Key("a")),)
    else:
        pair = Authority(tmp_path, "authority").sign("master", ["IP:127.0.0.1"])
        flags = (f"--tls_cert={pair.certificate}", f"--tls_key={pair.key}")
    with Master(*ON, *flags) as master:
        wait_until(lambda: "KV events are not published by ZMQ" in master.log(), 30, "the warning")
        assert "KV events are published" not in master.log()
