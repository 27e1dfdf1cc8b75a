"""KV events by ZMQ, read by what routers read them with, unmodified: vLLM's and SGLang's classes over libzmq, and Dynamo's router and index (its wheel's own ZMQ)."""
import hashlib
import json
import os
import pathlib
import re
import select
import struct
import subprocess
import tempfile
import urllib.request

import pytest

from sides import CLIENTS, SCENARIOS, environment_python, free_port, ours_cluster  # first: it finds the folder of the next ones

from test_kv_zmq import ON, REPLAY, asker_port, port_of
from wire import FakeOwner

ENGINES = "--kv_events_format=engine"
wait_until = ours_cluster.wait_until


def python_of(name):
    python = pathlib.Path(environment_python(name))
    if not python.exists():
        pytest.skip(f"there is no environment {name}")
    return str(python)


class Reader:
    """A scenario that is led by words."""

    def __init__(self, environment, scenario, *arguments, path=()):
        python = python_of(environment)
        self.log = tempfile.NamedTemporaryFile(prefix="mc-reader-", suffix=".log")
        env = {**os.environ, "PYTHONPATH": ":".join(map(str, path)), "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        self.process = subprocess.Popen([python, "-B", str(SCENARIOS / scenario), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)

    def __enter__(self):
        self.answer()
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.communicate()
        self.log.close()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "it has ended: " + pathlib.Path(self.log.name).read_text(errors="replace")[-1500:]
        step = json.loads(line)
        assert "error" not in step, step
        return step["result"]

    def say(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def ask(self, words):
        self.say(words)
        return self.answer()

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])


def engine_reader(engine, master):
    path = [CLIENTS / "vllm_tests", CLIENTS / "suites"] if engine == "vllm" else []
    if path and not all(folder.exists() for folder in path):
        pytest.skip("there are no files of vLLM's tests")
    return Reader(engine, "kv_reader.py", engine, f"tcp://127.0.0.1:{port_of(master)}", f"tcp://127.0.0.1:{asker_port(master)}", path=path)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engines_classes_decode_them(engine):
    with ours_cluster.Master(*ON, REPLAY, ENGINES) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        assert owner.put([b"1", b"18446744073709551615", b"no number", b"b\xff"], 4096) == [0] * 4
        with engine_reader(engine, master) as reader:
            past = reader.ask("past 0")
            assert [event[1:] for event in past] == [
                ["AllBlocksCleared", None, None], ["BlockStored", [1], "CPU"], ["BlockStored", [2**64 - 1], "CPU"], ["BlockStored", [], "CPU"], ["BlockStored", [], "CPU"]]
            reader.say("read 1")  # until then nobody knows whether its subscription has come
            wait_until(lambda: owner.put([b"17"], 4096) == owner.remove([b"17"]) == [0] and reader.has_answered(), 30, "a subscription")
            live = reader.answer()
            assert owner.put([b"0x20"], 4096) == owner.remove([b"1"]) == [0]
            while live[-1][1:] != ["BlockRemoved", [1], "CPU"]:
                live += reader.ask("read 1")
            assert live[-2][1:] == ["BlockStored", [32], "CPU"]
            number = live[-1][0]
            assert reader.ask(f"past {number}") == [event for event in live if event[0] == number] and reader.ask(f"past {number + 1}") == []
        owner.close()


def page_keys(count, page):
    """SGLang's names of the pages of the prompt 1, 2, 3, ..., of a model with one kind of state."""
    found, before = [], b""
    for at in range(count):
        before = hashlib.sha256(before + struct.pack(f"<{page}I", *range(1 + at * page, 1 + (at + 1) * page))).digest()
        found.append(f"{before.hex()}__k".encode())
    return found


def test_dynamos_router_knows_what_is_in_the_pool():
    """By the original's form, which is the default; its reader takes no batch that is not whole UTF-8."""
    with ours_cluster.Master(*ON) as master:
        owner, pages = FakeOwner(master.port, "127.0.0.1:9"), page_keys(4, 16)
        with Reader("dynamo", "dynamo_hicache.py", f"tcp://127.0.0.1:{port_of(master)}") as reader:
            def connected():
                return b"Connected to Mooncake KV events" in pathlib.Path(reader.log.name).read_bytes()

            def hits(*ranges):
                return wait_until(lambda: reader.ask("hits")["shared_cache"]["ranges"] == [list(one) for one in ranges], 30, f"pages {ranges}")
            wait_until(connected, 30, "its connection")

            def seen():
                owner.remove(pages[:1])
                assert owner.put(pages[:1], 4096) == [0]
                return reader.ask("hits")["shared_cache"]["ranges"] == [[0, 1]]
            wait_until(seen, 30, "a subscription")
            assert owner.put(pages[1:3], 4096) == [0] * 2
            hits((0, 3))
            assert owner.remove(pages[1:2]) == [0]
            hits((0, 1), (2, 3))
            assert owner.put([b"b\xff", pages[3]], 4096) == [0, 0]
            hits((0, 1), (2, 4))
        owner.close()


class Indexer:
    """Dynamo's index of engines, as a server."""

    def __init__(self, master):
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile(prefix="mc-indexer-", suffix=".log")
        command = [python_of("dynamo"), "-m", "dynamo.indexer", f"--port={self.port}", "--threads=1"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.register = {"instance_id": 1, "endpoint": f"tcp://127.0.0.1:{port_of(master)}", "replay_endpoint": f"tcp://127.0.0.1:{asker_port(master)}",
                         "model_name": "m", "block_size": 16}

    def __enter__(self):
        wait_until(lambda: self.says("HTTP server listening"), 60, "the index")
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/register", json.dumps(self.register).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201
        wait_until(lambda: self.says("Replay socket connected"), 30, "its sockets")
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def says(self, pattern):
        return re.search(pattern, re.sub(r"\x1b\[[0-9;]*m", "", pathlib.Path(self.log.name).read_text(errors="replace")))


def test_dynamos_index_of_engines_decodes_them_and_is_told_the_past():
    """It asks for what was before it came. Of blocks without tokens it keeps none, and says so; before, it refused each whole batch."""
    with ours_cluster.Master(*ON, REPLAY, ENGINES) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        assert owner.put([b"1", b"2"], 4096) == [0, 0] and owner.remove([b"1"]) == [0]
        with Indexer(master) as indexer:
            def replayed():
                assert owner.put([b"3"], 4096) == owner.remove([b"3"]) == [0]
                return indexer.says(r"Replay complete .*replayed=([1-9]\d*)")
            wait_until(replayed, 30, "a replay")
            assert indexer.says("Block size must be 16 tokens to be published. Block size is: 0") and not indexer.says("(?i)failed to decode")
        owner.close()
