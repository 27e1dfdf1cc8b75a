"""mooncake.engine with real metadata servers: ours over HTTP, etcd and Redis of Debian; killed, restarted, filled with nonsense; and beside the original."""
import base64
import contextlib
import ctypes
import functools
import json
import mmap
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from certificates import Authority, Front
from cluster import BUILD, START_S, Master, hold_still, request, wait_until
from etcd import Etcd
from ports import free_ports
from redis_server import Redis
from test_engine import ORIGINAL, P2P, SIZE, SLOW, Near, Peer, exchange, frame, set_path, with_original
import mooncake.engine as module
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

NAMES = ["mooncake/ram/far", "mooncake/ram/near", "mooncake/rpc_meta/far", "mooncake/rpc_meta/near"]


class HttpServer:
    """mooncake_http_metadata_server; what it holds ends with it."""

    def __enter__(self):
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}/metadata"
        self.start()
        return self

    def start(self):
        self.process = subprocess.Popen([str(BUILD / "mooncake_http_metadata_server"), "--host=127.0.0.1", f"--port={self.port}"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, START_S, "the metadata server")

    def _answers(self):
        try:
            return request(self.port, "GET", "/health")[0] == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        self.kill()

    def get(self, key):
        status, body = request(self.port, "GET", f"/metadata?key={key}")
        return body if status == 200 else None

    def put(self, key, value):
        request(self.port, "DELETE", f"/metadata?key={key}")
        assert request(self.port, "PUT", f"/metadata?key={key}", body=value)[0] == 200


TLS = {"MC_METADATA_TLS_CA_CERT": "ca.pem", "MC_METADATA_TLS_CERT": "metadata.pem", "MC_METADATA_TLS_KEY": "metadata.key"}


@functools.cache
def tls_files():
    """An authority, and what it has signed for the servers that have TLS and for those who ask them: all of this process."""
    tls_files.folder = tempfile.TemporaryDirectory(prefix="mc-tls-")
    ca = Authority(tls_files.folder.name, "ca")
    os.environ.update({name: f"{tls_files.folder.name}/{file}" for name, file in TLS.items()})
    return None, ca, ca.sign("metadata", ["IP:127.0.0.1"])


class HttpsServer(HttpServer):
    """The same behind TLS."""

    def __enter__(self):
        self.front = Front(tls_files()[2], 0, free_ports(1)[0])
        super().__enter__()
        self.url = f"https://127.0.0.1:{self.front.port}/metadata"
        return self

    def start(self):
        super().start()
        self.front.target = self.port
        self.front.__enter__()

    def kill(self):
        self.front.__exit__()
        super().kill()

    def __exit__(self, *_):
        self.kill()


class EtcdServer(Etcd):
    """Three members; the first of its endpoints is nobody."""

    @property
    def url(self):
        return f"etcd://127.0.0.1:{free_ports(1)[0]};" + self.endpoints.replace(",", ";")

    def start(self, member=None):
        if member is not None:
            return super().start(member)
        return self.heal()

    def kill(self, member=None):
        for one in range(3) if member is None else [member]:
            super().kill(one)

    def get(self, key):
        text = self.text(key)
        return None if text is None else text.encode()

    def put(self, key, value):
        self.call(self.running()[0], "/v3/kv/put", {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()})


class RedisServer(Redis):
    @property
    def url(self):
        return f"redis://{self.address}"

    def get(self, key):
        return self.call("GET", key)

    def put(self, key, value):
        self.call("SET", key, value)


class RedissServer(RedisServer):
    """Redis with TLS, for which callers need a certificate."""

    def __init__(self):
        super().__init__(*tls_files())

    @property
    def url(self):
        return f"rediss://{self.address}"


KINDS = {"http": HttpServer, "https": HttpsServer, "etcd": EtcdServer, "redis": RedisServer, "rediss": RedissServer}


@pytest.fixture(scope="module")
def servers():
    """Each is started when the first test asks for it."""
    running = {}

    def get(kind):
        if kind not in running:
            running[kind] = KINDS[kind]().__enter__()
        return running[kind]
    yield get
    for server in running.values():
        server.__exit__(None, None, None)
    for name in TLS:
        os.environ.pop(name, None)


@pytest.fixture(params=list(KINDS))
def server(request, servers):
    return servers(request.param)


def names(server):
    return [key for key in NAMES if server.get(key) is not None]


def test_exchange(monkeypatch, server):
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    with Peer(server.url, "far") as peer:
        exchange(near, peer)
        assert names(server) == NAMES
        meta = json.loads(server.get("mooncake/rpc_meta/far"))
        assert meta["ip_or_host_name"] == "127.0.0.1" and 1024 <= meta["rpc_port"] <= 65535
        document = json.loads(server.get("mooncake/ram/far"))
        assert document["name"] == "far" and document["buffers"][0]["addr"] == peer.address
    assert names(server) == ["mooncake/ram/near", "mooncake/rpc_meta/near"]  # it has taken its name back
    assert near.engine.send_probe("far") == -200
    assert near.engine.transfer_sync_write("far", near.address, peer.address, 1) == -1
    del near
    assert names(server) == []


def test_same_name_again(monkeypatch, server):
    """Killed, so that its entries stay; the next one of that name replaces them at once, and is found by who knew the first and by who did not."""
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    for _ in range(3):
        first = Peer(server.url, "far")
        assert near.engine.transfer_sync_write("far", near.address, first.address, 100) == 0
        before = server.get("mooncake/rpc_meta/far")
        first.kill()
        assert server.get("mooncake/rpc_meta/far") == before
        start = time.monotonic()
        second = Peer(server.url, "far")
        assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0
        assert near.engine.send_probe("far") == 0
        assert Near(server.url, "other").engine.transfer_sync_write("far", near.address, second.address, 100) == 0
        assert time.monotonic() - start < 5 * SLOW
        assert server.get("mooncake/rpc_meta/far") != before
        second.kill()  # and so does the third


def test_the_second_of_a_name_keeps_it(monkeypatch, server):
    """When the first ends later, it does not take away what the second has put in its place."""
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    first = Peer(server.url, "far")
    with Peer(server.url, "far") as second:
        with first:
            pass
        assert names(server) == NAMES
        assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_signals_take_the_name_back(monkeypatch, server, number, code):
    """SIGINT becomes Python's KeyboardInterrupt afterwards, as Python has a handler for it."""
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    with Peer(server.url, "far") as peer:
        assert peer.ask("graceful") == "0" and names(server) == NAMES
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 1 << 20) == 0
        peer.process.send_signal(number)
        assert peer.process.wait(20 * SLOW) == code
        assert names(server) == ["mooncake/ram/near", "mooncake/rpc_meta/near"]


