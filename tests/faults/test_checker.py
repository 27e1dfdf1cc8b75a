"""The checker catches what it must, and lets pass what is allowed: histories made by hand, and random ones against a search of all orders."""
import ctypes
import itertools
import random
import re
import sys
import time
import types

import pytest

import checker
import history
import keep
import nemesis
import worker
from history import EXIST, GET, PUT, REMOVE, UPSERT, WRONG_BYTES, Operation

MISS = checker.OBJECT_NOT_FOUND


def op(operation, invoked, returned, value=0, code=0, client=0, key=1):
    return Operation(invoked, returned, value, code, 0, key, operation, client)


def put(invoked, returned, value, code=0, **more):
    return op(PUT, invoked, returned, value, code, **more)


def upsert(invoked, returned, value, code=0, **more):
    return op(UPSERT, invoked, returned, value, code, **more)


def get(invoked, returned, value, **more):
    return op(GET, invoked, returned, value, 100 if value else MISS, **more)


def remove(invoked, returned, code=0, **more):
    return op(REMOVE, invoked, returned, 0, code, **more)


def exist(invoked, returned, code, **more):
    return op(EXIST, invoked, returned, 0, code, **more)


def kinds(operations, **options):
    return sorted({violation.kind for violation in checker.check(operations, **options).violations})


GOOD = {
    "nothing": [],
    "put, get": [put(1, 2, 1), get(3, 4, 1), exist(5, 6, 1)],
    "a get that overlaps its put": [put(1, 10, 1), get(2, 3, 1)],
    "a miss after a put": [put(1, 2, 1), get(3, 4, 0)],
    "a miss between two hits (hidden for a while)": [put(1, 2, 1), get(3, 4, 1), get(5, 6, 0), get(7, 8, 1)],
    "the first of two puts stays": [put(1, 2, 1), put(3, 4, 2), get(5, 6, 1)],
    "forgotten, then the second put stays": [put(1, 2, 1), put(3, 4, 2), get(5, 6, 2)],
    "two puts at once, either wins": [put(1, 4, 1), put(2, 3, 2), get(5, 6, 1)],
    "removed and put again": [put(1, 2, 1), get(3, 4, 1), remove(5, 6), put(7, 8, 2), get(9, 10, 2)],
    "a get that overlaps the removal": [put(1, 2, 1), remove(3, 6), get(4, 5, 1)],
    "a get that began before the removal ended": [put(1, 2, 1), remove(3, 6), get(5, 9, 1)],
    "a removal that overlaps the put": [put(1, 5, 1), remove(2, 3), get(6, 7, 1)],
    "a removal that failed": [put(1, 2, 1), remove(3, 4, code=-901), get(5, 6, 1)],
    "a removal that never ended": [put(1, 2, 1), remove(3, None), get(5, 6, 1)],
    "a failed put that took effect later": [put(1, 2, 1, code=-901), remove(3, 4), get(5, 6, 1)],
    "a put of a killed process": [put(1, None, 1), get(9, 10, 1)],
    "a value of a put that nobody needs, between two others": [put(1, 2, 1), get(3, 4, 1), put(4, 7, 2), get(5, 6, 2), put(8, 9, 3), get(10, 11, 3)],
    "touching intervals": [put(1, 2, 1), get(5, 6, 1), put(1, 5, 2), get(6, 7, 2)],
    "exist during the put": [put(1, 5, 1), exist(2, 3, 1)],
    "exist while removed at the same time": [put(1, 2, 1), remove(3, 6), exist(4, 5, 1)],
    "two keys": [put(1, 2, 1, key=1), remove(3, 4, key=2), get(5, 6, 1, key=1)],
    "a get that never ended": [get(1, None, 7)],
    "an upsert replaces": [put(1, 2, 1), get(3, 4, 1), upsert(5, 6, 2), get(7, 8, 2)],
    "an upsert, forgotten, then a put": [upsert(1, 2, 1), put(3, 4, 2), get(5, 6, 2)],
    "a get that overlaps the upsert, either value": [put(1, 2, 1), upsert(3, 8, 2), get(4, 5, 1), get(6, 7, 2)],
    "two upserts at once, either wins": [upsert(1, 4, 1), upsert(2, 3, 2), get(5, 6, 1)],
    "a failed upsert that took effect later": [put(1, 2, 1), upsert(3, 4, 2, code=-901), get(5, 6, 1), get(7, 8, 2)],
    "an upsert of a killed process": [put(1, 2, 1), upsert(3, None, 2), get(5, 6, 1), get(9, 10, 2)],
    "upserted and removed at once": [upsert(1, 5, 1), remove(2, 3)],
}

