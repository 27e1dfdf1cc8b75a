"""mooncake_proxy before real HTTP servers that answer as engines do, with real clients, kind and unkind."""
import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from cluster import SANITIZED, wait_until
from proxy_engines import PROXY, Engine, Proxy, RawServer, post_bytes

STREAM = {"model": "m", "prompt": "p", "stream": True, "max_tokens": 20}


@pytest.fixture
def engines():
    """Makes engines that end with the test."""
    made = []

    def make(*arguments, **more):
        made.append(Engine(*arguments, **more))
        return made[-1]
    yield make
    for one in made:
        if one.hold is not None:
            one.hold.set()
        one.kill()


def pair(engines, *flags, **more):
    prefill, decode = engines("prefill"), engines("decode", **more)
    return prefill, decode, Proxy("--prefill", prefill.address, "--decode", decode.address, *flags)


def test_store_mode_prefills_then_decodes(engines):
    prefill, decode, proxy = pair(engines)
    with proxy:
        body = b'{"model":"m", "prompt":"a\\u00e9\\ud83d\\ude00", "max_tokens":20, "min_tokens":3, "temperature":0.7,\n "seed":12345678901234567890}'
        status, headers, answer = proxy.post("/v1/completions", body)
        assert status == 200 and json.loads(answer)["engine"] == "decode"
        assert decode.requests[0]["raw"] == body, "decode gets the request byte by byte"
        first = prefill.bodies()[0]
        assert first == {"model": "m", "prompt": "aé😀", "temperature": 0.7, "seed": 12345678901234567890, "stream": False, "max_tokens": 1}
        assert prefill.requests[0]["time"] < decode.requests[0]["time"]
        ids = {prefill.requests[0]["headers"]["X-Request-Id"], decode.requests[0]["headers"]["X-Request-Id"], headers["X-Request-Id"]}
        assert len(ids) == 1 and re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", ids.pop())
        proxy.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7, "stream": True,
                                            "stream_options": {"include_usage": True}})
        second = prefill.bodies()[1]
        assert second["max_completion_tokens"] == 1 and second["max_tokens"] == 1 and second["stream"] is False and "stream_options" not in second
        assert prefill.requests[1]["path"] == decode.requests[1]["path"] == "/v1/chat/completions"
        assert decode.bodies()[1]["max_completion_tokens"] == 7 and decode.bodies()[1]["stream_options"] == {"include_usage": True}
        assert "kv_transfer_params" not in second


def test_concurrent_mode_tells_decode_the_bootstrap_server(engines):
    prefill, decode = engines("prefill", engine_ids=("e-zero", "e-one")), engines("decode")
    with Proxy("--prefill", prefill.url, prefill.port, "--decode", decode.url) as proxy:
        for _ in range(4):
            assert proxy.complete()[0] == 200
        wait_until(lambda: len(prefill.requests) == 4 and len(decode.requests) == 4, what="both sides")
        by_id = {one["headers"]["X-Request-Id"]: one for one in prefill.requests}
        ranks = []
        for one in decode.requests:
            first = by_id[one["headers"]["X-Request-Id"]]
            sent, got = first["body"]["kv_transfer_params"], one["body"]["kv_transfer_params"]
            rank = int(first["headers"]["X-data-parallel-rank"])
            assert sent == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": sent["transfer_id"]}
            assert got == {"do_remote_decode": False, "do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{prefill.port}",
                           "remote_engine_id": ["e-zero", "e-one"][rank], "transfer_id": sent["transfer_id"]}
            assert sent["transfer_id"].startswith("xfer-") and first["body"]["max_tokens"] == 1 and one["body"]["max_tokens"] == 20
            ranks.append(rank)
        assert sorted(ranks) == [0, 0, 1, 1]
        assert len({one["body"]["kv_transfer_params"]["transfer_id"] for one in prefill.requests}) == 4


def test_concurrent_mode_runs_both_at_once_and_needs_the_bootstrap_server(engines):
    prefill, decode = engines("prefill"), engines("decode")
    prefill.hold = threading.Event()
    with Proxy("--prefill", prefill.url, prefill.port, "--decode", decode.url) as proxy:
        assert proxy.complete()[0] == 200, "decode answers while prefill has not"
        prefill.hold.set()
        wait_until(lambda: proxy.status()["instances"][0]["running"] == 0)
        prefill.engine_ids = ["restarted"]

        def new_id_is_told():
            assert proxy.complete()[0] == 200
            return decode.bodies()[-1]["kv_transfer_params"]["remote_engine_id"] == "restarted"
        wait_until(new_id_is_told, what="the engine's new id")
        prefill.engine_ids = []
        wait_until(lambda: proxy.complete()[0] == 503, what="503 without a bootstrap server")


def test_concurrent_prefill_that_refuses_ends_decode(engines):
    prefill, decode = engines("prefill"), engines("decode")
    decode.hold = threading.Event()
    prefill.behave = lambda handler, seen: handler.answer(400, {"error": {"message": "too long", "code": 400}})
    with Proxy("--prefill", prefill.url, prefill.port, "--decode", decode.url) as proxy:
        status, _, body = proxy.complete()
        assert status == 400 and json.loads(body)["error"]["message"] == "too long"
        # It may have been refused before decode was asked at all.
        until = time.monotonic() + 2
        while not decode.requests and time.monotonic() < until:
            time.sleep(0.01)
        wait_until(lambda: all(request.get("left") for request in decode.requests), what="decode's cancellation")


