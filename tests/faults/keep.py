"""Keys of which it is known what they must have: those that stay (Keep), and those that are written while a fault is on (Witness).

Clients of the load only know that a value may have been forgotten. Here it is known who wrote, where it lies, and what was done to that place.
"""
import random
import time
from collections import Counter

import history
from history import A_DISK, GET, PUT, REMOVE, UPSERT
from nemesis import lost_places

RECOVER_S = 20.0  # everything must work again so long after the last fault, whatever it was
YOUNG_S = 4.5     # longer than a leader is young, and removals are busy
OBJECT_NOT_FOUND, INVALID = -704, -600
REPLICAS = (1, 2)


def may_lose(where, faults, survives, elected):
    """Whether these faults may cost an object that lies there: all of its replicas lay where memory was lost, or may have been given up.

    No place: it is not known where it lies, so it may be anywhere."""
    everything, segments, hosts = lost_places(faults, survives, elected)
    if everything or not where:
        return everything or bool(segments or hosts)
    return all(name in segments or name.rsplit(":", 1)[0] in hosts for name in where)


class Known:
    """What a key can have, by what its only writer was told, call after call."""

    def __init__(self):
        self.can = {None}  # None: no value
        self.late = set()  # of calls that failed: may come at any time later
        # Of puts that were told 0 because the key exists. A master that has just begun to lead may not know of it yet, and one that has given up the
        # place where it lay knows it no more: they take them.
        self.over = set()

    def did(self, kind, value, code):
        may = self.can | self.late
        if kind == GET:
            if code > 0 and value in may:
                self.can = {value}
        elif kind == REMOVE:
            self.can = {None} if code in (0, OBJECT_NOT_FOUND) else self.can | {None}
        elif code != 0:
            self.late.add(value)
        elif kind == UPSERT:
            self.can = {value}
        else:
            self.can = (may - {None}) | ({value} if None in may else set())
            self.over |= {value} - self.can

    def wrong(self, found, took_anew=False):
        """What is wrong with this value (0: a miss), unless it may have been lost; empty: nothing. took_anew: a put of a key that has a value may have
        been taken all the same."""
        if took_anew and found in self.over:
            return ""
        if found == 0:
            return "" if None in self.can else "is lost"
        if found in self.can | self.late:
            return ""
        return "is there again" if self.can == {None} else f"has value {found}, not one of {sorted(value for value in self.can | self.late if value)}"


class Watched:
    """A keeper process is asked about keys until what it says is right, or RECOVER_S is over."""

    def __init__(self, cluster, survives):
        self.cluster, self.survives = cluster, survives
        self.lost = Counter()
        self.wrong = []
        self.crowded = False  # the pool is smaller than what is put: what is not pinned may go

    def may_lose(self, where, faults, pinned=True):
        """A small disk gives up what it has held longest, pinned or not: there, only memory counts."""
        in_memory = [place for place in where if place != A_DISK]
        if self.crowded and not pinned or where == [A_DISK] and not self.cluster.disks_keep:
            return True
        return may_lose(where if self.cluster.disks_keep else in_memory, faults, self.survives, bool(self.cluster.etcd))

    def look(self, keys, wanted, prefix="kept"):
        """{key: value}, asked again as long as not all are wanted."""
        start, found, left = time.monotonic(), {}, list(keys)
        while left:
            found.update(zip(left, self.cluster.keeper.ask("look", [f"{prefix}-{key}" for key in left])["found"]))
            left = [key for key in left if not wanted(key, found[key])]
            if left and time.monotonic() - start > RECOVER_S:
                break
            time.sleep(0.05 if left else 0)
        return found


