"""KV events over HTTP: a consumer that follows them has the master's index, whatever happens to it or to the master."""
import concurrent.futures
import json

from cluster import Master
from test_openapi import ask
from wire import FakeOwner

ON = ("--enable_kv_events=true", "--client_ttl=600")  # the owners have no heartbeats


def get(master, path):
    status, body, _ = ask(master.metrics_port, "GET", path)
    if status == 503:
        raise ConnectionError("it does not lead yet")
    return status, json.loads(body)


def events(master, epoch, after, more=""):
    status, told = get(master, f"/api/v1/kv_events?epoch={epoch}&after={after}{more}")
    assert status == 200, told
    return told


def snapshot(master, limit=1000):
    """(epoch, number after which events are to be applied, {key: media}); None when another master leads meanwhile."""
    index, cursor = {}, ""
    while True:
        status, told = get(master, f"/api/v1/kv_events/snapshot?limit={limit}{cursor}")
        if status == 409:
            return None
        assert status == 200, told
        for one in told["keys"]:
            index[one["tenant_id"], one["object_key"]] = set(one["media"])
        if "cursor" not in told:
            return told["epoch"], told["after"], index
        cursor = "&cursor=" + told["cursor"]


class Consumer:
    """What docs/commands.md tells a consumer to do."""

    def __init__(self, master):
        self.master, self.epoch, self.after, self.index, self.snapshots = master, 0, 0, {}, 0

    def apply(self, event):
        assert event["event_id"] == self.after + 1, "none is lost, and none comes twice"
        self.after += 1
        key, medium = (event["tenant_id"], event["object_key"]), event["medium"]
        media = self.index.setdefault(key, set())
        (media.add if event["event_type"] == "stored" else media.discard)(medium)
        if not media:
            del self.index[key]

    def step(self, more=""):
        """Reads what is new; how many events."""
        told = events(self.master, self.epoch, self.after, more)
        if told["is_gap"]:
            assert told["events"] == []
            self.snapshots += 1
            found = snapshot(self.master, 50)
            if found is not None:
                self.epoch, self.after, self.index = found
            return 1
        for event in told["events"]:
            self.apply(event)
        return len(told["events"])

    def catch_up(self):
        while self.step():
            pass
        return self.index


def truth(master):
    return snapshot(master)[2]


def keys(*names):
    return {("default", name): {"cpu"} for name in names}


def test_off_unless_asked_for():
    with Master() as master:
        status, told = get(master, "/kv_events/status")
        assert status == 200 and told == {"enabled": False, "published_batches": 0, "published_events": 0, "dropped_events": 0, "skipped_unparsed_keys": 0}
        assert get(master, "/api/v1/kv_events")[0] == get(master, "/api/v1/kv_events/snapshot")[0] == 409


def test_a_consumer_follows():
    with Master(*ON, "--kv_events_backend_id=pool-1") as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        first = events(master, 0, 0)
        assert first["is_gap"] and first["epoch"] > 0 and first["backend_id"] == "pool-1"
        consumer = Consumer(master)
        assert consumer.catch_up() == {} and consumer.snapshots == 1
        assert owner.put([b"a", b"b \"\xc3\xa9"], 4096) == [0, 0]
        told = events(master, consumer.epoch, consumer.after)
        assert [(one["event_id"], one["event_type"], one["object_key"], one["medium"], one["tenant_id"]) for one in told["events"]] == [
            (1, "stored", "a", "cpu", "default"), (2, "stored", "b \"é", "cpu", "default")]
        assert all(one["timestamp"] > 1.6e12 for one in told["events"])
        assert consumer.catch_up() == keys("a", "b \"é") == truth(master)
        assert owner.remove([b"a"]) == [0]
        assert owner.put([b"c"], 4096) == [0]
        assert consumer.catch_up() == keys("b \"é", "c") == truth(master)
        assert consumer.snapshots == 1
        assert events(master, consumer.epoch, 1, "&limit=2")["events"][-1]["event_id"] == 3
        status = get(master, "/kv_events/status")[1]
        assert status["enabled"] and status["published_events"] == 4 and status["published_batches"] >= 3 and status["dropped_events"] == 0
        for bad in ("after=x", "after=1&limit=0", "wait_ms=60001", "epoch=-1", "limit=1001"):
            assert get(master, "/api/v1/kv_events?" + bad)[0] == 400, bad
        for bad in ("limit=0", "limit=10001", "cursor=x", "cursor=1.2", "cursor=1.2.3.4", "cursor=0.0.0", "cursor=", "cursor=-1.2.3"):
            assert get(master, "/api/v1/kv_events/snapshot?" + bad)[0] == 400, bad
        assert get(master, f"/api/v1/kv_events/snapshot?cursor={consumer.epoch + 1}.0.0")[0] == 409
        assert get(master, f"/api/v1/kv_events/snapshot?cursor={consumer.epoch}.0.{2**64 - 1}")[1]["keys"] == []
        owner.close()