BAD = {
    "wrong bytes": ("wrong bytes", [put(1, 2, 1), op(GET, 3, 4, 0, WRONG_BYTES)]),
    "a value that nobody put": ("never written", [put(1, 2, 1), get(3, 4, 2)]),
    "a value of another key": ("never written", [put(1, 2, 1, key=1), put(1, 2, 2, key=2), get(3, 4, 1, key=2)]),
    "read before written": ("read before written", [get(1, 2, 1), put(3, 4, 1)]),
    "removed, read again": ("forgotten came back", [put(1, 2, 1), remove(3, 4), get(5, 6, 1)]),
    "removed, read again, with the put's value read before": ("forgotten came back", [put(1, 20, 1), get(2, 3, 1), remove(4, 5), get(6, 7, 1)]),
    "a failed put's value, seen, removed, seen again": ("forgotten came back", [put(1, 2, 1, code=-900), get(3, 4, 1), remove(5, 6), get(7, 8, 1)]),
    "a killed client's value, seen, removed, seen again": ("forgotten came back", [put(1, None, 1), get(3, 4, 1), remove(5, 6), get(7, 8, 1)]),
    "not there for a remove, then read": ("forgotten came back", [put(1, 2, 1), remove(3, 4, code=MISS), get(5, 6, 1)]),
    "replaced, then back": ("came back", [put(1, 2, 1), get(3, 4, 1), put(5, 6, 2), get(7, 8, 2), get(9, 10, 1)]),
    "the second put won while the first was there": ("came back", [put(1, 2, 1), put(3, 4, 2), get(5, 6, 1), get(7, 8, 2)]),
    "overwritten and back": ("came back", [put(1, 2, 1), put(3, 5, 2), get(3, 4, 2), get(7, 8, 1)]),
    "two values in turn": ("came back", [put(1, 2, 1), put(1, 2, 2), get(3, 4, 1), get(5, 6, 2), get(7, 8, 1), get(9, 10, 2)]),
    "an upsert that was not stored": ("came back", [put(1, 2, 1), get(3, 4, 1), upsert(5, 6, 2), get(7, 8, 1)]),
    "an upsert that was stored, and back": ("came back", [put(1, 2, 1), get(3, 4, 1), upsert(5, 6, 2), get(7, 8, 2), get(9, 10, 1)]),
    "the first of two upserts stays": ("came back", [upsert(1, 2, 1), upsert(3, 4, 2), get(5, 6, 1)]),
    "an upsert's value, removed, read again": ("forgotten came back", [upsert(1, 2, 1), remove(3, 4), get(5, 6, 1)]),
    "a failed upsert's value, seen, removed, seen again": ("forgotten came back", [upsert(1, 2, 1, code=-901), get(3, 4, 1), remove(5, 6), get(7, 8, 1)]),
    "an upsert's value before the upsert": ("read before written", [get(1, 2, 1), upsert(3, 4, 1)]),
    "exists after the removal of an upsert": ("forgotten exists", [upsert(1, 2, 1), remove(3, 4), exist(5, 6, 1)]),
    "exists though nobody put": ("exists unwritten", [exist(1, 2, 1), put(3, 4, 1)]),
    "exists after its removal": ("forgotten exists", [put(1, 2, 1), remove(3, 4), exist(5, 6, 1)]),
    "leased after its removal": ("forgotten exists", [put(1, 2, 1), remove(3, 4), remove(5, 6, code=-706)]),
}


