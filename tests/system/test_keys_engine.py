"""Keys of transfer engines: with them on, who has none, or the wrong one, reads and writes nothing, by whichever port and socket."""
import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import sys

import pytest

import keyed
from cluster import wait_until
from keyed import DATA, HANDSHAKE, HOST, Key
from test_engine import ORIGINAL, Peer

MIB = 1 << 20
PATHS = {"tcp": {"MC_FORCE_TCP": "1"}, "host": {}}
METADATA, PROBE = 1, 3
TENANT_NOT_REGISTERED = -1701


def frame(kind):
    return struct.pack("<QB", 3, kind) + b"{}"


class Engine(Peer):
    """A process with an engine, its log, and what keys it has."""

    def __init__(self, folder, name, key=None, file=None, **environment):
        self.log = folder / f"{name}.log"
        keys = {"MC_AUTH_TOKEN": key.token if key else "", "MC_AUTH_FILE": str(file) if file else ""}
        with self.log.open("w") as log:
            super().__init__(log=log, **{**keys, **environment})

    def said(self):
        return self.log.read_text()

    def tells(self, words):
        """Waits until its log has them: a call may have its answer before the line is written."""
        wait_until(lambda: words in self.said(), 20, f"'{words}' in the log")

    def moves(self, other, size=65536):
        """The codes of a write into the other's memory and a read from it."""
        return [int(self.ask(what, other.target, other.address, size)) for what in ("write", "read")]


def of_document(engine, key):
    with socket.create_connection(("127.0.0.1", engine.port), timeout=20) as connection:
        known, proof = keyed.preface(connection, HANDSHAKE, key)
        assert known
        connection.sendall(proof + frame(METADATA))
        length, = struct.unpack("<Q", connection.recv(8, socket.MSG_WAITALL))
        return json.loads(connection.recv(length, socket.MSG_WAITALL)[1:])


@pytest.fixture
def scene(tmp_path):
    """An engine whose file has three keys, its memory filled with sevens."""
    keys = {rights: Key(rights.replace(",", "-"), rights) for rights in ("read,write", "read", "write")}
    with Engine(tmp_path, "far", file=keyed.write(tmp_path, "keys", *keys.values())) as far:
        far.ask("fill", 0, MIB, 7)
        far.sevens = far.ask("crc", 0, MIB)
        yield far, keys, tmp_path


def is_untouched(engine):
    return engine.ask("crc", 0, MIB) == engine.sevens


# ---- real processes ----

@pytest.mark.parametrize("path", PATHS)
def test_who_has_the_key_reads_and_writes(scene, path):
    far, keys, folder = scene
    with Engine(folder, "near", keys["read,write"], **PATHS[path]) as near:
        near.ask("fill", 0, MIB, 9)
        nines = near.ask("crc", 0, MIB)
        assert near.moves(far, MIB) == [0, 0]
        assert far.ask("crc", 0, MIB) == near.ask("crc", 0, MIB) == nines
    assert "refused" not in far.said()


@pytest.mark.parametrize("path", PATHS)
def test_who_has_none_is_refused_and_told_what_to_do(scene, path):
    far, _keys, folder = scene
    with Engine(folder, "near", **PATHS[path]) as near:
        assert all(code < 0 for code in near.moves(far))
        near.tells("MC_AUTH_FILE or MC_AUTH_TOKEN")
    assert is_untouched(far)
    far.tells("a peer at 127.0.0.1:")
    far.tells("it has shown no key")


@pytest.mark.parametrize("wrong,says", [("unknown", "it does not know it"), ("secret", "another secret under that id")])
def test_a_wrong_key(scene, wrong, says):
    far, keys, folder = scene
    with Engine(folder, "near", Key("stranger" if wrong == "unknown" else keys["read,write"].name)) as near:
        assert all(code < 0 for code in near.moves(far))
        near.tells(says)
    assert is_untouched(far)


def test_an_engine_without_keys_is_not_believed(tmp_path):
    with Engine(tmp_path, "far") as far, Engine(tmp_path, "near", Key("k")) as near:
        far.ask("fill", 0, MIB, 7)
        far.sevens = far.ask("crc", 0, MIB)
        assert all(code < 0 for code in near.moves(far))
        near.tells("it has no keys, or is of the original")
        assert is_untouched(far)


