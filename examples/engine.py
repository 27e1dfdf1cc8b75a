#!/usr/bin/env python3
"""A stand-in for an inference engine: it serves OpenAI's completions and keeps its "KV cache" in a Mooncake store, by the calls that an engine makes.

    engine.py --port 8100 --config mooncake.json --role kv_both

A token is a byte of the prompt, a block is four tokens. The KV of a block is 16 KiB that follow from all tokens up to its end, and the answer follows from the KV
of all blocks: an instance that loaded a wrong byte would answer something else. What was loaded is compared with what would have been computed, too.
"""
import argparse
import ctypes
import hashlib
import http.server
import json
import logging
import mmap
import signal
import sys
import threading
import time

BLOCK_TOKENS, BLOCK_BYTES, BLOCKS_MAX = 4, 16 << 10, 1024
WORDS = "the of and to in is that it was for on are with as his they at be this from have or by one had not but what all were".split()
logger = logging.getLogger("engine")


def compute(tokens, block):
    """What a GPU would: the KV of one block depends on every token before its end."""
    return hashlib.shake_128(tokens[:(block + 1) * BLOCK_TOKENS]).digest(BLOCK_BYTES)


class Memory:
    """Room for the blocks of one request; the store writes and reads here directly."""

    def __init__(self):
        self.map = mmap.mmap(-1, BLOCKS_MAX * BLOCK_BYTES)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.lock = threading.Lock()

    def address(self, block):
        return self.base + block * BLOCK_BYTES

    def write(self, block, data):
        self.map[block * BLOCK_BYTES:(block + 1) * BLOCK_BYTES] = data

    def read(self, block):
        return self.map[block * BLOCK_BYTES:(block + 1) * BLOCK_BYTES]


