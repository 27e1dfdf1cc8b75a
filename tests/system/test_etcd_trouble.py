"""Masters over a real etcd that is in trouble: slow, full, emptied, brought back from long ago. Never do two of them serve at once."""
import json
import pathlib
import shutil
import threading
import time
import urllib.error

import pytest

from cluster import Master, wait_until
from etcd import Etcd, Proxy
from test_ha import SLOW, epoch_of, role, serves

CLUSTER = "trouble"
PLACE = f"mooncake-store/{CLUSTER}/"
VIEW, CLAIM = PLACE + "master_view", PLACE + "epoch"
TTL_S = 3


@pytest.fixture(scope="module")
def etcd():
    with Etcd(1, "--unsafe-no-fsync") as running:
        yield running


@pytest.fixture
def emptied(etcd):
    """The same, and the last leader has resigned long ago."""
    etcd.heal()
    empty(etcd)
    etcd.ask("/v3/kv/put", key=CLAIM.encode(), value=b"5 2000 0123456789abcdef notes resigned")
    return etcd


@pytest.fixture
def masters():
    """Starts masters, and ends them."""
    made = []

    def make(port, *flags):
        made.append(Master("--enable_ha", f"--etcd_endpoints=127.0.0.1:{port}", f"--cluster_id={CLUSTER}", *flags))
        return made[-1].start()
    yield make
    for master in made:
        if master.process is not None:
            assert master.stop() == 0, master.log()[-4000:]
        master.log_file.close()


def empty(etcd):
    etcd.ask("/v3/kv/deleterange", key=PLACE.encode(), range_end=PLACE.encode() + b"\xff")


def leads(master, limit_s):
    wait_until(lambda: serves(master), limit_s, f"a leader; it said {master.log()[-2000:]}")


# ---- slow ----

@pytest.mark.parametrize("ttl_s,late_s", ((3, 0.45), (10, 2.0)))
def test_answers_that_are_late_count(emptied, masters, ttl_s, late_s):
    with Proxy(emptied.ports[0]) as proxy:
        proxy.delay_s = late_s
        master = masters(proxy.port, f"--ha_lease_ttl={ttl_s}s")
        leads(master, ttl_s + 12 * late_s + 3)
        epoch, requests, start = epoch_of(master), proxy.requests, time.monotonic()
        time.sleep(1.3 * ttl_s)
        assert serves(master) and epoch_of(master) == epoch  # it has led all the time
        rate = (proxy.requests - requests) / (time.monotonic() - start)
        print(f"LATE {late_s} s, ttl {ttl_s} s: {rate:.1f} requests a second")
        assert rate < 2.5 / late_s  # and a slow etcd is not asked the more for it


# ---- the place says what is not true ----

class History:
    """Who served when, of two masters that are asked all the time."""

    def __init__(self, *masters):
        self.masters, self.spans, self.is_over = masters, {master: [] for master in masters}, threading.Event()
        self.threads = [threading.Thread(target=self._watch, args=(master,)) for master in masters]

    def _watch(self, master):
        while not self.is_over.is_set():
            start = time.monotonic()
            if serves(master):
                self.spans[master].append((start, time.monotonic()))
            time.sleep(0.005)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def one_after_the_other(self):
        """When did the first end and the second begin? An answer proves that its master served some time within its span."""
        first, second = (self.spans[master] for master in self.masters)
        assert first and second
        assert first[-1][0] < second[0][1], f"two leaders for {first[-1][0] - second[0][1]:.2f} s"
        return first[-1][1], second[0][0]


def delete_the_view(etcd):
    etcd.ask("/v3/kv/deleterange", key=VIEW.encode())


def revoke_the_lease(etcd):
    found = etcd.ask("/v3/kv/range", key=VIEW.encode())
    etcd.ask("/v3/lease/revoke", ID=found["kvs"][0]["lease"])


@pytest.mark.parametrize("harm", (delete_the_view, revoke_the_lease, empty))
def test_what_is_gone_has_not_resigned(emptied, masters, harm):
    """The leader hears nothing of it: it goes on until its time is over, and so must the standby wait."""
    with Proxy(emptied.ports[0]) as proxy:
        leader = masters(proxy.port, f"--ha_lease_ttl={TTL_S}s")
        leads(leader, 3 * TTL_S)
        standby = masters(emptied.ports[0], f"--ha_lease_ttl={TTL_S}s")
        wait_until(lambda: role(standby) == "standby", 5)
        with History(leader, standby) as history:
            time.sleep(1)
            proxy.is_mute = True
            harm(emptied)
            start = time.monotonic()
            wait_until(lambda: history.spans[standby] and not serves(leader), 4 * TTL_S * SLOW, "the standby leads alone")
        ended, began = history.one_after_the_other()
        print(f"GONE {harm.__name__}: the leader ended after {ended - start:.2f} s, the next led after {began - start:.2f} s")
        assert ended - start > TTL_S / 2


