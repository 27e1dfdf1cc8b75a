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
import keep as keeping
import nemesis
import trial
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
    return len(trial.Trial.overdue(None, [operation], list(stops), Quiet(worst_ms * MS)))


def test_a_call_past_its_deadline_is_late():
    limit = harness.CALL_MS + trial.BYTES_MS + trial.TOLERANCE_MS
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


class Held:
    """What is known of key 1, which lies there."""

    def __init__(self, survives, where, etcd=()):
        self.survives, self.where, self.etcd = survives, where, etcd

    def may_lose(self, faults):
        return keeping.may_lose(self.where, faults, self.survives, bool(self.etcd))


def fault(what, kind, seconds=0.1, segment=None, warm=True, amount=0):
    target = SimpleNamespace(kind=kind, name=kind, warm=warm, segment=segment, host=SimpleNamespace(known_as="10.77.0.9"))
    return nemesis.Fault(what, target, seconds, amount=amount)


def test_what_a_fault_may_cost():
    one, two = ["a:1"], ["a:1", "b:1"]
    assert Held(False, two).may_lose([fault("kill", "master")])
    assert not Held(True, one).may_lose([fault("kill", "master")])
    assert not Held(True, one).may_lose([fault("kill", "node", segment="a:1")])
    assert Held(True, one).may_lose([fault("kill", "node", segment="a:1", warm=False)])
    assert Held(False, one).may_lose([fault("kill", "node", segment="a:1")])
    assert not Held(False, two).may_lose([fault("kill", "node", segment="a:1")])
    assert Held(False, two).may_lose([fault("kill", "node", segment="a:1"), fault("partition", "node", 5.0, segment="b:1")])
    assert not Held(False, one).may_lose([fault("stop", "node", 0.3, segment="a:1")])
    assert Held(True, one).may_lose([fault("leave", "node", segment="a:1")])
    assert Held(True, ["10.77.0.9:5"]).may_lose([fault("kill", "client")])
    assert not Held(True, one).may_lose([fault("kill", "client")])


def test_a_silent_leader_costs_nothing_where_another_may_lead():
    """What all of them have lost at the same time was once excused by this."""
    one, etcd = ["a:1"], ["etcd0", "etcd1", "etcd2"]
    for what in ("kill", "stop", "partition", "slow", "deaf"):
        silent = fault(what, "master", 5.0)
        assert Held(True, one).may_lose([silent]) == (what != "kill")  # a new process takes up everything, however late
        assert not Held(True, one, etcd).may_lose([silent])
        assert not Held(True, one, etcd).may_lose([silent, fault("stop", "node", 5.0, segment="b:1")])
        assert Held(True, one, etcd).may_lose([silent, fault("stop", "node", 5.0, segment="a:1")])
        assert Held(False, one, etcd).may_lose([silent])


class Answers:
    """A keeper that gives these answers to `look`, for each key, the last one again and again; upserts that name another group are refused."""

    def __init__(self, *found, upserts=-600, places=("a:1",)):
        self.found, self.upserts, self.places = list(found), upserts, list(places)

    def ask(self, command, argument):
        if command == "look":
            found = (self.found.pop(0) if len(self.found) > 1 else self.found[0]) if argument else None
            return {"found": [found] * len(argument)}
        if command == "upsert":
            return {"codes": [self.upserts] * len(argument)}
        return {"codes": [0] * len(argument), "where": [self.places] * len(argument)}


def kept(keeper, *keys, etcd=()):
    """Keep, of these keys, each of which has value 7 at a:1."""
    made = keeping.Keep.__new__(keeping.Keep)
    keeping.Watched.__init__(made, SimpleNamespace(etcd=etcd, disks_keep=False, keeper=keeper), True)
    made.COUNT, made.values, made.where, made.next_value, made.strange, made.emptied = 0, {key: 7 for key in keys}, {key: ["a:1"] for key in keys}, 9, 0, 0
    return made


def test_what_has_no_answer_is_not_lost():
    for found, lost in (((7,), 0), ((-900, -901, 7), 0), ((-900, 0), 1), ((0, 7), 1)):
        watched = kept(Answers(*found), 1)
        assert watched.check([fault("stop", "node", 5.0, segment="a:1")])[1] == lost, found
        assert watched.lost["lawful"] == lost and not watched.wrong