def test_sequential_mode_passes_the_params_on(engines):
    prefill, decode = engines("prefill"), engines("decode")
    prefill.kv_params = {"do_remote_prefill": True, "remote_block_ids": [[1, 2], [3]], "remote_host": "h", "big": 18446744073709551616}
    with Proxy("--mode", "sequential", "--prefill", prefill.address, "--decode", decode.address) as proxy:
        assert proxy.complete(kv_transfer_params={"mine": 1})[0] == 200
        assert prefill.bodies()[0]["kv_transfer_params"]["do_remote_decode"] is True and "mine" not in prefill.bodies()[0]["kv_transfer_params"]
        assert decode.bodies()[0]["kv_transfer_params"] == prefill.kv_params
        for prefill.kv_params in (None, {}):
            assert proxy.complete()[0] == 200
            assert "kv_transfer_params" not in decode.bodies()[-1], "decode computes the prompt itself"


def test_toy_proxy_flags_mean_sequential(engines):
    prefill, decode = engines("prefill"), engines("decode")
    prefill.kv_params = {"a": 1}
    with Proxy("--prefiller-host", "127.0.0.1", "--prefiller-port", prefill.port, "--decoder-hosts", "127.0.0.1", "--decoder-ports", decode.port) as proxy:
        assert proxy.complete()[0] == 200
        assert decode.bodies()[0]["kv_transfer_params"] == {"a": 1}


def test_the_originals_module_is_this_proxy(engines):
    """python -m mooncake.vllm_v1_proxy_server, with its flags; what is not given is what the original takes."""
    module = (sys.executable, "-m", "mooncake.vllm_v1_proxy_server")
    environment = {"PYTHONPATH": os.environ["MC_PYTHONPATH"], "PATH": f"{PROXY.parent}:{os.environ['PATH']}"}
    prefill, decode = engines("prefill"), engines("decode")
    prefill.kv_params = {"a": 1}
    with Proxy("--prefiller-host", "127.0.0.1", "--prefiller-port", prefill.port, "--decoder-hosts", "127.0.0.1", "--decoder_ports", decode.port,
               program=module, environment=environment) as proxy:
        assert proxy.complete()[0] == 200
        assert decode.bodies()[0]["kv_transfer_params"] == {"a": 1}
    alone = Proxy(program=module, environment=environment).start()
    status = json.loads(alone.get("/status")[-1])
    assert (status["prefill_nodes"], status["decode_nodes"]) == (["localhost:8100"], ["localhost:8200"])
    assert alone.stop() == 0


def test_stream_arrives_piece_by_piece(engines):
    _, decode, proxy = pair(engines, tokens=8, delay_s=0.05)
    with proxy:
        connection, reply = proxy.stream(STREAM)
        assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream")
        times, lines = [], []
        while line := reply.readline():
            if line.strip():
                times.append(time.monotonic())
                lines.append(line.strip())
        connection.close()
        assert lines[-1] == b"data: [DONE]" and [json.loads(one[6:])["i"] for one in lines[:-1]] == list(range(8))
        wait_until(lambda: decode.requests[0].get("done"))
        assert times[0] < decode.requests[0]["last_sent"] - 0.1, "the first piece came long before the last one was sent"


def test_client_that_leaves_cancels_both_sides(engines):
    prefill, decode, proxy = pair(engines, tokens=10000, delay_s=0.01)
    with proxy:
        connection = proxy.open(post_bytes("/v1/completions", STREAM))
        assert connection.recv(100)
        connection.close()
        wait_until(lambda: decode.requests[0].get("left"), what="decode's cancellation")
        assert decode.requests[0]["sent"] < 2000
        prefill.hold = threading.Event()
        connection = proxy.open(post_bytes("/v1/completions", STREAM))
        wait_until(lambda: len(prefill.requests) == 2)
        connection.close()
        wait_until(lambda: prefill.requests[1].get("left"), what="prefill's cancellation")
        assert len(decode.requests) == 1, "decode was never asked"
        assert proxy.metrics()["mooncake_proxy_requests_cancelled_total"] == 2
        assert all(one["running"] == 0 and one["cancelled"] == 1 for one in proxy.status()["instances"])


def test_round_robin_takes_turns(engines):
    prefill, decode = [engines(f"p{i}") for i in range(3)], [engines(f"d{i}") for i in range(2)]
    with Proxy("--model", "m", "--prefill", *[one.address for one in prefill], "--decode", *[one.address for one in decode], "--scheduling", "round_robin") as proxy:
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]))
        order = [json.loads(proxy.complete()[2])["engine"] for _ in range(6)]
        assert order in (["d0", "d1"] * 3, ["d1", "d0"] * 3)
        assert [len(one.requests) for one in prefill] == [2, 2, 2]
        assert [one.requests[0]["time"] for one in prefill] == sorted(one.requests[0]["time"] for one in prefill)


def test_least_loaded_goes_where_least_is_to_do(engines):
    prefill, decode = engines("p"), [engines("d0"), engines("d1")]
    decode[0].hold = threading.Event()
    with Proxy("-p", prefill.address, "-d", decode[0].address, decode[1].address, "--scheduling=least_loaded") as proxy:
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]))
        long = threading.Thread(target=proxy.complete, kwargs={"prompt": "x" * 100000})
        long.start()
        wait_until(lambda: decode[0].running + decode[1].running > 0 or decode[1].requests)
        if not decode[0].requests:  # it was the other one's turn
            long.join()
            long = threading.Thread(target=proxy.complete, kwargs={"prompt": "x" * 100000})
            long.start()
            wait_until(lambda: decode[0].running == 1)
        before = len(decode[1].requests)
        for _ in range(6):
            assert json.loads(proxy.complete()[2])["engine"] == "d1"
        assert len(decode[1].requests) == before + 6 and len(decode[0].requests) == 1
        decode[0].hold.set()
        long.join()


