"""`mooncake_bench replay` on real processes: figures that can be computed beforehand, eviction, wrong bytes, and every way it can end."""
import json
import os
import pathlib
import random
import signal
import subprocess
import time
import uuid

import pytest

BENCH = pathlib.Path(os.environ["MC_BUILD"]) / "mooncake_bench"
BLOCK = 16 << 10
SLOW = 5 if os.environ.get("MC_SANITIZER") else 1  # how much longer things may take


class Trace:
    """A trace of conversations: each request extends an earlier one or starts anew; the last block is partial."""

    def __init__(self, path, requests, spacing_ms=0, seed=1):
        source = random.Random(seed)
        self.path = path
        self.requests = []
        conversations, fresh = [], 1
        for number in range(requests):
            prefix = source.choice(conversations)[:-1] if conversations and source.random() < 0.6 else [0]
            more = source.randrange(1, 8)
            ids = prefix + list(range(fresh, fresh + more))
            fresh += more
            tokens = 512 * (len(ids) - 1) + source.randrange(1, 513)
            conversations.append(ids)
            self.requests.append({"timestamp": number * spacing_ms, "input_length": tokens, "output_length": 5, "hash_ids": ids})
        path.write_text("".join(json.dumps(request) + "\n" for request in self.requests))

    def blocks(self):
        return sum(len(request["hash_ids"]) for request in self.requests)

    def distinct(self):
        return len({block for request in self.requests for block in request["hash_ids"]})

    def hits(self):
        """Blocks of cached prefixes when nothing is ever evicted, and their tokens."""
        known, blocks, tokens = set(), 0, 0
        for request in self.requests:
            ids = request["hash_ids"]
            for at, block in enumerate(ids):
                if block not in known:
                    break
                blocks += 1
                tokens += 512 if at + 1 < len(ids) else request["input_length"] - 512 * at
            known.update(ids)
        return blocks, tokens


