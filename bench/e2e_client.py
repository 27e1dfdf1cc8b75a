"""Requests to an engine, as its users send them: OpenAI's completions, streamed; and what it counts at /metrics."""

import dataclasses
import http.client
import json
import random
import re
import time
import urllib.request

REQUEST_SECONDS_MAX = 600
MODEL = "e2e"
WORDS = 8192  # of the model (e2e_model.py)
FIRST_WORD = 3  # after the special tokens


@dataclasses.dataclass
class Answer:
    tokens: list
    logprobs: list
    first_seconds: float
    token_seconds: list  # between one token and the next
    seconds: float
    prompt_tokens: int
    cached_tokens: int


def prompt(seed, length):
    """Token numbers that no other seed gives."""
    generator = random.Random(seed)
    return [generator.randrange(FIRST_WORD, WORDS) for _ in range(length)]


def token_numbers(texts):
    """The tokenizer's words are w<number>, so that an answer can be a part of the next prompt."""
    return [int(word) for text in texts for word in re.findall(r"w(\d+)", text)]


def _events(response):
    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the engine answered {event['error']}")
            yield event


def complete(port, tokens, count, seconds=REQUEST_SECONDS_MAX):
    """The next `count` tokens after the prompt, the likeliest each time."""
    request = {
        "model": MODEL, "prompt": tokens, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": 1, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = Answer([], [], 0.0, [], 0.0, len(tokens), 0)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    start = last = time.perf_counter()
    texts = []
    try:
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {response.read()[:2000].decode(errors='replace')}")
        for event in _events(response):
            now = time.perf_counter()
            for choice in event.get("choices", ()):
                values = (choice.get("logprobs") or {}).get("token_logprobs") or []
                if not values:
                    continue
                if not answer.logprobs:
                    answer.first_seconds = now - start
                else:
                    answer.token_seconds.append(now - last)
                last = now
                answer.logprobs += values
                texts += choice["logprobs"]["tokens"]
            if event.get("usage"):
                details = event["usage"].get("prompt_tokens_details") or {}
                answer.prompt_tokens = event["usage"]["prompt_tokens"]
                answer.cached_tokens = details.get("cached_tokens") or 0
    finally:
        connection.close()
    answer.seconds = time.perf_counter() - start
    answer.tokens = token_numbers(texts)
    if len(answer.logprobs) != count:
        raise RuntimeError(f"{len(answer.logprobs)} tokens came instead of {count}")
    return answer


def page(port, path="/metrics", seconds=30):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as reply:
        return reply.read().decode()


def counter(port, name):
    """The sum of a counter over its labels; 0 if it was never counted."""
    total = 0.0
    for line in page(port).splitlines():
        match = re.match(rf"{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", line)
        if match:
            total += float(match.group(1))
    return total


def external_hits(port):
    return counter(port, "vllm:external_prefix_cache_hits_total")


def counted(port, tokens, count, reader=None):
    """complete(), and how many tokens the engine at `reader` (the one that is asked, if it is not named) took from the store meanwhile."""
    before = external_hits(reader or port)
    answer = complete(port, tokens, count)
    return answer, external_hits(reader or port) - before