def test_dead_instances_are_skipped_and_come_back(engines):
    prefill, decode = [engines("p0"), engines("p1")], [engines("d0"), engines("d1")]
    with Proxy("--prefill", *[one.address for one in prefill], "--decode", *[one.address for one in decode]) as proxy:
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]))
        prefill[0].kill()
        decode[1].kill()
        for _ in range(8):
            status, _, body = proxy.complete()
            assert status == 200 and json.loads(body)["engine"] == "d0"
        wait_until(lambda: [one["state"] for one in proxy.status()["instances"]] == ["down", "up", "up", "down"])
        prefill[1].kill()
        decode[0].kill()
        status, headers, body = proxy.complete()
        error = json.loads(body)["error"]
        assert status == 503 and error["code"] == 503 and "prefill" in error["message"] and "refused" in error["message"]
        wait_until(lambda: proxy.get("/health")[0] == 503)
        assert proxy.get("/healthcheck")[0] == 200
        for one in prefill + decode:
            one.start()
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]), what="the instances' return")
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"d0", "d1"}


def test_unhealthy_and_hanging_instances_get_nothing(engines):
    bad, good, prefill = engines("bad"), engines("good"), engines("p")
    with Proxy("--prefill", prefill.address, "--decode", bad.address, good.address, "--dead_timeout=1s") as proxy:
        wait_until(lambda: all(one["state"] == "up" for one in proxy.status()["instances"]))

        def gets_nothing(said):
            wait_until(lambda: proxy.status()["instances"][1]["state"] == "down", what="the bad one's end")
            before = len(bad.requests)
            assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"good"} and len(bad.requests) == before
            assert said in proxy.status()["instances"][1]["problem"]

        def comes_back():
            wait_until(lambda: proxy.status()["instances"][1]["state"] == "up", what="its return")
            assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"bad", "good"}
        bad.health = 503
        gets_nothing("503")
        bad.health = 200
        comes_back()
        bad.hangs["/health"] = hang = threading.Event()
        gets_nothing("answers nothing")
        assert bad.hung >= 1
        bad.hangs.clear()
        hang.set()
        comes_back()


def test_instance_that_dies_in_mid_answer_breaks_it_off(engines):
    _, decode, proxy = pair(engines, tokens=100000, delay_s=0.01)
    with proxy:
        connection, reply = proxy.stream(STREAM)
        reply.readline()
        decode.kill()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reply.read()
        connection.close()
        assert proxy.metrics()["mooncake_proxy_answers_broken_total"] == 1
        assert proxy.complete()[0] in (502, 503)


def test_engine_errors_pass_as_they_are(engines):
    prefill, decode, proxy = pair(engines)
    with proxy:
        error = {"object": "error", "message": "This model's maximum context length is 10 tokens.", "type": "BadRequestError", "code": 400}
        prefill.behave = lambda handler, seen: handler.answer(400, error, [("X-Engine", "p")])
        status, headers, body = proxy.complete()
        assert status == 400 and json.loads(body) == error and headers["X-Engine"] == "p" and not decode.requests
        prefill.behave = None
        for code in (400, 404, 422, 429, 500, 503):
            decode.behave = lambda handler, seen: handler.answer(code, {"error": {"code": code}}, [("Retry-After", "7")])
            status, headers, body = proxy.complete()
            assert status == code and json.loads(body) == {"error": {"code": code}} and headers["Retry-After"] == "7"
        decode.behave = None
        assert proxy.complete()[0] == 200


def test_prefill_with_an_error_of_its_own_is_the_answer(engines):
    bad, good, decode = engines("bad"), engines("good"), engines("d")
    bad.behave = lambda handler, seen: handler.answer(500, {"error": {"message": "broken"}})
    with Proxy("--prefill", bad.address, good.address, "--decode", decode.address) as proxy:
        answers = [proxy.complete() for _ in range(4)]
        assert sorted(status for status, _, _ in answers) == [200, 200, 500, 500]
        assert all(json.loads(body)["error"]["message"] == "broken" for status, _, body in answers if status == 500)
        assert (len(bad.requests), len(good.requests), len(decode.requests)) == (2, 2, 2)


KEY = {"X-API-Key": "secret"}