class Keep(Watched):
    """The keys that stay: put once, looked at after every fault. Some are pinned, some are in groups."""

    COUNT = 60
    GROUPS = 3

    def __init__(self, cluster, survives):
        super().__init__(cluster, survives)
        self.values = {}  # key -> value
        self.where = {}
        self.next_value = 1
        self.strange = 0  # upserts that named another group, and were refused
        self.emptied = 0  # removals of everything that were acknowledged
        self.put_missing()

    @staticmethod
    def pinned(key):
        return key % 3 != 0

    def group(self, key):
        return f"kept-{key % 5}" if key % 5 < self.GROUPS else ""

    def put_missing(self):
        keys = [key for key in range(self.COUNT) if key not in self.values]
        tried, end = {key: set() for key in keys}, time.monotonic() + RECOVER_S
        while keys:
            # What is there is to be what we put, and not what came back, or was said to have failed: each key is emptied first.
            gone = self.cluster.keeper.ask("remove", [f"kept-{key}" for key in keys])["codes"]
            items = []
            for key, code in zip(keys, gone):
                if code in (0, OBJECT_NOT_FOUND):
                    items.append([f"kept-{key}", self.next_value, 1 + key % 2, self.pinned(key), self.group(key)])
                    tried[key].add(self.next_value)
                    self.next_value += 1
            codes = self.cluster.keeper.ask("put", items)["codes"]
            for item, code in zip(items, codes):
                if code == 0:
                    self.values[int(item[0].rsplit("-", 1)[1])] = item[1]
            keys = [key for key in keys if key not in self.values]
            if keys and time.monotonic() > end:
                raise TimeoutError(f"puts and removals fail {RECOVER_S} s after the last fault: {sorted({*codes, *gone})}")
            time.sleep(0.05 if keys else 0)
        # A put that failed may take effect after the removal; the one behind it is told 0 then, because the key is there.
        again = [key for key, values in tried.items() if len(values) > 1]
        found = self.look(again, lambda key, value: value in tried[key])
        self.values.update({key: value for key, value in found.items() if value in tried[key]})
        keys = sorted(self.values)
        self.where = dict(zip(keys, self.cluster.keeper.ask("where", [f"kept-{key}" for key in keys])["where"]))

    def check(self, faults):
        """Until all keys are there, or RECOVER_S is over. Returns (seconds until no key was missing that must be there, lawfully lost)."""
        start, keys = time.monotonic(), sorted(self.values)
        must = [key for key in keys if not self.may_lose(self.where[key], faults, self.pinned(key))]
        may = [key for key in keys if key not in set(must)]
        found = self.look(must, lambda key, value: value == self.values[key])
        self.judge(found)
        missing = [key for key in must if found[key] != self.values[key]]
        took = time.monotonic() - start
        if missing:
            self.lost["unlawful"] += len(missing)
            places = "; ".join(f"{key} at {' '.join(self.where[key])}" for key in missing[:10])
            self.wrong.append(f"lost {len(missing)} kept keys after {', '.join(map(str, faults)) or 'nothing'}: {places}")
        self.groups_hold([key for key in must if key not in missing])
        # A master that is young hides what it may learn of yet: it is not put again before it can be known to be gone.
        time.sleep((YOUNG_S if any(getattr(fault, "forgot", False) for fault in faults) else 0.5) if may else 0)
        found = self.look(may, lambda key, value: value >= 0 or value == history.WRONG_BYTES)  # no answer is no loss
        self.judge(found)
        gone = [key for key in may if found[key] != self.values[key]]
        self.lost["lawful"] += len(gone)
        for key in gone + missing:
            del self.values[key]
        self.put_missing()
        return took, len(gone)

    def judge(self, found):
        for key, value in found.items():
            if value > 0 and value != self.values[key] or value == history.WRONG_BYTES:
                self.wrong.append(f"kept key {key} has value {value}, not {self.values[key]}")

    def groups_hold(self, keys):
        """A key stays in its group, whichever master leads: an upsert that names another one is refused as long as the key is there.

        What may be evicted meanwhile is not asked. A call that fails otherwise is not done, now or later. Nor is a key that the master does not know
        yet, which a reader finds where it lay: to a master that has just begun to lead an upsert of it is one of a new key."""
        keys = [key for key in keys if self.group(key) and (self.pinned(key) or not self.crowded)][:4]
        keys = [key for key, where in zip(keys, self.cluster.keeper.ask("where", [f"kept-{key}" for key in keys])["where"]) if where]
        items = [[f"kept-{key}", self.next_value + number, 1, False, "another"] for number, key in enumerate(keys)]
        self.next_value += len(items)
        for key, item, code in zip(keys, items, self.cluster.keeper.ask("upsert", items)["codes"]):
            self.strange += code == INVALID
            if code == 0:
                self.wrong.append(f"kept key {key} of group {self.group(key)} took value {item[1]} in another group")
                self.values[key] = item[1]

    def remove_all(self, answer):
        """What the keeper has been told of the removal of everything: nothing that was there before may be there again."""
        keys = sorted(self.values)
        if answer["code"] >= 0:
            self.emptied += 1
            found = self.look(keys, lambda key, value: value >= 0 or value == history.WRONG_BYTES)
            back = [key for key in keys if found[key] != 0]
            if back:
                self.wrong.append(f"{len(back)} kept keys are there after the removal of everything: {back[:10]}")
        self.values = {}
        self.put_missing()


