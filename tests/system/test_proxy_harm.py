"""A request that harms an engine reaches one engine of each role; one that certainly had no effect is sent to another."""
import json
import re
import socket
import threading
import time

import pytest

from cluster import wait_until
from proxy_engines import Proxy
from test_proxy import engines  # noqa: F401

MODES = ("store", "sequential", "concurrent")
ENGINES = 8


def reset(handler, seen):
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raise ConnectionResetError


def close(handler, seen):
    handler.close_connection = True


def garbage(handler, seen):
    handler.wfile.write(b"Segmentation fault\r\n\r\n")
    handler.close_connection = True


def answers(status):
    return lambda handler, seen: handler.answer(status, {"error": {"code": status}})


def slow(handler, seen):
    """Decode that waits for prefill's blocks."""
    time.sleep(0.3)
    handler.look()
    handler.answer(200, {})


HARM = {"reset": reset, "close": close, "garbage": garbage, "500": answers(500), "502": answers(502)}


def mixed(mode, prefill):
    return ("--mode", mode, "--prefill", *[word for one in prefill for word in ([one.url, one.port] if mode == "concurrent" else [one.address])])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("harm", HARM)
def test_a_poisonous_request_is_seen_by_one_engine(engines, mode, role, harm):  # noqa: F811
    prefill, decode = [engines(f"p{i}") for i in range(ENGINES)], [engines(f"d{i}") for i in range(ENGINES)]
    for one in prefill:
        one.kv_params = {"a": 1}
    for one in prefill if role == "prefill" else decode:
        one.behave = HARM[harm]
    if role == "prefill":  # beside it decode would answer first
        for one in decode:
            one.hold = threading.Event()
    with Proxy(*mixed(mode, prefill), "--decode", *[one.address for one in decode]) as proxy:
        wait_until(lambda: all(one["usable"] and one["state"] == "up" for one in proxy.status()["instances"]))
        status, _, _ = proxy.complete()
        assert status in (500, 502)
        # Of whom a port was before may still be looked for there.
        seen = {name: sum(one["path"] == "/v1/completions" for engine in them for one in engine.requests)
                for name, them in (("prefill", prefill), ("decode", decode))}
        assert seen[role] == 1 and max(seen.values()) == 1
        assert proxy.metrics()["mooncake_proxy_requests_retried_total"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_an_instance_refuses_goes_to_another(engines, mode, role):  # noqa: F811
    """503: not begun. Each of those that refuse sees it, and of the other role one instance, once more for another prefill at most."""
    prefill, decode = [engines(f"p{i}") for i in range(3)], [engines(f"d{i}") for i in range(3)]
    for one in prefill:
        one.kv_params = {"a": 1}
    refusing = (prefill if role == "prefill" else decode)[:2]
    for one in refusing:
        one.behave = answers(503)
    flags = (*mixed(mode, prefill), "--decode", *[one.address for one in decode])
    if role == "prefill" and mode == "concurrent":
        for one in decode:
            one.behave = slow
    with Proxy(*flags) as proxy:
        wait_until(lambda: all(one["usable"] and one["state"] == "up" for one in proxy.status()["instances"]))
        for _ in range(3):
            status, _, body = proxy.complete()
            assert status == 200, body
        assert all(one["state"] == "up" for one in proxy.status()["instances"]), "who is busy is not down"
        assert proxy.metrics()["mooncake_proxy_requests_retried_total"] >= 2
        others = decode if role == "prefill" else prefill
        for request_id in {one["headers"]["X-Request-Id"] for engine in others for one in engine.requests}:
            assert sum(any(one["headers"]["X-Request-Id"] == request_id for one in engine.requests) for engine in others) == 1
        for one in prefill if role == "prefill" else decode:
            one.behave = answers(503)
        status, headers, body = proxy.complete()
        assert status == 503 and json.loads(body) == {"error": {"code": 503}}, "when nobody is left it is the answer"
    with Proxy(*flags, "--retries=0") as proxy:
        wait_until(lambda: all(one["usable"] and one["state"] == "up" for one in proxy.status()["instances"]))
        before = sum(len(one.requests) for one in prefill + decode)
        assert proxy.complete()[0] == 503
        assert proxy.metrics()["mooncake_proxy_requests_retried_total"] == 0 and sum(len(one.requests) for one in prefill + decode) <= before + 2


def test_retries_have_a_limit(engines):  # noqa: F811
    decode = [engines(f"d{i}") for i in range(6)]
    for one in decode:
        one.behave = answers(503)
    with Proxy("--retries=2", "--decode", *[one.address for one in decode]) as proxy:
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]))
        assert proxy.complete()[0] == 503
        assert sum(len(one.requests) for one in decode) == 3 and proxy.metrics()["mooncake_proxy_requests_retried_total"] == 2


# ---- resets ----

RESET = b"\1\0\0\0\0\0\0\0"


def connections(proxy):
    """Without the one that asks."""
    return int(re.search(rb"^mooncake_proxy_connections (\d+)", proxy.get("/metrics")[1], re.M).group(1)) - 1


def test_a_client_that_resets_at_once_is_forgotten(engines):  # noqa: F811
    """What was sent can still be read there, the answer cannot be written, and then the end comes: both at once are no orderly end."""
    with Proxy("--decode", engines("d").address, "--client_timeout=300s") as proxy:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            time.sleep(0.02)  # one by one: several at a time have other ends
        wait_until(lambda: connections(proxy) == 0, 60)


def test_an_instance_that_resets_in_mid_answer_has_not_ended_it(engines):  # noqa: F811
    """It reads no more of the request, and its answer has no length: only an orderly end would be one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            while True:
                try:
                    instance, _peer = listener.accept()
                except OSError:
                    return
                with instance:
                    if instance.recv(4096, socket.MSG_PEEK).startswith(b"GET /health"):
                        instance.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        continue
                    instance.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nthe first half")
                    time.sleep(0.3)  # the proxy has read that
                    instance.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        threading.Thread(target=serve, daemon=True).start()
        with Proxy("--decode", f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            body = json.dumps({"model": "m", "prompt": "p" * (32 << 20)}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            answer = proxy.raw(head.encode() + body)
            assert not answer.endswith(b"0\r\n\r\n"), answer[-200:]
            assert b"the first half" in answer or b" 502 " in answer, answer