@pytest.mark.parametrize("name", GOOD)
def test_good(name):
    for order in itertools.islice(itertools.permutations(GOOD[name]), 24):
        assert kinds(order) == []


@pytest.mark.parametrize("name", BAD)
def test_bad(name):
    kind, operations = BAD[name]
    for order in itertools.islice(itertools.permutations(operations), 24):
        assert kinds(order) == [kind]


def test_misses_prove_only_when_asked():
    operations = [put(1, 2, 1), get(3, 4, 0), get(5, 6, 1)]
    assert kinds(operations) == []
    assert kinds(operations, misses_prove=True) == ["forgotten came back"]
    operations = [put(1, 2, 1), exist(3, 4, 0), exist(5, 6, 1)]
    assert kinds(operations) == []
    assert kinds(operations, misses_prove=True) == ["forgotten exists"]


def test_an_absent_remove_proves_unless_told():
    assert kinds([put(1, 2, 1), remove(3, 4, code=MISS), get(5, 6, 1)], absent_removes_prove=False) == []


def test_late_effects_can_be_bounded():
    operations = [put(1, 2, 1, code=-901), remove(3, 4), remove(20, 21), get(22, 23, 1)]
    assert kinds(operations) == []
    assert kinds(operations, late_ns=10) == ["forgotten came back"]
    killed = [put(1, None, 1, client=5), remove(20, 21), get(22, 23, 1)]
    assert kinds(killed, late_ns=10) == []
    assert kinds(killed, late_ns=10, died={5: 4}) == ["forgotten came back"]


def test_a_value_put_twice_is_a_broken_history():
    with pytest.raises(ValueError):
        checker.check([put(1, 2, 1), put(3, 4, 1)])


def explainable(operations):
    """The same question answered by trying: every order of moments on the grid of times, with forgetting at will."""
    times = sorted({moment for o in operations for moment in (o.invoked, o.returned) if moment is not None} | {10 ** 6})
    # A moment is a point or the gap behind it; several events may share one, in any order.
    slots = [t * 2 + half for t in times for half in (0, 1)]
    writes = (PUT, UPSERT)
    pending = [o for o in operations if o.returned is not None or o.operation in writes]
    seen = set()

    def windows(o):
        last = o.returned if o.returned is not None and not (o.operation in writes and o.code != 0) else 10 ** 6
        return o.invoked * 2, last * 2

    def search(slot, state, left):
        if (slot, state, left) in seen:
            return False
        seen.add((slot, state, left))
        must = [i for i in left if windows(pending[i])[1] < slots[slot]]
        if any(not (pending[i].operation in writes and pending[i].code != 0) for i in must):
            return False
        if not any(not (pending[i].operation in writes and (pending[i].code != 0 or pending[i].returned is None)) for i in left):
            return True
        if state is not None and search(slot, None, left):
            return True
        for i in left:
            o = pending[i]
            first, last = windows(o)
            if not first <= slots[slot] <= last:
                continue
            after = state
            if o.operation == PUT:
                after = o.value if state is None else state
            elif o.operation == UPSERT:
                after = o.value
            elif o.operation == GET and o.code > 0 and state != o.value:
                continue
            elif o.operation == EXIST and o.code == 1 and state is None:
                continue
            elif o.operation == REMOVE and o.code in (0, MISS):
                if o.code == MISS and state is not None:
                    continue
                after = None
            if search(slot, after, left - {i}):
                return True
        return slot + 1 < len(slots) and search(slot + 1, state, left)

    return search(0, None, frozenset(range(len(pending))))


def random_history(draw):
    operations, values = [], 0
    for _ in range(draw.randint(2, 6)):
        invoked = draw.randint(1, 12)
        returned = invoked + draw.randint(1, 4)
        kind = draw.choice([PUT, UPSERT, GET, GET, GET, REMOVE, EXIST])
        if kind in (PUT, UPSERT):
            values += 1
            code = draw.choice([0, 0, 0, -901])
            operations.append((put if kind == PUT else upsert)(invoked, draw.choice([returned] * 4 + [None]) if code == 0 else returned, values, code))
        elif kind == GET:
            operations.append(get(invoked, returned, draw.randint(1, 3)))
        elif kind == REMOVE:
            operations.append(remove(invoked, returned, draw.choice([0, MISS])))
        else:
            operations.append(exist(invoked, returned, 1))
    return operations