def test_a_slow_consumer_takes_a_snapshot():
    """It is away for longer than the ring holds."""
    with Master(*ON, "--kv_events_queue_capacity=100") as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        consumer = Consumer(master)
        consumer.catch_up()
        for start in range(0, 1000, 100):
            assert owner.put([b"k%d" % number for number in range(start, start + 100)], 4096) == [0] * 100
        assert owner.remove([b"k7"]) == [0]
        told = events(master, consumer.epoch, 0)
        assert told["is_gap"] and told["last"] == 1001 and told["first"] == 902
        assert get(master, "/kv_events/status")[1]["dropped_events"] == 901
        assert consumer.catch_up() == truth(master) == keys(*[f"k{number}" for number in range(1000) if number != 7])
        assert consumer.snapshots == 2
        assert len(events(master, consumer.epoch, 901)["events"]) == 100 and events(master, consumer.epoch, 900)["is_gap"]
        assert events(master, consumer.epoch, 1002)["is_gap"], "a number that was never there"
        owner.close()


def test_a_snapshot_while_everything_changes():
    """Between its pages keys come and go, and the table grows."""
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        names = [b"k%d" % number for number in range(3000)]
        for start in range(0, 1000, 500):
            owner.put(names[start:start + 500], 4096)
        index, cursor, at = {}, "", 1000
        while True:
            told = get(master, f"/api/v1/kv_events/snapshot?limit=20{cursor}")[1]
            for one in told["keys"]:
                index[one["tenant_id"], one["object_key"]] = set(one["media"])
            if "cursor" not in told:
                break
            cursor = "&cursor=" + told["cursor"]
            assert owner.put(names[at:at + 20], 4096) == [0] * 20
            owner.remove([names[number * 7 % 1000] for number in range(at, at + 20)])
            at += 20
        assert at > 1500
        consumer = Consumer(master)
        consumer.epoch, consumer.after, consumer.index = told["epoch"], told["after"], index
        assert consumer.catch_up() == truth(master) and consumer.snapshots == 0
        owner.close()


def test_a_master_after_it_has_another_epoch():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        consumer = Consumer(master)
        owner.put([b"a", b"b"], 4096)
        assert consumer.catch_up() == keys("a", "b")
        cursor = f"{consumer.epoch}.{consumer.after}.0"
        owner.close()
        master.kill()
        master.start()
        assert get(master, f"/api/v1/kv_events/snapshot?cursor={cursor}")[0] == 409
        owner = FakeOwner(master.port, "127.0.0.1:9")
        owner.put([b"c", b"d"], 4096)
        before = consumer.epoch
        assert consumer.catch_up() == keys("c", "d") == truth(master)
        assert consumer.epoch > before and consumer.snapshots == 2
        owner.close()


def test_waiting_for_the_next():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        consumer = Consumer(master)
        consumer.catch_up()
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            waiting = [pool.submit(events, master, consumer.epoch, 0, "&wait_ms=25000") for _ in range(20)]
            assert owner.put([b"a"], 4096) == [0]
            for one in waiting:
                assert [event["object_key"] for event in one.result(timeout=50)["events"]] == ["a"]
            # More than may wait: some are answered at once, and what else is asked has threads left.
            waiting = [pool.submit(events, master, consumer.epoch, 1, "&wait_ms=25000") for _ in range(64)]
            done, _ = concurrent.futures.wait(waiting, timeout=50, return_when=concurrent.futures.FIRST_COMPLETED)
            assert all(one.result()["events"] == [] for one in done) and len(done) > 0
            assert master.get("/metrics")[0] == 200
            assert owner.put([b"b"], 4096) == [0]
            for one in waiting:
                assert one.result(timeout=50)["events"] in ([], events(master, consumer.epoch, 1)["events"])
        owner.close()


def test_a_thousand_subscribers():
    with Master(*ON) as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        consumers = [Consumer(master) for _ in range(1000)]
        with concurrent.futures.ThreadPoolExecutor(100) as pool:
            following = [pool.submit(one.catch_up) for one in consumers]
            for number in range(100):
                assert owner.put([b"k%d" % number], 4096) == [0]
                if number % 3 == 0:
                    assert owner.remove([b"k%d" % (number // 2)]) == [0]
            for one in following:
                one.result(timeout=300)
            final = list(pool.map(Consumer.catch_up, consumers))
        assert all(index == truth(master) for index in final[::100]) and all(index == final[0] for index in final)
        owner.close()