def test_without_keys_nothing_is_said_before(tmp_path):
    """The original's bytes at once, also to a port that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Engine(tmp_path, "near") as near:
        near.process.stdin.write(f"first 127.0.0.1:{listener.getsockname()[1]}\n")
        near.process.stdin.flush()
        connection, _peer = listener.accept()
        with connection:
            connection.settimeout(20)
            assert connection.recv(11, socket.MSG_WAITALL) == frame(METADATA)


def test_a_key_that_may_only_read(scene):
    far, keys, folder = scene
    for path, environment in PATHS.items():
        with Engine(folder, f"near-{path}", keys["read"], **environment) as near:
            write, read = near.moves(far, MIB)
            assert write < 0 and read == 0, path
            assert near.ask("crc", 0, MIB) == far.sevens
    assert is_untouched(far)
    far.tells("its key has not both rights")


def test_a_key_that_may_not_read_learns_no_document(scene):
    far, keys, folder = scene
    with Engine(folder, "near", keys["write"]) as near:
        assert all(code < 0 for code in near.moves(far))
    assert is_untouched(far)


def test_a_key_is_revoked_without_a_restart(scene):
    far, keys, folder = scene

    def code():
        with Engine(folder, "near", keys["read"], MC_FORCE_TCP="1") as near:
            return near.moves(far)[1]
    assert code() == 0
    keyed.write(folder, "keys", keys["read,write"])
    wait_until(lambda: code() < 0)
    assert keys["read"].secret.hex() not in far.said()


def test_who_is_connected_when_its_key_is_revoked_is_let_go(scene):
    far, keys, folder = scene
    with Engine(folder, "near", keys["read"], MC_FORCE_TCP="1") as near, Engine(folder, "other", keys["read,write"], MC_FORCE_TCP="1") as other:
        assert near.moves(far)[1] == 0 and other.moves(far)[1] == 0
        keyed.write(folder, "keys", keys["read,write"])
        wait_until(lambda: "a peer is let go" in far.said())
        assert near.moves(far)[1] < 0
        assert other.moves(far) == [0, 0]


@pytest.mark.parametrize("path", PATHS)
def test_another_tenant_reaches_no_memory(tmp_path, path):
    """Whatever an engine has registered is its tenant's: that of the first key of its file."""
    a, b, none = Key("a", "read,write", "team-a"), Key("b", "read,write", "team-b"), Key("none", "read,write")
    with Engine(tmp_path, "far", file=keyed.write(tmp_path, "keys", a, b, none)) as far:
        far.ask("fill", 0, MIB, 7)
        far.sevens = far.ask("crc", 0, MIB)
        for key in (b, none):
            with Engine(tmp_path, f"near-{key.name}", key, **PATHS[path]) as near:
                assert all(code < 0 for code in near.moves(far))
                near.tells("it is of another tenant, or we are")
        assert is_untouched(far)
        far.tells("its key is of another tenant than our own")
        with Engine(tmp_path, "near-a", a, **PATHS[path]) as near:
            assert near.moves(far) == [0, 0]


@pytest.mark.parametrize("moved", ["the caller's", "our own"])
def test_who_is_connected_when_a_tenant_changes_is_let_go(tmp_path, moved):
    own, key = Key("own", "read,write", "team-a"), Key("key", "read,write", "team-a")
    with Engine(tmp_path, "far", file=keyed.write(tmp_path, "keys", own, key)) as far, Engine(tmp_path, "near", key, MC_FORCE_TCP="1") as near:
        assert near.moves(far) == [0, 0]
        (key if moved == "the caller's" else own).tenant = "team-b"
        keyed.write(tmp_path, "keys", own, key)
        wait_until(lambda: "a peer is let go" in far.said())
        assert all(code < 0 for code in near.moves(far))


@pytest.mark.parametrize("port", [HANDSHAKE, DATA, HOST])
def test_a_key_that_is_revoked_in_the_middle_of_its_proof(scene, port):
    far, keys, folder = scene
    key = keys["read,write"]
    openers = doors(far, key)
    with openers[port]() as connection:
        known, proof = keyed.preface(connection, port, key)
        assert known
        keyed.write(folder, "keys", keys["read"])
        wait_until(lambda: refusal_of(openers[port], port, key) == keyed.preface_refusal())
        connection.sendall(proof + frame(METADATA))
        assert keyed.read_all(connection) == b""
    assert is_untouched(far)


