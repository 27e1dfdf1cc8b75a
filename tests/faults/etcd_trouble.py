"""A bad etcd: what is done to it, and who draws that. Of masters that are elected in it, so three.

    late        what it is asked, or what it answers, takes 450 ms or 2 s      full       it takes no more writes
    compacted   nothing of what was is kept                                    emptied    somebody deletes all that the masters keep there
    deleted     one key of theirs goes, or their lease                         lost       its data directories are empty
    restored    it is killed, and comes back from a snapshot of some time ago
    hangs       one member of three stands still                               mute       one takes requests, and nothing comes of them

The members' own death, and what their hosts do, is in nemesis.py. In no case are there two leaders (leaders.py). None of it may cost anything, but for one:
when etcd forgets which leader gave somebody up, and nobody leads for so long that one may have, then the next takes up nothing that was silent meanwhile.
"""
import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

from nemesis import Fault, Nemesis

PLACE = "mooncake-store/mooncake_cluster/"
KEYS = ("master_view", "epoch", "departed", "aged", "cluster", "tidied")
LEASE_S = 2.0          # ha_lease_ttl as it is by itself
LED_WITHIN_S = LEASE_S + 2.0  # there is a leader so long after all is well
DEPART_S = LEASE_S + 2.0      # silence for so long may have cost an owner its contents
QUOTA = 16 << 20
FILLING = 1 << 20      # bytes
BACK_S = 20.0          # etcd itself has so long to be well again
SNAPSHOTS = 6
OF_ALL = ("late", "full", "compacted", "emptied", "deleted", "restored", "lost")
OF_ONE = ("hangs", "mute")
SHORT_S, LONG_S = (0.3, 1.0, 3.0), (0.3, 1.0, 3.0, 6.0)
WITH_A_MASTER = 0.5    # of the rounds harm a master, too
WITH_A_MEMBER = 0.15   # of the rounds are faults of nemesis.py