def test_it_agrees_with_a_search_of_all_orders():
    draw = random.Random(4)
    verdicts = {True: 0, False: 0}
    for _ in range(3000):
        operations = random_history(draw)
        good = kinds(operations) == []
        verdicts[good] += 1
        # What exists say is judged one by one here and together there: the search may find more, never less.
        if any(o.operation == EXIST for o in operations) and good:
            continue
        assert good == explainable(operations), [checker.describe(o) for o in operations]
    assert min(verdicts.values()) > 300


class Liar:
    """The store of a load worker, in one process: keeps values, and lies as it is told."""

    def __init__(self, lie=""):
        self.lie, self.values, self.before = lie, {}, {}

    def register_buffer(self, _place, _size):
        return 0

    def upsert_from(self, name, place, size, _config):
        if self.lie != "upserts that are not stored" or name not in self.values:
            self.before[name] = self.values.get(name)
            self.values[name] = ctypes.string_at(place, size)
        return 0

    def get_into(self, name, place, _size):
        value = self.values.get(name)
        if value is None:
            return MISS
        ctypes.memmove(place, value, len(value))
        return len(value)

    def put_from(self, name, place, size, _config):
        if name not in self.values:
            self.values[name] = ctypes.string_at(place, size)
        return 0

    def remove(self, name, _force):
        """What an eviction does, too; then a value that has been replaced long ago is found again."""
        if self.lie == "an old version is found again" and self.before.get(name):
            self.values[name] = self.before[name]
        else:
            self.values.pop(name, None)
        return 0

    def remove_all(self, _force):
        return self.remove_by_regex("", True)

    def is_exist(self, name):
        return int(name in self.values)

    def remove_by_regex(self, pattern, _force):
        gone = [name for name in self.values if re.search(pattern, name)]
        if self.lie != "removals that are not done":
            for name in gone:
                del self.values[name]
        return len(gone)

    def _piece(self, name, offset, length, place):
        older = self.lie == "pieces of two values" and offset == worker.PIECES[-1][0] and self.before.get(name)
        ctypes.memmove(place, (older or self.values[name])[offset:offset + length], length)

    def get_into_ranges(self, bases, keys, targets, sources, sizes):
        if keys[0][0] not in self.values:
            return [[[MISS] * len(sizes[0][0])]]
        for target, source, size in zip(targets[0][0], sources[0][0], sizes[0][0]):
            self._piece(keys[0][0], source, size, bases[0] + target)
        return [[sizes[0][0]]]

    def batch_get_session_start(self, keys):
        return [0 if key in self.values else MISS for key in keys]

    def batch_get_session_end(self, _keys):
        return 0

    def batch_get_into_multi_buffer_ranges(self, keys, places, sizes, sources):
        if keys[0] not in self.values:
            return [MISS]
        for place, size, source in zip(places[0], sizes[0], sources[0]):
            self._piece(keys[0], source, size, place)
        return [sum(sizes[0])]


def seen_by_a_worker(tmp_path, monkeypatch, lie, *steps):
    """What the checker says of a worker that makes these calls on one key of such a store."""
    liar = Liar(lie)
    monkeypatch.setattr(worker, "join", lambda *_: liar)
    monkeypatch.setitem(sys.modules, "mooncake.store", types.SimpleNamespace(ReplicateConfig=types.SimpleNamespace))
    options = types.SimpleNamespace(seed="1", keys=1, history=tmp_path / "history", client=1, slow_ms=1000, rate=1000, master="", host="", segment=0, ranges=True,
                                    crowd=4, crowded=True)
    load = worker.Load(options)
    for step in steps:
        name, _, key = step.partition(" ")
        getattr(load, name)(int(key or 0))
    return sorted({violation.kind for violation in checker.check(history.read(tmp_path / "history", 1)).violations})


