"""Tags of places: who holds a valid key that may write, and speaks the protocol by hand, does what he was granted and nothing else."""
import os
import signal
import struct
import time

import pytest

import keyed
import wire
from cluster import Master, wait_until
from keyed import NOT_PERMITTED, Client, Key
from store_process import StoreProcess
from test_keys import Owner, proved

COMMIT, WRITE, READ, READ_REPLY = 62, 63, 64, 65
BLUE, RED = Key("blue", "read,write", "blue"), Key("red", "read,write", "red")
SIZE = 4096


def content(name, size):
    """As version_client.py makes it."""
    seed = name.encode() + b"|"
    return (seed * (size // len(seed) + 1))[:size]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _bit in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Place:
    """Of a PUT_GRANTED or GET_FOUND; changed(...): the same, but."""

    def __init__(self, record):
        self.segment, self.slot, self.generation, self.offset, self.replica, self.tag = struct.unpack_from("<IIQQBQ", record)
        self.key_length, self.length, self.hash = 0, SIZE, (0, 0)

    def changed(self, **fields):
        other = Place.__new__(Place)
        other.__dict__.update(self.__dict__, **fields)
        return other

    def write(self, data):
        return wire.frame(WRITE, 0, wire.record(struct.pack("<IQQQQQQHQ", self.slot, self.generation, self.offset, len(data), self.length, *self.hash,
                                                            self.key_length, self.tag))) + data

    def commit(self, crc=0):
        return wire.frame(COMMIT, 0, wire.record() + wire.records([struct.pack(
            "<IIQQQQQHBBBQQ", self.slot, crc, self.generation, self.offset, self.length, *self.hash, self.key_length, 16, 0, self.replica, 0, self.tag)]))

    def read(self, tag=None):
        return wire.frame(READ, 5, wire.record(struct.pack("<IBQQQIQ", self.slot, 0, self.generation, 0, 10, 0, self.tag if tag is None else tag)))


class Peer:
    """A client that speaks by hand: its calls to the master, and connections to owners."""

    def __init__(self, master, key):
        self.node = os.urandom(16)
        self.connection, right = proved(master, key)
        self.connection.sendall(right + wire.frame(wire.HELLO, 7, wire.record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, wire.ROLE_CALL, 0, self.node, 1, 0) +
                                                                              wire.data(b"t") + wire.data(b"") + struct.pack("<QI", 0, 0xFFFFFFFF))))
        assert keyed.receive(self.connection)[0] == wire.HELLO_REPLY
        self.owners = {owner.segment: owner for owner in self.told()}

    def told(self):
        reader = self.call(wire.SEGMENTS, wire.SEGMENTS_REPLY, wire.record(struct.pack("<Q16s", 0, bytes(16))))
        reader.record()
        return [Owner(self.node, record) for record in reader.list()]

    def call(self, kind, answer, body):
        self.connection.sendall(wire.frame(kind, 9, body))
        while True:
            got, told = keyed.receive(self.connection)
            if got == answer:
                return wire.Reader(told)
            if got == wire.FAILED:  # a young master does not know yet what may come back
                time.sleep(0.05)
                self.connection.sendall(wire.frame(kind, 9, body))

    def places(self, reader):
        reader.record()
        return [struct.unpack_from("<i", head)[0] for head in reader.list()], [Place(record) for record in reader.list()]

    def find(self, name):
        return self.places(self.call(wire.GET, wire.GET_FOUND, wire.record(struct.pack("<I", 0)) + wire.records([wire.data(name)])))

    def get(self, name):
        codes, (place,) = self.find(name)
        assert codes == [0]
        return place

    def exist(self, name):
        reader = self.call(wire.EXIST, wire.EXIST_REPLY, wire.record() + wire.records([wire.data(name)]))
        return reader.record()[-1]

    def remove(self, name):
        reader = self.call(wire.REMOVE, wire.REMOVE_REPLY, wire.record(struct.pack("<B", 1)) + wire.records([wire.data(name)]))
        reader.record()
        return struct.unpack_from("<i", reader.list()[0])[0]

    def start(self, name, segment):
        """The code of a put that is asked for."""
        return self.places(self.call(
            wire.PUT_START, wire.PUT_GRANTED, wire.record(struct.pack("<BI", 1, 0)) + wire.records([struct.pack("<Q", SIZE) + wire.data(name)]) +
            wire.records([wire.data(self.owners[segment].name)]) + wire.records([])))[0][0]

    def grant(self, name, segment, hashed, length=SIZE):
        codes, places = self.places(self.call(
            wire.PUT_START, wire.PUT_GRANTED, wire.record(struct.pack("<BI", 1, 0)) + wire.records([struct.pack("<Q", length) + wire.data(name)]) +
            wire.records([wire.data(self.owners[segment].name)]) + wire.records([])))
        assert codes == [0] and places[0].segment == segment
        return places[0].changed(key_length=len(name), hash=hashed, length=length)

    def done(self):
        kind, body = keyed.receive(self.connection)
        assert kind == wire.PUT_DONE
        reader = wire.Reader(body)
        reader.record()
        return struct.unpack_from("<i", reader.list()[0])[0]

    def ask(self, place, tag=None, segment=None):
        """(code, hash, first bytes) of a READ; the code alone when it is refused."""
        with self.owners[segment or place.segment].open() as connection:
            connection.sendall(place.read(tag))
            kind, body = keyed.receive(connection)
            assert kind == READ_REPLY
            code, _crc, _length, *hashed = struct.unpack_from("<iIQQQ", body, 2)
            return (code, tuple(hashed), connection.recv(10)) if code == 0 else code

    def say(self, words, segment):
        """True: the owner has taken it, and answers what comes behind; False: it has hung up."""
        with self.owners[segment].open() as connection:
            try:
                connection.sendall(words + wire.frame(67, 6, wire.record()))
                return keyed.receive(connection) is not None
            except OSError:
                return False

    def close(self):
        self.connection.close()