def text(value):
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def ask(member, path, **body):
    """Of a member itself, past the way that others take to it."""
    request = urllib.request.Request(f"http://{member.host.address}:{member.own_port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3) as reply:
        return json.load(reply)


def until(what, seconds=BACK_S):
    """Again and again until it does not fail."""
    end = time.monotonic() + seconds
    while True:
        try:
            return what()
        except OSError as error:
            if time.monotonic() > end:
                raise TimeoutError(f"etcd is not well {seconds} s after its trouble: {error}") from error
            time.sleep(0.05)


def delete_all(member, prefix):
    return ask(member, "/v3/kv/deleterange", key=text(prefix), range_end=text(prefix[:-1] + chr(ord(prefix[-1]) + 1)))


def compact(member):
    revision = ask(member, "/v3/kv/range", key=text(PLACE))["header"]["revision"]
    try:
        ask(member, "/v3/kv/compaction", revision=revision, physical=True)
    except urllib.error.HTTPError as error:
        if b"has been compacted" not in error.read():  # a question that was asked twice
            raise


def etcdctl(*words):
    done = subprocess.run(["etcdctl", *map(str, words)], capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, timeout=30)
    if done.returncode != 0:
        raise OSError(f"etcdctl {words}: {done.stderr.strip()}")


class Snapshots:
    """Of different times; the first of when every master had resigned."""

    def __init__(self, cluster, draw):
        self.cluster, self.draw, self.files, self.made = cluster, draw, [], 0

    def save(self, name=""):
        self.made += 1
        path = self.cluster.folder / f"snapshot-{self.made}"
        member = self.cluster.etcd[0]
        until(lambda: etcdctl("--endpoints", f"{member.host.address}:{member.own_port}", "snapshot", "save", path))
        if len(self.files) == SNAPSHOTS:
            self.files.pop(1 + self.draw.randrange(SNAPSHOTS - 1))[0].unlink()
        self.files.append((path, name or str(self.made), time.monotonic()))

    def save_resigned(self):
        """All masters end, one after the other, and come back."""
        for master in self.cluster.masters:
            if master.terminate(30) != 0:
                raise RuntimeError(f"{master.name} did not end as it should")
        self.save("resigned")
        for master in self.cluster.masters:
            master.start()
        for master in self.cluster.masters:
            master.wait_ready()


class Trouble(Fault):
    """One trouble of all of etcd, or of one member."""

    def __init__(self, what, cluster, seconds, draw, snapshots):
        self.members = list(cluster.etcd)
        target = SimpleNamespace(kind="etcd", name="etcd", cluster=cluster, host=None)
        if what in OF_ONE:
            self.members = [draw.choice(cluster.etcd)]
            target.name = self.members[0].name
        self.snapshots = snapshots
        self.forgot = False  # that which the next leader would have to know, for too long
        super().__init__(what, target, seconds)
        getattr(self, "draw_" + what, lambda draw: None)(draw)

    def begin(self, network):
        self.begun = time.monotonic()
        getattr(self, "begin_" + self.what)()

    def undo(self):
        getattr(self, "undo_" + self.what, lambda: None)()
        for member in self.target.cluster.etcd:
            until(lambda member=member: ask(member, "/v3/kv/put", key=text("well"), value=text("")))
        self.lasted = time.monotonic() - self.begun

    def settle(self):
        pass

    def silences(self):
        return False

    def forgets(self):
        """Epochs; masters that are there know them, those that start meanwhile do not."""
        return self.what in ("lost", "restored", "emptied") or self.what == "deleted" and self.key == "epoch"

    def led(self, moment):
        self.forgot = self.forgets() and moment - self.begun > 0.8 * DEPART_S

    def set_ways(self, **state):
        for member in self.members:
            member.way.set(state)

    def draw_late(self, draw):
        self.late = {draw.choice(("requests", "answers")): draw.choice((0.45, 2.0))}
        self.detail = "".join(f" ({name} {late} s)" for name, late in self.late.items())

    def begin_late(self):
        self.set_ways(**self.late)

    def undo_late(self):
        self.set_ways()

    def begin_mute(self):
        self.set_ways(mute=True)

    def undo_mute(self):
        self.set_ways()

    def begin_hangs(self):
        self.members[0].stop()

    def undo_hangs(self):
        self.members[0].go_on()

    def begin_full(self):
        def fill():
            for number in range(4 * QUOTA // FILLING):
                try:
                    ask(self.members[0], "/v3/kv/put", key=text(f"filling{number}"), value=text(bytes(FILLING)))
                except urllib.error.HTTPError as error:
                    if b"database space exceeded" not in error.read():
                        raise
                    return
            raise RuntimeError("etcd is never full")
        until(fill)

    def undo_full(self):
        first = self.members[0]
        until(lambda: delete_all(first, "filling"))
        until(lambda: compact(first))
        for member in self.members:
            until(lambda member=member: ask(member, "/v3/maintenance/defragment"))

        def disarm():
            for alarm in ask(first, "/v3/maintenance/alarm", action="GET").get("alarms", []):
                ask(first, "/v3/maintenance/alarm", action="DEACTIVATE", alarm=alarm["alarm"], memberID=alarm["memberID"])
        until(disarm)

    def begin_compacted(self):
        until(lambda: compact(self.members[0]))

    def begin_emptied(self):
        until(lambda: delete_all(self.members[0], PLACE))

    def draw_deleted(self, draw):
        self.key = draw.choice(KEYS + ("lease",))
        self.detail = f" ({self.key})"

    def begin_deleted(self):
        first = self.members[0]
        if self.key != "lease":
            until(lambda: ask(first, "/v3/kv/deleterange", key=text(PLACE + self.key)))
            return
        found = until(lambda: ask(first, "/v3/kv/range", key=text(PLACE + "master_view"))).get("kvs", [])
        try:
            for one in found:
                ask(first, "/v3/lease/revoke", ID=one["lease"])
        except urllib.error.HTTPError as error:
            if b"lease not found" not in error.read():
                raise

    def kill_all(self):
        for member in self.members:
            member.kill()
            shutil.rmtree(member.data)

    def start_all(self):
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_ready()

    def begin_lost(self):
        self.kill_all()

    undo_lost = start_all

    def draw_restored(self, draw):
        self.file, name, made = draw.choice(self.snapshots.files)
        self.detail = f" (snapshot {name}, of {time.monotonic() - made:.0f} s ago)"

    def begin_restored(self):
        self.kill_all()
        for member in self.members:
            etcdctl("snapshot", "restore", self.file, "--name", member.name, "--data-dir", member.data, "--initial-cluster", member.all_peers(),
                    "--initial-advertise-peer-urls", member.peer_url)

    undo_restored = start_all


class Troubles(Nemesis):
    """Draws a trouble of etcd, often with a fault of a master beside it."""

    def __init__(self, cluster, draw, only=()):
        super().__init__(cluster, draw, only)
        self.snapshots = Snapshots(cluster, draw)

    def trouble(self, what):
        seconds = self.draw.choice(SHORT_S if what in ("restored", "lost") else LONG_S)
        return Trouble(what, self.cluster, seconds, self.draw, self.snapshots)

    def next(self):
        if self.draw.random() < 0.5:
            self.snapshots.save()
        wanted = [word.split(":")[0] for word in self.only if word.endswith(":etcd")]
        possible = OF_ALL + (OF_ONE if len(self.cluster.etcd) > 1 else ())
        troubles = [what for what in possible if not wanted or what in wanted] or possible
        if not wanted and self.draw.random() < WITH_A_MEMBER:
            faults = [self.one("etcd", self.draw.choice(self.whats("etcd")))]
        else:
            faults = [self.trouble(self.draw.choice(troubles))]
        whats = [what for what in self.whats("master") if not self.only or f"{what}:master" in self.only]
        if whats and self.draw.random() < WITH_A_MASTER:
            faults.append(self.one("master", self.draw.choice(whats)))
        self.draw.shuffle(faults)
        return faults


def why_not():
    """What is missing here, or an empty text."""
    return "" if shutil.which("etcdctl") else "etcdctl is not here (Debian: etcd-client)"

