"""mooncake_http_metadata_server and python -m mooncake.http_metadata_server: the master's metadata service alone."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import pytest

from cluster import BUILD, START_S, request, wait_until
from service_process import environment, run

NATIVE = [str(BUILD / "mooncake_http_metadata_server")]
MODULE = [sys.executable, "-m", "mooncake.http_metadata_server"]


class Server:
    def __init__(self, command, *flags):
        self.log_file = tempfile.TemporaryFile("w+b")
        self.process = subprocess.Popen([*command, "--port=0", *flags], stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file, env=environment())

        def look():
            found = re.search(rb"HTTP metadata server started on \S+:(\d+)", os.pread(self.log_file.fileno(), 100000, 0))
            assert found or self.process.poll() is None
            return found
        self.port = int(wait_until(look, START_S).group(1))

    def call(self, method, path, body=None):
        return request(self.port, method, path, body=body)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@pytest.fixture(scope="module", params=[NATIVE, MODULE], ids=["native", "python -m"])
def server(request):
    running = Server(request.param, "--host=127.0.0.1")
    yield running
    assert running.stop() == 0
    running.log_file.close()


def test_round_trip(server):
    assert server.call("GET", "/metadata?key=a") == (404, b"metadata not found")
    assert server.call("PUT", "/metadata?key=a", b'{"x": 1}') == (200, b"metadata updated")
    assert server.call("GET", "/metadata?key=a") == (200, b'{"x": 1}')
    assert server.call("PUT", "/metadata?key=a", b"\0\xff") == (200, b"metadata updated")
    assert server.call("GET", "/metadata?key=a") == (200, b"\0\xff")
    assert server.call("DELETE", "/metadata?key=a") == (200, b"metadata deleted")
    assert server.call("DELETE", "/metadata?key=a") == (404, b"metadata not found")


def test_addresses_are_not_taken_over(server):
    assert server.call("PUT", "/metadata?key=mooncake%2Frpc_meta%2Fhost", b"one")[0] == 200
    assert server.call("PUT", "/metadata?key=mooncake/rpc_meta/host", b"one") == (200, b"metadata unchanged")
    assert server.call("PUT", "/metadata?key=mooncake/rpc_meta/host", b"two") == (400, b"Duplicate rpc_meta key not allowed")
    assert server.call("GET", "/metadata?key=mooncake/rpc_meta/host") == (200, b"one")


def meta(host, port):
    return json.dumps({"ip_or_host_name": host, "rpc_port": port}).encode()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_address_of_one_that_is_gone(server, host):
    """An engine that was killed does not keep its name from the next; one that is there, or stopped, does."""
    path = f"/metadata?key=mooncake/rpc_meta/again{host}"
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    first = meta(host, listener.getsockname()[1])
    assert server.call("PUT", path, first) == (200, b"metadata updated")
    assert server.call("PUT", path, meta(host, 1)) == (400, b"Duplicate rpc_meta key not allowed")  # nobody takes it out of its queue: stopped
    assert server.call("PUT", path, first) == (200, b"metadata unchanged")
    listener.close()
    assert server.call("PUT", path, meta(host, 1)) == (200, b"metadata updated")
    assert server.call("GET", path) == (200, meta(host, 1))
    for odd in (meta("localhost", 1), meta(host, 0), meta(host, 70000), meta("1.2.3.4.5", 1), meta("", 1), b"{}", b'{"ip_or_host_name":5,"rpc_port":1}',
                meta("a" * 5000, 1), b'{"ip_or_host_name":"127.0.0.1"}', b"", meta(host, 1)[:-1]):
        server.call("DELETE", path)
        assert server.call("PUT", path, odd)[0] == 200
        assert server.call("PUT", path, b"two")[0] == 400, odd


def test_addresses_that_are_not_looked_at(server):
    """Whoever stores an address has the server connect there, and learns whether somebody listens: not at ports of other services."""
    path = "/metadata?key=mooncake/rpc_meta/looked"
    for port, code in ((22, 400), (1023, 400), (1024, 200)):  # where nobody is
        server.call("DELETE", path)
        assert server.call("PUT", path, meta("127.0.0.1", port)) == (200, b"metadata updated")
        assert server.call("PUT", path, b"two")[0] == code, port


def test_nobody_else_has_a_server_look_at_its_own_host():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no way to another")
        own = probe.getsockname()[0]
    running = Server(NATIVE, "--host=0.0.0.0")
    path = "/metadata?key=mooncake/rpc_meta/looked"
    for target, asked_of, code in (("127.0.0.1", own, 400), ("0.0.0.0", own, 400), ("::1", own, 400), ("::ffff:127.0.0.1", own, 400), (own, own, 200),
                                   ("127.0.0.1", "127.0.0.1", 200)):
        for body, expected in ((meta(target, 1024), 200), (b"two", code)):
            connection = http.client.HTTPConnection(asked_of, running.port, timeout=20)
            connection.request("PUT", path, body)
            assert connection.getresponse().status == expected, (target, asked_of, body)
            connection.close()
        running.call("DELETE", path)
    assert running.stop() == 0


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("query", ["", "?", "?key", "?key=", "?key=%20+%09", "?other=1"])
def test_key_is_needed(server, method, query):
    assert server.call(method, f"/metadata{query}", b"x" if method == "PUT" else None)[0] == 400


def test_blanks_around_a_key(server):
    assert server.call("PUT", "/metadata?key=%20b%20", b"x")[0] == 200
    assert server.call("GET", "/metadata?key=b") == (200, b"x")
    assert server.call("DELETE", "/metadata?key=b%09")[0] == 200


def test_limits_and_other_paths(server):
    assert server.call("POST", "/metadata?key=a", b"x")[0] == 405
    assert server.call("GET", "/nothing")[0] == 404
    assert server.call("GET", "/health") == (200, b"OK")
    assert server.call("PUT", "/metadata?key=large", b"x" * ((1 << 20) + 1))[0] == 413
    assert server.call("PUT", "/metadata?key=" + "k" * 4097, b"x")[0] == 413


def test_many_at_once(server):
    def one(number):
        for _ in range(5):
            results.append(server.call("PUT", f"/metadata?key=m{number}", b"%d" % number)[0] == 200 and
                           server.call("GET", f"/metadata?key=m{number}") == (200, b"%d" % number))
    results = []
    threads = [threading.Thread(target=one, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 150 and all(results)


def test_flags_and_ports(server):
    result = run(NATIVE, "--help")
    assert result.returncode == 0 and "--port" in result.stdout and "--host" in result.stdout and "--log_level" in result.stdout
    assert run(NATIVE, "--version").stdout.startswith("mooncake_http_metadata_server ")
    result = run(NATIVE, "--host=127.0.0.1", f"--port={server.port}")
    assert result.returncode == 1 and re.fullmatch(r"mooncake_http_metadata_server: cannot listen on .* Address already in use.*--port\n", result.stderr), result.stderr
    assert run(NATIVE, "--prot=1").stderr == "mooncake_http_metadata_server: unknown flag --prot; did you mean --port?\n"


def test_interrupt():
    server = Server(NATIVE, "--log-level", "DEBUG")
    assert server.stop(signal.SIGINT) == 0