@pytest.fixture
def yard(tmp_path):
    """A master with keys, two store nodes, a value of somebody else's in each, and a hand-made peer that may read and write."""
    writer, node = Key("writer", "read,write"), Key("node", "read,write,node")
    with Master(f"--auth_file={keyed.write(tmp_path, 'keys', writer, node, BLUE, RED)}") as master, \
            StoreProcess(master.address, MC_AUTH_TOKEN=node.token) as first, StoreProcess(master.address, MC_AUTH_TOKEN=node.token) as second, \
            Client(master, writer) as client:
        peer = Peer(master, writer)
        wait_until(lambda: len(peer.told()) == 2 and client.put("probe", "probe", 10) == 0)
        peer.owners = {owner.segment: owner for owner in peer.told()}
        for owner in peer.owners.values():
            assert client.put(f"of-{owner.segment}", "foreign", SIZE, owner.address) == 0
        yield master, writer, client, peer, (first, second)
        peer.close()


def foreign_is_whole(client, peer):
    return [client.same(f"of-{segment}", "foreign", SIZE) for segment in peer.owners] == [True, True]


def hash_of(client, peer, name, segment):
    """The owner tells it of a value that is there."""
    assert client.put(name, "x", SIZE, peer.owners[segment].address) == 0
    code, hashed, data = peer.ask(peer.get(name.encode()))
    assert code == 0 and data == content("x", 10)
    assert client.remove(name) == 0
    return hashed


def test_what_was_granted_can_be_written_and_read(yard):
    """By hand: so what is refused below is refused for what it is."""
    _master, _writer, client, peer, nodes = yard
    segment = min(peer.owners)
    place = peer.grant(b"mine", segment, hash_of(client, peer, "mine", segment))
    value = content("by hand", SIZE)
    assert peer.say(place.write(value + b"mine") + place.commit(crc32c(value)), segment)
    assert peer.done() == 0
    assert client.same("mine", "by hand", SIZE) is True
    assert peer.ask(peer.get(b"mine"))[2] == value[:10]
    assert not any("does not have the tag" in node.log() for node in nodes)


def test_a_valid_writer_cannot_touch_what_is_not_his(yard):
    master, writer, client, peer, nodes = yard
    here, there = sorted(peer.owners)
    hashed = hash_of(client, peer, "mine", here)
    mine, foreign = peer.grant(b"mine", here, hashed), peer.get(b"of-%d" % here)
    elsewhere = peer.get(b"of-%d" % there)
    other = Peer(master, writer)  # the same key, another process
    wrong = {
        "a foreign extent": mine.changed(offset=foreign.offset),
        "an extent beside it": mine.changed(offset=mine.offset + 64),
        "a foreign slot": mine.changed(slot=foreign.slot),
        "a foreign slot and extent": mine.changed(slot=foreign.slot, offset=foreign.offset),
        "a later generation": mine.changed(generation=mine.generation + 1),
        "the foreign slot's next generation": foreign.changed(generation=foreign.generation + 1, hash=hashed, key_length=4),
        "the last generation": mine.changed(generation=2**64 - 1),
        "a later epoch": mine.changed(generation=mine.generation + (1 << 40)),
        "a longer value": mine.changed(length=2 * SIZE),
        "a longer key": mine.changed(key_length=5),
        "another key": mine.changed(hash=(hashed[0] ^ 1, hashed[1])),
        "no tag": mine.changed(tag=0),
        "another tag": mine.changed(tag=mine.tag ^ 4),
        "the tag of a reader": mine.changed(tag=foreign.tag),
    }
    for name, place in wrong.items():
        for words in (place.write(b"\xee" * SIZE + b"mine"), place.commit()):
            assert not peer.say(words, here), name
            assert foreign_is_whole(client, peer), name
    for place in (mine, mine.changed(slot=elsewhere.slot, offset=elsewhere.offset), elsewhere.changed(generation=elsewhere.generation + 1, tag=mine.tag)):
        for words in (place.write(b"\xee" * SIZE + b"mine"), place.commit()):  # in another segment
            assert not peer.say(words, there)
            assert foreign_is_whole(client, peer)
    for words in (mine.write(b"\xee" * SIZE + b"mine"), mine.commit()):  # by another holder of the key
        assert not other.say(words, here)
    value = content("by hand", SIZE)  # and none of that has spoilt the grant
    assert peer.say(mine.write(value + b"mine") + mine.commit(crc32c(value)), here)
    assert peer.done() == 0 and client.same("mine", "by hand", SIZE) is True
    assert foreign_is_whole(client, peer)
    assert all("does not have the tag of that place" in node.log() for node in nodes)
    other.close()


