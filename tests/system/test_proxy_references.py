"""mooncake_proxy beside the scripts that it takes the place of: what each of them sends to its engines and to its client, written down here, and what ours sends.

The scripts, as they were read at these commits (their code is not here; tests/clients/test_router.py runs mini_lb as its wheel has it):
    demo      --mode store        vLLM 0f17ee061, examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py
    toy       --mode sequential   vLLM 030ea52ef, tests/v1/kv_connector/nixl_integration/toy_proxy_server.py
    mooncake  --mode concurrent   vLLM 41c5903d0, examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py
    mini_lb   --mode room         SGLang 01957d910, sgl-model-gateway/bindings/python/src/sglang_router/mini_lb.py

SCRIPTS is what they do. DIFFERENCES is where ours does otherwise, and why; docs/proxy.md has each by its name.
"""
import copy
import dataclasses
import http.client
import json
import pathlib
import threading
import time

import pytest

from cluster import SANITIZED, wait_until
from proxy_engines import Proxy, post_bytes
from test_proxy import engines  # noqa: F401

PROMPT_S = 5.0 if SANITIZED else 1.0  # an end is passed on within this
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "proxy.md"
HANDED_ON = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [1, 2, 3], "remote_engine_id": "e", "remote_host": "h", "remote_port": 1}
ASKS = {"do_remote_decode": True, "do_remote_prefill": False}
ROOMS_END = 1 << 63
LEFT_MAX = 256  # MC_PROXY_LEFT_MAX


@dataclasses.dataclass
class Script:
    mode: str
    beside: bool = False  # prefill and decode at the same time
    limits: bool = True  # prefill computes one token,
    whole: bool = True  # and is asked for no stream
    removes: tuple = ()  # from prefill's request
    to_prefill: dict = dataclasses.field(default_factory=dict)
    to_decode: dict = dataclasses.field(default_factory=dict)
    to_both: tuple = ()  # names of what both get, with equal values
    rank: bool = False  # X-data-parallel-rank to prefill


SCRIPTS = {
    "demo": Script("store", whole=False),
    "toy": Script("sequential", removes=("stream_options", "min_tokens", "min_completion_tokens"),
                  to_prefill={"kv_transfer_params": {**ASKS, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}},
                  to_decode={"kv_transfer_params": HANDED_ON}),
    "mooncake": Script("concurrent", beside=True, removes=("stream_options",), rank=True, to_prefill={"kv_transfer_params": {**ASKS, "transfer_id": "TRANSFER"}},
                       to_decode={"kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": True, "remote_bootstrap_addr": "BOOTSTRAP",
                                                         "remote_engine_id": "engine-0", "transfer_id": "TRANSFER"}}),
    "mini_lb": Script("room", beside=True, limits=False, whole=False, to_both=("bootstrap_host", "bootstrap_port", "bootstrap_room")),
}