class Cache:
    """KV blocks of prompts in the store: looked up by prefix, loaded, and saved when they are new."""

    def __init__(self, store, model, role="kv_both"):
        self.store, self.model, self.role, self.memory = store, model, role, Memory()
        if store.register_buffer(self.memory.base, BLOCKS_MAX * BLOCK_BYTES) != 0:
            raise RuntimeError("the store does not take the buffer")

    def key(self, tokens, block):
        return f"{self.model}@{hashlib.sha256(tokens[:(block + 1) * BLOCK_TOKENS]).hexdigest()}"

    def load(self, tokens, count):
        """Loads the longest prefix of blocks that the store has; how many."""
        keys = [self.key(tokens, block) for block in range(count)]
        found = self.store.batch_is_exist(keys)
        prefix = next((i for i, one in enumerate(found) if one != 1), count)
        sizes = self.store.batch_get_into(keys[:prefix], [self.memory.address(i) for i in range(prefix)], [BLOCK_BYTES] * prefix) if prefix else []
        return next((i for i, size in enumerate(sizes) if size != BLOCK_BYTES), prefix)

    def save(self, tokens, first, count):
        new = range(first, count)
        results = self.store.batch_put_from([self.key(tokens, i) for i in new], [self.memory.address(i) for i in new], [BLOCK_BYTES] * len(new))
        if results.count(0) != len(new):
            logger.warning("%d of %d blocks were not saved: %s", len(new) - results.count(0), len(new), sorted(set(results)))

    def prefill(self, tokens, saves=True):
        """(tokens that came from the store, digest of the KV of all blocks)."""
        count = min(len(tokens) // BLOCK_TOKENS, BLOCKS_MAX)
        with self.memory.lock:
            loaded = self.load(tokens, count)
            for block in range(loaded, count):
                self.memory.write(block, compute(tokens, block))
            if any(self.memory.read(block) != compute(tokens, block) for block in range(loaded)):
                raise RuntimeError("a block came back with wrong bytes")
            if saves and loaded < count:
                self.save(tokens, loaded, count)
            return loaded * BLOCK_TOKENS, hashlib.sha256(self.memory.map[:count * BLOCK_BYTES] + tokens).digest()


class Engine:
    def __init__(self, cache, model, saves_output=False):
        self.cache, self.model, self.saves_output = cache, model, saves_output

    def complete(self, prompt, max_tokens, params):
        """(text, usage)."""
        tokens = prompt.encode()
        cached, state = self.cache.prefill(tokens, self.cache.role != "kv_consumer")
        text = " ".join(WORDS[byte % len(WORDS)] for byte in (state * (max_tokens // len(state) + 1))[:max_tokens])
        if self.saves_output:
            self.cache.prefill(tokens + text.encode())
        logger.info("prompt_token_num %d storage_cache_token_num %d", len(tokens), cached)
        return text, {"prompt_tokens": len(tokens), "completion_tokens": max_tokens, "total_tokens": len(tokens) + max_tokens,
                      "prompt_tokens_details": {"cached_tokens": cached}}

    def answer(self, path, body):
        is_chat = path.endswith("/chat/completions")
        prompt = "".join(f"<{one['role']}>{one['content']}" for one in body["messages"]) + "<assistant>" if is_chat else body["prompt"]
        text, usage = self.complete(prompt, body.get("max_tokens", 16), body.get("kv_transfer_params") or {})
        choice = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return {"id": "cmpl-0", "object": "chat.completion" if is_chat else "text_completion", "created": int(time.time()),
                "model": body.get("model", self.model), "choices": [{"index": 0, **choice, "finish_reason": "length"}], "usage": usage}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": self.server.engine.model, "object": "model"}]})
        else:
            self.reply(404, {"error": {"message": "Not Found", "code": 404}})

    def do_POST(self):
        try:
            self.reply(200, self.server.engine.answer(self.path, self.body()))
        except (KeyError, ValueError, AttributeError) as error:
            self.reply(400, {"error": {"message": repr(error), "code": 400}})
        except (RuntimeError, OSError) as error:
            self.reply(500, {"error": {"message": repr(error), "code": 500}})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(engine, host, port):
    """Until SIGTERM or SIGINT."""
    server = Server((host, port), Handler)
    server.engine = engine
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *unused: threading.Thread(target=server.shutdown).start())
    logger.info("engine serves on port %d", server.server_address[1])
    server.serve_forever(0.05)
    server.server_close()


def read_yaml(path):
    """As much of YAML as LMCache's example uses: `key: value`, and one level below a key."""
    values, below = {}, None
    for line in open(path, encoding="utf-8"):
        line = line.split(" #")[0].rstrip()
        name, colon, value = line.strip().partition(":")
        if not colon or line.startswith("#"):
            continue
        target = below if line.startswith(" ") else values
        try:
            target[name] = json.loads(value.strip().lower() if value.strip() in ("True", "False") else value)
        except ValueError:
            target[name] = value.strip()
        if value == "":
            below = values[name] = {}
    return values


def store_of(config, call="positional"):
    """A store that has joined, by one of the three ways in which engines call setup(). config: an object with MooncakeConfig's names."""
    from mooncake.store import MooncakeDistributedStore
    names = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "device_name", "master_server_address")
    values = [getattr(config, name) for name in names]
    store = MooncakeDistributedStore()
    if call == "keywords":  # FastDeploy
        code = store.setup(**dict(zip(names[:5] + ("rdma_devices", "master_server_addr"), values)))
    elif call == "dict":  # LMCache: every value as text
        code = store.setup({name: str(value) for name, value in zip(names, values)})
    else:  # vLLM, SGLang
        code = store.setup(*values)
    if code != 0:
        raise RuntimeError(f"setup: {code}")
    return store


def main():
    from mooncake.mooncake_config import MooncakeConfig
    parser = argparse.ArgumentParser(description="a stand-in for an inference engine with its KV cache in a Mooncake store")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--model", default="example")
    parser.add_argument("--config", help="a JSON file; without it the environment says where the master is (MOONCAKE_CONFIG_PATH, MOONCAKE_MASTER, ...)")
    parser.add_argument("--lmcache-config", help="a YAML file as LMCache reads it")
    parser.add_argument("--role", default="kv_both", choices=("kv_both", "kv_producer", "kv_consumer"))
    parser.add_argument("--setup", default="positional", choices=("positional", "keywords", "dict"))
    parser.add_argument("--save-output", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if given.lmcache_config:
        config = argparse.Namespace(**{"device_name": "", **read_yaml(given.lmcache_config)["extra_config"]})
    else:
        config = MooncakeConfig.from_file(given.config) if given.config else MooncakeConfig.load_from_env()
    store = store_of(config, given.setup)
    serve(Engine(Cache(store, given.model, given.role), given.model, given.save_output), given.host, given.port)
    return 0 if store.close() == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