def a_keeper(tmp_path, monkeypatch, lie):
    liar = Liar(lie)
    monkeypatch.setattr(worker, "join", lambda *_: liar)
    monkeypatch.setitem(sys.modules, "mooncake.store", types.SimpleNamespace(ReplicateConfig=types.SimpleNamespace))
    return liar, worker.Keeper(types.SimpleNamespace(master="", host="", history=tmp_path / "keeper"))


EVERYTHING = ("upsert", "get", "upsert", "ranges", "session", "get", "remove_some", "get", "ranges", "session", "upsert", "get")


@pytest.mark.parametrize("lie,steps,expected", [
    ("", EVERYTHING, []),
    ("upserts that are not stored", ("upsert", "get", "upsert", "get"), ["came back"]),
    ("removals that are not done", ("upsert", "get", "remove_some", "get"), ["forgotten came back"]),
    ("pieces of two values", ("upsert", "upsert", "ranges"), ["wrong bytes"]),
    ("pieces of two values", ("upsert", "upsert", "session"), ["wrong bytes"]),
    ("", ("upsert 3", "get 3", "upsert 3", "remove 3", "get 3", "put 3", "get 3", "exist"), []),
    ("an old version is found again", ("upsert 3", "get 3", "upsert 3", "get 3", "remove 3", "get 3"), ["came back", "forgotten came back"]),
])
def test_what_a_worker_sees_is_judged(tmp_path, monkeypatch, lie, steps, expected):
    assert seen_by_a_worker(tmp_path, monkeypatch, lie, *steps) == expected


@pytest.mark.parametrize("lie,expected", [("", []), ("removals that are not done", ["forgotten came back"])])
def test_a_removal_of_everything_is_judged(tmp_path, monkeypatch, lie, expected):
    """The keeper asks for it, and what the clients of the load see before and after belongs to it."""
    liar, keeper = a_keeper(tmp_path, monkeypatch, lie)
    content, place = worker.Content(), ctypes.create_string_buffer(worker.SIZE_MAX)
    address, load = ctypes.addressof(place), history.Writer(tmp_path / "load")
    liar.upsert_from("fault-1", address, content.write(1, 5, address), None)
    load.done(load.invoke(PUT, 1, 5), 0, 5)
    assert keeper.remove_all(2)["code"] == 1
    length = liar.get_into("fault-1", address, 0)
    load.done(load.invoke(GET, 1), length, 5)
    assert kinds(history.read(tmp_path / "load", 1) + history.read(tmp_path / "keeper", -1)) == expected