class Witness(Watched):
    """Writes pinned keys of its own while a fault is on. What was acknowledged is there afterwards, unless where it lies was lost."""

    MOST = 60  # keys a round
    SEQUENCES = ((PUT,), (PUT,), (PUT, PUT), (PUT, UPSERT), (PUT, REMOVE, PUT), (PUT, REMOVE), (UPSERT, GET, PUT))

    def __init__(self, cluster, survives):
        super().__init__(cluster, survives)
        self.draw = random.Random(f"witness-{cluster.seed}")
        self.next_key = self.next_value = 1
        self.acknowledged = 0  # keys of which it was certain that they have a value
        self.absent = []       # keys that were removed, and must stay away

    def begin(self, seconds):
        """It writes for so long, and until its last call has ended."""
        plan = []
        for key in range(self.next_key, self.next_key + self.MOST):
            steps = []
            for kind in self.draw.choice(self.SEQUENCES):
                steps.append([kind, self.next_value])
                self.next_value += 1
            plan.append([key, self.draw.choice(REPLICAS), steps])
        self.next_key += self.MOST
        self.cluster.witness.tell("write", {"plan": plan, "seconds": seconds})

    def finish(self):
        """{key: (what is known of it, where it lies)}"""
        written = {}
        for key, where, done in self.cluster.witness.hear()["written"]:
            known = Known()
            for kind, value, code in done:
                known.did(kind, value, code)
            written[key] = known, where
        return written

    def check(self, faults, written):
        took_anew = self.may_lose([], faults) or any(fault.target.name.startswith(("master", "etcd")) for fault in faults)

        def right(key, value):
            known, where = written[key]
            return value >= 0 and (not known.wrong(value, took_anew) or value == 0 and self.may_lose(where, faults))
        found = self.look(written, right, "witness")
        wrong = []
        for key, (known, where) in written.items():
            self.acknowledged += None not in known.can
            if right(key, found[key]):
                continue
            if found[key] == 0:
                self.lost["unlawful"] += 1
            wrong.append(f"{key} at {' '.join(where)} {known.wrong(found[key]) if found[key] >= 0 else found[key]}")
        if wrong:
            self.wrong.append(f"{len(wrong)} keys written during {', '.join(map(str, faults))}: {'; '.join(wrong[:10])}")
        self.clear(written)

    def clear(self, written):
        """What was removed in the rounds before is still away, and what was written now goes, so that the pool has room."""
        back = [key for key, value in self.look(self.absent, lambda key, value: value >= 0, "witness").items() if value != 0]
        if back:
            self.wrong.append(f"{len(back)} removed keys are there again: {back[:10]}")
        left, end = sorted(written), time.monotonic() + RECOVER_S
        while left:
            codes = self.cluster.keeper.ask("remove", [f"witness-{key}" for key in left])["codes"]
            left = [key for key, code in zip(left, codes) if code not in (0, OBJECT_NOT_FOUND)]
            if left and time.monotonic() > end:
                raise TimeoutError(f"removals fail {RECOVER_S} s after the last fault: {sorted(set(codes))}")
            time.sleep(0.05 if left else 0)
        # A call that failed may still take effect: only the others are known to stay away.
        self.absent = [key for key, (known, _) in written.items() if not known.late]


class Family:
    """Members of one group that nobody reads, some of them much younger than the first: they leave memory all together. What a
    disk holds of them goes when its disk has no more room; a member that was on no disk yet is gone."""

    MEMBERS = 4
    WHOLE_S = 2.0   # a group does not go in one moment
    GONE_S = 20.0

    def __init__(self, cluster):
        self.cluster, self.number, self.wrong, self.evicted = cluster, 0, [], 0

    def put(self, names, values):
        """Those that were stored."""
        items = [[name, value, 1, False, f"family-{self.number}"] for name, value in zip(names, values)]
        return [name for name, code in zip(names, self.cluster.keeper.ask("put", items)["codes"]) if code == 0]

    def check(self, young_after_s=1.0):
        """With clients that put more than there is room for, and no fault."""
        self.number += 1
        names = [f"family-{self.number}-{member}" for member in range(self.MEMBERS)]
        values = [self.number * self.MEMBERS + member for member in range(self.MEMBERS)]
        members = self.put(names[:1], values[:1])
        time.sleep(young_after_s)
        members += self.put(names[1:], values[1:])
        if not self.there(members[:1]):
            members = members[1:]
        end, parted = time.monotonic() + self.GONE_S, None
        while members and time.monotonic() < end:
            left = len(self.there(members))
            if left == 0:
                self.evicted += 1
                return
            parted = (parted or time.monotonic()) if left < len(members) else None
            if parted and time.monotonic() - parted > self.WHOLE_S:
                self.wrong.append(f"{left} of the {len(members)} members of group family-{self.number} are left {self.WHOLE_S} s after others were evicted")
                return
            time.sleep(0.1)

    def there(self, names):
        """Those in memory. To ask where they lie is no use of them."""
        return [name for name, where in zip(names, self.cluster.keeper.ask("where", names)["where"]) if set(where) - {A_DISK}]
