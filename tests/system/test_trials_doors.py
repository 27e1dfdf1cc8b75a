"""Trials from outside, one more page of them: doors that stand beside those of test_trials.py, false masters that etcd names, and crowds that say half
a sentence. The list of all is in test_trials.py."""
import contextlib
import json
import re
import resource
import socket
import struct
import subprocess
import sys
import threading

import pytest

import keyed
import wire
from cluster import SANITIZED, Master, request, resident_bytes_of, says, wait_until
from etcd import Etcd
from keyed import DATA, HANDSHAKE, HOST, NOT_PERMITTED, Key
from ports import free_port
from proxy_engines import Engine as Instance, Proxy
from service_process import CLIENT, Service
from store_process import StoreProcess
from test_keys import Told, bearer
from test_keys_engine import Engine, doors as engine_doors
from test_trials import SECRET, UNSET, master_name, tcp, told_by, unix, words_of_strangers

MIB = 1 << 20
CROWD = 600
MOST = 16 * MIB  # that a crowd, or all words of strangers, may cost a process, at whichever of its ports
NO_ANSWER = -1011
CLUSTER = "trial"
VIEW = f"mooncake-store/{CLUSTER}/master_view".encode()

PYTHON_SERVICE = """
import asyncio, os, signal, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.mooncake_store_service import MooncakeStoreService

async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    service = MooncakeStoreService(sys.argv[1])
    assert await service.start_store_service() and await service.start_http_service(0)
    print(f"REST API started on port {service.http_port}", flush=True)
    print("it is running", flush=True)
    await over.wait()
    await service.stop()
asyncio.run(main())
"""


class Scene:
    """A master with all the ports that it can have, a store node, and what stands beside them; one file of keys."""

    def __init__(self, folder):
        self.reader, self.writer, self.all = Key("reader", "read"), Key("writer", "read,write"), Key("all")
        self.file = keyed.write(folder, "keys", self.all, self.reader, self.writer)
        self.events_port = free_port()
        self.master = Master(f"--auth_file={self.file}", "--enable_kv_events=true", f"--kv_events_bind_endpoint=tcp://127.0.0.1:{self.events_port}", metadata=True,
                             environment=UNSET)
        self.folder = folder

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(self.master)
            self.node = stack.enter_context(StoreProcess(master.address, MC_AUTH_TOKEN=self.all.token))
            self.client = stack.enter_context(keyed.Client(master, self.writer))
            wait_until(lambda: self.client.put("probe", "probe", 10) == 0)
            assert self.client.put("secret", SECRET, 4096) == 0
            shown = {"MC_AUTH_FILE": self.file, "MC_AUTH_TOKEN": "", "MC_LOG_LEVEL": "INFO"}
            self.lender = Service("--port=0", f"--master_server_address={master.address}", "--global_segment_size=64 MB", "--enable_http_server", "--http_port=0",
                                  command=CLIENT, ports=(), **shown)
            stack.push(self.lender)
            self.lender.spawn().wait(r"setup_dummy is answered on port (\d+)")
            config = self.folder / "mooncake.json"
            config.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": master.address,
                                          "global_segment_size": 0, "local_buffer_size": MIB, "protocol": "tcp", "auth_file": self.file,
                                          "enable_client_http_server": True, "client_http_port": 0}))
            self.python = Service(command=[sys.executable, "-c", PYTHON_SERVICE, str(config)], ports=(), **{**shown, "MC_AUTH_FILE": ""})
            stack.push(self.python)
            self.python.spawn().wait()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *raised):
        return self.stack.__exit__(*raised)

    @staticmethod
    def health_port(service):
        return int(re.search(r"Client HTTP server started on port (\d+)", service.log()).group(1))

    def web(self):
        """Ports that speak HTTP, by their names."""
        return {"metadata": self.master.metadata_port, "page of mooncake_client": self.health_port(self.lender), "page of Python's store": self.health_port(self.python),
                "Python's REST service": self.python.port}

    def pids(self):
        return [one.process.pid for one in (self.master, self.node, self.lender, self.python)]

    def state(self):
        """What a stranger must not change, as one sees it who has the keys."""
        lines = self.master.get("/metrics", headers=bearer(self.reader))[1].decode().splitlines()
        counted = sorted(line for line in lines if line.split(" ")[0] in ("mooncake_epoch", "mooncake_epochs_doubted_total", "mooncake_segments", "mooncake_objects"))
        assert len(counted) >= 3, counted
        keys = sorted(self.master.get("/get_all_keys", headers=bearer(self.reader))[1].splitlines())
        document = request(self.master.metadata_port, "GET", "/metadata?key=secret", headers=bearer(self.reader))
        return counted, keys, document, self.client.same("secret", SECRET, 4096)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with Scene(tmp_path_factory.mktemp("doors")) as scene:
        assert request(scene.master.metadata_port, "PUT", "/metadata?key=secret", SECRET.encode(), bearer(scene.all))[0] == 200
        yield scene