def test_a_fault_costs_what_it_lasted():
    """Not what was drawn: a busy machine may keep a killed process from dying, and the new one from starting."""
    one, two = ["a:1"], ["a:1", "b:1"]
    for what, kind, seconds, longest, limit in (("kill", "node", 2.0, 2.1, 2.4), ("stop", "node", 1.0, 1.2, 1.5), ("deaf", "node", 1.0, 1.3, 1.5),
                                                ("restart", "node", 0.2, 2.1, 2.4), ("stop", "master", 1.0, 1.2, 1.5)):
        drawn = fault(what, kind, seconds, segment="a:1")
        assert not Held(True, one).may_lose([drawn])
        drawn.lasted = longest
        assert not Held(True, one).may_lose([drawn]), what
        if limit:
            drawn.lasted = limit + 0.01
            assert Held(True, one).may_lose([drawn]), what
            assert Held(True, two).may_lose([drawn]) == (kind == "master"), what


def test_what_the_other_faults_may_cost():
    one, etcd = Held(True, ["a:1"]), ["etcd0", "etcd1", "etcd2"]
    for what in ("wall", "drift"):  # nothing, however long
        assert not one.may_lose([fault(what, "node", 5.0, segment="a:1", amount=86400)])
        assert not one.may_lose([fault(what, "master", 5.0, amount=86400)])
    for what in ("thread", "suspend"):
        assert not one.may_lose([fault(what, "node", 1.0, segment="a:1")])
        assert one.may_lose([fault(what, "node", 2.0, segment="a:1")])
    assert one.may_lose([fault("suspend", "node", 0.1, segment="a:1", amount=10)])
    assert Held(True, ["10.77.0.9:5"]).may_lose([fault("suspend", "node", 0.1, segment="a:1", amount=10)])  # another process of that host
    assert one.may_lose([fault("suspend", "master", 0.1, amount=10)])
    assert not Held(True, ["a:1"], etcd).may_lose([fault("suspend", "master", 5.0, amount=1)])
    for amount in (10, 3600):  # nobody else has slept: what is there comes as soon as it leads again, and it waits for that
        assert not Held(True, ["a:1"], etcd).may_lose([fault("suspend", "master", 0.1, amount=amount)])
    assert one.may_lose([fault("reboot", "node", 0.1, segment="a:1")])
    assert not one.may_lose([fault("reboot", "node", 0.1, segment="b:1"), fault("reboot", "master", 0.1), fault("restart", "node", 0.1, segment="a:1"),
                             fault("forget", "master", 0.1)])
    held = fault("thread", "master", 5.0)
    held.thread = "mc-web"
    assert not one.may_lose([held])
    for held.thread in nemesis.MASTER_ACTS:
        assert one.may_lose([held])
    # Nobody knows where it lies: it may be wherever something was lost.
    assert not keeping.may_lose([], [fault("stop", "node", 0.3, segment="a:1")], True, False)
    assert keeping.may_lose([], [fault("stop", "node", 5.0, segment="a:1")], True, False)


COUNTING = """
import sys, threading, time
counts = [0, 0]
def count(which):
    while True:
        counts[which] += 1
        time.sleep(0.005)
for which in (0, 1):
    threading.Thread(target=count, args=(which,), daemon=True).start()
while True:
    time.sleep(0.05)
    print(*counts, flush=True)
"""


def test_one_thread_is_held_and_the_others_go_on():
    child = subprocess.Popen([sys.executable, "-c", COUNTING], stdout=subprocess.PIPE, text=True)
    process = harness.Process(SimpleNamespace(folder=pathlib.Path("/"), release=None), "counts", None)
    process.child = child

    def counts():
        end = time.monotonic() + 0.5
        while time.monotonic() < end:  # what was said before
            line = child.stdout.readline()
        return list(map(int, line.split()))
    try:
        counts()
        held = nemesis.Fault("thread", process, 0.1, amount=1)  # of main, first, second
        held.begin(None)
        first = counts()
        second = counts()
        assert held.thread and second[0] == first[0] and second[1] > first[1], (first, second)
        held.undo()
        assert counts()[0] > second[0]
        ((begun, ended),) = process.stops  # a client is not late by what we did to it
        assert ended - begun >= held.lasted * 0.9e9
        held.begin(None)
        process.kill()
        assert process.held is None
    finally:
        child.kill()
        child.wait()


def test_what_cannot_be_done_here_is_said(monkeypatch):
    network = SimpleNamespace(real=False)
    cluster = SimpleNamespace(network=network, masters=[1], nodes=[1], clients=[1], etcd=[])
    drawing = nemesis.Nemesis(cluster, None)
    assert "partitions" in drawing.left_out() and "clocks" in drawing.left_out()
    assert "partition" not in drawing.whats("node") and "forget" in drawing.whats("master")
    network.real = True
    assert "clocks" in drawing.left_out() and "partition" in drawing.whats("node") and "suspend" not in drawing.whats("node")
    network.fake_clocks, cluster.etcd = True, [1]
    assert drawing.left_out() == "" and {"suspend", "reboot", "wall", "drift"} < set(drawing.whats("node"))
    monkeypatch.setattr(nemesis, "can_hold_threads", lambda: False)
    assert drawing.left_out() == "single threads (no ptrace)" and "thread" not in drawing.whats("node")
    assert "forget" not in drawing.whats("master") and "reboot" not in drawing.whats("client") and "thread" not in drawing.whats("etcd")