def test_registered_one_by_one(monkeypatch, server):
    """Each is of use at once; the server is told of many together."""
    set_path(monkeypatch, "tcp")
    near, count = Near(server.url, "near"), 2000
    memory = mmap.mmap(-1, count * 8192)
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 8192 * item for item in range(count)]

    def listed():
        return [buffer["addr"] for buffer in json.loads(server.get("mooncake/ram/near"))["buffers"]]

    with Peer(server.url, "far") as peer:
        assert peer.ask("first", "near") == str(near.address)
        assert all(near.engine.register_memory(address, 4096) == 0 for address in addresses)
        assert peer.ask("write", "near", addresses[-1], 4096) == "0"
        wait_until(lambda: listed() == [near.address, *addresses], 20, "all of them at the server")
        assert all(near.engine.unregister_memory(address) == 0 for address in addresses)
        assert peer.ask("write", "near", addresses[-1], 4096) == "-1"
        wait_until(lambda: listed() == [near.address], 20, "none of them at the server")


def test_server_killed_and_started_again(monkeypatch, server):
    """Engines that know each other go on without it; what needs it fails in time, and works again as soon as it is back."""
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    with Peer(server.url, "far") as peer:
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
        time.sleep(0.3)  # a registration right after another would not wait for the server
        server.kill()
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
        start = time.monotonic()
        assert near.engine.send_probe("far") == -200
        assert near.engine.transfer_sync_write("stranger", near.address, peer.address, 100) == -1
        buffer = bytearray(4096)
        assert near.engine.register_memory(1 << 40, 4096) == -200  # nobody could find it
        assert near.engine.unregister_memory(1 << 40) == -3        # so it is not registered
        assert TransferEngine().initialize("late", server.url, "tcp", "") == -1
        assert time.monotonic() - start < 5 * 4 * SLOW  # 3 s each, and no more
        server.start()
        del buffer
        wait_until(lambda: near.engine.register_memory(1 << 40, 4096) == 0, 20, "the metadata server")
        assert near.engine.unregister_memory(1 << 40) == 0
        wait_until(lambda: near.engine.send_probe("far") == 0, 30, "the peer's name at the server again")
        with Peer(server.url, "late") as late:
            assert near.engine.transfer_sync_write("late", near.address, late.address, 100) == 0
            assert late.ask("write", "near", near.address, 100) == "0"


