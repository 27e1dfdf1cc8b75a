#!/usr/bin/env python3
"""A stand-in for vLLM with its MooncakeConnector: prefill computes, decode takes the blocks straight from prefill's memory, no store between them.

    connector.py --port 8010 --role kv_producer        # its bootstrap server listens on VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998
    connector.py --port 8020 --role kv_consumer

Decode tells prefill's bootstrap server where its memory is; prefill writes there as soon as it has computed that request, or gives the request up after
VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT seconds.
"""
import argparse
import hashlib
import json
import logging
import os
import sys
import threading
import urllib.request

import engine
from engine import BLOCK_BYTES, BLOCK_TOKENS, BLOCKS_MAX, compute

TIMEOUT_S = float(os.environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "480"))
BOOTSTRAP_PORT = int(os.environ.get("VLLM_MOONCAKE_BOOTSTRAP_PORT", "8998"))


class Bootstrap(engine.Handler):
    def do_GET(self):
        self.reply(200, {"0": {"engine_id": self.server.cache.engine_id, "worker_addr": {}}})

    def do_POST(self):
        asked = self.body()
        blocks = self.server.cache.send(asked["transfer_id"], asked["session"], asked["address"])
        self.reply(200 if blocks is not None else 404, {"blocks": blocks})


class Cache:
    """In place of engine.Cache: the blocks come from the other instance."""

    def __init__(self, host, role):
        from mooncake.engine import TransferEngine
        self.role, self.memory, self.transfer = role, engine.Memory(), TransferEngine()
        if self.transfer.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("the transfer engine does not start")
        if self.transfer.batch_register_memory([self.memory.base], [BLOCKS_MAX * BLOCK_BYTES]) != 0:
            raise RuntimeError("the transfer engine does not take the memory")
        self.session = f"{host}:{self.transfer.get_rpc_port()}"
        self.engine_id = hashlib.sha256(self.session.encode()).hexdigest()[:16]
        self.done, self.news = {}, threading.Condition()
        if role != "kv_consumer":
            server = engine.Server(("0.0.0.0", BOOTSTRAP_PORT), Bootstrap)
            server.cache = self
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def send(self, transfer_id, session, address):
        """Writes the request's blocks into decode's memory: how many, or None when the request never came or the way there is broken."""
        with self.news:
            if not self.news.wait_for(lambda: transfer_id in self.done, TIMEOUT_S):
                return None
            tokens = self.done.pop(transfer_id)
        count = min(len(tokens) // BLOCK_TOKENS, BLOCKS_MAX)
        with self.memory.lock:
            for block in range(count):
                self.memory.write(block, compute(tokens, block))
            sources = [self.memory.address(block) for block in range(count)]
            code = self.transfer.batch_transfer_sync_write(session, sources, [address + block * BLOCK_BYTES for block in range(count)], [BLOCK_BYTES] * count)
        return count if code == 0 else None

    def computed(self, transfer_id, tokens):
        with self.news:
            self.done[transfer_id] = tokens
            self.news.notify_all()

    def receive(self, tokens, params):
        """(tokens that came from prefill, digest of the KV of all blocks)."""
        count = min(len(tokens) // BLOCK_TOKENS, BLOCKS_MAX)
        with self.memory.lock:
            body = json.dumps({"transfer_id": params["transfer_id"], "session": self.session, "address": self.memory.base}).encode()
            request = urllib.request.Request(params["remote_bootstrap_addr"] + "/send", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                blocks = json.load(reply)["blocks"]
            if blocks != count or any(self.memory.read(block) != compute(tokens, block) for block in range(count)):
                raise RuntimeError(f"{blocks} of {count} blocks came, or wrong bytes")
            return count * BLOCK_TOKENS, hashlib.sha256(self.memory.map[:count * BLOCK_BYTES] + tokens).digest()


class Engine(engine.Engine):
    def complete(self, prompt, max_tokens, params):
        tokens, cached = prompt.encode(), 0
        if params.get("do_remote_prefill"):
            cached, _ = self.cache.receive(tokens, params)
        elif params.get("do_remote_decode"):
            self.cache.computed(params["transfer_id"], tokens)
        engine.logger.info("prompt_token_num %d, from prefill %d", len(tokens), cached)
        return "example", {"prompt_tokens": len(tokens), "completion_tokens": max_tokens, "total_tokens": len(tokens) + max_tokens,
                           "prompt_tokens_details": {"cached_tokens": cached}}


def main():
    parser = argparse.ArgumentParser(description="a stand-in for vLLM with its MooncakeConnector")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--address", default="127.0.0.1", help="under which the other instance reaches this one")
    parser.add_argument("--model", default="example")
    parser.add_argument("--role", default="kv_both", choices=("kv_both", "kv_producer", "kv_consumer"))
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    engine.serve(Engine(Cache(given.address, given.role), given.model), given.host, given.port)


if __name__ == "__main__":
    sys.exit(main())
