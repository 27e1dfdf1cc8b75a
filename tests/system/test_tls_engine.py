"""TLS between transfer engines: what a capture shows, who is let in, what each side says."""
import contextlib
import json
import os
import signal
import socket
import ssl
import struct

import pytest

from cluster import hold_still, wait_until
from keyed import Key
from test_engine import ORIGINAL, SIZE, Peer
from test_metadata_server import NATIVE, Server
from test_tls import PLAIN, Capture, Files

MIB = 1 << 20
METADATA, NOTIFY = 1, 2


class Signed(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.second, self.named = self.ca.sign("second", ["IP:127.0.0.1"]), self.ca.sign("named", ["DNS:engines.example.org"])

    def of(self, pair="server", **more):
        """The environment of an engine that shows the pair of that name."""
        return super().of(pair and getattr(self, pair), **more)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Signed(tmp_path_factory.mktemp("tls"))


class Engine(Peer):
    """By tcp, as on another machine, unless told otherwise."""

    def __init__(self, folder, name, tls, key=None, metadata="P2PHANDSHAKE", by_tcp=True, **more):
        self.log = folder / f"{name}.log"
        keys = {"MC_AUTH_TOKEN": key.token if key else "", "MC_AUTH_FILE": ""}
        with self.log.open("w") as log:
            super().__init__(metadata=metadata, name=name if metadata != "P2PHANDSHAKE" else "127.0.0.1", log=log,
                             **{**({"MC_FORCE_TCP": "1"} if by_tcp else {}), **keys, **tls, **more})

    def said(self):
        return self.log.read_text()

    def move(self, what, other, size):
        return int(self.ask(what, other.target, other.address, size))


def exchange(near, far):
    """Bytes there and back, of several sizes, compared at both ends."""
    for size in (1, 100, 16384, 65537, 16 * MIB, 40 * MIB):
        near.ask("fill", 0, size, 9)
        far.ask("fill", 0, SIZE, 7)
        assert near.move("write", far, size) == 0
        assert far.ask("crc", 0, size) == near.ask("crc", 0, size)
        far.ask("fill", 0, size, 5)
        assert near.move("read", far, size) == 0
        assert far.ask("crc", 0, size) == near.ask("crc", 0, size)


@pytest.mark.parametrize("has_keys", [False, True], ids=["", "keys"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_bytes_arrive(files, tmp_path, has_keys, version):
    key = Key("engines") if has_keys else None
    with Engine(tmp_path, "far", files.of(), key) as far, Engine(tmp_path, "near", files.of(), key, MC_TCP_PROTO=version) as near:
        exchange(near, far)
        exchange(far, near)
        assert "TLS" not in near.said() + far.said()


@pytest.mark.parametrize("is_on", [True, False], ids=["tls", "plain"])
def test_a_capture_shows_no_byte_of_it(files, tmp_path, is_on):
    """Without TLS it shows all, or the capture would prove nothing."""
    tls = files.of() if is_on else PLAIN
    with Capture() as capture, Engine(tmp_path, "far", tls) as far, Engine(tmp_path, "near", tls) as near:
        near.ask("fill", 0, 16 * MIB, 0xA7)
        assert near.move("write", far, 16 * MIB) == near.move("read", far, 16 * MIB) == 0
        assert far.ask("crc", 0, 16 * MIB) == near.ask("crc", 0, 16 * MIB)
    assert len(capture.packets) > 100
    assert capture.shows(b"\xa7" * 64) is not is_on
    assert capture.shows(str(far.address).encode()) is not is_on  # of its document


def test_copies_within_the_machine_stay_as_they_are(files, tmp_path):
    with Engine(tmp_path, "far", files.of(), by_tcp=False) as far, Engine(tmp_path, "near", files.of(), by_tcp=False) as near:
        port = data_port(far, files)
        with Capture() as capture:
            near.ask("fill", 0, 16 * MIB, 0xA7)
            assert near.move("write", far, 16 * MIB) == 0 and far.ask("crc", 0, 16 * MIB) == near.ask("crc", 0, 16 * MIB)
        ports = [struct.unpack_from(">HH", packet, 34) for packet in capture.packets if len(packet) > 38]  # behind the headers of Ethernet and IPv4
        assert not [both for both in ports if port in both]


def refused(near, far, words_near, words_far):
    far.ask("fill", 0, MIB, 7)
    before = far.ask("crc", 0, MIB)
    near.ask("fill", 0, MIB, 9)
    assert near.move("write", far, MIB) < 0 and near.move("read", far, MIB) < 0
    assert far.ask("crc", 0, MIB) == before
    for engine, words in ((near, words_near), (far, words_far)):
        if words:
            wait_until(lambda engine=engine, words=words: words in engine.said(), 20, words)


@pytest.mark.parametrize("near,far,says_near,says_far", [
    ({"ca": "other"}, {}, "is signed by nobody whom", "refuses the certificate of this side"),
    ({}, {"pair": "stranger"}, "is signed by nobody whom", "refuses the certificate of this side"),
    ({}, {"pair": "named"}, "is not for '127.0.0.1'", "refuses the certificate of this side"),
    ({"pair": None}, {"callers": "ca"}, "set MC_TLS_CERT and MC_TLS_KEY to one that it trusts", "shows no certificate"),
    ({"pair": "stranger"}, {"callers": "ca"}, "set MC_TLS_CERT and MC_TLS_KEY to one that it trusts", "is signed by nobody whom"),
    (None, {}, "speaks TLS and nothing else: set MC_TLS_CA_CERT here", "speaks no TLS"),
    ({}, None, "in the middle of the handshake: is TLS turned on", "speaks TLS, and this port does not: set MC_TLS_CERT")], ids=["authority", "signer", "name", "none", "other", "plain caller", "plain peer"])
def test_who_is_not_let_in(files, tmp_path, near, far, says_near, says_far):
    of_near, of_far = (PLAIN if one is None else files.of(**one) for one in (near, far))
    with Engine(tmp_path, "far", of_far) as there, Engine(tmp_path, "near", of_near) as here:
        refused(here, there, says_near, says_far)


def test_certificates_of_callers_and_a_name_for_all(files, tmp_path):
    mutual = files.of("named", callers="ca", name="engines.example.org")
    with Engine(tmp_path, "far", mutual) as far, Engine(tmp_path, "near", mutual) as near:
        exchange(near, far)


@pytest.mark.skipif(ORIGINAL is None, reason="the original is not here")
def test_the_original_is_refused(files, tmp_path):
    with Engine(tmp_path, "far", files.of()) as far, Peer(original=True) as near:
        assert int(near.ask("write", far.target, far.address, 4096)) != 0
        wait_until(lambda: "speaks no TLS" in far.said(), 20)


def context_of(files, **more):
    context = ssl.create_default_context(cafile=files.ca.certificate)
    for name, value in more.items():
        setattr(context, name, value)
    return context


def data_port(far, files):
    with socket.create_connection(("127.0.0.1", far.port), timeout=20) as plain, \
            context_of(files).wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        connection.sendall(struct.pack("<QB", 3, METADATA) + b"{}")
        length, = struct.unpack("<Q", connection.recv(8))
        said = b""
        while len(said) < length:
            said += connection.recv(length - len(said))
    return json.loads(said[1:])["tcp_data_port"]


def test_by_hand(files, tmp_path):
    """Both ports: nothing before TLS 1.3, and a half handshake ends after its time, and holds up nobody."""
    with Engine(tmp_path, "far", files.of()) as far, Engine(tmp_path, "near", files.of()) as near:
        ports = (far.port, data_port(far, files))
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
                context_of(files, maximum_version=ssl.TLSVersion.TLSv1_2).wrap_socket(plain, server_hostname="127.0.0.1")
        hello = ssl.MemoryBIO()
        client = context_of(files).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        said, halves = hello.read(), []
        for port in ports:
            for cut in (1, 100, len(said)):
                halves.append(socket.create_connection(("127.0.0.1", port), timeout=30))
                halves[-1].sendall(said[:cut])
        exchange(near, far)
        for half in halves:
            with half, contextlib.suppress(ConnectionResetError):
                while half.recv(65536):
                    pass
        assert near.move("write", far, MIB) == 0


def test_a_question_and_a_reset_right_behind_it(files, tmp_path):
    """Whose connection has ended when the engine first looks has no address any more, and is let in no more for that."""
    note = json.dumps({"name": "stranger", "notify_msg": "hello"}).encode()
    with Engine(tmp_path, "far", files.of()) as far:
        hold_still(far.process.pid)
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", far.port), timeout=20) as connection:
                connection.sendall(struct.pack("<QB", len(note) + 1, NOTIFY) + note)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.kill(far.process.pid, signal.SIGCONT)
        with Engine(tmp_path, "near", files.of()) as near:
            assert near.move("write", far, MIB) == 0
        assert far.ask("notes") == "[]"


def test_renewed_without_a_restart(files, tmp_path):
    """New connections have the new certificate: those to an engine whose own is no longer good are refused, then taken again."""
    live = tmp_path / "live.pem"

    def use(pair):
        (tmp_path / "new").write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        os.rename(tmp_path / "new", live)
    use(files.server)
    tls = {**files.of(), "MC_TLS_CERT": str(live), "MC_TLS_KEY": ""}
    with Engine(tmp_path, "far", tls) as far:
        def serial():
            with socket.create_connection(("127.0.0.1", far.port), timeout=20) as plain, \
                    context_of(files).wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                return connection.getpeercert()["serialNumber"]
        with Engine(tmp_path, "near", files.of()) as near:
            old = serial()
            assert near.move("write", far, MIB) == 0
            use(files.second)
            wait_until(lambda: serial() != old, 20)
            assert near.move("write", far, MIB) == 0
            live.write_text("spoiled\n")
            assert serial() != old
        wait_until(lambda: "what was read there before is used" in far.said(), 20)


def test_by_an_own_metadata_server(files, tmp_path, monkeypatch):
    for name, value in files.of().items():
        monkeypatch.setenv(name, value)
    server = Server(NATIVE, "--host=127.0.0.1")
    metadata = {"metadata": f"https://127.0.0.1:{server.port}/metadata"}
    with Engine(tmp_path, "far", files.of(), **metadata) as far, Engine(tmp_path, "near", files.of(), **metadata) as near:
        exchange(near, far)
    assert server.stop() == 0
    server.log_file.close()


def test_a_peer_that_dies_and_comes_back(files, tmp_path):
    """A write under way ends, and the next engine of that name is found."""
    with Engine(tmp_path, "near", files.of()) as near:
        with Engine(tmp_path, "far", files.of()) as far:
            assert near.move("write", far, MIB) == 0
            far.kill()
            assert near.move("write", far, MIB) < 0
        with Engine(tmp_path, "again", files.of()) as far:
            exchange(near, far)


def test_memory_that_is_registered_and_not_there(files, tmp_path):
    """The call fails, and the other process lives, as without TLS, where the kernel finds it out."""
    size = 8 * MIB
    with Engine(tmp_path, "far", files.of()) as far, Engine(tmp_path, "near", files.of()) as near:
        gone = int(far.ask("vanish", size))
        assert int(near.ask("read", far.target, gone, size)) < 0 and int(near.ask("write", far.target, gone, size)) < 0
        assert far.process.poll() is None
        exchange(near, far)
        wait_until(lambda: "is registered, but it is not there" in far.said(), 20)


def test_what_cannot_be_used_is_said_at_the_start(files, tmp_path):
    with pytest.raises(AssertionError):
        Engine(tmp_path, "far", {**files.of(), "MC_TLS_KEY": str(tmp_path / "none.key")})
    wait_until(lambda: "MC_TLS_KEY" in (tmp_path / "far.log").read_text(), 20, "the line")