def break_lanes(port):
    """Ends this process's connections to that port, as a network that breaks would."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(fd))) as one:
                if one.getpeername()[1] == port:
                    one.shutdown(socket.SHUT_RDWR)


def test_what_is_known_is_used_without_the_server(monkeypatch, server):
    """It is killed after one transfer without a note: transfers, their notes and broken connections go on without it, also after the peer was not used for long."""
    set_path(monkeypatch, "tcp")
    near, note = Near(server.url, "near"), TransferNotify("layer", "7")

    def write(peer):
        return near.engine.transfer_sync("far", near.address, peer.address, 100, TransferOpcode.Write, note)

    with Peer(server.url, "far") as peer:
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
        data_port = json.loads(server.get("mooncake/ram/far"))["tcp_data_port"]
        server.kill()
        assert [write(peer) for _ in range(3)] == [0] * 3
        for _ in range(2):  # the second time its process is asked at once
            break_lanes(data_port)
            time.sleep(1.5 * SLOW)  # seen by who tidies: the peer is doubtful
            assert write(peer) == 0
        assert peer.ask("notes") == str([("layer", "7")] * 5)
        assert near.engine.transfer_sync_write("stranger", near.address, peer.address, 100) == -1
    assert write(peer) == -1  # it has ended; whatever has its ports is not it
    server.start()
    with Peer(server.url, "far") as again:
        wait_until(lambda: write(again) == 0, 20, "the peer at its new place")
        assert again.ask("notes") == str([("layer", "7")])


def test_a_replaced_engine_writes_nothing(monkeypatch, server):
    """What it registers before it has noticed is not put in the place of its successor's document; and what an engine that does not look writes there does not stay."""
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")

    def first_address():
        return json.loads(server.get("mooncake/ram/far"))["buffers"][0]["addr"]

    with Peer(server.url, "far") as first:
        old = server.get("mooncake/ram/far")
        with Peer(server.url, "far") as second:
            assert first_address() == second.address
            for _ in range(5):
                assert first.ask("allocate", 4096) != "0"
                time.sleep(0.3)
                assert json.loads(server.get("mooncake/ram/far"))["tcp_data_port"] != json.loads(old)["tcp_data_port"]
            assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0
            server.put("mooncake/ram/far", old)
            wait_until(lambda: server.get("mooncake/ram/far") != old, 30, "its document again")
            assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0