ASKED = [("GET", path) for path in ("/", "/metrics", "/metrics/summary", "/openapi.json", "/api/get/secret", "/api/exist/secret", "/metadata?key=secret")]
ASKED += [("PUT", "/metadata?key=secret"), ("DELETE", "/metadata?key=secret"), ("PUT", "/api/put"), ("DELETE", "/api/remove/secret"), ("DELETE", "/api/remove_all"),
          ("POST", "/api/mount"), ("POST", "/api/unmount"), ("POST", "/api/mount_shm"), ("POST", "/api/reconfigure"), ("POST", "/api/unmount_local_disk")]


def test_http_beside_the_cluster(place):
    """Whatever is asked for and shown: 401, or 404 where nothing is; health is told, and nothing of anybody's data."""
    before = place.state()
    body = json.dumps({"key": "secret", "value": "another", "size": 1 << 20, "name": "x", "segment_ids": ["x"]}).encode()
    wrong = [None, bearer(Key("stranger")), bearer(Key(place.all.name)), {"Authorization": "Bearer"}, {"Authorization": f"Bearer {place.all.name}:"},
             {"Authorization": place.all.token}]
    for name, port in place.web().items():
        assert request(port, "GET", "/health")[0] == 200
        refused = 0
        for method, path in ASKED:
            for headers in wrong:
                status, answer = request(port, method, path, body if method in ("PUT", "POST") else None, headers)
                assert status in (401, 404), (name, method, path, headers)
                refused += status == 401
                assert SECRET.encode() not in answer and place.all.secret.hex().encode() not in answer and len(answer) < 4096
        assert refused >= len(wrong), name  # each has something that it refuses
    assert request(place.python.port, "GET", "/api/get/secret", headers=bearer(place.reader))[0] == 200  # so it was there
    assert place.state() == before


def test_every_other_door(place):
    """The words that the doors of a cluster are tried with, at those beside it, also at the one that hands out the master's address."""
    before = place.state()
    doors = {**place.web(), "setup_dummy": place.lender.port}
    resident = [resident_bytes_of(pid) for pid in place.pids()]
    for name, port in doors.items():
        for first in words_of_strangers(place.writer):
            with tcp(port)() as connection:
                answer, _passed = told_by(connection, first)
            assert len(answer) < 4096 and SECRET.encode() not in answer and place.writer.secret.hex().encode() not in answer, (name, first[:40], answer[:200])
            if name == "setup_dummy":
                assert answer in (b"", f"mooncake_client {place.master.address}\n".encode())
    grown = [resident_bytes_of(pid) - was for pid, was in zip(place.pids(), resident)]
    assert SANITIZED or max(grown) < MOST, grown
    assert place.state() == before


def test_who_is_told_of_the_master_is_let_in_by_nobody(place):
    """The line of mooncake_client says where, and a process that has no key stays outside there too."""
    program = ("import os, sys; sys.path.insert(0, os.environ['MC_PYTHONPATH']); from mooncake.store import MooncakeDistributedStore as Store\n"
               "print(Store().setup_dummy(0, 1 << 20, sys.argv[1]))")
    for key, code in ((None, NOT_PERMITTED), (Key("stranger"), NOT_PERMITTED), (place.reader, 0)):
        done = subprocess.run([sys.executable, "-c", program, f"127.0.0.1:{place.lender.port}"], capture_output=True, text=True, timeout=60,
                                    env=keyed.environment(key))
        assert done.stdout.split() == [str(code)], done.stderr