MESSAGES = [{"role": "system", "content": "You are a poet."}, {"role": "user", "content": [{"type": "text", "text": "Gr\u00fc\u00dfe \U0001f600"}]}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CASES = {
    "chat": (CHAT, {"model": "m", "messages": MESSAGES, "max_tokens": 20}),
    "chat, max_completion_tokens": (CHAT, {"model": "m", "messages": MESSAGES, "max_completion_tokens": 20}),
    "completions": (COMPLETIONS, {"model": "m", "prompt": "a b c", "max_tokens": 20, "temperature": 0.7, "seed": 1234567890123456789}),
    "completions without a limit": (COMPLETIONS, {"model": "m", "prompt": "a b c"}),
    "several prompts": (COMPLETIONS, {"model": "m", "prompt": ["a", "b c"], "max_tokens": 3}),
    "tokens": (COMPLETIONS, {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3}),
    "chat, stream": (CHAT, {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 20}),
    "stream with usage": (COMPLETIONS, {"model": "m", "prompt": "a", "stream": True, "stream_options": {"include_usage": True}}),
    "n": (CHAT, {"model": "m", "messages": MESSAGES, "n": 4, "max_tokens": 20}),
    "n, stream": (COMPLETIONS, {"model": "m", "prompt": "a", "n": 3, "best_of": 3, "stream": True}),
    "tools": (CHAT, {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True}),
    "tool named": (CHAT, {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "stream": True}),
    "logprobs": (COMPLETIONS, {"model": "m", "prompt": "a", "logprobs": 5, "echo": True, "prompt_logprobs": 2}),
    "chat, logprobs": (CHAT, {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 3}),
    "stop": (COMPLETIONS, {"model": "m", "prompt": "a", "stop": ["\n\n", "END"], "stop_token_ids": [2], "include_stop_str_in_output": True, "ignore_eos": False}),
    "least tokens": (COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 30, "min_tokens": 10, "min_completion_tokens": 10}),
    "form of the answer": (CHAT, {"model": "m", "messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}),
    "another's transfer": (COMPLETIONS, {"model": "m", "prompt": "a", "kv_transfer_params": {"mine": 1}, "bootstrap_room": 7, "bootstrap_host": "evil"}),
}

# (script, name of a difference in docs/proxy.md) -> what becomes of prefill's request by it
DIFFERENCES = {
    ("demo", "no stream at prefill"): lambda body: body.update(stream=False) or [body.pop(name, None) for name in ("stream_options", "min_tokens", "min_completion_tokens")],
    ("mooncake", "min_tokens"): lambda body: [body.pop(name, None) for name in ("min_tokens", "min_completion_tokens")],
}


def wanted(name, body, prefill):
    """(prefill's request, decode's) by the script, and then by what ours does otherwise."""
    script = SCRIPTS[name]
    first, second = copy.deepcopy(body), {**copy.deepcopy(body), **copy.deepcopy(script.to_decode)}
    if script.limits:
        first["max_tokens"] = 1
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        if script.whole:
            first["stream"] = False
    for removed in script.removes:
        first.pop(removed, None)
    first.update(copy.deepcopy(script.to_prefill))
    for (script_name, _), change in DIFFERENCES.items():
        if script_name == name:
            change(first)
    if name == "mooncake":
        second["kv_transfer_params"]["remote_bootstrap_addr"] = f"http://127.0.0.1:{prefill.port}"
    for one in (first, second):
        if script.to_both:
            one.update(bootstrap_host="127.0.0.1", bootstrap_port=prefill.port)
            one.pop("bootstrap_room", None)
    return first, second


def flags(name, prefill, decode):
    """As a user of that script writes them, but for the mode, which is its default there."""
    return {"demo": ("--prefill", prefill.address, "--decode", decode.address),
            "toy": ("--prefiller-hosts", "127.0.0.1", "--prefiller-ports", prefill.port, "--decoder-hosts", "127.0.0.1", "--decoder-ports", decode.port),
            "mooncake": ("--prefill", prefill.url, prefill.port, "--decode", decode.url),
            "mini_lb": ("--pd-disaggregation", "--mini-lb", "--prefill", prefill.url, prefill.port, "--decode", decode.url)}[name]


def pair(engines, name, *more, **environment):  # noqa: F811
    prefill, decode = engines("prefill"), engines("decode")
    prefill.kv_params = HANDED_ON
    return prefill, decode, Proxy(*flags(name, prefill, decode), *more, environment=environment)


def usable(proxy):
    wait_until(lambda: all(one["usable"] and one["state"] == "up" for one in proxy.status()["instances"]), what="all instances")
    return proxy


def take_transfer(name, first, second):
    """Takes what each request has of its own out of both, and looks at it."""
    if name == "mooncake":
        ids = [one["kv_transfer_params"]["transfer_id"] for one in (first, second)]
        assert ids[0] == ids[1] and ids[0].startswith("xfer-") and len(ids[0]) > 30
        for one in (first, second):
            one["kv_transfer_params"]["transfer_id"] = "TRANSFER"
        return ids[0]
    if name == "mini_lb":
        rooms = [one.pop("bootstrap_room") for one in (first, second)]
        assert rooms[0] == rooms[1] and type(rooms[0]) is int and 0 <= rooms[0] < ROOMS_END
        return rooms[0]
    return first.get("kv_transfer_params") and None


@pytest.mark.parametrize("name", SCRIPTS)
def test_requests_are_those_of_the_script(engines, name):  # noqa: F811
    prefill, decode, proxy = pair(engines, name)
    script, transfers, request_ids = SCRIPTS[name], [], []
    with proxy:
        usable(proxy)
        assert {one["mode"] for one in proxy.status()["instances"] if one["type"] == "prefill"} == {script.mode}
        for number, (case, (path, body)) in enumerate(CASES.items()):
            status, headers, _ = proxy.post(path, body, {"Authorization": "Bearer mine", "X-Request-Id": "the client's"})
            assert status == 200, case
            wait_until(lambda: len(prefill.requests) == number + 1 and len(decode.requests) == number + 1, what=case)
            first, second = prefill.requests[-1], decode.requests[-1]
            assert first["path"] == second["path"] == path
            transfers.append(take_transfer(name, first["body"], second["body"]))
            assert (first["body"], second["body"]) == wanted(name, body, prefill), case
            ids = {one["headers"]["X-Request-Id"] for one in (first, second)} | {headers["X-Request-Id"]}
            assert len(ids) == 1 and "the client's" not in ids
            request_ids += ids
            assert first["headers"]["Content-Type"] == second["headers"]["Content-Type"] == "application/json"
            assert first["headers"]["Authorization"] == second["headers"]["Authorization"] == "Bearer mine"
            assert first["headers"].get("X-data-parallel-rank") == ("0" if script.rank else None) and "X-data-parallel-rank" not in second["headers"]
            if not script.beside:
                assert first["time"] < second["time"]
    assert len(set(request_ids)) == len(CASES)
    if script.beside:
        assert len(set(transfers)) == len(CASES), "no two requests meet in one place"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_difference_is_one_and_is_written_down(name):
    """A row of DIFFERENCES that changes nothing would hide that theirs and ours are the same by now."""
    text = DOCUMENT.read_text()
    for (script, title), change in DIFFERENCES.items():
        assert f"\n- **{title}**\n" in text, title
        if script == name:
            def differs(body):
                other = {**copy.deepcopy(body), "max_tokens": 1}
                before = copy.deepcopy(other)
                change(other)
                return other != before
            assert any(differs(body) for _, body in CASES.values()), title
    assert f"\n- `{SCRIPTS[name].mode}`: " in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_key_of_the_environment_goes_to_both(engines, name):  # noqa: F811
    """All of vLLM's scripts send it; without one they send the word None, and ours what the client has sent."""
    prefill, decode, proxy = pair(engines, name, OPENAI_API_KEY="theirs")
    with proxy:
        usable(proxy)
        assert proxy.post(COMPLETIONS, CASES["completions"][1], {"Authorization": "Bearer mine"})[0] == 200
        wait_until(lambda: prefill.requests and decode.requests)
        assert prefill.requests[0]["headers"]["Authorization"] == decode.requests[0]["headers"]["Authorization"] == "Bearer theirs"


# ---- answers ----

ANSWER = json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [
    {"index": i, "message": {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"K\u00f6ln\"}"}}]},
     "logprobs": {"content": [{"token": "a", "logprob": -0.25, "top_logprobs": []}]}, "finish_reason": "stop"} for i in range(4)], "usage": {"total_tokens": 7}}, indent=1).encode()