@pytest.mark.parametrize("old", ["closed port", "nonsense", "another engine"])
def test_a_server_that_says_what_was_long_ago(monkeypatch, server, old):
    """A replica that lags, or a snapshot: under the name of an engine that lives stands one that is gone. It is found again."""
    set_path(monkeypatch, "tcp")
    with Peer(server.url, "far") as peer, Peer(server.url, "third") as third:
        mine = {key: server.get(f"mooncake/{key}/far") for key in ("ram", "rpc_meta")}
        port = free_ports(1)[0] if old == "closed port" else json.loads(server.get("mooncake/rpc_meta/third"))["rpc_port"]
        server.put("mooncake/ram/far", mine["ram"].replace(str(json.loads(mine["ram"])["tcp_data_port"]).encode(), b"1"))
        server.put("mooncake/rpc_meta/far", b"nonsense" if old == "nonsense" else json.dumps({"ip_or_host_name": "127.0.0.1", "rpc_port": port}).encode())
        wait_until(lambda: server.get("mooncake/rpc_meta/far") == mine["rpc_meta"], 15, "its name again")
        wait_until(lambda: json.loads(server.get("mooncake/ram/far"))["tcp_data_port"] == json.loads(mine["ram"])["tcp_data_port"], 15, "its document again")
        near = Near(server.url, "near")
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
        assert int(peer.ask("allocate", 4096)) > 0  # and it tells the server what it registers
        wait_until(lambda: len(json.loads(server.get("mooncake/ram/far"))["buffers"]) == 2, 15, "what it has registered since")
        assert near.engine.transfer_sync_write("third", near.address, third.address, 100) == 0


def meta_of(port):
    return json.dumps({"ip_or_host_name": "127.0.0.1", "rpc_port": port}).encode()


@pytest.mark.parametrize("what", ["silent", "hangs up"])
def test_an_address_of_which_little_is_known_keeps_the_name_for_a_minute(monkeypatch, servers, what):
    """Whoever cannot be reached, or does not speak as an engine, may be the one that has the name now: one look that finds nobody says nothing, a minute of them does."""
    set_path(monkeypatch, "tcp")
    server = servers("http")
    with Peer(server.url, "far"), contextlib.ExitStack() as stack:
        mine = server.get("mooncake/rpc_meta/far")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        if what == "silent":  # nothing more is taken: packets that ask for a connection are dropped
            waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
        else:
            def hang_up():
                with contextlib.suppress(OSError):
                    while True:
                        listener.accept()[0].close()
            threading.Thread(target=hang_up, daemon=True).start()
        other = meta_of(listener.getsockname()[1])
        server.put("mooncake/rpc_meta/far", other)
        start = time.monotonic()
        while time.monotonic() < start + 40:
            assert server.get("mooncake/rpc_meta/far") == other, time.monotonic() - start
            time.sleep(0.2)
        wait_until(lambda: server.get("mooncake/rpc_meta/far") == mine, 90, "its name again")
        if what != "silent":
            listener.shutdown(socket.SHUT_RDWR)


def test_a_name_is_not_taken_from_one_address_again_and_again(monkeypatch, servers):
    """Two that live may each find a closed port where the other is: who stands there again is written by somebody."""
    set_path(monkeypatch, "tcp")
    server = servers("http")
    with Peer(server.url, "far"):
        mine, other = server.get("mooncake/rpc_meta/far"), meta_of(free_ports(1)[0])
        server.put("mooncake/rpc_meta/far", other)
        wait_until(lambda: server.get("mooncake/rpc_meta/far") == mine, 15, "its name again")
        server.put("mooncake/rpc_meta/far", other)
        time.sleep(13)
        assert server.get("mooncake/rpc_meta/far") == other


def test_two_of_a_name_do_not_fight(monkeypatch, servers):
    """Who stands at the server keeps the name while it answers, however long; when it is killed, the other takes it back."""
    set_path(monkeypatch, "tcp")
    server = servers("http")
    near = Near(server.url, "near")
    with Peer(server.url, "far") as first:
        mine = server.get("mooncake/rpc_meta/far")
        second = Peer(server.url, "far")
        its = server.get("mooncake/rpc_meta/far")
        assert its != mine
        end = time.monotonic() + 14
        while time.monotonic() < end:
            assert server.get("mooncake/rpc_meta/far") == its
            time.sleep(0.05)
        hold_still(second.process.pid)  # it lives, so it keeps it
        time.sleep(7)
        assert server.get("mooncake/rpc_meta/far") == its
        second.kill()
        wait_until(lambda: server.get("mooncake/rpc_meta/far") == mine, 20, "the first one's name again")
        assert near.engine.transfer_sync_write("far", near.address, first.address, 100) == 0