def test_instances_are_added_and_removed_while_it_runs(engines):
    prefill, decode, second, other = engines("p0"), engines("d0"), engines("d1"), engines("other", model="another")
    with Proxy("--model", "m", "--prefill", prefill.address, "--decode", decode.address, environment={"ADMIN_API_KEY": "secret"}) as proxy:
        add = {"type": "decode", "instance": f"localhost:{second.port}"}
        for headers, code in ((None, 422), ({"X-API-Key": "wrong!"}, 403), ({"X-API-Key": ""}, 403), ({"X-API-Key": "secret1"}, 403), ({"X-API-Key": "secre"}, 403)):
            assert proxy.post("/instances/add", add, headers)[0] == code
        assert proxy.status()["decode_nodes"] == [decode.address]
        for bad in ({"type": "both", "instance": second.address}, {"type": "decode", "instance": "nowhere"}, {"type": "decode", "instance": "h:0"},
                    {"type": "decode", "instance": "h:70000"}, {"type": "decode"}, {"type": "decode", "instance": f"127.0.0.1:{other.port}"},
                    {"type": "decode", "instance": "127.0.0.1:1"}, {"type": "decode", "instance": decode.address},
                    {"type": "prefill", "instance": second.address, "bootstrap_port": 0}, [], "x"):
            status, _, body = proxy.post("/instances/add", bad if not isinstance(bad, str) else bad.encode(), KEY)
            assert status == 400 and isinstance(json.loads(body)["detail"], str), bad
        status, _, body = proxy.post("/instances/add", add, KEY)
        assert status == 200 and json.loads(body) == {"message": f"Added localhost:{second.port} to decode_instances."}
        status = proxy.status()
        assert (status["prefill_node_count"], status["decode_node_count"]) == (1, 2)
        assert status["decode_nodes"] == [decode.address, f"localhost:{second.port}"] and status["prefill_nodes"] == [prefill.address]
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"d0", "d1"}
        assert proxy.post("/instances/add", add, KEY)[0] == 400
        assert proxy.post("/instances/remove", {"type": "decode", "instance": decode.address}, {"X-API-Key": "x"})[0] == 403
        assert proxy.post("/instances/remove", {"type": "prefill", "instance": second.address}, KEY)[0] == 404
        assert proxy.post("/instances/remove", {"type": "decode", "instance": decode.address}, KEY)[0] == 200
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(4)} == {"d1"}
    with Proxy("--decode", decode.address) as proxy:
        status, _, body = proxy.post("/instances/add", add, KEY)
        assert status == 500 and json.loads(body)["detail"] == "Server configuration error."


def test_every_instance_may_come_later(engines):
    decode, prefill = engines("d0"), engines("p0")
    proxy = Proxy(environment={"ADMIN_API_KEY": "secret"}).start()
    try:
        assert proxy.complete()[0] == 503 and proxy.get("/health")[0] == 503
        assert proxy.post("/instances/add", {"type": "prefill", "instance": prefill.address}, KEY)[0] == 200
        assert proxy.complete()[0] == 503
        assert proxy.post("/instances/add", {"type": "decode", "instance": decode.address}, KEY)[0] == 200
        assert proxy.complete()[0] == 200
        wait_until(lambda: proxy.get("/health")[0] == 200)  # a look at an instance may have taken too long on a busy machine
        assert proxy.post("/instances/remove", {"type": "decode", "instance": decode.address}, KEY)[0] == 200
        assert proxy.complete()[0] == 503
    finally:
        assert proxy.stop() == 0


def test_instance_removed_in_mid_answer_ends_it_well(engines):
    decode = engines("d0", tokens=20, delay_s=0.02)
    with Proxy("--decode", decode.address, environment={"ADMIN_API_KEY": "secret"}) as proxy:
        connection, reply = proxy.stream(STREAM)
        assert proxy.post("/instances/remove", {"type": "decode", "instance": decode.address}, KEY)[0] == 200
        assert reply.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        assert proxy.complete()[0] == 503


def test_an_instance_of_another_model_gets_nothing(engines):
    decode, other = engines("d"), engines("o", model="another")
    with Proxy("--model", "m", "--decode", other.address, decode.address) as proxy:
        wait_until(lambda: proxy.status()["instances"][0]["state"] == "wrong_model")
        assert {json.loads(proxy.complete()[2])["engine"] for _ in range(3)} == {"d"}


def test_other_paths_go_to_decode(engines):
    decode = engines("d", model="served")
    with Proxy("--decode", decode.address) as proxy:
        assert json.loads(proxy.get("/v1/models")[1])["data"][0]["id"] == "served"
        assert proxy.post("/tokenize", {"prompt": "x"})[0] == 200 and decode.requests[-1]["path"] == "/tokenize"
        assert proxy.get("/reset_prefix_cache")[0] == 404 and proxy.get("/nothing")[0] == 404
        assert proxy.get("/v1/completions")[0] == 405 and proxy.post("/status", {})[0] == 405
        head = proxy.raw(b"HEAD /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")


def test_authorization(engines):
    decode = engines("d")
    with Proxy("--decode", decode.address) as proxy:
        proxy.post("/v1/completions", {"prompt": "x"}, {"Authorization": "Bearer mine", "X-Trace": "t", "X-API-Key": "k"})
        seen = decode.requests[-1]["headers"]
        assert seen["Authorization"] == "Bearer mine" and seen["X-Trace"] == "t" and "X-API-Key" not in seen
    with Proxy("--decode", decode.address, environment={"OPENAI_API_KEY": "theirs"}) as proxy:
        proxy.post("/v1/completions", {"prompt": "x"}, {"Authorization": "Bearer mine"})
        assert decode.requests[-1]["headers"]["Authorization"] == "Bearer theirs"