def test_events_are_published_nowhere(place):
    says(place.master, "KV events are not published by ZMQ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.events_port), timeout=20)


def answer_to(port, head):
    """The status line of the answer to so many bytes, of which the last ones may find nobody any more."""
    with tcp(port)() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(head)
        return connection.recv(12)


def head_of(length):
    """A question of a stranger, with lines until it is so long."""
    start, end, line = b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"\r\n", b"X-%d: %s\r\n"
    lines = b"".join(line % (number, b"x" * 900) for number in range(length // 1000))
    return start + lines + line % (0, b"y" * (length - len(start + lines + end + line % (0, b"")))) + end


def test_no_more_than_a_head_is_read_of_a_stranger(place):
    """The numbers of docs/limits.md: so long a head is read to its end and refused for its key, a longer one is not read to its end."""
    instance = Instance("d")
    with Proxy("--decode", instance.address, f"--auth_file={place.file}", environment=UNSET) as proxy:
        doors = {"admin": (place.master.metrics_port, 32), "proxy": (proxy.port, 64),
                 **{name: (port, 32 if name == "metadata" else 16) for name, port in place.web().items()}}
        for name, (port, kib) in doors.items():
            assert answer_to(port, head_of((kib << 10) - 100)) == (b"HTTP/1.1 404" if name == "metadata" else b"HTTP/1.1 401"), name
            assert answer_to(port, head_of((kib << 10) + 100)) == b"HTTP/1.1 431", name
    instance.kill()


# ---- false masters that etcd names ----

class Relay:
    """Stands between callers and a server, and remembers what callers have said."""

    def __init__(self, port):
        self.target, self.heard, self.sockets = port, [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *unused):
        for one in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, server = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [caller, server]
                said = bytearray()
                self.heard.append(said)
                threading.Thread(target=self._carry, args=(caller, server, said), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, caller, None), daemon=True).start()

    @staticmethod
    def _carry(source, sink, said):
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if said is not None:
                    said += part
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)

    def kinds(self):
        """Of all frames that callers have said."""
        found = []
        for said in self.heard:
            rest = bytes(said)
            while len(rest) >= 16:
                length, kind = struct.unpack_from("<IH", rest)
                found.append(kind)
                rest = rest[16 + length:]
            assert rest == b"", "no frame"
        return found


@pytest.fixture(scope="module")
def etcd():
    with Etcd(1) as running:
        yield running


class Named:
    """What a client is told instead of a master's address."""

    def __init__(self, etcd):
        self.address = f"etcd://{etcd.endpoints}/{CLUSTER}"


FALSE = {"without keys": lambda key: None, "with another key": lambda key: Key("other"), "with another secret": lambda key: Key(key.name)}


def false_master(folder, key):
    return Master(*([f"--auth_file={keyed.write(folder, 'false', key)}"] if key else []), environment=UNSET)


@pytest.mark.parametrize("word, text", [("horizon", "-1 -1 -2 -2 -3 -3 -4 -4"), ("horizon", "9999999999999 9999999999999 " * 4), ("aged", "-1"), ("departed", "-1"),
                                        ("epoch", "-1 -1 x notes ages"), ("epoch", "1 -1 x notes ages")])
def test_who_writes_words_into_etcd_ends_no_master(etcd, word, text):
    """Beside claims stand words for the leaders after them, and anything may stand there."""
    name = f"words-{word}-{len(text)}"
    etcd.ask("/v3/kv/put", key=f"mooncake-store/{name}/{word}".encode(), value=text.encode())
    with Master("--enable_ha", f"--etcd_endpoints={etcd.endpoints}", f"--cluster_id={name}") as master:
        is_followed = word != "epoch" or not text.startswith("-1")
        if is_followed:
            wait_until(lambda: etcd.text(f"mooncake-store/{name}/master_view") == master.address, 30, "a leader")
        else:
            wait_until(lambda: "cannot be followed" in master.log() or etcd.text(f"mooncake-store/{name}/master_view") == master.address, 30)
        assert master.process.poll() is None


@pytest.mark.parametrize("kind", FALSE)
def test_who_writes_a_false_master_into_etcd_learns_no_proof(etcd, tmp_path, kind):
    """Neither of who comes new, nor of who knew the true one and looks for the next; and both find the true one when it leads again."""
    key = Key("ours", "read,write,node")
    flags = ("--enable_ha", f"--etcd_endpoints={etcd.endpoints}", f"--cluster_id={CLUSTER}", f"--auth_file={keyed.write(tmp_path, 'keys', key)}")
    with Master(*flags, environment=UNSET) as true, false_master(tmp_path, FALSE[kind](key)) as false, Relay(false.port) as relay:
        wait_until(lambda: etcd.text(VIEW.decode()) == true.address, 30, "the true leader")
        with keyed.Client(Named(etcd), key) as known:
            assert known.code == 0 and known.exist(["x"]) == [0]
            true.kill()
            etcd.ask("/v3/kv/put", key=VIEW, value=relay.address.encode())
            assert all(code < 0 for code in known.exist(["x"]))
            with keyed.Client(Named(etcd), key) as stranger:
                assert stranger.code in (NOT_PERMITTED, NO_ANSWER)
                words = ("it is no server of ours", "does not know that key", "start it with --auth_file")
                wait_until(lambda words=words, stranger=stranger: any(one in stranger.said() for one in words), 20, "why")
            wait_until(lambda: len(relay.heard) >= 2, 30, "both")
            etcd.ask("/v3/kv/deleterange", key=VIEW)
            true.start()
            wait_until(lambda: known.exist(["x"]) == [0], 60)
        kinds = relay.kinds()
        assert len(kinds) >= 2 and set(kinds) == {keyed.AUTH}
        assert all(key.secret not in said and key.secret.hex().encode() not in said for said in relay.heard)


# ---- crowds ----

def limit_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CROWD + 500
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip("too few descriptors here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def heard(connection):
    """What has come to one of a crowd by now."""
    connection.setblocking(False)
    try:
        return connection.recv(4096)
    except OSError:
        return b""


def test_a_crowd_that_says_half_a_sentence_at_each_port(place):
    """Nobody of it is served, all others are: right answers, /health at each web, and no process has grown by more than is said above."""
    limit_raised()
    told = Told(place.master, place.reader)
    key, instance = place.writer, Instance("d")
    head = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthor"
    with Engine(place.folder, "engine", file=place.file) as engine, \
            Proxy("--decode", instance.address, f"--auth_file={place.file}", environment=UNSET) as proxy:
        auth, preface = keyed.auth(key, bytes(32)), {port: keyed.preface_auth(port, key, bytes(32)) for port in (HANDSHAKE, DATA, HOST)}
        doors = {"master": (tcp(place.master.port), auth), "master, unix": (unix(master_name(place.master, place.reader)), auth), "data": (told.connect, auth),
                 "data, unix": (unix(told.unix), auth), **{f"engine {port}": (opens, preface[port]) for port, opens in engine_doors(engine, key).items()},
                 "admin": (tcp(place.master.metrics_port), head), "proxy": (tcp(proxy.port), head),
                 **{name: (tcp(port), head) for name, port in place.web().items()}, "setup_dummy": (tcp(place.lender.port), b"")}
        assert len(doors) == 14
        pids = [*place.pids(), engine.process.pid, proxy.process.pid]
        page = {**place.web(), "admin": place.master.metrics_port}
        for name, (opens, whole) in doors.items():
            resident, crowd = [resident_bytes_of(pid) for pid in pids], []
            with contextlib.ExitStack() as stack:
                for number in range(CROWD):
                    one = stack.enter_context(opens())
                    crowd.append(one)
                    with contextlib.suppress(OSError):  # it had to make room for another one, or has had its line
                        one.sendall(whole[:(0, len(whole) // 3, max(len(whole) - 1, 0))[number % 3]])
                assert place.client.put(f"in a crowd at {name}", name, 5000) == 0 and place.client.same(f"in a crowd at {name}", name, 5000) is True
                assert place.client.same("secret", SECRET, 4096) is True
                for where, port in page.items():
                    assert request(port, "GET", "/health", timeout_s=60)[0] == 200, (name, where)
                assert request(place.python.port, "GET", "/api/get/secret", headers=bearer(place.reader), timeout_s=60)[0] == 200
                assert proxy.get("/health")[0] == 200 and engine.ask("crc", 0, 4096)
                grown = [resident_bytes_of(pid) - was for pid, was in zip(pids, resident)]
                assert SANITIZED or max(grown) < MOST, (name, grown)
                assert {heard(one) for one in crowd} <= {b"", f"mooncake_client {place.master.address}\n".encode() if name == "setup_dummy" else b""}, name
    instance.kill()