def test_who_has_the_address_of_one_that_is_gone_gets_nothing(monkeypatch, servers):
    """Its host has ended without a word, and its data port is another engine's by now: that one's memory is neither written nor read."""
    set_path(monkeypatch, "tcp")
    server = servers("http")
    near = Near(server.url, "near")
    gone = Peer(server.url, "gone")
    with Peer(server.url, "heir") as heir:
        document, heirs = (json.loads(server.get(f"mooncake/ram/{name}")) for name in ("gone", "heir"))
        gone.kill()
        document["tcp_data_port"] = heirs["tcp_data_port"]
        server.put("mooncake/ram/gone", json.dumps(document).encode())
        before = heir.ask("crc", 0, SIZE)
        near.memory[:100] = b"7" * 100
        assert near.engine.transfer_sync_write("gone", near.address, heir.address, 100) == -1
        assert near.engine.transfer_sync_write("gone", near.address, heir.address, 4 << 20) == -1
        assert heir.ask("crc", 0, SIZE) == before
        assert near.engine.transfer_sync_read("gone", near.address, heir.address, 100) == -1
        assert near.memory[:100] == b"7" * 100
        assert near.engine.transfer_sync_write("heir", near.address, heir.address, 100) == 0


def test_taking_names_back_keeps_nobody_waiting(monkeypatch, servers):
    """Its server does not answer: engines of the process go on meanwhile."""
    set_path(monkeypatch, "local")
    server = servers("http")
    leaving, near, other = Near(server.url, "leaving"), Near(), Near()
    target = f"127.0.0.1:{other.engine.get_rpc_port()}"
    assert near.engine.transfer_sync_write(target, near.address, other.address, 100) == 0
    hold_still(server.process.pid)
    try:
        withdrawing = threading.Thread(target=module._withdraw)
        withdrawing.start()
        slowest = turns = 0
        while withdrawing.is_alive():
            began = time.monotonic()
            assert near.engine.transfer_sync_write(target, near.address, other.address, 100) == 0
            slowest, turns = max(slowest, time.monotonic() - began), turns + 1
            time.sleep(0.01)
        assert turns > 20 and slowest < 0.8, (turns, slowest)
    finally:
        server.process.send_signal(signal.SIGCONT)
        withdrawing.join()
    del leaving


def test_a_member_of_etcd_dies_or_stops(monkeypatch, servers):
    server = servers("etcd")
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    with Peer(server.url, "far") as peer:
        for member in range(3):
            server.kill(member)
            wait_until(lambda: near.engine.send_probe("far") == 0, 20, "an election")
            assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
            server.heal()
        for member in range(3):
            server.processes[member].send_signal(signal.SIGSTOP)
            wait_until(lambda: near.engine.send_probe("far") == 0, 20, "an election")
            server.processes[member].send_signal(signal.SIGCONT)


def test_cluster_id(monkeypatch, server):
    set_path(monkeypatch, "tcp")
    monkeypatch.setenv("MC_METADATA_CLUSTER_ID", "blue")
    near = Near(server.url, "near")
    assert server.get("mooncake/blue/ram/near") and server.get("mooncake/blue/rpc_meta/near") and server.get("mooncake/ram/near") is None
    del near
    assert server.get("mooncake/blue/ram/near") is None


# ---- what it may hold ----

# By key, what stands there, and what a probe and a look at the peer's memory say of it.
NONSENSE = [(b"", -200), (b"{", -103), (b"5", -103), (b"[]", -103), (b"null", -103), (b'{"ip_or_host_name":5,"rpc_port":1}', -103), (b"\xff\xfe", -103),
            (b'{"ip_or_host_name":"127.0.0.1","rpc_port":"1"}', -103), (b'{"ip_or_host_name":"127.0.0.1","rpc_port":65536}', -103),
            (b'{"ip_or_host_name":"","rpc_port":1}', -103), (b'{"rpc_port":1}', -103), (b'{"ip_or_host_name":"127.0.0.1","rpc_port":1}', -102),
            (b'{"ip_or_host_name":"' + b"a" * 5000 + b'","rpc_port":1}', -103), (b'{"ip_or_host_name":"no such host","rpc_port":1}', -102)]
