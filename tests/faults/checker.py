"""Judges histories: for every key, is there an order of points in time that explains what all clients saw?

The object behind a key is a register that may forget (a cache):
  - a put takes effect at one moment: the key gets its value if it had none; otherwise nothing changes. The result is 0 either way;
  - an upsert takes effect at one moment: the key gets its value, whatever it had;
  - a key may lose its value at any moment, by itself;
  - a remove that answered 0 or "no such object" leaves the key without a value at one moment;
  - a get that delivers a value, and an exist that says 1, saw the key with that value, or with any, at one moment.

What is assumed about when those moments are:
  - of a call that ended with an answer: between its invocation and its return;
  - of a put or an upsert that ended with an error, or never: at any time from its invocation on, at most once, or never. With late_ns, not later than that
    after its return (or, when it never returned, after the end of its process, which `died` tells by client);
  - a remove that ended with an error or never may or may not have happened: as a value may vanish at any time it says nothing;
  - a get that missed and an exist that said 0 say nothing while nodes can be hidden (a suspect segment comes back), so that misses_prove
    must be given to take them as proof that the key had no value at that moment;
  - a remove that answered "no such object" proves it, unless absent_removes_prove is turned off.

An upsert that answered 0 is a put, and a read of its own value: it was there at one moment of the call.

Every value is put by one call only, so a value is there during one interval of time, and intervals do not overlap. Let a value be *forced* from
S, the earliest of the ends of its put and of its gets, to E, the latest start of its gets. If S < E the key had this value from S to E at
least; otherwise a moment between max(E, start of its put) and S is enough. An order exists if and only if no value was read before it was put,
the forced intervals are apart, and every other moment that must be outside them finds room: a window that lies strictly in one forced interval
does not, any other does, since two intervals that touch leave an instant between them. That is n log n for n operations.

    report = check(operations)          # Report; report.violations is a list of Violation, empty = good
"""
import bisect
from collections import defaultdict, namedtuple

from history import EXIST, GET, NAMES, PUT, REMOVE, UPSERT, WRONG_BYTES

OBJECT_NOT_FOUND, OBJECT_HAS_LEASE = -704, -706
FOREVER = 1 << 63
SHOWN_MAX = 100

Violation = namedtuple("Violation", "kind key text operations")


class Report:
    def __init__(self):
        self.violations = []
        self.count = 0
        self.operations = 0
        self.keys = 0

    def add(self, kind, key, text, *operations):
        self.count += 1
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(Violation(kind, key, text, operations))

    def take(self, other):
        """Adds what was found about other keys."""
        self.violations += other.violations[:max(SHOWN_MAX - len(self.violations), 0)]
        self.count += other.count
        self.operations += other.operations
        self.keys += other.keys

    def __str__(self):
        lines = [f"{self.operations} operations on {self.keys} keys, {self.count} violations"]
        for violation in self.violations:
            lines.append(f"  {violation.kind}: key {violation.key}: {violation.text}")
            lines += ["    " + describe(operation) for operation in violation.operations]
        return "\n".join(lines)


def describe(operation):
    end = "never" if operation.returned is None else f"{(operation.returned - operation.invoked) / 1e6:.3f} ms"
    return (f"client {operation.client} {NAMES.get(operation.operation, '?')} value {operation.value:#x} at {operation.invoked / 1e9:.6f}"
            f" took {end} code {operation.code}")


class Value:
    """What is known of one value of one key."""

    def __init__(self, put, last):
        self.put = put
        self.first = put.invoked
        self.forced = last  # latest moment at which it must be there for the first time
        self.until = 0      # latest moment at which it must still have been there
        self.forced_by = put
        self.until_by = None

    def read(self, get):
        if get.returned < self.forced:
            self.forced, self.forced_by = get.returned, get
        if get.invoked > self.until:
            self.until, self.until_by = get.invoked, get