@pytest.mark.parametrize("count", [100])
def test_many_streams_at_once(engines, count):
    prefill, decode = [engines("p0"), engines("p1")], [engines("d0", tokens=20, delay_s=0.02), engines("d1", tokens=20, delay_s=0.02)]
    with Proxy("--prefill", *[one.address for one in prefill], "--decode", *[one.address for one in decode]) as proxy:
        good = []

        def one():
            status, _, body = proxy.post("/v1/completions", STREAM)
            events = [line for line in body.split(b"\n\n") if line]
            if status == 200 and events[-1] == b"data: [DONE]" and [json.loads(line[6:])["i"] for line in events[:-1]] == list(range(20)):
                good.append(1)
        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(good) == count
        assert [len(one.requests) for one in decode] == [count // 2] * 2
        metrics = proxy.metrics()
        assert sum(value for name, value in metrics.items() if name.startswith("mooncake_proxy_instance_request_seconds_count")) == 2 * count
        assert metrics["mooncake_proxy_requests_running"] == 0 and metrics["mooncake_proxy_buffered_bytes"] == 0


def test_slow_reader_does_not_fill_the_proxy(engines):
    total = 64 << 20
    decode = engines("d", tokens=total >> 20, pad=1 << 20)
    with Proxy("--decode", decode.address) as proxy:
        before = proxy.resident_bytes()
        connection = proxy.open(post_bytes("/v1/completions", STREAM, headers="Connection: close\r\n"), receive_buffer=32768)
        wait_until(lambda: decode.requests, what="the request")
        time.sleep(1.5)
        assert decode.requests[0].get("sent", 0) < 40, "the engine is held up"
        assert proxy.resident_bytes() - before < (16 << 20 if not SANITIZED else 64 << 20)
        got = 0
        while piece := connection.recv(1 << 20):
            got += len(piece)
        connection.close()
        assert got > total


@pytest.mark.parametrize("body", ids=range(16), argvalues=[b"", b"{", b"[]", b"null", b'{"a":1,}', b'{"a" 1}', b"{'a':1}", b'{"a":01}', b'{"a":"\n"}', b'{"a":1}x', b'{"a":"\\x"}',
                                  b'{"a":' + b"[" * 5000, b'{"a":nan}', b"\xff\xfe", b'{"a":"\\u12"}', b"{" + b'"a":1,' * 600 + b'"b":1}'])
def test_malformed_json(engines, body):
    decode = engines("d")
    with Proxy("--decode", decode.address) as proxy:
        status, _, answer = proxy.post("/v1/completions", body)
        assert status == 400 and json.loads(answer)["error"]["type"] == "BadRequestError" and not decode.requests


def test_wrong_media_type(engines):
    with Proxy("--decode", engines("d").address) as proxy:
        for kind, code in (("text/plain", 415), ("application/jsonx", 415), ("application/json; charset=utf-8", 200), ("Application/JSON", 200)):
            assert proxy.post("/v1/completions", {"prompt": "x"}, {"Content-Type": kind})[0] == code


def test_giant_bodies(engines):
    prefill, decode, proxy = pair(engines, "--max_body_bytes=9000000")
    with proxy:
        prompt = "x" * (8 << 20)
        assert proxy.complete(prompt=prompt)[0] == 200
        assert prefill.bodies()[0]["prompt"] == prompt == decode.bodies()[0]["prompt"]
        status, _, body = proxy.complete(prompt="x" * 9000000)
        assert status == 413 and "max_body_bytes" in json.loads(body)["error"]["message"]
        endless = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"x" * (1 << 20) + b"\r\n") * 10
        assert b" 413 " in proxy.raw(endless)
        assert b" 413 " in proxy.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n")
        assert len(decode.requests) == 1 and proxy.metrics()["mooncake_proxy_buffered_bytes"] == 0


def test_buffered_bytes_are_bounded(engines):
    decode = engines("d")
    with Proxy("--decode", decode.address, "--max_buffered_bytes=100000") as proxy:
        waiting = proxy.open(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + b"x" * 80000)
        wait_until(lambda: proxy.metrics()["mooncake_proxy_buffered_bytes"] == 80000)
        assert proxy.complete(prompt="x" * 50000)[0] == 503
        waiting.close()
        wait_until(lambda: proxy.metrics()["mooncake_proxy_buffered_bytes"] == 0)
        assert proxy.complete(prompt="x" * 50000)[0] == 200


def test_too_many_requests_are_refused(engines):
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address, "--max_requests=3") as proxy:
        open_ones = [proxy.open(post_bytes("/v1/completions", STREAM)) for _ in range(3)]
        wait_until(lambda: decode.running == 3)
        status, headers, body = proxy.complete()
        assert status == 503 and headers["Retry-After"] == "1" and json.loads(body)["error"]["code"] == 503
        decode.hold.set()
        for one in open_ones:
            one.close()
        wait_until(lambda: proxy.complete()[0] == 200)


def test_silent_connections_leave_for_others(engines):
    """Whoever said nothing for longest goes, when there is no place for one more, and nobody whose answer is being made."""
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address, "--max_connections=4") as proxy:
        busy = [proxy.open(post_bytes("/v1/completions", STREAM)) for _ in range(2)]
        wait_until(lambda: decode.running == 2)
        half = proxy.open(b"GET /health HTTP/1.1\r\n")
        for _ in range(2):  # by the second answer what the half one said has been read: who comes now is silent for less long
            assert proxy.get("/healthcheck")[0] == 200
        silent = [half, *(proxy.open(b"") for _ in range(20))]
        for _ in range(20):
            assert proxy.get("/healthcheck")[0] == 200
        for one in silent[:-1]:
            one.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        decode.hold.set()
        for one in busy:
            assert one.recv(100).startswith(b"HTTP/1.1 200")
            one.close()


def from_address(proxy, source):
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=30, source_address=(source, 0))
    connection.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    return connection


def test_who_comes_with_many_takes_the_places_of_its_own(engines):
    """Also where others have been silent for longer."""
    decode = engines("d")
    with Proxy("--decode", decode.address, "--max_connections=20") as proxy:
        few = [from_address(proxy, "127.0.0.2") for _ in range(5)]
        many = [from_address(proxy, "127.0.0.3") for _ in range(60)]
        for one in many[:40]:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for one in few:
            one.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        for one in (*few, *many):
            one.close()


