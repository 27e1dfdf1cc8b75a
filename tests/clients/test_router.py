"""SGLang's own mini_lb (of the wheel sglang-router, unmodified) and mooncake_proxy before the same stand-ins: what each sends to its engines and to its client."""
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))

from cluster import START_S, wait_until  # noqa: E402
from proxy_engines import Engine, Proxy  # noqa: E402
from test_proxy_references import ANSWER, ASKS_LOGPROBS, CASES, EVENTS, PROMPT, answer_all, answer_events, generated, refuse  # noqa: E402

PYTHON = pathlib.Path(os.environ.get("MC_CLIENTS", ".")) / "router" / "bin" / "python"
START = """
import sys
from sglang_router.mini_lb import MiniLoadBalancer
from sglang_router.router_args import RouterArgs
prefill, bootstrap, decode = sys.argv[1:]
MiniLoadBalancer(RouterArgs(host="127.0.0.1", port=0, mini_lb=True, pd_disaggregation=True, policy="random",
                            prefill_urls=[(prefill, int(bootstrap))], decode_urls=[decode])).start()
"""


class MiniLb(Proxy):
    """The other one, asked in the same way."""

    def start(self):
        with open(self.log_file.name, "ab") as log:
            self.process = subprocess.Popen([str(PYTHON), "-c", START, *self.arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def look():
            found = re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log())
            assert found or self.process.poll() is None, f"mini_lb has ended: {self.log()}"
            return found
        self.port = int(wait_until(look, 3 * START_S, "mini_lb's port").group(1))
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait(30)
        self.process = None


@pytest.fixture(scope="module")
def both_proxies():
    sides = []
    for kind in (MiniLb, Proxy):
        prefill, decode = Engine("prefill"), Engine("decode")
        words = (prefill.url, prefill.port, decode.url) if kind is MiniLb else ("--pd-disaggregation", "--prefill", prefill.url, prefill.port, "--decode", decode.url)
        sides.append((prefill, decode, kind(*words)))
    with sides[0][2], sides[1][2]:
        yield sides
    for prefill, decode, _ in sides:
        prefill.kill()
        decode.kill()


@pytest.fixture
def beside(both_proxies):
    """[(prefill, decode, proxy)] of theirs and of ours."""
    for prefill, decode, _ in both_proxies:
        prefill.behave = decode.behave = None
        prefill.requests.clear()
        decode.requests.clear()
    return both_proxies


def seen(engine):
    """What came, without the room, which is put beside it."""
    one = engine.requests[-1]
    body = dict(one["body"])
    return one["path"], body, body.pop("bootstrap_room"), body.pop("bootstrap_port") == engine.bootstrap


@pytest.mark.parametrize("case", CASES)
def test_both_send_the_same(beside, case):
    path, body = CASES[case]
    found = []
    for prefill, decode, proxy in beside:
        prefill.bootstrap = decode.bootstrap = prefill.port
        prefill.behave = decode.behave = answer_events if body.get("stream") else answer_all
        status, headers, answer = proxy.post(path, body)
        wait_until(lambda: prefill.requests and decode.requests)
        first, second = seen(prefill), seen(decode)
        assert first == second and first[3] and 0 <= first[2] < 1 << 63
        found.append((first[:2], status, answer if body.get("stream") else json.loads(answer)))
    assert found[0] == found[1]
    assert found[0][1:] == (200, b"".join(EVENTS) if body.get("stream") else json.loads(ANSWER))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_both_put_the_prompts_log_probabilities_first(beside, stream):
    found = []
    for prefill, decode, proxy in beside:
        prefill.behave, decode.behave = generated(PROMPT), generated([[-1.5, 13, None]])
        status, _, answer = proxy.post("/generate", {**ASKS_LOGPROBS, "stream": stream})
        assert status == 200
        lines = [line for line in answer.splitlines() if line]  # theirs has more empty ones
        found.append([json.loads(line[5:]) if line.startswith(b"data: {") else line for line in lines] if stream else json.loads(answer))
    assert found[0] == found[1]
    last = [one for one in found[0] if isinstance(one, dict)][-1] if stream else found[0]
    assert last["meta_info"]["input_token_logprobs"] == PROMPT + [[-1.5, 13, None]]


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_both_pass_what_decode_refuses(beside, status):
    found = []
    for _, decode, proxy in beside:
        decode.behave = refuse(status)
        code, _, answer = proxy.post(*CASES["chat"])
        found.append((code, json.loads(answer)))
    assert found[0] == found[1] and found[0][0] == status


def test_ours_alone_tells_what_prefill_refuses_and_what_a_stream_is_refused(beside):
    """Theirs waits for decode, which may wait for prefill; and a stream that is refused has the status 200."""
    (_, their_decode, theirs), (prefill, decode, ours) = beside
    their_decode.behave = decode.behave = refuse(429)
    assert theirs.post(*CASES["chat, stream"])[0] == 200 and ours.post(*CASES["chat, stream"])[0] == 429
    decode.behave = None
    prefill.behave = refuse(400)
    beside[0][0].behave, their_decode.behave = refuse(400), answer_all
    assert theirs.post(*CASES["chat"])[0] == 200
    decode.hold = threading.Event()
    try:
        assert ours.post(*CASES["chat"])[0] == 400
    finally:
        decode.hold = None
