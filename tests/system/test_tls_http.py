"""HTTPS at each of our own ports that speak HTTP: who is answered and who is not, and what goes wrong with big, slow and many."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time

import pytest

from certificates import Authority
from cluster import SANITIZED, Master, hold_still, says, wait_until
from idle_peers import raise_limit
from proxy_engines import Engine, Proxy
from service_process import Service
from test_doctor import Report
from test_metadata_server import NATIVE, Server
from test_tls import VARIABLES

MIB = 1 << 20
NAMES = ("admin", "metadata", "server", "rest", "proxy")
PLACES = 1000  # half of the master's descriptors
SLOW = 4 if SANITIZED else 1


class Files:
    def __init__(self, folder):
        here = ["DNS:localhost", "IP:127.0.0.1"]
        self.folder, self.ca, self.other = folder, Authority(folder, "ca"), Authority(folder, "other")
        self.first, self.second = self.ca.sign("first", here), self.ca.sign("second", here)
        self.client, self.stranger = self.ca.sign("client"), self.other.sign("stranger")
        self.certificate, self.key = folder / "own.pem", folder / "own.key"
        self.use(self.first)

    def use(self, pair):
        """As who renews them does: each file is replaced whole, the key first."""
        for source, target in ((pair.key, self.key), (pair.certificate, self.certificate)):
            shutil.copy(source, str(target) + ".new")
            os.rename(str(target) + ".new", target)

    def context(self, ca="ca", pair=None):
        context = ssl.create_default_context(cafile=getattr(self, ca).certificate)
        if pair:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


class SecureProxy(Proxy):
    def __init__(self, files, *arguments):
        super().__init__(*arguments)
        self.context = files.context(pair=files.client)

    def connect(self, timeout_s=30):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=self.context)


class Port:
    """One of them; of which process the log is."""

    def __init__(self, files, number, log, path):
        self.files, self.number, self.log, self.path = files, number, log, path
        self.name = None

    def connect(self, ca="ca", pair=None, timeout_s=30):
        return http.client.HTTPSConnection("127.0.0.1", self.number, timeout=timeout_s, context=self.files.context(ca, pair))

    def call(self, method, path, body=None, headers=None, **more):
        connection = self.connect(**more)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.number), timeout=20)

    def wrapped(self, receive_buffer=None, **more):
        """A connection whose handshake is done."""
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(60)
        plain.connect(("127.0.0.1", self.number))
        return self.files.context(**more).wrap_socket(plain, server_hostname="127.0.0.1")


class World:
    def __init__(self, files, master, server, service, proxy, engine):
        self.master, self.server, self.service, self.proxy, self.engine, self.files = master, server, service, proxy, engine, files

        def of_server():
            return os.pread(server.log_file.fileno(), MIB, 0).decode(errors="replace")
        self.ports = {"admin": Port(files, master.metrics_port, master.log, "/metrics"),
                      "metadata": Port(files, master.metadata_port, master.log, "/metadata?key=a"),
                      "server": Port(files, server.port, of_server, "/metadata?key=a"),
                      "rest": Port(files, service.port, service.log, "/api/exist/a"), "proxy": Port(files, proxy.port, proxy.log, "/status")}


def set_tls(monkeypatch, files, callers=None):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("MC_TLS_CA_CERT", str(files.ca.certificate))
    monkeypatch.setenv("MC_TLS_CERT", str(files.certificate))
    monkeypatch.setenv("MC_TLS_KEY", str(files.key))
    if callers:
        monkeypatch.setenv("MC_TLS_CLIENT_CA_CERT", str(callers.certificate))


@contextlib.contextmanager
def world_of(files, callers=None):
    engine = Engine("d", pad=2000)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_tls(monkeypatch, files, callers)
        server = Server(NATIVE, "--host=127.0.0.1")
        with Master(metadata=True, before=["prlimit", f"--nofile={2 * PLACES}:{2 * PLACES}"]) as master, Service(MOONCAKE_MASTER=master.address, MC_TLS_SERVER_NAME="localhost") as service, \
                SecureProxy(files, "--decode", engine.address) as proxy:
            yield World(files, master, server, service, proxy, engine)
        assert server.stop() == 0
        server.log_file.close()
    engine.kill()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def world(files):
    with world_of(files) as made:
        yield made


@pytest.fixture(params=NAMES)
def port(request, world):
    return world.ports[request.param]


def test_who_trusts_the_authority_is_answered(port):
    assert port.call("GET", "/health")[0] == 200
    assert port.call("GET", port.path)[0] in (200, 404)
    with port.wrapped() as connection:
        assert connection.version() == "TLSv1.3"


def until_it_says(port, words, action):
    """Again and again: of lines that are alike a log has one for some seconds."""
    def look():
        action()
        time.sleep(0.1)
        return words in port.log()
    wait_until(look, 40, f"'{words}' in the log")


def test_who_trusts_another_one_goes(port):
    def ask():
        with pytest.raises(ssl.SSLCertVerificationError):
            port.call("GET", "/health", ca="other")
    until_it_says(port, "refuses the certificate of this side", ask)


def test_nothing_before_tls_1_3(port):
    context = port.files.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def ask():
        with port.raw() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    until_it_says(port, "has no TLS 1.3", ask)


def test_a_plain_request_is_told_so(port):
    def ask():
        with port.raw() as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            with contextlib.suppress(ConnectionResetError):
                while part := plain.recv(65536):
                    said += part
        assert said.startswith(b"HTTP/1.1 400 ") and b"https://" in said, said
    until_it_says(port, "speaks no TLS", ask)


def test_one_byte_a_record_and_two_requests_in_one(port):
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    last = one[:-2] + b"Connection: close\r\n\r\n"
    with port.wrapped() as connection:
        for byte in one:
            connection.sendall(bytes([byte]))
        wait_until(lambda: connection.recv(1) == b"H", 20)
        connection.sendall(one + last)
        said = b"H"
        while part := connection.recv(65536):
            said += part
    assert said.count(b"HTTP/1.1 200 ") == 3


def test_half_handshakes_hold_up_nobody(port):
    """Nor do those that say nothing."""
    hello = ssl.MemoryBIO()
    client = port.files.context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    said = hello.read()
    halves = [port.raw() for _ in range(40)]
    try:
        for number, half in enumerate(halves):
            half.sendall(said[:number * 10] if number < 30 else said)  # the last ones take no answer
        for _ in range(5):
            assert port.call("GET", "/health")[0] == 200
    finally:
        for half in halves:
            half.close()


def test_a_question_and_a_reset_right_behind_it(world):
    """Whose connection has ended when the service first looks has no address any more, and is let in no more for that."""
    port = world.ports["rest"]
    assert wait_until(lambda: port.call("PUT", "/api/put", json.dumps({"key": "kept", "value": "x"}))[0] == 200, 30 * SLOW, "room")
    hold_still(world.service.process.pid)
    for _ in range(8):
        with port.raw() as plain:
            plain.sendall(b"DELETE /api/remove/kept HTTP/1.1\r\nHost: x\r\n\r\n")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.kill(world.service.process.pid, signal.SIGCONT)
    time.sleep(0.5)
    assert port.call("GET", "/api/get/kept") == (200, b"x")


def test_the_doctor_asks_all_of_it(world):
    """Master, admin port and metadata server, and that the last is the master's; with another authority it believes none of them."""
    flags = ["--master", world.master.address, "--admin", f"127.0.0.1:{world.master.metrics_port}",
             "--metadata", f"https://127.0.0.1:{world.master.metadata_port}/metadata"]
    report = Report(*flags, MC_TLS_CA_CERT=str(world.files.ca.certificate))
    assert [report.verdict(name) for name in ("master", "admin port", "metadata server", "one cluster")] == ["fine"] * 4, report.facts
    report = Report(*flags, MC_TLS_CA_CERT=str(world.files.other.certificate))
    assert [report.verdict(name) for name in ("master", "admin port", "metadata server")] == ["broken"] * 3, report.facts


