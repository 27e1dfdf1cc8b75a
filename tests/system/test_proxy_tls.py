"""The proxy and instances at https://: who is believed, what is said when nobody is, and answers that end in the middle."""
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time

import pytest

from certificates import Authority
from cluster import says, wait_until
from proxy_engines import Engine, Proxy
from test_tls import VARIABLES

MIB = 1 << 20
HERE = ["DNS:localhost", "IP:127.0.0.1"]


class Files:
    def __init__(self, folder):
        self.ca, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.good, self.elsewhere = self.ca.sign("good", HERE), self.ca.sign("elsewhere", ["DNS:elsewhere"])
        self.foreign, self.client = self.other.sign("foreign", HERE), self.ca.sign("client", HERE)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


def serving(pair, callers=None, latest=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if callers:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(callers.certificate)
    if latest:
        context.maximum_version = latest
    return context


@pytest.fixture
def engine_of():
    """Makes engines, that end with the test."""
    made = []

    def make(*words, **more):
        made.append(Engine(*words, **more))
        return made[-1]
    yield make
    for one in made:
        one.kill()


def proxy_of(files, *arguments, ca="ca", **variables):
    authority = str(getattr(files, ca).certificate) if ca else ""
    return Proxy(*arguments, environment={**{name: "" for name in VARIABLES}, "MC_TLS_CA_CERT": authority, **variables})


@contextlib.contextmanager
def started(proxy):
    """Though no instance answers."""
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.__exit__()


def problem_of(proxy, address):
    """What the proxy says of the instance that is down."""
    def look():
        for one in json.loads(proxy.get("/status")[1])["instances"]:
            if one["instance"] == address and one["state"] == "down":
                return one["problem"]
        return None
    return wait_until(look, 30, "an instance that is down")


def test_prefill_and_decode(files, engine_of):
    """Names and addresses, whole answers and streams, big prompts; of TLS 1.2, too."""
    names = []
    tls = serving(files.good)
    tls.sni_callback = lambda _connection, name, _context: names.append(name)
    prefill, decode = engine_of("p", tls=tls), engine_of("d", tls=serving(files.good, latest=ssl.TLSVersion.TLSv1_2), pad=40000)
    with proxy_of(files, "--mode=store", "--prefill", f"https://localhost:{prefill.port}", "--decode", decode.url) as proxy:
        status, _, body = proxy.complete()
        assert status == 200 and json.loads(body)["engine"] == "d"
        prompt = "x" * (4 * MIB)
        status, _, body = proxy.post("/v1/completions", {"model": "m", "prompt": prompt})
        assert status == 200
        assert [one.requests[-1]["body"]["prompt"] for one in (prefill, decode)] == [prompt] * 2
        assert decode.requests[-1]["headers"]["Host"] == decode.address
        status, headers, body = proxy.complete(stream=True)
        assert status == 200 and headers["Transfer-Encoding"] == "chunked"
        assert body.count(b"data: ") == decode.tokens + 1 and body.count(b"x" * 40000) == decode.tokens
    assert names and set(names) == {"localhost"}


def test_an_address_has_no_name_to_be_sent(files, engine_of):
    names = []
    tls = serving(files.good)
    tls.sni_callback = lambda _connection, name, _context: names.append(name)
    decode = engine_of(tls=tls)
    with proxy_of(files, "--decode", decode.url) as proxy:
        assert proxy.complete()[0] == 200
    assert set(names) == {None}


def test_the_machines_authorities_are_believed_too(files, engine_of):
    decode = engine_of(tls=serving(files.good))
    machine = {"SSL_CERT_FILE": str(files.ca.certificate)}
    for ca in ("other", None):
        with proxy_of(files, "--decode", decode.url, ca=ca, **machine) as proxy:
            assert proxy.complete()[0] == 200


def refused(files, instance, *expected, **variables):
    """It gets no request, and whoever asks is told why."""
    with started(proxy_of(files, "--decode", instance.url, **variables)) as proxy:
        for text in expected:
            assert text in problem_of(proxy, instance.address)
        status, _, body = proxy.complete()
        assert status == 503 and all(text in json.loads(body)["error"]["message"] for text in expected), body
        assert wait_until(lambda: all(text in proxy.log() for text in expected), 20, "a line in the log")
    assert not instance.requests


@pytest.mark.parametrize("pair, expected", [
    ("elsewhere", ["is not for '127.0.0.1'", "subjectAltName", "MC_TLS_SERVER_NAME"]),
    ("foreign", ["is signed by nobody whom", "set MC_TLS_CA_CERT"])])
def test_who_does_not_prove_who_it_is(files, engine_of, pair, expected):
    refused(files, engine_of(tls=serving(getattr(files, pair))), *expected)


def test_the_name_that_must_be_proved_instead(files, engine_of):
    decode = engine_of(tls=serving(files.elsewhere))
    with proxy_of(files, "--decode", decode.url, MC_TLS_SERVER_NAME="elsewhere") as proxy:
        assert proxy.complete()[0] == 200


def test_another_instance_has_the_request(files, engine_of):
    """Which the first one has not seen: it is found out before anything is sent."""
    bad, good = engine_of("bad", tls=serving(files.good)), engine_of("good", tls=serving(files.good))
    with proxy_of(files, "--decode", bad.url, good.url, "--health_interval=1h") as proxy:
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"bad", "good"}
        bad.tls.load_cert_chain(files.foreign.certificate, files.foreign.key)
        seen = len(bad.requests)
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"good"}
        assert len(bad.requests) == seen and "is signed by nobody whom" in problem_of(proxy, bad.address)