def test_too_many_connections_wait(engines):
    """Where nobody is silent."""
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address, "--max_connections=4") as proxy:
        busy = [proxy.open(post_bytes("/v1/completions", STREAM)) for _ in range(4)]
        wait_until(lambda: decode.running == 4)
        answer = []
        thread = threading.Thread(target=lambda: answer.append(proxy.get("/healthcheck")[0]))
        thread.start()
        thread.join(0.5)
        assert not answer
        decode.hold.set()
        for one in busy:
            one.close()
        thread.join()
        assert answer == [200]


def test_chunked_requests(engines):
    decode = engines("d")
    body = json.dumps({"prompt": "abc", "max_tokens": 3}).encode()
    pieces = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7))
    with Proxy("--decode", decode.address) as proxy:
        whole = b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\nTrailer: x\r\n\r\n"
        assert proxy.raw(whole).startswith(b"HTTP/1.1 200") and decode.requests[0]["raw"] == body
        connection = proxy.open(b"")
        for i in range(len(whole)):
            connection.sendall(whole[i:i + 1])
        assert connection.recv(100).startswith(b"HTTP/1.1 200") and decode.requests[1]["raw"] == body
        connection.close()
        for bad in (b"zz\r\n", b"5\r\nabcdeXX", b"-1\r\n", b"11111111111111111\r\n", b"\r\n\r\n", b"5" * 5000, b"0\r\n" + b"a: b\r\n" * 3000):
            assert b" 400 " in proxy.raw(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + bad), bad[:20]
        assert len(decode.requests) == 2


