"""A request that harms an engine reaches one engine of each role; one that certainly had no effect is sent to another."""
import json
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
        assert sum(len(one.requests) for one in (prefill if role == "prefill" else decode)) == 1
        assert sum(len(one.requests) for one in prefill) <= 1 and sum(len(one.requests) for one in decode) <= 1
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