KNOWN = {  # what was told: what a look afterwards may find (0: a miss), and what it may not
    "a put": ([(PUT, 1, 0)], [1], [0, 2]),
    "a put that failed": ([(PUT, 1, -901)], [0, 1], [2]),
    "0 because it exists": ([(PUT, 1, 0), (PUT, 2, 0)], [1], [0, 2]),
    "0, perhaps because it exists": ([(PUT, 1, -901), (PUT, 2, 0)], [1, 2], [0]),
    "replaced": ([(PUT, 1, 0), (UPSERT, 2, 0)], [2], [0, 1]),
    "perhaps replaced": ([(PUT, 1, 0), (UPSERT, 2, -901)], [1, 2], [0]),
    "removed": ([(PUT, 1, 0), (REMOVE, 0, 0)], [0], [1]),
    "perhaps removed": ([(PUT, 1, 0), (REMOVE, 0, -901)], [0, 1], [2]),
    "removed, and there again": ([(PUT, 1, 0), (REMOVE, 0, 0), (PUT, 2, 0)], [2], [0, 1]),
    "perhaps removed, and 0": ([(PUT, 1, 0), (REMOVE, 0, -901), (PUT, 2, 0)], [1, 2], [0]),
    "seen": ([(PUT, 1, -901), (PUT, 2, 0), (GET, 1, 100)], [1], [0]),
    "not seen": ([(PUT, 1, 0), (GET, 0, MISS)], [1], [0]),
    "late, after a removal": ([(PUT, 1, -901), (REMOVE, 0, 0)], [0, 1], [2]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_one_writer_knows(name):
    calls, good, bad = KNOWN[name]
    known = keep.Known()
    for call in calls:
        known.did(*call)
    assert [known.wrong(found) for found in good] == [""] * len(good)
    assert all(known.wrong(found) for found in bad)


def test_a_new_leader_may_take_a_put_over_what_it_does_not_know_yet():
    known = keep.Known()
    for call in ((PUT, 1, 0), (PUT, 2, 0)):
        known.did(*call)
    assert known.wrong(2) and not known.wrong(2, took_anew=True) and known.wrong(3, took_anew=True) and known.wrong(0, took_anew=True)


class Pool:
    """Of a witness and its keeper: what was written, where, and what is found."""

    def __init__(self, calls, where, found):
        self.calls, self.where, self.found, self.asked = calls, where, found, []

    def tell(self, command, argument):
        assert command == "write"
        self.keys = [key for key, _, _ in argument["plan"]]

    def hear(self):
        return {"written": [[self.keys[0], self.where, [list(call) for call in self.calls]]]}

    def ask(self, command, argument):
        self.asked.append((command, argument))
        return {"found": self.found[:1] * len(argument)} if command == "look" else {"codes": [0] * len(argument)}


@pytest.mark.parametrize("calls,where,found,wrong", [
    ([(PUT, 1, 0)], ["a:1"], 1, ""),
    ([(PUT, 1, 0)], ["a:1"], 0, "1 at a:1 is lost"),
    ([(PUT, 1, 0)], ["b:1"], 0, ""),              # there it was lawful
    ([(PUT, 1, 0)], ["a:1", "b:1"], 0, "1 at a:1 b:1 is lost"),
    ([(PUT, 1, 0)], [], 0, ""),                   # nobody knows where it was
    ([(PUT, 1, 0), (PUT, 2, 0)], ["a:1"], 2, ""),  # the first may have lain at b:1, and the second was taken in its place
    ([(PUT, 1, 0), (PUT, 2, 0)], ["a:1"], 3, "has value 3, not one of [1]"),
    ([(PUT, 1, 0), (REMOVE, 0, 0)], [], 1, "is there again"),
    ([(PUT, 1, 0)], ["b:1"], history.WRONG_BYTES, str(history.WRONG_BYTES)),
])
def test_what_was_acknowledged_during_a_fault_is_judged(monkeypatch, calls, where, found, wrong):
    monkeypatch.setattr(keep, "RECOVER_S", 0.05)
    pool = Pool(calls, where, [found])
    witness = keep.Witness(types.SimpleNamespace(seed=1, etcd=[], disks_keep=False, keeper=pool, witness=pool), True)
    lost = types.SimpleNamespace(kind="node", name="node", segment="b:1", warm=False)
    witness.begin(0.1)
    witness.check([nemesis.Fault("kill", lost, 5.0)], witness.finish())
    assert len(witness.wrong) == bool(wrong) and wrong in "".join(witness.wrong), witness.wrong
    assert witness.lost["unlawful"] == wrong.endswith("is lost")
    assert witness.acknowledged == (calls[-1][0] == PUT)


@pytest.mark.parametrize("disks_keep", [False, True])
def test_what_lies_on_a_disk_may_be_lost_where_disks_are_small(disks_keep):
    watched = keep.Watched(types.SimpleNamespace(etcd=[], disks_keep=disks_keep), True)
    killed = [nemesis.Fault("kill", types.SimpleNamespace(kind="node", name="node0", warm=False, segment="a:1",
                                                          host=types.SimpleNamespace(known_as="10.77.0.9")), 0.1)]
    assert watched.may_lose(["a:1", "a disk"], killed) == (not disks_keep)
    assert watched.may_lose(["a disk"], []) == (not disks_keep)
    assert watched.may_lose(["a:1"], killed)
    assert not watched.may_lose(["b:1", "a disk"], killed) and not watched.may_lose(["a:1", "a disk"], [])


def test_a_put_that_was_not_needed_is_not_taken_where_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(keep, "RECOVER_S", 0.05)
    pool = Pool([(PUT, 1, 0), (PUT, 2, 0)], ["a:1"], [2])
    witness = keep.Witness(types.SimpleNamespace(seed=1, etcd=[], disks_keep=False, keeper=pool, witness=pool), True)
    witness.begin(0.1)
    witness.check([], witness.finish())
    assert len(witness.wrong) == 1 and "has value 2, not one of [1]" in witness.wrong[0]


def test_what_the_witness_removed_stays_away():
    pool = Pool([(PUT, 1, 0)], ["a:1"], [1])
    witness = keep.Witness(types.SimpleNamespace(seed=1, etcd=[], disks_keep=False, keeper=pool, witness=pool), True)
    for _ in range(2):
        witness.begin(0.1)
        witness.check([], witness.finish())
    assert witness.wrong == ["1 removed keys are there again: [1]"]


@pytest.mark.parametrize("where,evicted,wrong", [
    ([["a:1"]] * 4, 0, 0), ([[]] * 4, 1, 0), ([[], ["a:1"], ["a:1"], ["b:1"]], 0, 1), ([["a:1"], ["a:1"], [], ["a:1"]], 0, 1),
    ([["a disk"], [], ["a disk"], ["a disk"]], 1, 0), ([["a disk"], ["a:1", "a disk"], [], []], 0, 1)])
def test_a_group_leaves_memory_as_a_whole(monkeypatch, where, evicted, wrong):
    monkeypatch.setattr(keep.Family, "WHOLE_S", 0.15)
    monkeypatch.setattr(keep.Family, "GONE_S", 0.6)
    looks = []

    def ask(command, names):
        if command == "put":
            return {"codes": [0] * len(names)}
        looks.append(names)
        return {"where": [["a:1"]] if len(looks) == 1 else where[:len(names)]}
    family = keep.Family(types.SimpleNamespace(keeper=types.SimpleNamespace(ask=ask)))
    family.check(0.0)
    assert family.evicted == evicted and len(family.wrong) == wrong


def test_a_million_operations_take_seconds():
    operations, now, value = [], 0, 0
    for number in range(1_000_000):
        now += 3
        key = number % 16
        if number % 8 == key % 8 and number % 64 < 8:
            value += 1
            operations.append(put(now, now + 2, value, key=key))
        else:
            operations.append(get(now, now + 2, 0, key=key))
    start = time.monotonic()
    report = checker.check(operations)
    assert report.count == 0 and report.operations == 1_000_000
    assert time.monotonic() - start < 60


def test_a_history_survives_its_process(tmp_path):
    import os
    path = tmp_path / "h"
    pid = os.fork()
    if pid == 0:
        writer = history.Writer(path)
        for number in range(50_000):  # more than one growth of the file
            at = writer.invoke(PUT, 7, number + 1)
            writer.done(at, 0, number + 1)
        writer.invoke(GET, 7)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    operations = history.read(path, client=3)
    assert len(operations) == 50_001
    assert all(o.returned >= o.invoked and o.code == 0 for o in operations[:-1])
    assert operations[-1].returned is None and operations[-1].operation == GET and operations[-1].client == 3


def test_the_crowd_is_used_when_it_is_told(tmp_path, monkeypatch):
    liar = Liar()
    monkeypatch.setattr(worker, "join", lambda *_: liar)
    monkeypatch.setitem(sys.modules, "mooncake.store", types.SimpleNamespace(ReplicateConfig=types.SimpleNamespace))
    options = types.SimpleNamespace(seed="1", keys=1, history=tmp_path / "history", client=1, slow_ms=1000, rate=1e6, master="", host="", segment=0,
                                    ranges=False, crowd=4, crowded=False)
    load = worker.Load(options)
    load.steps = [(load.put, 1)]
    for _ in range(50):
        load.step()
    assert set(liar.values) == {"fault-0"}
    load.crowded = True
    for _ in range(100):
        load.step()
    assert set(liar.values) == {"fault-0", "crowd-0", "crowd-1", "crowd-2", "crowd-3"}