DOCUMENTS = [b"{", b"[]", b'{"name":"x"}', b'{"name":5,"protocol":"tcp","tcp_data_port":1,"buffers":[]}', b'{"name":"x","protocol":"tcp","buffers":[]}',
             b'{"name":"x","protocol":"tcp","tcp_data_port":"1","buffers":[]}', b'{"name":"x","protocol":"tcp","tcp_data_port":1,"buffers":{}}',
             b'{"name":"x","protocol":"tcp","tcp_data_port":1,"buffers":[{"name":"b","addr":"1","length":1}]}',
             b'{"name":"x","protocol":"rdma","tcp_data_port":1,"buffers":[]}', b'{"name":"x","protocol":"tcp","tcp_data_port":-1,"buffers":[]}']
SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
import mooncake.engine as module
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
server, name, what, target, address = sys.argv[1:]
engine = TransferEngine()
assert engine.initialize(name, server, "tcp", "") == 0
memory = engine.allocate_managed_buffer(4096)
near = name if server != "P2PHANDSHAKE" else f"{name}:{engine.get_rpc_port()}"
print(engine.send_probe(target) if what == "probe" else engine.transfer_sync_write(target, memory, int(address), 8), flush=True)
print(len(engine.get_notifies()), engine.transfer_sync_write(near, memory, memory, 8), flush=True)
"""


def one_question(server, what, target="bad", name="near", address=4096):
    """(code, lines of the log about it) of a process of its own, which lives on and works. A name that is not found has one line more."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, server if server == P2P else server.url, name, what, target, str(address)],
                          capture_output=True, text=True, timeout=60,
                          env={**os.environ, "MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "WARNING"})
    lines = done.stdout.split("\n")
    assert done.returncode == 0 and lines[1] == "0 0", done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line]
    names = [line for line in said if "cannot be resolved" in line]
    assert len(names) <= 1 and all('the name "no such host"' in line for line in names), names
    return int(lines[0]), [line for line in said if line not in names]


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_nonsense_in_place_of_an_address(servers, kind):
    server = servers(kind)
    rows = NONSENSE if kind == "redis" else NONSENSE[1:4]
    for value, code in rows:
        server.put("mooncake/rpc_meta/bad", value)
        if value == b"":
            code = -103 if kind == "redis" else code
        found, lines = one_question(server, "probe")
        assert (found, len(lines)) == (code, 1), (value, found, lines)


def test_nonsense_in_place_of_a_document(servers):
    server = servers("redis")
    server.put("mooncake/rpc_meta/bad", b'{"ip_or_host_name":"127.0.0.1","rpc_port":1}')
    for value in DOCUMENTS:
        server.put("mooncake/ram/bad", value)
        found, lines = one_question(server, "write")
        assert (found, len(lines)) == (-1, 1), (value, found, lines)
        assert "bad" in lines[0]


def test_key_of_another_type(monkeypatch, servers):
    """Somebody else's list at our keys: read it is an error, written over it is ours."""
    server = servers("redis")
    set_path(monkeypatch, "tcp")
    server.call("DEL", "mooncake/rpc_meta/bad")
    server.call("RPUSH", "mooncake/rpc_meta/bad", "a", "b")
    found, lines = one_question(server, "probe")
    assert found == -200 and len(lines) == 1 and "WRONGTYPE" in lines[0], lines
    near = Near(server.url, "bad")
    assert near.engine.send_probe("bad") == 0
    del near
    assert server.get("mooncake/rpc_meta/bad") is None


GOOD = b'{"name":"a","protocol":"tcp","tcp_data_host":"127.0.0.1","tcp_data_port":%d,"buffers":[]}'
ANSWERS = [b"", b"\0" * 8, b"\0", frame(1, b""), frame(1, b"{}"), frame(1, b"{}")[:-1], frame(1, b"[]"), frame(9, GOOD % 1), struct.pack("<Q", 2**63) + b"\1{",
           b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(1, b'{"name":"a","protocol":"rdma","tcp_data_port":1}'), frame(1, GOOD % 0), frame(1, GOOD % 1),
           frame(1, b'{"name":"a","protocol":"tcp","tcp_data_port":1,"tcp_data_host":"no such host"}')]