@pytest.mark.parametrize("data,code", ids=range(18), argvalues=[
    (b"GET\r\n\r\n", 400), (b"GET / HTTP/2.0\r\n\r\n", 505), (b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", 400), (b"GET / HTTP/1.1\r\na : b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n folded\r\n\r\n", 400), (b"GET / HTTP/1.1\r\na: \x00\r\n\r\n", 400), (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
    (b"G\x01T / HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431), (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", 431),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 400), (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501), (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    (b"GET /a\r\nX: y HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\na: b\r\n\r\n", 400)])
def test_requests_that_are_none(engines, data, code):
    with Proxy("--decode", engines("d").address) as proxy:
        answer = proxy.raw(data)
        assert answer.startswith(b"HTTP/1.1 %d " % code) and b"Connection: close" in answer
        json.loads(answer.split(b"\r\n\r\n", 1)[1])
        assert proxy.complete()[0] == 200


def test_http_1_0_and_half_closed_clients(engines):
    decode = engines("d", tokens=3)
    with Proxy("--decode", decode.address) as proxy:
        answer = proxy.raw(post_bytes("/v1/completions", STREAM, version="1.0"))
        head, body = answer.split(b"\r\n\r\n", 1)
        assert b"chunked" not in head and b"Connection: close" in head and body.endswith(b"data: [DONE]\n\n") and body.startswith(b"data: {")
        assert proxy.raw(b"GET /healthcheck HTTP/1.0\r\n\r\n", ends=True).endswith(b'"decode_instances":1}')
        twice = proxy.raw(b"GET /healthcheck HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + b"GET /healthcheck HTTP/1.0\r\n\r\n")
        assert twice.count(b"HTTP/1.1 200") == 2


def test_keep_alive_and_pipelining(engines):
    decode = engines("d")
    with Proxy("--decode", decode.address) as proxy:
        connection = proxy.connect()
        for i in range(20):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": str(i)}), {"Content-Type": "application/json"})
            assert connection.getresponse().read() and decode.bodies()[-1]["prompt"] == str(i)
        connection.close()
        many = b"".join(post_bytes("/v1/completions", {"prompt": f"n{i}"}) for i in range(30))
        answer = proxy.raw(many + b"GET /healthcheck HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200") == 31
        assert [one["prompt"] for one in decode.bodies()[20:]] == [f"n{i}" for i in range(30)], "in their order"


def test_pipelining_without_end_closes_the_connection(engines):
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address) as proxy:
        before = proxy.resident_bytes()
        connection = proxy.open(post_bytes("/v1/completions", STREAM))
        wait_until(lambda: decode.running == 1)
        with pytest.raises(OSError):
            for _ in range(4000):
                connection.sendall(b"GET /status HTTP/1.1\r\n\r\n" * 1000)
        connection.close()
        wait_until(lambda: decode.requests[0].get("left"), what="the request's cancellation")
        assert proxy.resident_bytes() - before < (8 << 20 if not SANITIZED else 64 << 20)


def test_expect_continue(engines):
    decode = engines("d")
    with Proxy("--decode", decode.address) as proxy:
        whole = post_bytes("/v1/completions", {"prompt": "x"}, headers="Expect: 100-continue\r\nConnection: close\r\n")
        head, body = whole.split(b"\r\n\r\n", 1)
        connection = proxy.open(head + b"\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()


def test_slow_clients_are_ended(engines):
    with Proxy("--decode", engines("d").address, "--client_timeout=300ms") as proxy:
        assert proxy.raw(b"") == b"", "an idle connection ends without a word"
        assert b" 408 " in proxy.raw(b"GET / HT")
        assert b" 408 " in proxy.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")


@pytest.mark.parametrize("answer", ids=range(11), argvalues=[b"", b"garbage\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100000, b"HTTP/1.1 101 Switching\r\n\r\n",
                                    b"\x00" * 200000, b"HTTP/1.1 099 Low\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_instance_that_sends_garbage(engines, answer):
    raw = RawServer(answer)
    prefill = engines("p")
    try:
        with Proxy("--prefill", prefill.address, "--decode", raw.address) as proxy:
            status, _, body = proxy.complete()
            assert status == 502, body
            assert json.loads(body)["error"]["code"] == status
        with Proxy("--prefill", raw.address, "--decode", prefill.address) as proxy:
            status, _, body = proxy.complete()
            assert status == 502 and raw.address in json.loads(body)["error"]["message"]
    finally:
        raw.close()


@pytest.mark.parametrize("answer", ids=range(3), argvalues=[b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n4\r\nx",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n"])
def test_answer_that_ends_in_the_middle_never_looks_whole(answer):
    raw = RawServer(answer)
    try:
        with Proxy("--decode", raw.address) as proxy:
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                proxy.complete()
            got = proxy.raw(post_bytes("/v1/completions", {"prompt": "x"}))
            assert not got.endswith(b"0\r\n\r\n")
    finally:
        raw.close()


def test_interim_answers_and_answers_until_the_close():
    raw = RawServer(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the close")
    try:
        with Proxy("--decode", raw.address) as proxy:
            status, headers, body = proxy.complete()
            assert status == 200 and body == b"until the close" and headers["Content-Type"] == "text/plain"
    finally:
        raw.close()


def test_silent_instance_times_out(engines):
    decode = engines("d")
    decode.hold = threading.Event()
    with Proxy("--decode", decode.address, "--silence_timeout=300ms") as proxy:
        status, _, body = proxy.complete()
        assert status == 504 and "silent" in json.loads(body)["error"]["message"]
        wait_until(lambda: decode.requests[0].get("left"))


def test_sigterm_lets_answers_end(engines):
    decode = engines("d", tokens=30, delay_s=0.05)
    proxy = Proxy("--decode", decode.address)
    with proxy:
        connection, reply = proxy.stream(STREAM)
        idle = socket.create_connection(("127.0.0.1", proxy.port))
        time.sleep(0.1)
        codes = []
        thread = threading.Thread(target=lambda: codes.append(proxy.stop()))
        thread.start()
        idle.settimeout(5)
        assert idle.recv(10) == b"", "an idle connection is closed at once"
        assert reply.read().endswith(b"data: [DONE]\n\n")
        thread.join()
        assert codes == [0]
        connection.close()
        idle.close()


def test_sigterm_waits_only_so_long(engines):
    decode = engines("d", tokens=10000, delay_s=0.05)
    proxy = Proxy("--decode", decode.address, "--drain_timeout=300ms")
    with proxy:
        connection = proxy.open(post_bytes("/v1/completions", STREAM))
        assert connection.recv(10)
        start = time.monotonic()
        assert proxy.stop() == 0
        assert 0.2 < time.monotonic() - start < 10
        connection.close()


def run(*arguments, environment=None):
    return subprocess.run([str(PROXY), *arguments], capture_output=True, text=True, timeout=30, env=environment)


def test_command_line():
    assert "round_robin" in run("--help").stdout and run("--help").returncode == 0
    assert run("--version").stdout.startswith("mooncake_proxy ")
    for arguments, said in ((["--decode"], "at least one value"), ([], "at least one --decode"), (["--decode", "https://"], "https://host:port"), (["--decode", "x"], "host:port"),
                            (["--decode", "a:1", "--scheduling", "best"], "round_robin"), (["--decode", "a:1", "a:1"], "twice"), (["--decode", "a:1", "--prot", "1"], "--port"),
                            (["--decode", "a:1", "--prefill", "8998"], "bootstrap"), (["--decode", "a:1", "--port=99999"], "65535"),
                            (["--decode", "a:1", "--prefiller-hosts", "a", "b", "--prefiller-ports", "1"], "as many"), (["--decode", "a:1", "--host=256.1.1.1"], "--host")):
        result = run(*arguments)
        assert result.returncode == 1 and said in result.stderr and len(result.stderr.splitlines()) == 1, (arguments, result.stderr)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("--host=127.0.0.1", f"--port={taken.getsockname()[1]}", "--decode", "a:1")
        assert result.returncode == 1 and "in use" in result.stderr


def test_names_are_resolved(engines):
    decode = engines("d")
    with Proxy("--decode", f"localhost:{decode.port}") as proxy:
        assert proxy.complete()[0] == 200
    proxy = Proxy("--decode", "no-such-host.invalid:80").start()
    try:
        status, _, body = proxy.complete()
        assert status == 503 and "no-such-host.invalid" in json.loads(body)["error"]["message"]
    finally:
        assert proxy.stop() == 0


@pytest.mark.parametrize("servers", [None, "options ndots:1\n"], ids=["no file", "no server"])
def test_the_hosts_file_is_enough(engines, tmp_path, servers):
    """A machine or a container where nobody has said whom to ask for names."""
    (tmp_path / "hosts").write_text("127.0.0.1 an-engine\n")
    if servers is not None:
        (tmp_path / "resolv.conf").write_text(servers)
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    etc = ["unshare", "--mount", *user, "--", "sh", "-c", 'mount -t tmpfs tmpfs /etc && cp "$0"/* /etc/ && exec "$@"', str(tmp_path), str(PROXY)]
    with Proxy("--decode", f"an-engine:{engines('d').port}", program=etc) as proxy:
        assert proxy.complete()[0] == 200


class NameServer:
    """Every name is 127.0.0.`last`, and by IPv6 this machine, where no engine of the tests listens; until it is told to be silent."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.is_silent, self.asked, self.last = False, 0, 1
        for last in range(2, 200):
            self.address = f"127.0.83.{last}"
            try:
                self.socket.bind((self.address, 53))
                break
            except PermissionError:
                pytest.skip("only root may be a name server")
            except OSError:
                continue
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            question, peer = self.socket.recvfrom(1000)
            if question == b"end":
                return
            self.asked += 1
            if self.is_silent:
                continue
            end = question.index(b"\0", 12) + 5
            is_a = question[end - 4:end - 2] == b"\0\1"
            head = question[:2] + bytes([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0])
            address = bytes([127, 0, 0, self.last]) if is_a else bytes(15) + b"\1"
            answer = bytes([0xC0, 12, 0, 1 if is_a else 28, 0, 1, 0, 0, 0, 1, 0, len(address)]) + address
            self.socket.sendto(head + question[12:end] + answer, peer)

    def close(self):
        self.socket.sendto(b"end", (self.address, 53))
        self.thread.join()
        self.socket.close()


def program_that_asks(server, folder):
    (folder / "resolv.conf").write_text(f"nameserver {server.address}\noptions timeout:1 attempts:1\n")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *user, "--", "sh", "-c", 'mount -t tmpfs tmpfs /etc && cp "$0"/* /etc/ && exec "$@"', str(folder), str(PROXY)]


def test_an_instance_that_has_moved_is_found_at_once(engines, tmp_path):
    """As a pod that was replaced: the same name, another address. Not with the next round of checks, every 5 s, or the one after that."""
    server, engine = NameServer(), engines("d")

    def asked():
        return engine.asked.count("/health")
    try:
        with Proxy("--decode", f"an-engine.test:{engine.port}", "--health_interval=5s", program=program_that_asks(server, tmp_path)) as proxy:
            wait_until(lambda: proxy.complete()[0] == 200)
            rounds = asked()
            wait_until(lambda: asked() > rounds, 20)  # a round has just been
            engine.kill()
            engine.host, server.last = "127.0.0.2", 2
            engine.start()
            wait_until(lambda: proxy.complete()[0] == 200, 20)
            down, up = (re.findall(rf"^[IW]\d+ (\d+):(\d+):([\d.]+) .* is {how}", proxy.log(), re.M)[-1] for how in ("down", "up"))
            took_s = (float(up[2]) - float(down[2])) % 60
            assert took_s < (12 if SANITIZED else 3), proxy.log()
    finally:
        server.close()


def test_a_name_server_that_is_silent(engines, tmp_path):
    """It takes no instance out: who was found is asked where it was found, and who was not is not said to be down."""
    server = NameServer()
    etc = program_that_asks(server, tmp_path)
    try:
        with Proxy("--decode", f"an-engine.test:{engines('d').port}", "--connect_timeout=300ms", "--dead_timeout=1s", program=etc) as proxy:
            wait_until(lambda: proxy.complete()[0] == 200)
            time.sleep(1)  # the first was found for that request alone; others need not wait for such an answer
            assert proxy.complete()[0] == 200 and server.asked > 0
            server.is_silent = True
            end = time.monotonic() + 4
            while time.monotonic() < end:
                assert proxy.complete()[0] == 200
                time.sleep(0.1)
            assert "is down" not in proxy.log()
    finally:
        server.close()


def test_disorder_leaves_nothing_behind(engines):
    """Clients that leave at any time, engines that die and return, instances that come and go: in the end nothing runs and nothing leaks."""
    prefill = [engines(f"p{i}") for i in range(3)]
    decode = [engines(f"d{i}", tokens=20, delay_s=0.005) for i in range(3)]
    modes = [[one.address for one in prefill], [prefill[0].url, str(prefill[0].port), prefill[1].url, str(prefill[1].port)]]
    for mode in modes:
        with Proxy("--prefill", *mode, "--decode", *[one.address for one in decode], "--scheduling=least_loaded", environment={"ADMIN_API_KEY": "secret"}) as proxy:
            start = time.monotonic()
            answers, enough = [], 20

            def goes_on():
                took = time.monotonic() - start
                return took < 3 or answers.count(200) <= enough and took < 60

            def client(seed):
                rng = random.Random(seed)
                while goes_on():
                    try:
                        kind = rng.randrange(5)
                        if kind < 2:
                            answers.append(proxy.post("/v1/completions", {**STREAM, "prompt": "x" * rng.randrange(200000)})[0])
                        else:
                            data = post_bytes("/v1/completions", {**STREAM, "prompt": "x" * rng.randrange(1000)})
                            if kind == 2:
                                data = bytes(byte if rng.random() > 0.02 else rng.randrange(256) for byte in data)
                            with socket.create_connection(("127.0.0.1", proxy.port), timeout=1) as connection:
                                connection.sendall(data[:rng.randrange(len(data))] if kind == 3 else data)
                                time.sleep(rng.random() * 0.1)
                                connection.recv(rng.randrange(1, 2000))
                    except (OSError, http.client.HTTPException):
                        pass
            threads = [threading.Thread(target=client, args=(seed,)) for seed in range(20)]
            for thread in threads:
                thread.start()
            rng = random.Random(1)
            while goes_on():
                one = rng.choice(decode + prefill[1:])
                one.kill()
                time.sleep(rng.random() * 0.2)
                what = {"type": "decode", "instance": rng.choice(decode).address}
                for path in ("/instances/remove", "/instances/add"):
                    proxy.post(path, what, KEY)
                one.start()
            for thread in threads:
                thread.join()
            wait_until(lambda: proxy.metrics()["mooncake_proxy_requests_running"] == 0, 30, "the end of all requests")
            metrics = proxy.metrics()
            assert answers.count(200) > enough and metrics["mooncake_proxy_buffered_bytes"] == 0
            assert all(one["running"] == 0 for one in proxy.status()["instances"])
