"""KV events by ZMQ: what SUB and DEALER sockets of ZMTP 3 get, written by hand as libzmq does it. Routers' own are in tests/clients/test_events.py."""
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

REPLAY = "--kv_events_replay_endpoint=tcp://127.0.0.1:0"
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


class Socket:
    """A socket of ZMTP 3 that has shaken hands."""

    def __init__(self, port, own, other, minor=0, source=None):
        self.socket = socket.create_connection(("127.0.0.1", port), 30, source and (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\3" + bytes([minor]) + b"NULL".ljust(20, b"\0") + bytes(32))
        greeting = self.exactly(64)
        assert greeting[0] == 0xff and greeting[9:12] == b"\x7f\3\0" and greeting[12:32] == b"NULL".ljust(20, b"\0")
        self.frame(4, b"\5READY\13Socket-Type" + struct.pack(">I", len(own)) + own + b"\10Identity\0\0\0\0")
        flags, body = self.next()
        assert flags == 4 and body == b"\5READY\13Socket-Type" + struct.pack(">I", len(other)) + other

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

    def close(self):
        self.socket.close()


def batch_of(payload):
    """The events of a batch."""
    batch, end = unpack(payload)
    assert end == len(payload) and len(batch) == 3 and batch[2] == 0
    return batch[1]


class Subscriber(Socket):
    def __init__(self, port, minor=0, topic=b"", source=None, subscribes=True):
        super().__init__(port, b"SUB", b"PUB", minor, source)
        if minor and subscribes:
            self.frame(4, b"\11SUBSCRIBE" + topic)
        elif subscribes:
            self.frame(0, b"\1" + topic)
        self.frame(4, b"\4PING\0\1context")
        assert self.next() == (4, b"\4PONGcontext"), "so the subscription has been read"

    def message(self):
        """Number and batch of the next message."""
        topic, number, payload = self.next(), self.next(), self.next()
        assert topic == (1, b"") and number[0] == 1 and payload[0] & ~2 == 0
        return struct.unpack(">Q", number[1])[0], batch_of(payload[1])

    def events(self, count):
        """The next so many, in messages whose numbers rise by one."""
        found, last = [], None
        while len(found) < count:
            number, batch = self.message()
            assert last is None or number == last + 1
            last = number
            found += batch
        return found


class Asker(Socket):
    """What vLLM's readers do to be told the past."""

    def __init__(self, port):
        super().__init__(port, b"DEALER", b"ROUTER")

    def ask(self, number):
        self.frame(1, b"")
        self.frame(0, struct.pack(">Q", number))

    def answer(self):
        """[(number, events)] up to what ends it."""
        found = []
        while True:
            delimiter, topic, number, payload = self.next(), self.next(), self.next(), self.next()
            assert delimiter == topic == (1, b"") and number[0] == 1 and payload[0] & ~2 == 0
            if not payload[1]:
                assert number[1] == b"\xff" * 8
                return found
            found.append((struct.unpack(">Q", number[1])[0], batch_of(payload[1])))

    def past(self, number):
        self.ask(number)
        return self.answer()


def port_of(master, what="KV events are published on"):
    return int(wait_until(lambda: re.search(what + r" tcp://127.0.0.1:(\d+)", master.log()), 30, "the port").group(1))


def asker_port(master):
    return port_of(master, "KV events of the past are told on")


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


def test_the_form_of_engines():
    """What vLLM's and SGLang's decoders require is there, and of their types; the first event says that nothing told before is so."""
    with Master(*ON, "--kv_events_format=engine") as master:
        owner, subscriber = FakeOwner(master.port, "127.0.0.1:9"), Subscriber(port_of(master))
        assert owner.put([b"k", b"18446744073709551615"], 4096) == [0, 0]
        assert owner.remove([b"k"]) == [0]
        first, *told = subscriber.events(4)
        assert first == {"type": "AllBlocksCleared"}
        assert [(one["type"], one["block_hashes"], one["medium"], one["object_key"]) for one in told] == [
            ("BlockStored", [], "CPU", "k"), ("BlockStored", [2**64 - 1], "CPU", "18446744073709551615"), ("BlockRemoved", [], "CPU", "k")]
        assert [(one["tenant_id"], one["event_id"]) for one in told] == [("default", 1), ("default", 2), ("default", 3)]
        required = {"parent_block_hash": None, "token_ids": [], "block_size": 0, "lora_id": None, "lora_name": None}
        assert all({name: one[name] for name in required} == required for one in told[:2])
        subscriber.close()
        owner.close()
    with Master(*ON, "--kv_events_format=engine", "--kv_events_emit_object_key=false") as master:
        owner, subscriber = FakeOwner(master.port, "127.0.0.1:9"), Subscriber(port_of(master))
        assert owner.put([b"k", b"0x10"], 4096) == [0, 0]
        told = subscriber.events(2)[1]
        assert told["block_hashes"] == [16] and "object_key" not in told
        subscriber.close()
        owner.close()


def test_the_past_is_told():
    with Master(*ON, REPLAY) as master:
        owner, asker = FakeOwner(master.port, "127.0.0.1:9"), Asker(asker_port(master))
        assert asker.past(0) == [], "there is nothing yet"
        assert owner.put([b"k%d" % number for number in range(200)], 4096) == [0] * 200
        past = asker.past(0)  # nobody was there when it happened
        assert [event["object_key"] for _, events in past for event in events] == [f"k{number}" for number in range(200)]
        numbers = [number for number, _ in past]
        assert len(numbers) >= 4 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert asker.past(numbers[2]) == past[2:] and asker.past(numbers[-1] + 1) == asker.past(2**64 - 1) == []
        subscriber = Subscriber(port_of(master))
        assert owner.remove([b"k7"]) == [0]
        number, events = subscriber.message()
        assert number == numbers[-1] + 1 and Asker(asker_port(master)).past(number) == [(number, events)]
        # What is no question is passed over; of questions before the end of an answer the last one is answered.
        for frames in ([b"", b"1"], [struct.pack(">Q", 0)], [b"", b"", struct.pack(">Q", 0)], [b"x", struct.pack(">Q", 0)]):
            for frame in frames[:-1]:
                asker.frame(1, frame)
            asker.frame(0, frames[-1])
        asker.frame(4, b"\4PING\0\1context")
        assert asker.next() == (4, b"\4PONGcontext")
        assert asker.past(number) == [(number, events)]
        for one in (subscriber, asker):
            one.close()
        owner.close()


def test_what_is_kept_of_the_past_is_bounded():
    """The last 16 MiB of messages; who takes no answer until they are written anew is let go, and harms nobody."""
    with Master(*ON, REPLAY) as master:
        owner, asker, sleeper = FakeOwner(master.port, "127.0.0.1:9", slots=32768), Asker(asker_port(master)), Asker(asker_port(master))
        sleeper.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for turn in range(80):
            assert owner.put([b"%05d" % number + b"x" * 1000 for number in range(turn * 256, turn * 256 + 256)], 1024) == [0] * 256
            assert asker.past(2**64 - 1) == []
            if turn == 40:  # more than both kernels hold for it
                sleeper.ask(0)
        told = [int(event["object_key"][:5]) for _, events in asker.past(0) for event in events]
        assert 10000 < len(told) < 14000 and told == list(range(80 * 256 - len(told), 80 * 256))
        with pytest.raises((AssertionError, ConnectionError)):
            sleeper.answer()
        asker.close()
        owner.close()


def test_who_asks_of_the_past_may_rest():
    """As long as it has said that it is one; else it is let go."""
    with Master(*ON, REPLAY) as master, socket.create_connection(("127.0.0.1", asker_port(master)), 60) as silent:
        owner, asker = FakeOwner(master.port, "127.0.0.1:9"), Asker(asker_port(master))
        greeting = b""
        while more := silent.recv(4096):
            greeting += more
        assert len(greeting) == 64
        owner.put([b"a"], 4096)
        assert [events[0]["object_key"] for _, events in asker.past(0)] == ["a"]
        asker.close()
        owner.close()


def test_a_later_master_goes_on_above():
    """So nobody takes what it tells for what he has heard already, and who asks it for what he has missed is told all that it has."""
    with Master(*ON, REPLAY, "--kv_events_format=engine") as master:
        owner, subscriber = FakeOwner(master.port, "127.0.0.1:9"), Subscriber(port_of(master))
        for number in range(5):
            owner.put([b"%d" % number], 4096)
        last = subscriber.message()[0]
        owner.close()
        master.kill()
        master.start()
        owner, asker = FakeOwner(master.port, "127.0.0.1:9"), Asker(asker_port(master))
        owner.put([b"7"], 4096)
        [(number, events)] = asker.past(last + 1)
        assert number > last + 100 and [one["type"] for one in events] == ["AllBlocksCleared", "BlockStored"]
        asker.close()
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


@pytest.mark.parametrize("replay", ["tcp://127.0.0.1:%d", "ipc:///tmp/x%d"])
def test_without_a_place_for_the_past_they_are_published(replay):
    with socket.create_server(("127.0.0.1", 0)) as other, Master(*ON, "--kv_events_replay_endpoint=" + replay % other.getsockname()[1]) as master:
        wait_until(lambda: re.search(r"KV events of the past are not told: .*kv_events_replay_endpoint", master.log()), 30, "the warning")
        owner, subscriber = FakeOwner(master.port, "127.0.0.1:9"), Subscriber(port_of(master))
        owner.put([b"a"], 4096)
        assert subscriber.events(1)[0]["object_key"] == "a" and "of the past are told" not in master.log()
        subscriber.close()
        owner.close()


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