@pytest.mark.parametrize("what", ["probe", "write"])
def test_hostile_peer(what):
    """A peer whose handshake answers with nonsense, or leads nowhere: the code, one line, and nothing else happens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        stop, answer = threading.Event(), [b""]

        def serve():
            while not stop.is_set():
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer[0])

        thread = threading.Thread(target=serve)
        thread.start()
        for answer[0] in ANSWERS:
            found, lines = one_question(P2P, what, target, "127.0.0.1")
            if what == "write":
                assert (found, len(lines)) == (-1, 1), (answer, found, lines)
            elif len(answer[0]) > 8 and answer[0][8:9] == b"\1" and not answer[0].endswith(b"\1{") and answer[0] != frame(1, b"{}")[:-1]:
                assert found == 0 and lines == [], (answer, found, lines)  # somebody is there
            else:
                assert found in (-102, -104) and len(lines) == 1, (answer, found, lines)
        stop.set()
        socket.create_connection(server.getsockname()).close()
        thread.join()


@pytest.mark.parametrize("path", ["tcp", "host"])
def test_address_that_is_not_registered(monkeypatch, path):
    set_path(monkeypatch, path)
    with Peer() as peer:
        for address in (4096, peer.address - 1, peer.address + (48 << 20) - 7, 2**64 - 8):
            found, lines = one_question(P2P, "write", peer.target, "127.0.0.1", address)
            assert (found, len(lines)) == (-1, 1), (address, found, lines)
        found, lines = one_question(P2P, "write", peer.target, "127.0.0.1", peer.address)
        assert (found, lines) == (0, [])


# ---- Redis's login ----


def test_redis_password_and_database(monkeypatch):
    set_path(monkeypatch, "tcp")
    with RedisServer(password="s e\r\ncret") as server:
        assert TransferEngine().initialize("near", server.url, "tcp", "") == -1
        monkeypatch.setenv("MC_REDIS_PASSWORD", "wrong")
        assert TransferEngine().initialize("near", server.url, "tcp", "") == -1
        monkeypatch.setenv("MC_REDIS_PASSWORD", server.password)
        monkeypatch.setenv("MC_REDIS_DB_INDEX", "7")
        near = Near(server.url, "near")
        assert server.call("EXISTS", "mooncake/ram/near", database=7) == 1 and server.call("EXISTS", "mooncake/ram/near") == 0
        with Peer(server.url, "far") as peer:
            assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
        monkeypatch.setenv("MC_REDIS_DB_INDEX", "200")  # the server has 16: nothing must end in another
        assert TransferEngine().initialize("other", server.url, "tcp", "") == -1
        assert all(server.call("EXISTS", "mooncake/ram/other", database=number) == 0 for number in (0, 7))
        monkeypatch.setenv("MC_REDIS_DB_INDEX", "seven")  # as in the original: a warning, and 0
        monkeypatch.setenv("MC_REDIS_USERNAME", "default")
        other = Near(server.url, "other")
        assert server.call("EXISTS", "mooncake/ram/other") == 1
        del other


@pytest.mark.parametrize("url", ["etcd://", "etcd://a/b", "redis://", "redis://127.0.0.1:70000", "redis://127.0.0.1:1/7", "redis://[::1", "https://127.0.0.1:1/m",
                                 "ftp://127.0.0.1", "http://", "etcd://" + "a:1;" * 17, "etcd://" + "a" * 2000, "redis://" + "a" * 2000, ";;", " "])
def test_bad_addresses(url):
    start = time.monotonic()
    assert TransferEngine().initialize("near", url, "tcp", "") == -1
    assert time.monotonic() - start < 1 * SLOW


def test_metadata_type(monkeypatch, servers):
    """initialize_ext, and what has no scheme, which is etcd."""
    set_path(monkeypatch, "tcp")
    redis, etcd = servers("redis"), servers("etcd")
    engine = TransferEngine()
    assert engine.initialize_ext("near", redis.address, "tcp", "", "redis") == 0
    assert names(redis) == ["mooncake/ram/near", "mooncake/rpc_meta/near"]
    del engine
    near = Near(etcd.endpoints.replace(",", ";"), "near")
    assert names(etcd) == ["mooncake/ram/near", "mooncake/rpc_meta/near"]
    del near


# ---- the original ----


@with_original
@pytest.mark.parametrize("kind", ["http", "etcd"])  # its wheel is built without Redis
def test_original_and_ours(monkeypatch, servers, kind):
    """Bytes in both directions; and ours takes the name of one that was killed."""
    server = servers(kind)
    url = server.url if kind == "http" else "etcd://" + server.endpoints.replace(",", ";")
    set_path(monkeypatch, "tcp")
    near = Near(url, "near")
    with Peer(url, "far", original=True) as peer:
        exchange(near, peer)
        near.memory[:100] = b"x" * 100
        assert peer.ask("fill", 0, 1 << 20, 7) == "ok" and peer.ask("write", "near", near.address, 1 << 20) == "0"
        assert near.memory[:1 << 20] == bytes([7]) * (1 << 20)
        near.memory[:1 << 20] = bytes(range(256)) * 4096
        assert peer.ask("read", "near", near.address, 1 << 20) == "0"
        peer.kill()
        with Peer(url, "far") as ours:
            assert near.engine.transfer_sync_write("far", near.address, ours.address, 100) == 0
            assert int(ours.ask("crc", 0, 100)) != 0


@with_original
def test_the_original_comes_back_at_our_server(monkeypatch, servers):
    """Killed and started again under its name, it is found again; its own server would not let it."""
    server = servers("http")
    set_path(monkeypatch, "tcp")
    near = Near(server.url, "near")
    first = Peer(server.url, "far", original=True)
    assert near.engine.transfer_sync_write("far", near.address, first.address, 100) == 0
    first.kill()
    with Peer(server.url, "far", original=True) as second:
        assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0
        assert near.engine.send_probe("far") == 0


class OriginalHttp(HttpServer):
    """The HTTP metadata server in the original's mooncake_master."""

    def start(self):
        folder = pathlib.Path(ORIGINAL[1]) if ORIGINAL[1] else next(pathlib.Path(ORIGINAL[0]).parent.parent.glob("lib/python3*/site-packages"))
        program = folder / "mooncake/mooncake_master"
        program.chmod(0o755)
        ports = free_ports(2)
        self.process = subprocess.Popen([str(program), "--rpc_address=127.0.0.1", f"--rpc_port={ports[0]}", f"--metrics_port={ports[1]}",
                                         "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1", f"--http_metadata_server_port={self.port}"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, START_S, "the original's metadata server")


@with_original
def test_at_the_server_of_the_original(monkeypatch):
    """Which answers 400 to an address that differs: an engine of ours takes its name again all the same, at once."""
    set_path(monkeypatch, "tcp")
    with OriginalHttp() as server:
        near = Near(server.url, "near")
        with Peer(server.url, "far", original=True) as peer:
            exchange(near, peer)
            assert peer.ask("write", "near", near.address, 1 << 20) == "0"
        for _ in range(3):
            peer = Peer(server.url, "again")
            assert near.engine.transfer_sync_write("again", near.address, peer.address, 100) == 0
            peer.kill()
        assert request(server.port, "PUT", "/metadata?key=mooncake%2Frpc_meta%2Fagain", body=b"{}")[0] == 400
        server.kill()
        server.start()
        wait_until(lambda: near.engine.send_probe("near") == 0, 30, "our name at the server again")
        del near


@with_original
def test_original_and_ours_at_a_master(monkeypatch):
    """The metadata service of mooncake_master."""
    set_path(monkeypatch, "tcp")
    with Master(metadata=True) as master:
        url = f"http://127.0.0.1:{master.metadata_port}/metadata"
        near = Near(url, "near")
        with Peer(url, "far", original=True) as peer:
            exchange(near, peer)
            assert peer.ask("write", "near", near.address, 1 << 20) == "0"
        del near