def test_each_door_refuses_another_tenant(scene):
    """Also who has found out the ports: nothing of the engine is told, and no byte comes or goes."""
    far, keys, folder = scene
    stranger = Key("stranger", "read,write", "team-b")
    keyed.write(folder, "keys", *keys.values(), stranger)
    openers = doors(far, keys["read,write"])
    wait_until(lambda: refusal_of(openers[HANDSHAKE], HANDSHAKE, stranger) == keyed.preface_refusal(TENANT_NOT_REGISTERED))
    for port, connect in openers.items():
        assert refusal_of(connect, port, stranger) == keyed.preface_refusal(TENANT_NOT_REGISTERED), port
    assert is_untouched(far)


def refusal_of(connect, port, key):
    """All that is said to who names that key; of one that is let in, the challenge."""
    with connect() as connection:
        connection.sendall(keyed.preface_auth(port, key, bytes(32)))
        connection.shutdown(socket.SHUT_WR)
        return keyed.read_all(connection)


def test_an_engine_whose_file_cannot_be_read_does_not_start(tmp_path):
    with pytest.raises((AssertionError, ValueError)):
        Engine(tmp_path, "near", file="/no/such/file")
    wait_until(lambda: "/no/such/file cannot be used" in (tmp_path / "near.log").read_text(), 20, "the line")


@pytest.mark.skipif(ORIGINAL is None, reason="the original's wheel is not here")
def test_the_original_is_refused_with_a_line(scene):
    far, _keys, _folder = scene
    with Peer(original=True) as original:
        assert all(int(original.ask(what, far.target, far.address, 4096)) < 0 for what in ("write", "read"))
    assert is_untouched(far)
    far.tells("an engine of the original")


# ---- by hand ----

def unix_connection(document):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect("\0" + document["mooncake_c"]["unix"][1:])
    return connection


def doors(far, key):
    """Each port and socket of the engine: what opens it, and which it is."""
    document = of_document(far, key)
    return {HANDSHAKE: lambda: socket.create_connection(("127.0.0.1", far.port), timeout=20),
            DATA: lambda: socket.create_connection(("127.0.0.1", document["tcp_data_port"]), timeout=20),
            HOST: lambda: unix_connection(document)}


def request(opcode, address, length):
    return struct.pack("<QQB7x", length, address, opcode)


def test_nothing_is_answered_before_the_proof(scene):
    far, keys, _folder = scene
    key = keys["read,write"]
    openers = doors(far, key)
    firsts = [frame(METADATA), b"\x02" + bytes(7) + b"{}", request(0, far.address, 100), request(0x80, far.address, 100),
              request(1, far.address, 8) + b"\xff" * 8, request(0x81, far.address, 8) + b"\xff" * 8, b"mc-auth", b"m" * 2000, b"mc-prof1" + bytes(32),
              keyed.preface_auth("X", key, bytes(32)), keyed.preface_auth(HANDSHAKE, Key("stranger"), bytes(32)), b"GET / HTTP/1.1\r\n\r\n"]
    for port, connect in openers.items():
        for first in firsts:
            with connect() as connection:
                connection.sendall(first)
                connection.shutdown(socket.SHUT_WR)
                answer = keyed.read_all(connection)
                assert answer in (b"", keyed.preface_refusal()), (port, first)
                if port != HANDSHAKE and not first.startswith(b"mc-auth1"):  # what is said there may be taken for data
                    assert answer == b"", (port, first)
    assert is_untouched(far)


def test_a_proof_is_good_for_one_connection_and_one_port(scene):
    far, keys, _folder = scene
    key = keys["read,write"]
    openers = doors(far, key)
    used = {}
    for port, connect in openers.items():
        if port == HOST:
            continue
        with connect() as connection:
            known, proof = keyed.preface(connection, port, key)
            assert known
            used[port] = proof
            connection.sendall(proof + (request(0x80, far.address, 8) if port == DATA else frame(PROBE)))
            assert len(connection.recv(9)) > 0
    for port, connect in openers.items():
        for proof in (*used.values(), b"mc-prof1" + bytes(32)):
            with connect() as connection:
                keyed.preface(connection, port, key)
                connection.sendall(proof + request(0x80, far.address, 8))
                assert keyed.read_all(connection) == b""