@pytest.mark.parametrize("harm", (delete_the_view, revoke_the_lease, empty))
def test_a_leader_that_sees_it_goes_on(emptied, masters, harm):
    """Under another epoch; at once unless etcd has forgotten that it was the last."""
    leader = masters(emptied.ports[0])
    leads(leader, 10)
    standby, epoch, start = masters(emptied.ports[0]), epoch_of(leader), time.monotonic()
    wait_until(lambda: role(standby) == "standby", 5)
    harm(emptied)
    wait_until(lambda: any(serves(one) and epoch_of(one) > epoch for one in (leader, standby)), 10, "a later leader")
    print(f"SEEN {harm.__name__}: led again after {time.monotonic() - start:.2f} s")
    assert sum(serves(one) for one in (leader, standby)) == 1


def test_data_of_long_ago(emptied, masters, tmp_path):
    """Of when somebody had resigned, whom others have followed since."""
    etcd, flag = emptied, f"--ha_lease_ttl={TTL_S}s"
    first = masters(etcd.ports[0], flag)
    leads(first, 3 * TTL_S)
    assert first.stop() == 0
    data = pathlib.Path(etcd.folder.name) / "m0"
    etcd.kill(0)
    shutil.copytree(data, tmp_path / "copy")
    etcd.heal()
    leader = masters(etcd.ports[0], flag)
    leads(leader, 3 * TTL_S)
    epoch, standby = epoch_of(leader), masters(etcd.ports[0], flag)
    wait_until(lambda: json.loads(standby.get("/leader")[1])["present"], 5)
    with History(leader, standby) as history:
        time.sleep(1)
        bring_back(etcd, tmp_path / "copy")
        wait_until(lambda: any(serves(one) and epoch_of(one) > epoch for one in (leader, standby)), 4 * TTL_S * SLOW, "a later leader")
    if history.spans[standby]:
        history.one_after_the_other()


def bring_back(etcd, copy):
    data = pathlib.Path(etcd.folder.name) / "m0"
    etcd.kill(0)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    etcd.heal()


def test_who_starts_over_data_of_long_ago(emptied, masters, tmp_path):
    """It has met nobody who led since somebody resigned there; the leader has not heard that it is forgotten."""
    ttl_s = 6
    etcd, flag = emptied, f"--ha_lease_ttl={ttl_s}s"
    etcd.kill(0)
    shutil.copytree(pathlib.Path(etcd.folder.name) / "m0", tmp_path / "copy")
    etcd.heal()
    with Proxy(etcd.ports[0]) as proxy:
        leader = masters(proxy.port, flag)
        leads(leader, 3 * ttl_s)
        proxy.is_mute = True
        bring_back(etcd, tmp_path / "copy")
        started = masters(etcd.ports[0], flag)
        with History(leader, started) as history:
            assert serves(leader)  # else this shows nothing
            wait_until(lambda: history.spans[started] and not serves(leader), 4 * ttl_s * SLOW, "the one that has started leads alone")
        history.one_after_the_other()


def test_a_clean_end_is_followed_at_once(emptied, masters):
    """With a long time to live, so that nothing but the word of the one that ended can have done it."""
    leader = masters(emptied.ports[0], "--ha_lease_ttl=10s")
    leads(leader, 30)
    standby = masters(emptied.ports[0], "--ha_lease_ttl=10s")
    wait_until(lambda: json.loads(standby.get("/leader")[1])["present"], 5)
    start = time.monotonic()
    assert leader.stop() == 0
    leads(standby, 5)
    assert time.monotonic() - start < 3 * SLOW
    assert emptied.text(CLAIM).split()[-1] != "resigned"


# ---- full, and what is in the way ----

def fill(etcd):
    """Until it takes no more."""
    for number in range(100000):
        try:
            etcd.ask("/v3/kv/put", key=b"filling%d" % number, value=bytes(500000))
        except urllib.error.HTTPError as error:
            assert b"database space exceeded" in error.read()
            return
    raise AssertionError("it is never full")