def serial_of(port):
    with port.wrapped() as connection:
        return connection.getpeercert()["serialNumber"]


def test_certificates_are_renewed_without_a_restart(world):
    """Who is connected goes on with the old one; a half that cannot be used changes nothing."""
    files = world.files
    kept = {name: port.connect() for name, port in world.ports.items()}
    old = {serial_of(port) for port in world.ports.values()}
    try:
        assert len(old) == 1
        for one in kept.values():
            one.request("GET", "/health")
            assert one.getresponse().read() is not None
        files.certificate.write_text("no certificate")
        assert {serial_of(port) for port in world.ports.values()} == old
        files.use(files.second)
        for port in world.ports.values():
            assert wait_until(lambda port=port: serial_of(port) not in old, 20, "the new certificate")
        for one in kept.values():
            one.request("GET", "/health")
            assert one.getresponse().status == 200
    finally:
        files.use(files.first)
        for one in kept.values():
            one.close()


# ---- big and slow ----

@pytest.mark.parametrize("name", ["metadata", "server"])
def test_big_values_of_metadata(world, name):
    port, value = world.ports[name], os.urandom(MIB)
    assert port.call("PUT", "/metadata?key=big", value)[0] == 200
    assert port.call("GET", "/metadata?key=big") == (200, value)
    with port.wrapped(receive_buffer=4096) as connection:  # it takes little at a time, and the port ends the connection after the last byte
        connection.sendall(b"GET /metadata?key=big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.2)
        said = bytearray()
        while part := connection.recv(16384):
            said += part
            if len(said) % 7 == 0:
                time.sleep(0.001)
    assert bytes(said).endswith(value) and said.startswith(b"HTTP/1.1 200 ")


def test_many_at_once(world):
    """Some big, some small, over connections that stay."""
    port, value = world.ports["metadata"], os.urandom(300000)
    assert port.call("PUT", "/metadata?key=many", value)[0] == 200

    def ask(number):
        connection = port.connect()
        for turn in range(10):
            connection.request("GET", "/metadata?key=many" if (number + turn) % 2 else "/health")
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status == 200 and body == (value if (number + turn) % 2 else b"OK")
        connection.close()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(16)))