def test_a_run_that_shows_nothing_is_not_good():
    run = trial.Trial(SimpleNamespace(keys=1, crowd=5, seed=1), 2, True)
    run.rounds = 9
    run.check_that_it_was_hard(SimpleNamespace(strange=0), SimpleNamespace(acknowledged=0), 120)
    assert len(run.problems) == 3
    run.problems, run.evicted["master0", 1] = [], 5
    run.check_that_it_was_hard(SimpleNamespace(strange=1), SimpleNamespace(acknowledged=1), 120)
    assert not run.problems


def test_a_refusal_is_a_problem(tmp_path):
    """Workers name the same group for a key always: no call of theirs is invalid."""
    path = tmp_path / "h"
    writer = history.Writer(path)
    for code in (0, -600):
        writer.done(writer.invoke(PUT, 0, 2 - (code == 0)), code, 2 - (code == 0))
    absent = SimpleNamespace(child=None)
    cluster = SimpleNamespace(keys=1, crowd=0, seed=1, clients=[SimpleNamespace(incarnations=[[1, path, [], None]])], keeper=absent, witness=absent,
                              clients_made=1)
    run = trial.Trial(cluster, 1, True)
    run.faults["kill node"] = 1
    result = run.verdict(Quiet(), None, None)
    assert not result["good"] and "1 calls were refused as invalid" in result["problems"][0]


def a_node(tmp_path, *starts):
    """One whose processes do this, in turn."""
    left = list(starts)
    cluster = SimpleNamespace(folder=tmp_path, data=tmp_path, release=SimpleNamespace(python_path=""), environment={})
    node = harness.Node(cluster, "node0", SimpleNamespace(popen=subprocess.Popen, environment=dict), False)
    node.command = lambda: ["sh", "-c", left.pop(0)]
    return node.start()


def test_a_node_that_found_no_master_starts_again(tmp_path):
    node = a_node(tmp_path, "echo cannot join the master; exit 3", "echo node ready a:7; sleep 60")
    node.wait_ready()
    assert node.segment == "a:7"
    node.kill()


def test_a_node_that_breaks_off_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="node0 has ended with -11"):
        a_node(tmp_path, "kill -SEGV $$", "echo node ready a:7; sleep 60").wait_ready()


def test_an_answer_that_nobody_heard_is_not_that_of_the_next_question():
    keeper = harness.Keeper(SimpleNamespace(folder=pathlib.Path("/"), release=None), "keeper", None)
    keeper.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        keeper.tell("write", 1)
        assert keeper.ask("look", 2) == {"look": 2}
        keeper.tell("write", 3)
        assert keeper.hear() == {"write": 3} and keeper.owed == 0
    finally:
        keeper.child.kill()
        keeper.child.wait()


class Target:
    """Needs 0.3 s to die and 0.2 s to start, and its new process waits 0.7 s for a processor."""
    kind, name, warm, starved_s = "node", "node7", True, 0.7
    cluster = SimpleNamespace(network=SimpleNamespace(lossy=False))

    def kill(self):
        time.sleep(0.3)

    def start(self):
        time.sleep(0.2)
        self.ready_at = time.monotonic() + 0.4

    def has_joined(self):
        return time.monotonic() >= self.ready_at

    def wait_ready(self):
        time.sleep(max(self.ready_at - time.monotonic(), 0))


def test_how_long_a_fault_lasts():
    lasts = nemesis.Fault("kill", Target(), 0.3)
    lasts.begin(None)
    assert str(lasts) == "kill node7 for 0.3 s"
    lasts.undo()
    assert 0.5 <= lasts.lasted < 2
    before = lasts.lasted
    lasts.settle()
    assert abs(lasts.lasted - before - Target.starved_s) < 0.01  # what the new process itself takes is its own
    assert str(lasts) == f"kill node7 for 0.3 s (in fact {lasts.lasted:.1f} s)"
    lossy = nemesis.Fault("kill", Target(), 0.3)
    lossy.target.cluster = SimpleNamespace(network=SimpleNamespace(lossy=True))
    lossy.target.starved_s = 0
    lossy.begin(None)
    lossy.undo()
    lossy.settle()
    assert 0.9 <= lossy.lasted < 2  # with its whole start
    lossy.begin(None)
    lossy.undo()
    time.sleep(2)  # another fault goes on
    lossy.settle()
    assert 0.9 <= lossy.lasted < 2  # and nothing after that
    stop = nemesis.Fault("restart", Target(), 0.1)
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