class Key:
    """All operations of one key."""

    def __init__(self, key, report, options):
        self.key, self.report, self.options = key, report, options
        self.puts, self.gets, self.absences, self.presences = [], [], [], []

    def sort_in(self, operation):
        kind, code, ended = operation.operation, operation.code, operation.returned is not None
        if kind in (PUT, UPSERT):
            self.puts.append(operation)
            if kind == UPSERT and ended and code == 0:
                self.gets.append(operation)
        elif not ended:
            return
        elif kind == GET and code == WRONG_BYTES:
            self.report.add("wrong bytes", self.key, "a get delivered bytes that are no whole value of this key", operation)
        elif kind == GET and code > 0:
            self.gets.append(operation)
        elif kind == EXIST and code == 1 or kind == REMOVE and code == OBJECT_HAS_LEASE:
            self.presences.append(operation)
        elif kind == REMOVE and (code == 0 or code == OBJECT_NOT_FOUND and self.options["absent_removes_prove"]):
            self.absences.append(operation)
        elif self.options["misses_prove"] and (kind == GET and code == OBJECT_NOT_FOUND or kind == EXIST and code == 0):
            self.absences.append(operation)

    def last_moment(self, put):
        """Until when the put can take effect."""
        if put.returned is not None and put.code == 0:
            return put.returned
        late = self.options["late_ns"]
        if late is None:
            return FOREVER
        end = put.returned if put.returned is not None else self.options["died"].get(put.client)
        return FOREVER if end is None else end + late

    def values(self):
        """The values that were read, by number; tells of those that nobody can have written."""
        puts, values = {}, {}
        for put in self.puts:
            if put.value in puts:
                raise ValueError(f"value {put.value:#x} of key {self.key} was put twice: the history is of no use")
            puts[put.value] = put
        for get in self.gets:
            value = values.get(get.value)
            if value is None:
                put = puts.get(get.value)
                if put is None:
                    self.report.add("never written", self.key, "a get delivered a value that nobody put", get)
                    continue
                value = values[get.value] = Value(put, self.last_moment(put))
            if get.returned < value.first:
                self.report.add("read before written", self.key, "a get ended before the put of its value began", value.put, get)
                continue
            value.read(get)
        return values

    def cores(self, values):
        """Forced intervals in order; tells of those that overlap."""
        forced = sorted((value for value in values.values() if value.forced < value.until), key=lambda value: value.forced)
        apart = []
        for value in forced:
            if apart and value.forced < apart[-1].until:
                other = apart[-1]
                self.report.add("came back", self.key, "two values were there at the same time, or one came back after the other",
                                other.forced_by, value.forced_by, other.until_by, value.until_by)
                if value.until <= other.until:
                    continue
                apart[-1] = value
                continue
            apart.append(value)
        return apart

    def check(self):
        values = self.values()
        cores = self.cores(values)
        starts = [value.forced for value in cores]

        def core_around(first, last):
            at = bisect.bisect_left(starts, first) - 1
            return cores[at] if at >= 0 and cores[at].until > last else None

        for value in values.values():
            if value.forced < value.until:
                continue
            other = core_around(max(value.until, value.first), value.forced)
            if other is not None and value.until_by is not None:
                self.report.add("came back", self.key, "a value was seen while another one was there before and after it",
                                other.forced_by, value.put, value.until_by, other.until_by)
        for absence in self.absences:
            core = core_around(absence.invoked, absence.returned)
            if core is not None:
                what = "was removed" if absence.operation == REMOVE else "was gone"
                self.report.add("forgotten came back", self.key, f"a value that {what} was read later", core.forced_by, absence, core.until_by)
        self.check_presences()

    def check_presences(self):
        """An exist that says 1 needs a put that can still have been in effect: begun before, and not over when a later removal began."""
        if not self.presences:
            return
        puts = sorted(self.puts, key=lambda put: put.invoked)
        invoked, latest, most = [], [], 0
        for put in puts:
            most = max(most, self.last_moment(put))
            invoked.append(put.invoked)
            latest.append(most)
        removals = sorted(self.absences, key=lambda removal: removal.returned)
        ends, begun, most = [], [], 0
        for removal in removals:
            most = max(most, removal.invoked)
            ends.append(removal.returned)
            begun.append(most)
        for presence in self.presences:
            at = bisect.bisect_right(invoked, presence.returned) - 1
            if at < 0:
                self.report.add("exists unwritten", self.key, "the key exists, and no put had begun", presence)
                continue
            gone = bisect.bisect_left(ends, presence.invoked) - 1
            if gone >= 0 and latest[at] < begun[gone]:
                self.report.add("forgotten exists", self.key, "the key exists after its removal, and no put can have come later",
                                puts[at], removals[gone], presence)


def check(operations, misses_prove=False, absent_removes_prove=True, late_ns=None, died=None):
    """Judges operations of any number of clients, in any order."""
    report = Report()
    options = {"misses_prove": misses_prove, "absent_removes_prove": absent_removes_prove, "late_ns": late_ns, "died": died or {}}
    by_key = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
        report.operations += 1
    report.keys = len(by_key)
    for key, of_key in by_key.items():
        judge = Key(key, report, options)
        for operation in of_key:
            judge.sort_in(operation)
        judge.check()
    return report