def test_16_mib_by_rest(world):
    port, value = world.ports["rest"], os.urandom(12 * MIB).hex()[:16 * MIB]
    wait_until(lambda: port.call("PUT", "/api/put", json.dumps({"key": "room", "value": "x"}))[0] == 200, 30 * SLOW, "room")
    connection = port.connect(timeout_s=60 * SLOW)
    for key in ("a", "b"):
        connection.request("PUT", "/api/put", body=json.dumps({"key": key, "value": value}))
        reply = connection.getresponse()
        assert (reply.status, json.loads(reply.read())["status"]) == (200, "success")
    connection.request("GET", "/api/get/b")
    assert connection.getresponse().read() == value.encode()
    connection.close()
    with port.wrapped(receive_buffer=4096) as slow:
        slow.sendall(b"GET /api/get/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)
        assert port.call("GET", "/health")[0] == 200
        said = bytearray()
        while part := slow.recv(65536):
            said += part
    assert bytes(said).endswith(value.encode())


def test_the_images_check_of_health(world):
    """Of each port, by TLS; it notices one that is not well, and one that has TLS when it asks without."""
    script = pathlib.Path(os.environ["MC_SOURCE"]) / "packaging/image/health"

    def check(url):
        return subprocess.run(["sh", script], env={"PATH": os.environ["PATH"], "HEALTH_URL": url}, capture_output=True, timeout=60).returncode
    for port in world.ports.values():
        assert check(f"https://127.0.0.1:{port.number}/health") == 0, port.path
    number = world.ports["rest"].number
    assert check(f"https://127.0.0.1:{number}/api/get/none") != 0 and check(f"http://127.0.0.1:{number}/health") != 0
    hold_still(world.service.process.pid)
    try:
        assert check(f"https://127.0.0.1:{number}/health") != 0
    finally:
        os.kill(world.service.process.pid, signal.SIGCONT)
    assert wait_until(lambda: check(f"https://127.0.0.1:{number}/health") == 0, 30, "health")


def test_bodies_and_streams_through_the_proxy(world):
    prompt = "x" * (2 * MIB)
    status, _, body = world.proxy.post("/v1/completions", {"model": "m", "prompt": prompt})
    assert status == 200 and json.loads(body)["engine"] == "d" and world.engine.requests[-1]["body"]["prompt"] == prompt
    status, headers, body = world.proxy.complete(stream=True)
    assert status == 200 and headers["Transfer-Encoding"] == "chunked" and body.count(b"data: ") >= world.engine.tokens
    with world.ports["proxy"].wrapped(receive_buffer=4096) as old:  # to HTTP/1.0 the end of the connection is the end: TLS has a word for that
        said, question = bytearray(), json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()
        old.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(question), question))
        while part := old.recv(65536):
            said += part
        assert said.count(b"data: ") >= world.engine.tokens


