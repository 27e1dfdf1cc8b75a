"""The parts of the harness that judge: bytes, deadlines, and what a fault may cost."""
import ctypes
import json
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest

import harness
import history
import worker
from history import GET, PUT, REMOVE, Operation

MS = 1_000_000


@pytest.fixture(scope="module")
def content():
    return worker.Content()


def written(content, key, value):
    buffer = ctypes.create_string_buffer(worker.SIZE_MAX)
    return buffer, content.write(key, value, ctypes.addressof(buffer))


@pytest.mark.parametrize("value", range(1, 30))
def test_bytes_name_their_value(content, value):
    buffer, size = written(content, 7, value)
    place = ctypes.addressof(buffer)
    assert size == content.size(value) and content.read(7, place, size) == value
    assert content.read(8, place, size) is None
    assert content.read(7, place, size - 1) is None
    assert content.read(7, place, 0) is None
    for at in (0, 8, 16, 24, size // 2, size - 1):
        was = buffer[at]
        buffer[at] = bytes([was[0] ^ 1])
        assert content.read(7, place, size) is None, f"byte {at}"
        buffer[at] = was
    assert content.read(7, place, size) == value


def test_a_mixture_of_two_values_is_seen(content):
    first = 1
    second = next(value for value in range(2, 100) if content.size(value) == content.size(first))
    (one, size), (other, _) = written(content, 7, first), written(content, 7, second)
    for at in range(32, size, max(size // 50, 1)):
        mixed = ctypes.create_string_buffer(one.raw[:at] + other.raw[at:size], size)
        assert content.read(7, ctypes.addressof(mixed), size) is None
    for key in (8, 9):
        strange, _ = written(content, key, first)
        mixed = ctypes.create_string_buffer(one.raw[:24] + strange.raw[24:size], size)
        assert content.read(7, ctypes.addressof(mixed), size) is None


def call(took_ms, noise_ms=0, start=1000):
    return Operation(start * MS, (start + took_ms) * MS, 0, -901, noise_ms * MS, 1, GET, 1)


class Quiet:
    def __init__(self, worst=0):
        self.most = worst

    def worst(self, first=0, last=0):
        return self.most


def late(operation, stops=(), worst_ms=0):
    return len(harness.Trial.overdue(None, [operation], list(stops), Quiet(worst_ms * MS)))


def test_a_call_past_its_deadline_is_late():
    limit = harness.CALL_MS + harness.BYTES_MS + harness.TOLERANCE_MS
    assert late(call(limit)) == 0
    assert late(call(limit + 1)) == 1
    assert late(call(limit + 50, noise_ms=60)) == 0
    assert late(call(limit + 50, noise_ms=40)) == 1
    assert late(call(limit + 50), worst_ms=60) == 0
    # Stopped by ourselves meanwhile; before; for ever.
    assert late(call(limit + 5000), stops=[(2000 * MS, 3000 * MS)]) == 0
    assert late(call(limit + 5000), stops=[(1 * MS, 2 * MS)]) == 1
    assert late(call(limit + 5000), stops=[(1 * MS, None)]) == 0
    assert late(call(10)._replace(returned=None)) == 0


def keep(survives, where, etcd=()):
    result = harness.Keep.__new__(harness.Keep)
    result.survives, result.where, result.cluster = survives, {1: where}, SimpleNamespace(etcd=etcd)
    return result


def fault(what, kind, seconds=0.1, segment=None, warm=True):
    target = SimpleNamespace(kind=kind, name=kind, warm=warm, host=SimpleNamespace(known_as="10.77.0.9"))
    result = harness.Fault(what, target, seconds)
    result.segment = segment
    return result


def test_what_a_fault_may_cost():
    one, two = ["a:1"], ["a:1", "b:1"]
    assert keep(False, two).may_lose(1, [fault("kill", "master")])
    assert not keep(True, one).may_lose(1, [fault("kill", "master")])
    assert not keep(True, one).may_lose(1, [fault("kill", "node", segment="a:1")])
    assert keep(True, one).may_lose(1, [fault("kill", "node", segment="a:1", warm=False)])
    assert keep(False, one).may_lose(1, [fault("kill", "node", segment="a:1")])
    assert not keep(False, two).may_lose(1, [fault("kill", "node", segment="a:1")])
    assert keep(False, two).may_lose(1, [fault("kill", "node", segment="a:1"), fault("partition", "node", 5.0, segment="b:1")])
    assert not keep(False, one).may_lose(1, [fault("stop", "node", 0.3, segment="a:1")])
    assert keep(True, one).may_lose(1, [fault("leave", "node", segment="a:1")])
    assert keep(True, ["10.77.0.9:5"]).may_lose(1, [fault("kill", "client")])
    assert not keep(True, one).may_lose(1, [fault("kill", "client")])


def test_a_silent_leader_costs_nothing_where_another_may_lead():
    """What all of them have lost at the same time was once excused by this."""
    one, etcd = ["a:1"], ["etcd0", "etcd1", "etcd2"]
    for what in ("kill", "stop", "partition", "slow", "deaf"):
        silent = fault(what, "master", 5.0)
        assert keep(True, one).may_lose(1, [silent])
        assert not keep(True, one, etcd).may_lose(1, [silent])
        assert not keep(True, one, etcd).may_lose(1, [silent, fault("stop", "node", 5.0, segment="b:1")])
        assert keep(True, one, etcd).may_lose(1, [silent, fault("stop", "node", 5.0, segment="a:1")])
        assert keep(False, one, etcd).may_lose(1, [silent])


class Answers:
    """A keeper that gives these answers to `look`, the last one again and again."""

    def __init__(self, *found):
        self.found = list(found)

    def ask(self, command, argument):
        if command != "look":
            return {"codes": [0] * len(argument), "where": [["a:1"]] * len(argument)}
        return {"found": [(self.found.pop(0) if len(self.found) > 1 else self.found[0])] if argument else []}


def test_what_has_no_answer_is_not_lost():
    for found, lost in (((7,), 0), ((-900, -901, 7), 0), ((-900, 0), 1), ((0, 7), 1)):
        watched = keep(True, ["a:1"])
        watched.cluster.keeper, watched.values, watched.next_value = Answers(*found), {1: 7}, 9
        watched.COUNT, watched.lost, watched.wrong = 0, Counter(), []
        assert watched.check([fault("stop", "node", 5.0, segment="a:1")])[1] == lost, found
        assert watched.lost["lawful"] == lost and not watched.wrong


def test_a_fault_costs_what_it_lasted():
    """Not what was drawn: a busy machine may keep a killed process from dying, and the new one from starting."""
    one, two = ["a:1"], ["a:1", "b:1"]
    for what, kind, seconds, longest, limit in (("kill", "node", 2.0, 2.1, 2.4), ("stop", "node", 1.0, 1.2, 1.5), ("deaf", "node", 1.0, 1.3, 1.5),
                                                ("restart", "node", 0.2, 2.1, 2.4), ("kill", "master", 2.0, 2.2, 2.4)):
        drawn = fault(what, kind, seconds, segment="a:1")
        assert not keep(True, one).may_lose(1, [drawn])
        drawn.lasted = longest
        assert not keep(True, one).may_lose(1, [drawn]), what
        if limit:
            drawn.lasted = limit + 0.01
            assert keep(True, one).may_lose(1, [drawn]), what
            assert keep(True, two).may_lose(1, [drawn]) == (kind == "master"), what


class Target:
    """Needs 0.3 s to die and 0.2 s to start, and its new process waits 0.7 s for a processor."""
    kind, name, warm, starved_s = "node", "node7", True, 0.7

    def kill(self):
        time.sleep(0.3)

    def start(self):
        time.sleep(0.2)

    def wait_ready(self):
        time.sleep(0.4)


def test_how_long_a_fault_lasts():
    lasts = harness.Fault("kill", Target(), 0.3)
    lasts.begin(None)
    assert str(lasts) == "kill node7 for 0.3 s"
    lasts.undo()
    assert 0.5 <= lasts.lasted < 2
    before = lasts.lasted
    lasts.settle()
    assert abs(lasts.lasted - before - Target.starved_s) < 0.01  # what the new process itself takes is its own
    assert str(lasts) == f"kill node7 for 0.3 s (in fact {lasts.lasted:.1f} s)"
    stop = harness.Fault("restart", Target(), 0.1)
    assert not stop.silences()


def test_waiting_for_a_processor():
    assert harness.waited_s("self") >= 0
    assert harness.waited_s(1 << 30) == 0
    # Two that want the same processor: one of them waits.
    spin = "import os,time\nos.sched_setaffinity(0,{min(os.sched_getaffinity(0))})\nend=time.monotonic()+20\nwhile time.monotonic()<end: pass"
    children = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        harness.wait_for(lambda: all(harness.waited_s(child.pid) > 0.02 for child in children), 15, "waiting")
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_lost_key_is_told_with_its_place(monkeypatch):
    monkeypatch.setattr(harness, "RECOVER_S", 0.05)
    kept = keep(True, ["a:1"])
    kept.values, kept.lost, kept.wrong = {1: 5}, harness.Counter(), []
    kept.cluster = SimpleNamespace(keeper=SimpleNamespace(ask=lambda what, keys: {"found": [0] * len(keys)}))
    kept.put_missing = lambda: None
    kept.check([fault("kill", "node", segment="a:1")])
    assert kept.wrong == ["lost 1 kept keys after kill node for 0.1 s: 1 at a:1"]
    assert kept.lost["unlawful"] == 1 and kept.values == {}


def test_keys_are_judged_a_few_at_a_time(tmp_path):
    """With more keys than are judged at once: what is wrong with the last one is found, and everything is counted once."""
    keys = harness.JUDGED_AT_ONCE * 2 + 1
    writer = history.Writer(tmp_path / "h")
    for key in range(keys):
        for operation, code in ((PUT, 0), (GET, 100), (REMOVE, 0)):
            writer.done(writer.invoke(operation, key, key + 1), code, key + 1)
    writer.done(writer.invoke(GET, keys - 1), 100, keys)  # removed, and read again
    trial = SimpleNamespace(cluster=SimpleNamespace(keys=keys), absent_removes_prove=True)
    report = harness.Trial.judge(trial, [[1, tmp_path / "h", [], None]], {})
    assert (report.operations, report.keys, report.count) == (3 * keys + 1, keys, 1)
    assert report.violations[0].key == keys - 1


@pytest.mark.timeout(120)
def test_a_run_that_is_stopped_gives_its_verdict(tmp_path):
    run = pathlib.Path(harness.HERE) / "run.py"
    process = subprocess.Popen([sys.executable, "-B", str(run), "--minutes", "10", "--seed", "3", "--masters", "1", "--json", str(tmp_path / "r")],
                               stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if "all well after" in line:
                break
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        assert process.wait(60) == 0, said
    finally:
        process.kill()
    result = json.loads((tmp_path / "r").read_text())
    assert result["stopped early"] and result["operations"] > 0 and result["violations"] == 0
    assert "faults: good" in said