@pytest.mark.parametrize("latest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_instance_that_wants_a_certificate(files, engine_of, latest):
    """With TLS 1.3 its refusal comes when the request is on its way already: another instance is asked all the same."""
    decode = engine_of("d", tls=serving(files.good, callers=files.ca, latest=latest))
    refused(files, decode, "refuses the certificate of this side, or that it has none", "set MC_TLS_CERT and MC_TLS_KEY")
    proxy = proxy_of(files, "--decode", decode.url, MC_TLS_CERT=str(files.client.certificate), MC_TLS_KEY=str(files.client.key))
    context = ssl.create_default_context(cafile=files.ca.certificate)
    proxy.connect = lambda timeout_s=30: http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=timeout_s, context=context)
    with proxy:
        assert json.loads(proxy.complete()[2])["engine"] == "d"


def test_one_side_without_tls(files, engine_of):
    plain, secure = engine_of("p"), engine_of("s", tls=serving(files.good))
    with started(proxy_of(files, "--decode", f"https://{plain.address}")) as proxy:
        said = problem_of(proxy, plain.address)
        assert "does not speak TLS" in said and "http://" in said
    with started(proxy_of(files, "--decode", secure.address)) as proxy:
        problem_of(proxy, secure.address)
        assert proxy.complete()[0] == 503
    assert not secure.requests