class Late:
    """A keeper that can put one key, and does so when the call that failed is over: the removal that is asked for first fails, or comes too early."""

    def __init__(self, removals):
        self.removals, self.there, self.late = removals, None, None

    def ask(self, what, keys):
        if what == "look":
            return {"found": [self.there or 0]}
        if what == "where":
            return {"where": [["a:1"]]}
        if what == "remove":
            code = self.removals.pop(0)
            self.there = None if code == 0 else self.there
            self.there, self.late = self.late or self.there, None
            return {"codes": [code]}
        codes = []
        for _, value, *_ in keys:
            first = value == 1
            self.late = value if first else None
            self.there = self.there or (None if first else value)
            codes.append(-900 if first else 0)
        return {"codes": codes}


@pytest.mark.parametrize("removals,value", [([-704, -704], 1), ([0, -900, 0], 2), ([0, 0], 1)])
def test_what_is_kept_is_what_is_there(monkeypatch, removals, value):
    monkeypatch.setattr(keeping.Keep, "COUNT", 1)
    keep = keeping.Keep(SimpleNamespace(etcd=[], disks_keep=False, keeper=Late(removals)), True)
    assert keep.values == {0: value} and removals == []


def test_a_lost_key_is_told_with_its_place(monkeypatch):
    monkeypatch.setattr(keeping, "RECOVER_S", 0.05)
    watched = kept(Answers(0), 1)
    watched.check([fault("kill", "node", segment="a:1")])
    assert watched.wrong == ["lost 1 kept keys after kill node for 0.1 s: 1 at a:1"]
    assert watched.lost["unlawful"] == 1 and watched.values == {}


def test_where_there_is_no_room_what_is_pinned_stays(monkeypatch):
    monkeypatch.setattr(keeping, "RECOVER_S", 0.05)
    pinned, other = 1, 3
    assert keeping.Keep.pinned(pinned) and not keeping.Keep.pinned(other)
    watched = kept(Answers(0), pinned, other)
    watched.crowded = True
    watched.check([])
    assert watched.wrong == ["lost 1 kept keys after nothing: 1 at a:1"] and watched.lost == {"unlawful": 1, "lawful": 1}
    watched = kept(Answers(8), other)  # it may go, but not come back as something else
    watched.crowded = True
    watched.check([])
    assert watched.wrong == ["kept key 3 has value 8, not 7"]


def test_a_key_that_leaves_its_group_is_told():
    for code, wrong in ((-600, []), (-901, []), (0, ["kept key 1 of group kept-1 took value 9 in another group"])):
        watched = kept(Answers(7, upserts=code), 1)
        watched.check([])
        assert watched.wrong == wrong and watched.strange == (code == -600)
    watched = kept(Answers(7, upserts=0, places=()), 1)  # the master has not heard of it yet
    watched.check([])
    assert not watched.wrong and watched.values == {1: 7}


def test_after_the_removal_of_everything_nothing_is_there(monkeypatch):
    monkeypatch.setattr(keeping, "RECOVER_S", 0.05)
    for code, found, wrong in ((5, 0, []), (-901, 7, []), (5, 7, ["1 kept keys are there after the removal of everything: [1]"])):
        watched = kept(Answers(found), 1)
        watched.remove_all({"code": code})
        assert watched.wrong == wrong and watched.values == {} and watched.emptied == (code >= 0)


@pytest.mark.parametrize("bad", ["last", "crowd", "witness"])
def test_keys_are_judged_a_few_at_a_time(tmp_path, bad):
    """With more keys than are judged at once: what is wrong with one is found, wherever, and everything is counted once."""
    keys, crowd = trial.JUDGED_AT_ONCE * 2 + 1, 7
    every = [*range(keys + crowd), history.WITNESS + 3]
    bad = {"last": keys - 1, "crowd": keys + crowd - 1, "witness": history.WITNESS + 3}[bad]
    writer = history.Writer(tmp_path / "h")
    for key in every:
        for operation, code in ((PUT, 0), (GET, 100), (REMOVE, 0)):
            writer.done(writer.invoke(operation, key, key + 1), code, key + 1)
    writer.done(writer.invoke(GET, bad), 100, bad + 1)  # removed, and read again
    run = trial.Trial(SimpleNamespace(keys=keys, crowd=crowd, seed=1), 1, True)
    report = run.judge([[1, tmp_path / "h", [], None]], {})
    assert (report.operations, report.keys, report.count) == (3 * len(every) + 1, len(every), 1)
    assert report.violations[0].key == bad


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