EVENTS = [b"data: " + json.dumps({"choices": [{"index": i % 3, "delta": {"content": "\u00e9"}, "logprobs": None}]}).encode() + b"\n\n" for i in range(9)] + [
    b"data: {\"choices\":[],\"usage\":{\"total_tokens\":9}}\n\n", b"data: [DONE]\n\n"]


def answer_all(handler, seen):
    handler.answer(200, ANSWER)


def answer_events(handler, seen):
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for event in EVENTS:
        for piece in (event[:5], event[5:]):  # events do not come in one piece each
            handler.chunk(piece)
    handler.wfile.write(b"0\r\n\r\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_client_gets_decodes_answer_byte_by_byte(engines, name):  # noqa: F811
    """n > 1, tools, logprobs: whatever it is, in one piece or as a stream. The scripts call it application/json or nothing (mini_lb: by the request); ours says what decode says."""
    prefill, decode, proxy = pair(engines, name)
    with proxy:
        usable(proxy)
        decode.behave = answer_all
        for case in ("n", "tools", "chat, logprobs", "stop"):
            status, headers, body = proxy.post(*CASES[case])
            assert (status, body, headers["Content-Type"]) == (200, ANSWER, "application/json")
        decode.behave = answer_events
        for case in ("chat, stream", "n, stream", "tool named", "stream with usage"):
            status, headers, body = proxy.post(*CASES[case])
            assert (status, body, headers["Content-Type"]) == (200, b"".join(EVENTS), "text/event-stream; charset=utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_large_requests_reach_both(engines, name):  # noqa: F811
    """Decode waits for prefill's blocks, as an engine does: one that answers before prefill has read its request would end that request."""
    prefill, decode, proxy = pair(engines, name)
    decode.behave = lambda handler, seen: (wait_until(lambda: prefill.requests), handler.answer(200, ANSWER))
    image = "data:image/png;base64," + "QUJD" * (5 << 20)
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}], "max_tokens": 2}
    with proxy:
        usable(proxy)
        assert proxy.post(CHAT, body)[0] == 200
        wait_until(lambda: prefill.requests and decode.requests)
        assert prefill.bodies()[0]["messages"] == decode.bodies()[0]["messages"] == body["messages"]