def test_a_full_etcd(masters):
    """Nobody can lead; the log says why, and what to do. Once that is done all is well."""
    with Etcd(1, "--unsafe-no-fsync", f"--quota-backend-bytes={6 << 20}") as etcd:
        one, other = (masters(etcd.ports[0]) for _ in range(2))
        wait_until(lambda: serves(one) or serves(other), 10)
        fill(etcd)
        wait_until(lambda: not serves(one) and not serves(other), 5 * SLOW, "nobody leads")
        wait_until(lambda: "etcd is full" in one.log() + other.log(), 5 * SLOW, f"the word that it is full in {one.log()} {other.log()}")
        assert "etcdctl alarm disarm" in one.log() + other.log()
        etcd.ask("/v3/kv/deleterange", key=b"filling", range_end=b"fillinh")
        etcd.ask("/v3/kv/compaction", revision=etcd.ask("/v3/kv/range", key=b"x")["header"]["revision"], physical=True)
        etcd.ask("/v3/maintenance/defragment")
        etcd.ask("/v3/maintenance/alarm", action="DEACTIVATE", alarm="NOSPACE", memberID=etcd.ask("/v3/maintenance/status")["header"]["member_id"])
        wait_until(lambda: serves(one) or serves(other), 10 * SLOW)


def test_a_compaction_by_somebody_else(emptied, masters):
    one = masters(emptied.ports[0])
    leads(one, 10)
    epoch = epoch_of(one)
    for _ in range(3):
        emptied.ask("/v3/kv/compaction", revision=emptied.ask("/v3/kv/range", key=b"x")["header"]["revision"], physical=True)
        time.sleep(1)
    assert serves(one) and epoch_of(one) == epoch


def test_an_epoch_of_a_wrong_clock(emptied, masters):
    """A claim that nobody can follow: said in words, with what to do; done, somebody leads."""
    emptied.ask("/v3/kv/put", key=CLAIM.encode(), value=b"68719476734 2000 0123456789abcdef notes")
    master = masters(emptied.ports[0])
    wait_until(lambda: "cannot be followed" in master.log(), 10)
    (line,) = [line for line in master.log().splitlines() if "cannot be followed" in line][:1]
    assert f"etcdctl del {CLAIM}" in line, line
    assert role(master) == "standby" and master.process.poll() is None
    emptied.ask("/v3/kv/deleterange", key=CLAIM.encode())
    leads(master, 10)


# ---- what renewals leave behind ----

def is_compacted(etcd, revision):
    try:
        etcd.ask("/v3/kv/range", key=VIEW.encode(), revision=revision)
        return False
    except urllib.error.HTTPError as error:
        assert b"has been compacted" in error.read()
        return True


def revision_of(etcd):
    return int(etcd.ask("/v3/kv/range", key=VIEW.encode())["header"]["revision"])


def test_renewals_leave_nothing(masters):
    """Whoever leads: the history of before goes, whole, and what stands stays; not sooner than was said, and never if so."""
    with Etcd(1, "--unsafe-no-fsync") as etcd:
        flags = ("--ha_lease_ttl=500ms", "--etcd_compaction_interval=2s")
        one = masters(etcd.ports[0], *flags)
        leads(one, 10)
        first, start = revision_of(etcd), time.monotonic()
        wait_until(lambda: is_compacted(etcd, first), 10)
        took, other = time.monotonic() - start, masters(etcd.ports[0], *flags)
        assert took > 1.5
        wait_until(lambda: role(other) == "standby", 5)
        assert one.stop() == 0  # and its successor goes on with that
        leads(other, 10)
        assert etcd.text(VIEW) == other.address
        second = revision_of(etcd)
        assert not is_compacted(etcd, second)
        wait_until(lambda: is_compacted(etcd, second), 10)
        assert etcd.text(CLAIM).startswith(str(epoch_of(other)))
        assert other.stop() == 0
        never = masters(etcd.ports[0], "--ha_lease_ttl=500ms", "--etcd_compaction_interval=0")
        leads(never, 10)
        third = revision_of(etcd)
        time.sleep(3)
        wait_until(lambda: revision_of(etcd) > third, 10)
        assert not is_compacted(etcd, third)


def test_a_compaction_that_is_refused_is_said_once(emptied, masters):
    """As where roles of etcd allow no compaction: the history grows, and somebody has to know."""
    with Proxy(emptied.ports[0]) as proxy:
        proxy.unknown = b"/v3/kv/compaction"
        one = masters(proxy.port, "--ha_lease_ttl=500ms", "--etcd_compaction_interval=1s")
        leads(one, 10)
        wait_until(lambda: "etcd refuses compaction" in one.log(), 10)
        time.sleep(3)
        assert one.log().count("etcd refuses compaction") == 1 and serves(one)
        proxy.unknown = None
        wait_until(lambda: "takes compactions again" in one.log(), 10)