def test_an_answer_that_breaks_off_does_not_look_whole(world):
    """The end without a length: TLS must not say that it was one in order."""
    def half(handler, _seen):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
    world.engine.behave = half
    try:
        plain = world.ports["proxy"].raw()
        context = world.files.context()
        with context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client:
            question = json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()
            client.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(question), question))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                while client.recv(65536):
                    pass
    finally:
        world.engine.behave = None


# ---- limits ----

def is_over(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except ConnectionError:
        return True


def test_the_silent_ones_of_a_master_leave_for_others(world):
    """Some have begun a handshake, some have ended it."""
    port = world.ports["admin"]
    raise_limit()
    silent, kept = [port.wrapped() if number % 8 == 0 else port.raw() for number in range(PLACES)], []
    try:
        for _ in range(20):
            kept.append(port.connect())
            kept[-1].request("GET", "/health")
            assert kept[-1].getresponse().read() is not None
        assert sum(is_over(one) for one in silent) >= 19
    finally:
        for one in silent + kept:
            one.close()
    assert port.call("GET", "/health")[0] == 200


def test_what_has_ended_keeps_no_descriptor(world):
    port, folder = world.ports["admin"], f"/proc/{world.master.pid}/fd"
    wait_until(lambda: len(os.listdir(folder)) < 200, 30, "the end of others")
    before = len(os.listdir(folder))
    for _ in range(50):
        assert port.call("GET", "/health")[0] == 200
    wait_until(lambda: len(os.listdir(folder)) <= before + 2, 20, "descriptors that are closed")


def say_the_end(client):
    """That nothing more comes, by the word that TLS has for it; what is answered can still be read."""
    client.settimeout(0)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.unwrap()
    client.settimeout(60)


@pytest.mark.parametrize("end", ["at once", "in order", "by what is no record"])
def test_who_asks_and_is_gone_leaves_no_descriptor(world, end):
    """Its answer cannot be sent any more: then it is not waited for either."""
    processes = {"admin": world.master, "metadata": world.master, "server": world.server, "rest": world.service, "proxy": world.proxy}
    for name, process in processes.items():
        port, folder = world.ports[name], f"/proc/{process.process.pid}/fd"
        before = len(os.listdir(folder))
        for _ in range(40):
            with port.wrapped() as client:
                client.sendall(f"GET {port.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                if end == "in order":
                    say_the_end(client)
                elif end != "at once":
                    os.write(client.fileno(), b"x" * 100)
        wait_until(lambda: len(os.listdir(folder)) <= before + 5, 30, f"descriptors of {name} that are closed")


def test_who_says_nothing_more_is_answered(port):
    with port.wrapped() as client:
        client.sendall(f"GET {port.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        say_the_end(client)
        assert client.recv(65536).startswith(b"HTTP/1.1 ")


# ---- certificates of callers ----

def test_callers_certificates(files):
    """Who has none is told of health and nothing else, so that a kubelet can ask; a wrong one is let nowhere."""
    with world_of(files, callers=files.ca) as world:
        for name, port in world.ports.items():
            assert port.call("GET", "/health")[0] == 200, name
            status, said = port.call("GET", port.path)
            assert status == 403 and b"MC_TLS_CLIENT_CA_CERT" in said, (name, status, said)
            assert port.call("GET", port.path, pair=files.client)[0] in (200, 404), name

            def ask(port=port):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    port.call("GET", "/health", pair=files.stranger)
            until_it_says(port, "is signed by nobody whom", ask)


def test_what_cannot_be_used_is_said_at_the_start(files, monkeypatch, tmp_path):
    set_tls(monkeypatch, files)
    monkeypatch.setenv("MC_TLS_CERT", str(tmp_path / "no.pem"))
    proxy = Proxy("--decode", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="has ended"):
        proxy.start()
    says(proxy, "MC_TLS_CERT")
    with pytest.raises(AssertionError):
        Server(NATIVE, "--host=127.0.0.1")
    service = Service("--max-wait-time=1", MOONCAKE_MASTER="127.0.0.1:1").spawn()
    assert service.process.wait(30) == 1 and "MC_TLS_CERT" in service.log()