# ---- errors ----

ERROR = {"object": "error", "message": "it says why", "type": "BadRequestError", "code": 1}


def refuse(status):
    return lambda handler, seen: handler.answer(status, {**ERROR, "code": status}, [("Retry-After", "7")])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_an_engine_refuses_is_the_answer(engines, name, role, stream):  # noqa: F811
    """With its status and its words. Of the scripts only mini_lb does so, for decode and without a stream."""
    prefill, decode, proxy = pair(engines, name)
    with proxy:
        usable(proxy)
        if role == "prefill":  # what decode would do: wait for prefill's blocks
            decode.hold = threading.Event()
        for status in (400, 401, 404, 422, 429, 500, 503):
            (prefill if role == "prefill" else decode).behave = refuse(status)
            code, headers, body = proxy.post(COMPLETIONS, {"model": "m", "prompt": "a", "stream": stream})
            assert (code, json.loads(body), headers["Retry-After"]) == (status, {**ERROR, "code": status}, "7")
        wait_until(lambda: prefill.running == decode.running == 0, what="the end at the other one")
        assert all(one["running"] == 0 for one in proxy.status()["instances"])


@pytest.mark.parametrize("name", [name for name in SCRIPTS if SCRIPTS[name].beside])
def test_what_decode_refuses_ends_prefill(engines, name):  # noqa: F811
    prefill, decode, proxy = pair(engines, name)
    with proxy:
        usable(proxy)
        prefill.hold = threading.Event()
        decode.behave = lambda handler, seen: (wait_until(lambda: prefill.running == 1), refuse(400)(handler, seen))
        assert proxy.post(*CASES["completions"])[0] == 400
        answered = time.monotonic()
        wait_until(lambda: prefill.requests[0].get("left"), what="prefill's end")
        assert prefill.requests[0]["left"] - answered < PROMPT_S


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prefill_that_answers_after_decode_is_let(engines, stream):  # noqa: F811
    """Its engine would count a transfer that failed. mini_lb waits for it, and the client with it; here the client does not wait."""
    prefill, decode, proxy = pair(engines, "mini_lb")
    with proxy:
        usable(proxy)
        prefill.hold = threading.Event()
        assert proxy.post(COMPLETIONS, {"model": "m", "prompt": "a", "stream": stream})[0] == 200
        wait_until(lambda: prefill.running == 1)
        time.sleep(0.5)
        assert prefill.running == 1 and "left" not in prefill.requests[0]
        assert all(one["running"] == 0 and one["cancelled"] == 0 for one in proxy.status()["instances"])
        prefill.hold.set()
        wait_until(lambda: prefill.requests[0].get("done"), what="its answer")
        assert "left" not in prefill.requests[0]
        # Nor does the proxy's own end wait for one.
        prefill.hold = threading.Event()
        assert proxy.complete()[0] == 200
        wait_until(lambda: prefill.running == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 5 * PROMPT_S


def test_prefills_that_never_answer_are_not_heaped_up(engines):  # noqa: F811
    prefill, decode, proxy = pair(engines, "mini_lb")
    with proxy:
        usable(proxy)
        prefill.hold = threading.Event()
        for _ in range(LEFT_MAX + 20):
            assert proxy.complete()[0] == 200
        # Not more than that: on a slow machine the first ones have come to their end already.
        wait_until(lambda: sum("left" in one for one in list(prefill.requests)) >= 20, what="the end of those above the limit")
        wait_until(lambda: prefill.running <= LEFT_MAX)
        prefill.hold.set()
        wait_until(lambda: prefill.running == 0)
        assert proxy.complete()[0] == 200


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_stream_that_breaks_is_broken_for_the_client(engines, name):  # noqa: F811
    """What came is passed on; no end is made up, and no error in the middle of the stream."""
    prefill, decode, proxy = pair(engines, name)

    def breaks(handler, seen):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.chunk(EVENTS[0])
        handler.close_connection = True
    decode.behave = breaks
    with proxy:
        usable(proxy)
        connection = proxy.connect()
        connection.request("POST", COMPLETIONS, json.dumps({"prompt": "a", "stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        got = b""
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            while piece := reply.read1(65536):
                got += piece
            raise AssertionError(f"it looks whole: {got}")
        connection.close()
        assert reply.status == 200 and got in (b"", EVENTS[0])  # a reset may take what was not read yet
        wait_until(lambda: proxy.metrics()["mooncake_proxy_answers_broken_total"] == 1)
        wait_until(lambda: prefill.running == 0 and all(one["running"] == 0 for one in proxy.status()["instances"]), what="its end at both")


# ---- aborts ----

@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("when", ["at prefill", "before the answer", "in the answer"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_client_that_leaves_ends_its_request_at_both(engines, name, when, stream):  # noqa: F811
    """At once. Of the scripts vLLM's go on with prefill until it has ended; mini_lb ends both, but only a stream."""
    prefill, decode, proxy = pair(engines, name)
    script = SCRIPTS[name]
    busy = [prefill] if when == "at prefill" and not script.beside else [prefill, decode] if script.beside else [decode]

    def trickle(handler, seen):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json" if not stream else "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.look()
            handler.chunk(b"x" * 100)
            time.sleep(0.01)
    with proxy:
        usable(proxy)
        for engine in busy:
            if when == "in the answer" and engine is decode:
                engine.behave = trickle
            else:
                engine.hold = threading.Event()
        connection = proxy.open(post_bytes(COMPLETIONS, {"model": "m", "prompt": "a", "stream": stream}))
        wait_until(lambda: all(engine.running == 1 for engine in busy), what="the request at all of them")
        if when == "in the answer":
            assert connection.recv(10)
        left = time.monotonic()
        connection.close()
        wait_until(lambda: all(engine.requests[0].get("left") for engine in busy), what="its end at all of them")
        took = max(engine.requests[0]["left"] for engine in busy) - left
        assert took < PROMPT_S, took
        assert len(prefill.requests) == 1 and len(decode.requests) == (decode in busy)
        assert proxy.metrics()["mooncake_proxy_requests_cancelled_total"] == 1
        assert all(one["running"] == 0 for one in proxy.status()["instances"])


# ---- SGLang's own words ----

def test_generate_is_for_sglang(engines):  # noqa: F811
    prefill, decode, proxy = pair(engines, "mini_lb")
    with proxy:
        usable(proxy)
        for body in ({"text": "a", "sampling_params": {"max_new_tokens": 4}}, {"text": ["a", "b"]}, {"input_ids": [[1, 2], [3]], "return_logprob": False}):
            assert proxy.post("/generate", body)[0] == 200
            wait_until(lambda: len(prefill.requests) == len(decode.requests))
            first, second = prefill.requests[-1], decode.requests[-1]
            take_transfer("mini_lb", first["body"], second["body"])
            assert first["path"] == second["path"] == "/generate"
            # One room for all of a batch: SGLang counts on from it; mini_lb makes a list.
            assert first["body"] == second["body"] == {**body, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port}
        assert proxy.post("/generate", b"{")[0] == 400
        assert len(prefill.requests) == len(decode.requests) == 3
    for name in ("demo", "toy", "mooncake"):
        prefill, decode, proxy = pair(engines, name)
        with proxy:
            assert proxy.post("/generate", {"text": "a"})[0] == 404 and not decode.requests


PROMPT = [[None, 11, None], [-0.5, 12, "\u00e9]"]]
GENERATED = [{"text": "x", "meta_info": {"id": "r", "input_token_logprobs": [[-1.5, 13, None]], "output_token_logprobs": [[-2.0, 14 + i, None]]}} for i in range(5)]
ASKS_LOGPROBS = {"text": "a", "sampling_params": {"max_new_tokens": 5}, "return_logprob": True, "logprob_start_len": 0}


def generated(own, pause_s=0.0):
    """An engine's answer to /generate, whole or as a stream whose events come in two pieces."""
    parts = [{**one, "meta_info": {**one["meta_info"], "input_token_logprobs": own}} for one in GENERATED]

    def answer(handler, seen):
        time.sleep(pause_s)
        if not seen["body"].get("stream"):
            return handler.answer(200, parts[-1])
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for one in parts:
            event = b"data: " + json.dumps(one).encode() + b"\n\n"
            handler.chunk(event[:30])
            handler.chunk(event[30:])
        handler.chunk(b"data: [DONE]\n\n")
        handler.chunk(b"")
    return answer


@pytest.mark.parametrize("first", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_prompts_log_probabilities_are_prefills(engines, stream, first):  # noqa: F811
    """Whoever answers first. What the engines said otherwise is the client's, byte by byte."""
    prefill, decode, proxy = pair(engines, "mini_lb")
    own = GENERATED[0]["meta_info"]["input_token_logprobs"]
    prefill.behave = generated(PROMPT, 0.3 * (first == "decode"))
    decode.behave = generated(own, 0.3 * (first == "prefill"))
    inner, before = json.dumps(own)[1:-1], json.dumps(PROMPT)[1:-1]
    wanted = [json.dumps(one).replace(inner, f"{before},{inner}").encode() for one in GENERATED]
    assert json.loads(wanted[-1])["meta_info"]["input_token_logprobs"] == PROMPT + own
    with proxy:
        usable(proxy)
        for _ in range(3):
            status, headers, body = proxy.post("/generate", {**ASKS_LOGPROBS, "stream": stream})
            assert status == 200
            if stream:
                assert headers["Content-Type"] == "text/event-stream"
                assert body == b"".join(b"data: " + one + b"\n\n" for one in wanted) + b"data: [DONE]\n\n"
            else:
                assert body == wanted[-1] and int(headers["Content-Length"]) == len(body)
        wait_until(lambda: all(one["running"] == 0 for one in proxy.status()["instances"]))
        assert all(one["failed"] == one["cancelled"] == 0 for one in proxy.status()["instances"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_of_two_ends_with_either(engines, stream):  # noqa: F811
    prefill, decode, proxy = pair(engines, "mini_lb", "--max_body_bytes=2000")
    request = ("/generate", {**ASKS_LOGPROBS, "stream": stream})
    with proxy:
        usable(proxy)
        prefill.behave, decode.behave = refuse(400), generated([])
        assert proxy.post(*request)[0] == 400
        prefill.behave, decode.behave = generated(PROMPT), refuse(429)
        assert proxy.post(*request)[0] == 429
        prefill.behave, decode.behave = broken, generated([])
        assert proxy.post(*request)[0] == 502
        prefill.behave, decode.behave = generated(PROMPT, 0.3), broken
        assert proxy.post(*request)[0] == 502
        prefill.behave, decode.behave = generated(PROMPT * 200), generated([])
        status, _, body = proxy.post(*request)
        assert status == 502 and b"--max_body_bytes" in body
        prefill.behave, decode.behave = generated(PROMPT, 0.3), generated(PROMPT * 200)
        status, _, body = proxy.post(*request)
        assert status == 502 and b"--max_body_bytes" in body
        # Not that of one prompt: as the script, decode's answer as it is.
        prefill.behave = decode.behave = lambda handler, seen: handler.answer(200, GENERATED[:2])
        status, _, body = proxy.post(*request)
        assert (status, json.loads(body)) == (200, GENERATED[:2])
        prefill.behave, decode.behave = generated(PROMPT), generated([])
        assert proxy.post(*request)[0] == 200
        wait_until(lambda: prefill.running == decode.running == 0)


def broken(handler, seen):
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b'{"meta_info":')
    handler.close_connection = True


def test_an_instance_of_sglang_may_come_later(engines):  # noqa: F811
    prefill, decode = engines("prefill"), engines("decode")
    with Proxy("--mode=room", "--decode", decode.address, environment={"ADMIN_API_KEY": "secret"}) as proxy:
        assert proxy.complete()[0] == 200 and "bootstrap_room" not in decode.bodies()[-1]
        status, _, body = proxy.post("/instances/add", {"type": "prefill", "instance": prefill.address, "bootstrap_port": 9001}, {"X-API-Key": "secret"})
        assert status == 200, body
        assert proxy.complete()[0] == 200
        wait_until(lambda: prefill.requests)
        assert prefill.bodies()[0]["bootstrap_port"] == decode.bodies()[-1]["bootstrap_port"] == 9001
        shown = next(one for one in proxy.status()["instances"] if one["type"] == "prefill")
        assert (shown["mode"], shown["bootstrap_port"]) == ("room", 9001)


def test_another_decode_instance_gets_the_same_room(engines):  # noqa: F811
    """One that answers 503 has not begun; prefill goes on, so the next one must find it."""
    prefill, busy, free = engines("prefill"), engines("busy"), engines("free")
    busy.behave = refuse(503)
    free.behave = lambda handler, seen: (time.sleep(0.2), handler.answer(200, {}))
    with Proxy("--pd-disaggregation", "--prefill", prefill.url, "--decode", busy.url, "--decode", free.url) as proxy:
        usable(proxy)
        for _ in range(2):
            assert proxy.complete()[0] == 200
        assert busy.requests
        rooms = [one["bootstrap_room"] for one in prefill.bodies()]
        assert len(rooms) == 2 and [one["bootstrap_room"] for one in free.bodies()] == rooms
        assert {one["bootstrap_room"] for one in busy.bodies()} <= set(rooms)
        assert {one["bootstrap_port"] for one in free.bodies()} == {8998}