def test_an_alert_in_place_of_an_answer(files):
    """So says a server of ours, and most others."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def answer():
        try:
            while True:
                with listener.accept()[0] as one:
                    one.recv(65536)
                    one.sendall(b"\x15\x03\x03\x00\x02\x02\x46")
        except OSError:
            pass
    threading.Thread(target=answer, daemon=True).start()
    address = "127.0.0.1:%d" % listener.getsockname()[1]
    try:
        with started(proxy_of(files, "--decode", address)) as proxy:
            assert "write https:// before its address" in problem_of(proxy, address)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_handshake_that_does_not_go_on(files, engine_of):
    """As long as a connection may take, and not longer; the request goes to another one."""
    good = engine_of("good", tls=serving(files.good))
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = "127.0.0.1:%d" % listener.getsockname()[1]
    with listener, proxy_of(files, "--decode", good.url, f"https://{address}", "--connect_timeout=300ms", "--health_interval=1h") as proxy:
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"good"}
        assert "no connection in time" in problem_of(proxy, address)


def ending(orderly):
    """An answer whose end is that of the connection."""
    def behave(handler, _seen):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthe beginning")
        handler.wfile.flush()
        if orderly:
            handler.connection.settimeout(5)
            try:
                handler.connection.unwrap()
            except (OSError, ValueError):
                pass
        socket.socket.shutdown(handler.connection, socket.SHUT_WR)
        handler.close_connection = True
    return behave


def test_an_answer_that_ends_without_a_word_is_cut(files, engine_of):
    """Anybody on the way can end a connection; only the instance can say in TLS that this is the end."""
    decode = engine_of(tls=serving(files.good))
    with proxy_of(files, "--decode", decode.url) as proxy:
        decode.behave = ending(orderly=True)
        assert (lambda reply: (reply[0], reply[2]))(proxy.complete()) == (200, b"the beginning")
        decode.behave = ending(orderly=False)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            proxy.complete()
        assert wait_until(lambda: "an answer was broken off" in proxy.log(), 20, "a line in the log")

        def half(handler, _seen):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            handler.wfile.flush()
            handler.connection.settimeout(5)
            try:
                handler.connection.unwrap()  # a word of TLS makes half an answer no whole one
            except (OSError, ValueError):
                pass
            handler.close_connection = True
        decode.behave = half
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            proxy.complete(stream=True)


def test_a_client_that_leaves_ends_its_request(files, engine_of):
    decode = engine_of(tls=serving(files.good), tokens=100000, delay_s=0.01)
    with proxy_of(files, "--decode", decode.url) as proxy:
        connection = proxy.connect()
        connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "p", "stream": True}), {"Content-Type": "application/json"})
        assert connection.getresponse().read(20)
        connection.close()
        assert wait_until(lambda: "left" in decode.requests[-1], 30, "the engine to notice")
        assert decode.requests[-1]["sent"] < decode.tokens


def test_who_reads_slowly_slows_the_instance(files, engine_of):
    """All of it comes in the end, and the proxy holds little of it meanwhile."""
    decode = engine_of(tls=serving(files.good), tokens=64, pad=MIB)
    with proxy_of(files, "--decode", decode.url) as proxy:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", proxy.port))
        question = json.dumps({"model": "m", "prompt": "p", "stream": True}).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(question), question))
        wait_until(lambda: decode.requests and decode.requests[-1].get("sent"), 30, "the first token")
        time.sleep(1)
        assert decode.requests[-1]["sent"] < decode.tokens
        said = 0
        while part := connection.recv(MIB):
            said += len(part)
        connection.close()
        assert said > decode.tokens * MIB


def test_instances_that_are_added(files, engine_of):
    first, second, wrong = (engine_of(name, tls=serving(pair)) for name, pair in
                            (("a", files.good), ("b", files.good), ("c", files.foreign)))
    key = {"X-API-Key": "secret"}
    with proxy_of(files, "--decode", first.url, ADMIN_API_KEY="secret") as proxy:
        status, _, body = proxy.post("/instances/add", {"type": "decode", "instance": wrong.url}, key)
        assert status == 400 and "is signed by nobody whom" in body.decode()
        status, _, body = proxy.post("/instances/add", {"type": "decode", "instance": second.url}, key)
        assert status == 200, body
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"a", "b"}
        assert proxy.post("/instances/remove", {"type": "decode", "instance": first.url}, key)[0] == 200
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"b"}


def test_concurrent_mode_asks_the_bootstrap_server_without(files, engine_of):
    """That is a server of the engine's own, and decode is told where it is as http://."""
    bootstrap, prefill, decode = engine_of("boot"), engine_of("p", tls=serving(files.good)), engine_of("d", tls=serving(files.good))

    def answer(handler, _seen):
        wait_until(lambda: prefill.requests, 30, "prefill")  # which is given up when decode has answered
        handler.answer(200, {"engine": "d"})
    decode.behave = answer
    with proxy_of(files, "--prefill", prefill.url, bootstrap.port, "--decode", decode.url) as proxy:
        assert proxy.complete()[0] == 200
        params = decode.requests[-1]["body"]["kv_transfer_params"]
        assert params["remote_bootstrap_addr"] == f"http://127.0.0.1:{bootstrap.port}"
        assert prefill.requests[-1]["body"]["kv_transfer_params"]["transfer_id"] == params["transfer_id"]


def test_files_that_cannot_be_used_are_said_at_the_start(files, tmp_path):
    proxy = proxy_of(files, "--decode", "https://127.0.0.1:1", MC_TLS_CA_CERT=str(tmp_path / "no.pem"))
    with pytest.raises(AssertionError, match="has ended"):
        proxy.start()
    says(proxy, "MC_TLS_CA_CERT")