def test_guessed_slots_are_not_read(yard):
    master, writer, client, peer, nodes = yard
    here, there = sorted(peer.owners)
    place, other = peer.get(b"of-%d" % here), Peer(master, writer)
    assert peer.ask(place)[2] == content("foreign", 10)
    guesses = [peer.ask(place.changed(slot=slot, tag=tag)) for slot in range(64) for tag in (0, place.tag) if (slot, tag) != (place.slot, place.tag)]
    guesses += [peer.ask(place.changed(generation=place.generation + more)) for more in (-1, 1, 1 << 40)]
    guesses += [peer.ask(place, segment=there), other.ask(place), peer.ask(place, place.tag ^ 2)]
    assert set(guesses) == {NOT_PERMITTED}
    assert peer.ask(place)[2] == content("foreign", 10) and other.ask(other.get(b"of-%d" % here))[2] == content("foreign", 10)
    other.close()


def test_another_tenant_is_told_of_no_place(yard):
    """Nor is a place that it knows all the same, with its tag, of any use to it."""
    master, _writer, _client, peer, _nodes = yard
    blue = Peer(master, BLUE)
    for segment in peer.owners:
        name = b"of-%d" % segment
        for asked in (name, b"\0blue\0" + name):
            codes, places = blue.find(asked)
            assert codes[0] < 0 and places == []
        assert blue.ask(peer.get(name)) == NOT_PERMITTED
    blue.close()


SEGMENT_KEYS, SEGMENT_KEYS_REPLY = 35, 36
INVALID_KEY = -400


def listed(peer, segment):
    """Names of keys there, as the master tells them."""
    reader = peer.call(SEGMENT_KEYS, SEGMENT_KEYS_REPLY, wire.record(struct.pack("<II", segment, 0)))
    reader.record()
    return [record[2:] for record in reader.list()]


def test_another_tenants_names_are_none_in_any_call(yard):
    """As the keys stand at the master, which one who speaks by hand can say."""
    master, _writer, client, peer, _nodes = yard
    blue, red = Peer(master, BLUE), Peer(master, RED)
    with Client(master, BLUE) as owner:
        assert owner.put("k", "of blue", 100) == 0
        own, foreign = b"\0blue\0k", [b"of-%d" % segment for segment in peer.owners]
        for who, names in ((red, [own, *foreign]), (peer, [own]), (blue, foreign)):
            for name in names:
                assert who.exist(name) == 0, name
                assert who.remove(name) in (INVALID_KEY, NOT_PERMITTED), name
                assert who.start(name, min(peer.owners)) in (INVALID_KEY, NOT_PERMITTED), name
        assert blue.exist(own) == 1 and peer.exist(foreign[0]) == 1
        names = {segment: [listed(who, segment) for who in (blue, red, peer)] for segment in peer.owners}
        assert any(own in of_blue for of_blue, _red, _plain in names.values())
        for of_blue, of_red, of_plain in names.values():
            assert of_red == [] and set(of_blue) <= {own} and own not in of_plain
        assert owner.same("k", "of blue", 100) is True and foreign_is_whole(client, peer)
    blue.close()
    red.close()


def test_who_knows_no_tags_is_told_at_once(yard, monkeypatch):
    """A release before them would be refused all that it asks for."""
    _master, _writer, _client, peer, _nodes = yard
    owner = peer.owners[min(peer.owners)]
    monkeypatch.setattr("test_keys.TAGS", 0)
    with owner.connect() as connection:
        known, right = owner.prove(connection)
        assert known
        connection.sendall(right + owner.hello())
        kind, body = keyed.receive(connection)
        assert kind == wire.HELLO_REPLY and struct.unpack_from("<i", body, 2)[0] == NOT_PERMITTED