def test_the_servers_proof_is_none_of_the_callers(scene):
    far, keys, _folder = scene
    key = keys["read,write"]
    for port, connect in doors(far, key).items():
        with connect() as connection:
            nonce = os.urandom(32)
            connection.sendall(keyed.preface_auth(port, key, nonce))
            answer = connection.recv(80, socket.MSG_WAITALL)
            connection.sendall(b"mc-prof1" + answer[48:])
            assert keyed.read_all(connection) == b""


def test_who_says_nothing_is_closed(scene):
    """Half of a first message, too; and each holds no more than that."""
    far, keys, _folder = scene
    for port, connect in doors(far, keys["read,write"]).items():
        for first in (b"", b"mc-au", keyed.preface_auth(port, keys["read"], bytes(32))[:-1]):
            with connect() as connection:
                connection.settimeout(60)
                connection.sendall(first)
                assert keyed.read_all(connection) == b"", (port, first)


def of_connector(code, file=None, **environment):
    """What mooncake_connector_v1 has the engine's module do: (what it prints, what the log says)."""
    path = {"PYTHONPATH": os.environ["MC_PYTHONPATH"], **environment}
    done = subprocess.run([sys.executable, "-c", f"import mooncake.engine as engine\n{code}"], capture_output=True, text=True, timeout=60,
                          env={**keyed.environment(file=file), **path})
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_what_the_connector_proves(tmp_path):
    """By keys that may read, of the engine's own tenant; and without keys its port is said to be exposed, once."""
    own, reader, writer, other = Key("own", "read,write"), Key("reader", "read"), Key("writer", "write"), Key("other", "read", "team-b")
    file = keyed.write(tmp_path, "keys", own, reader, writer, other)
    code = ("print(engine._own_key())\nfor key in 'own', 'reader', 'writer', 'other', 'nobody':\n"
            "    proof = engine._prove('mooncake connector ask 1', key, b'c' * 32, b's' * 32, b'digest')\n    print(proof and proof.hex())\n"
            "engine._exposed('10.0.0.1', 6557)")
    said, log = of_connector(code, file)
    proofs = [keyed.proof_of("connector ask", key.secret, b"c" * 32, b"s" * 32, b"digest").hex() for key in (own, reader)]
    assert said == ["own", *proofs, "None", "None", "None"] and "whoever" not in log
    say = "print(engine._own_key())\nfor host in '127.0.0.1', '10.0.0.1', '10.0.0.1':\n    engine._exposed(host, 6557)"
    said, log = of_connector(say)
    assert said == ["None"] and log.count("whoever reaches its port 6557 may have the KV cache") == 1
    assert "whoever" not in of_connector(say, MC_PROTECTED_MODE="no")[1]
    wrong = "try:\n    engine._prove('w', 'own', b'c', b's' * 32, b'')\nexcept ValueError:\n    print('good')"
    assert of_connector(wrong, file)[0] == ["good"]


def unix_sockets(pid):
    """Inodes of those that it has open."""
    known = {line.split()[6] for line in open("/proc/net/unix").read().splitlines()[1:]}
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found & known


def test_a_neighbour_that_copies_by_itself_keeps_its_place(scene):
    """It says nothing for as long as it copies, and the far engine must know of it until it has ended: strangers who fill all places go instead."""
    far, keys, folder = scene
    with Engine(folder, "near", keys["read,write"]) as near, contextlib.ExitStack() as stack:
        assert near.moves(far) == [0, 0]
        before = unix_sockets(near.process.pid)
        assert before, "it has a connection within the machine"
        used = len(os.listdir(f"/proc/{far.process.pid}/fd"))
        resource.prlimit(far.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        for number in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", far.port), timeout=20, source_address=(f"127.0.0.{2 + number % 4}", 0)))
        wait_until(lambda: len(os.listdir(f"/proc/{far.process.pid}/fd")) >= used + 10)
        assert near.moves(far) == [0, 0] and unix_sockets(near.process.pid) == before