class Replay:
    """A replay under a mark in its environment, by which everything that it started can be found."""

    def __init__(self, trace, directory, *options):
        self.mark = f"MC_TEST_MARK={uuid.uuid4()}"
        self.json = directory / "result.json"
        self.master = None
        name, value = self.mark.split("=")
        command = [BENCH, "replay", trace, f"--json={self.json}", *options]
        self.process = subprocess.Popen(
            command, env={**os.environ, name: value}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def left(self):
        """{pid: command line} of what carries the mark and is not dead."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() not in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                    continue
                if "\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text():
                    continue
                found[int(pid)] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def await_line(self, text, seconds=20):
        """Reads the output up to a line that holds `text`."""
        deadline = time.monotonic() + seconds * SLOW
        lines = []
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            lines.append(line)
            if text in line:
                return line
            if not line:
                break
        raise AssertionError(f"no {text!r} in {''.join(lines)}")

    def await_workers(self, count, seconds=20):
        """Until they are at it."""
        deadline = time.monotonic() + seconds * SLOW
        while sum(" worker " in line for line in self.left().values()) < count:
            assert time.monotonic() < deadline, self.left()
            time.sleep(0.02)
        time.sleep(1)

    def end(self, seconds=60):
        try:
            self.output = self.process.communicate(timeout=seconds * SLOW)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end: {self.process.communicate()[0]}") from None
        return self.process.returncode

    def result(self):
        return json.loads(self.json.read_text())

    def expect_gone(self, seconds=5):
        deadline = time.monotonic() + seconds * SLOW
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not self.left()

    def clean(self):
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def replay(tmp_path):
    started = []

    def start(trace, *options):
        started.append(Replay(trace.path if isinstance(trace, Trace) else trace, tmp_path, f"--block_bytes={BLOCK}", *options))
        return started[-1]

    yield start
    for item in started:
        item.clean()


def check_whole(result, trace, calls=("lookup", "get", "put")):
    assert result["outcome"] == "complete"
    assert result["requests"] == len(trace.requests)
    assert result["blocks"] == trace.blocks()
    assert result["tokens"] == sum(request["input_length"] for request in trace.requests)
    assert result["wrong_bytes"] == result["wrong_blocks"] == 0
    assert result["checked_bytes"] == result["got_bytes"] > 0
    assert result["failed_puts"] == result["failed_gets"] == result["failed_lookups"] == 0
    assert result["errors"] == {}
    for name in calls:
        call = result["calls"][name]
        assert call["count"] > 0
        assert 0 < call["p50_us"] <= call["p99_us"] <= call["p999_us"] <= call["max_us"]
    assert result["calls"]["lookup"]["count"] == len(trace.requests)


@pytest.mark.parametrize("paths", ["", "tcp"])
def test_figures_of_one_worker_are_exact(replay, tmp_path, paths):
    trace = Trace(tmp_path / "small.jsonl", 200)
    run = replay(trace, "--workers=1", "--store_nodes=3", "--capacity=96M", f"--paths={paths}")
    assert run.end() == 0, run.output
    result = run.result()
    check_whole(result, trace)
    assert (result["hit_blocks"], result["hit_tokens"]) == trace.hits()
    assert result["put_blocks"] == trace.distinct()
    assert result["evicted_objects"] == 0
    assert result["gone_blocks"] == 0
    assert result["settings"]["paths"] == paths
    for word in ("hit ratio", "wrong bytes", "p99.9", "/metrics"):
        assert word in run.output
    run.expect_gone()


def test_full_pool_evicts_and_fails_no_put(replay, tmp_path):
    trace = Trace(tmp_path / "long.jsonl", 1500, seed=2)
    run = replay(trace, "--workers=2", "--threads=2", "--store_nodes=2", "--capacity=32M", "--lease_ttl=100")
    assert run.end() == 0, run.output
    result = run.result()
    check_whole(result, trace)
    assert result["evicted_objects"] > 0
    assert 0 < result["hit_blocks"] <= trace.hits()[0]
    assert result["put_bytes"] > 32 << 20
    run.expect_gone()


def test_wrong_bytes_are_found(replay, tmp_path):
    trace = Trace(tmp_path / "small.jsonl", 200)
    run = replay(trace, "--workers=2", "--capacity=96M", "--corrupt=3")
    assert run.end() == 1
    result = run.result()
    assert result["outcome"] == "wrong bytes"
    assert result["wrong_blocks"] == result["wrong_bytes"] > 0  # one byte in each
    assert "WRONG BYTES" in run.output
    run.expect_gone()


def test_speed_is_that_of_the_trace(replay, tmp_path):
    trace = Trace(tmp_path / "slow.jsonl", 41, spacing_ms=100)  # 4 s
    run = replay(trace, "--workers=2", "--capacity=48M", "--speed=2")
    assert run.end() == 0, run.output
    assert 1.9 < run.result()["seconds"] < 1.9 + 2 * SLOW


def test_duration_ends_it(replay, tmp_path):
    trace = Trace(tmp_path / "slow.jsonl", 1000, spacing_ms=1000)
    run = replay(trace, "--workers=2", "--capacity=48M", "--speed=10", "--duration=1")
    assert run.end() == 0, run.output
    result = run.result()
    assert result["outcome"] == "stopped"
    assert 0 < result["requests"] < 30
    run.expect_gone()


def test_interrupt_ends_in_order(replay, tmp_path):
    trace = Trace(tmp_path / "slow.jsonl", 1000, spacing_ms=1000)
    run = replay(trace, "--workers=2", "--capacity=48M", "--speed=10")
    run.await_workers(2)
    assert len(run.left()) == 1 + 1 + 3 + 2
    started = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert time.monotonic() - started < 5 * SLOW
    result = run.result()
    assert result["outcome"] == "interrupted"
    assert result["wrong_bytes"] == 0
    run.expect_gone()


def test_killed_parent_leaves_nothing_behind(replay, tmp_path):
    trace = Trace(tmp_path / "slow.jsonl", 1000, spacing_ms=1000)
    run = replay(trace, "--workers=2", "--capacity=48M", "--speed=10")
    run.await_workers(2)
    run.process.kill()
    run.process.wait()
    run.expect_gone()


@pytest.mark.parametrize("victim", [" worker ", " node ", "mooncake_master"])
def test_lost_process_breaks_it_off(replay, tmp_path, victim):
    trace = Trace(tmp_path / "slow.jsonl", 1000, spacing_ms=1000)
    run = replay(trace, "--workers=2", "--capacity=48M", "--speed=10")
    run.await_workers(2)
    pid = next(pid for pid, command in run.left().items() if victim in command)
    os.kill(pid, signal.SIGKILL)
    assert run.end() == 3, run.output
    assert "ended before its time" in run.output
    assert run.result()["outcome"] == "broken off"
    run.expect_gone()


def kept_and_joined(replay, trace, folder, *flags):
    """A run that keeps its cluster, and another one there."""
    first = replay(trace, "--workers=1", "--capacity=48M", "--keep")
    address = first.await_line("join it with --master=").split("--master=")[1].strip()
    (folder / "second").mkdir()
    return first, Replay(trace.path, folder / "second", f"--block_bytes={BLOCK}", "--workers=1", f"--master={address}", *flags)


def test_kept_cluster_can_be_joined(replay, tmp_path):
    trace = Trace(tmp_path / "small.jsonl", 100)
    first, second = kept_and_joined(replay, trace, tmp_path)
    try:
        assert second.end() == 0, second.output
        result = second.result()
        check_whole(result, trace, calls=("lookup", "get"))
        assert result["hit_blocks"] == result["blocks"]  # all is there already, and of the same content
        assert result["put_blocks"] == 0
        assert result["evicted_objects"] is None
    finally:
        second.clean()
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 0
    first.expect_gone()


def test_other_seed_means_other_bytes(replay, tmp_path):
    trace = Trace(tmp_path / "small.jsonl", 20)
    _, second = kept_and_joined(replay, trace, tmp_path, "--seed=2")
    try:
        assert second.end() == 1, second.output
        assert second.result()["wrong_bytes"] > second.result()["checked_bytes"] * 0.98
    finally:
        second.clean()


@pytest.mark.parametrize(
    "options, word",
    [
        (["--limt=3"], "--limit"),
        (["--workers=0"], "workers"),
        (["--workers=1000"], "workers"),
        (["--speed=fast"], "speed"),
        (["--speed=0"], "speed"),
        (["--capacity=1K"], "capacity"),
        (["--capacity=many"], "capacity"),
        (["--block_bytes=0"], "block_bytes"),
        (["--block_bytes=64G"], "batch"),
        (["--capacity=3M", "--block_bytes=2M"], "capacity"),
    ],
)
def test_bad_options_are_named(tmp_path, options, word):
    trace = Trace(tmp_path / "one.jsonl", 1)
    done = subprocess.run([BENCH, "replay", trace.path, *options], capture_output=True, text=True, timeout=10 * SLOW)
    assert done.returncode == 2
    assert word in done.stderr


def test_bad_model_lists_them(tmp_path):
    trace = Trace(tmp_path / "one.jsonl", 1)
    done = subprocess.run([BENCH, "replay", trace.path, "--model=x"], capture_output=True, text=True, timeout=10 * SLOW)
    assert done.returncode == 2
    assert "llama3-8b" in done.stderr


@pytest.mark.parametrize("content, word", [("", "holds no request"), ("{}\n", "line 1"), ("\x1f\x8b\x08garbage", "")])
def test_bad_traces_are_refused(tmp_path, content, word):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content.encode("latin-1"))
    done = subprocess.run([BENCH, "replay", path], capture_output=True, text=True, timeout=10 * SLOW)
    assert done.returncode == 2
    assert str(path) in done.stderr and word in done.stderr


def test_unreachable_master_is_told(tmp_path):
    trace = Trace(tmp_path / "one.jsonl", 1)
    started = time.monotonic()
    done = subprocess.run([BENCH, "replay", trace.path, "--master=127.0.0.1:1"], capture_output=True, text=True, timeout=30 * SLOW)
    assert done.returncode == 3
    assert time.monotonic() - started < 8 * SLOW
    assert "127.0.0.1:1" in done.stderr + done.stdout


def measured(folder, *words):
    """What a measurement that ends well writes as JSON."""
    path = folder / "measured.json"
    done = subprocess.run([BENCH, *words, f"--json={path}"], capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_raw_measures(tmp_path):
    result = measured(tmp_path, "raw", "--sizes=4K,1M", "--total=8M", "--passes=1")
    assert [item["bytes"] for item in result["sizes"]] == [4096, 1 << 20]
    assert all(value > 0 for item in result["sizes"] for value in item.values())
    assert result["round_trip_us"] > 0


def test_work_times_operations(tmp_path):
    result = measured(tmp_path, "work", "--keys=256", "--seconds=0.1", "--capacity=64M")
    assert [item["operation"] for item in result] == ["put", "exist", "batch_exist", "get", "batch_put", "batch_get"]
    assert all(item["failed"] == 0 and item["keys_per_s"] > 0 and item["p50_us"] > 0 for item in result)