# ---- keys of owners that change ----

PERIOD_S = 1


@pytest.fixture
def changing(tmp_path):
    """As above, with one store node whose keys are others each second."""
    writer, node = Key("writer", "read,write"), Key("node", "read,write,node")
    with Master(f"--auth_file={keyed.write(tmp_path, 'keys', writer, node)}") as master, \
            StoreProcess(master.address, MC_AUTH_TOKEN=node.token, MC_TICKET_PERIOD_S=str(PERIOD_S)) as store, Client(master, writer) as client:
        wait_until(lambda: client.put("of", "foreign", SIZE) == 0)
        peer = Peer(master, writer)
        yield master, (writer, node), client, peer, store, tmp_path
        peer.close()


def is_known(owner):
    """Does the owner know that ticket (still)?"""
    with owner.connect() as connection:
        return owner.prove(connection)[0]


def ended(connection):
    connection.settimeout(20)
    try:
        return keyed.receive(connection) is None
    except ConnectionError:
        return True


def test_tickets_and_tags_expire(changing):
    """Each is good for one period at least, and ends by itself, with the connections that were made with it."""
    _master, _keys, _client, peer, _store, _folder = changing
    (owner,), place = peer.told(), peer.get(b"of")
    peer.owners = {owner.segment: owner}
    assert peer.ask(place)[2] == content("foreign", 10)
    with owner.open() as connection:
        wait_until(lambda: not is_known(owner))
        assert ended(connection)  # and who has been in for long is out
    (owner,) = peer.told()
    assert is_known(owner)
    peer.owners = {owner.segment: owner}
    assert peer.ask(place) == NOT_PERMITTED  # with another ticket the tag of before is of no use
    assert peer.ask(peer.get(b"of"))[2] == content("foreign", 10)


def test_a_revoked_key_ends_without_a_restart(changing):
    """The ticket that its holder has taken along is good for two periods at most; others go on."""
    master, (_writer, node), _client, peer, store, folder = changing
    with Client(master, node) as other:
        assert other.put("other", "o", SIZE) == 0
        (owner,) = peer.told()
        keyed.write(folder, "keys", node)
        with owner.open() as connection:
            wait_until(lambda: not is_known(owner))
            assert ended(connection)
        assert other.same("other", "o", SIZE) is True and other.put("again", "a", SIZE) == 0
    assert store.process.poll() is None


@pytest.mark.parametrize("paths", ["shm", "tcp"])
def test_honest_clients_notice_nothing(changing, paths):
    """Through many periods no call fails and nothing is missed, also after a pause of several of them."""
    master, (writer, _node), _client, peer, store, _folder = changing
    with Client(master, writer, MC_PATHS=paths) as client:
        seen = set()

        def changes():
            seen.add(peer.told()[0].secret)
            return len(seen)
        for number in range(100000):
            assert client.put(f"k{number % 50}-{number}", "v", SIZE) == 0
            assert client.same(f"k{number % 50}-{number}", "v", SIZE) is True
            assert client.same("of", "foreign", SIZE) is True
            if number % 20 == 0 and changes() > 6:
                break
        assert changes() > 6
        os.kill(client.process.pid, signal.SIGSTOP)  # a machine that is suspended
        wait_until(lambda: changes() > 10)
        os.kill(client.process.pid, signal.SIGCONT)
        assert client.same("of", "foreign", SIZE) is True and client.put("after", "a", SIZE) == 0
        assert client.same("after", "a", SIZE) is True
        assert "cannot be reached" not in client.said()


def test_a_place_that_was_held_for_long_is_asked_for_again(changing):
    """A session remembers where its values lie, under a key that its owner has no more."""
    master, (writer, _node), _client, peer, _store, _folder = changing
    with Client(master, writer, MC_PATHS="tcp") as client:
        assert client.session_start("of") == 0 and client.session_same("of", "foreign", SIZE) is True
        place, (owner,) = peer.get(b"of"), peer.told()
        for _turn in range(2):
            wait_until(lambda: not is_known(owner))
            (owner,) = peer.told()
        peer.owners = {owner.segment: owner}
        assert peer.ask(place) == NOT_PERMITTED
        assert client.session_same("of", "foreign", SIZE) is True
        assert client.session_end("of") == 0


def test_a_master_that_begins_is_told_the_keys(changing):
    master, (writer, _node), client, _peer, _store, _folder = changing
    master.kill()
    master.start()
    wait_until(lambda: client.same("of", "foreign", SIZE) is True)
    with Client(master, writer, MC_PATHS="tcp") as other:
        assert other.same("of", "foreign", SIZE) is True
        wait_until(lambda: other.put("new", "n", SIZE) == 0)  # nothing is placed while the contents are told
        assert client.same("new", "n", SIZE) is True
