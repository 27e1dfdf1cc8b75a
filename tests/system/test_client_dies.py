"""A client that is killed in any call of mooncake.store: no half object is ever seen, and nothing stays behind at the master or in the segments."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import cluster
from python_cluster import SEGMENT, joined, wait_until, with_fields

PROGRAM = pathlib.Path(__file__).with_name("dying_client.py")
KINDS = ("put put_parts put_batch put_from batch_put_from batch_put_from_multi_buffers upsert upsert_batch batch_upsert_from put_session get get_batch "
         "get_buffer batch_get_buffer get_into batch_get_into batch_get_into_multi_buffers get_session exist pin hint remove batch_remove remove_by_regex "
         "copy_task move_task mount setup_and_close").split()
KILLS = 40 if os.environ.get("MC_TEST_ALL") else 4
LIVES_S = 0.02  # at most, from its first call on
OWNER_S = 3  # the segment of one that is gone stays for so long: the end of a connection does not prove that it is dead
SIZE, READABLE = 512 << 10, 8


def value(number):
    return number.to_bytes(8, "little") * (SIZE // 8)


class Scene:
    """A master, two stores with segments, and a process that makes clients."""

    def __init__(self, paths):
        self.master = cluster.Master("--default_kv_lease_ttl=200ms", f"--client_ttl={OWNER_S}s").__enter__()
        self.stores = [joined(self.master), joined(self.master)]
        for store in self.stores:
            wait_until(lambda: store.put(store.get_hostname(), bytes(1000), with_fields(preferred_segment=store.get_hostname())) == 0)
        self.store, self.first = self.stores[0], 1 << 20
        self.names = self.segments()
        self.maker = subprocess.Popen([sys.executable, "-B", str(PROGRAM), self.master.address, *(store.get_hostname() for store in self.stores)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "MC_PATHS": paths, "MC_LOG_LEVEL": "ERROR"})

    def close(self):
        self.maker.stdin.close()
        assert self.maker.wait(timeout=30) == 0
        self.maker.stdout.close()
        for store in self.stores:
            assert store.close() == 0
        self.master.__exit__()

    def segments(self):
        return sorted(self.master.get("/get_all_segments")[1].decode().split())

    def keys(self):
        return self.master.get("/get_all_keys")[1].decode().split()

    def kill_one(self, kind, seconds):
        print(kind, self.first, file=self.maker.stdin, flush=True)
        pid = int(self.maker.stdout.readline())
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        assert int(self.maker.stdout.readline()) == signal.SIGKILL, "it has ended by itself"
        self.first += 1 << 20

    def look(self):
        """All that anybody can see is whole: one number in all its words, and of r-<number> that one."""
        for key in self.keys():
            kind, _, number = key.partition("-")
            found = self.store.get(key)
            if kind in ("r", "w") and found != b"":
                assert len(found) == SIZE and found == found[:8] * (SIZE // 8), f"{key} is not whole"
                assert kind != "r" or found == value(int(number)), f"{key} is another's"

    def fill(self):
        for number in range(READABLE):
            wait_until(lambda: self.store.put(f"r-{number}", value(number)) == 0, 5)

    def empty(self):
        """Without force: what a dead reader has read is removed as soon as its lease is over, and all space is free again."""
        def is_empty():
            self.store.remove_all()
            metrics = self.master.metrics()
            left.clear()
            left.update({name: metrics[name] for name in ("master_key_count", "master_allocated_bytes", "mooncake_clearing_bytes", "mooncake_quarantine_bytes")})
            return not any(left.values())

        left = {}
        try:
            wait_until(is_empty, OWNER_S + 5)
        except AssertionError:
            raise AssertionError(f"left behind: {left} {self.keys()}") from None
        wait_until(lambda: self.segments() == self.names, OWNER_S + 5)
        # On a busy machine a client may have reported one that did not answer it in time: nothing is placed there until its owner is heard.
        wait_until(lambda: all(one["status"] == "OK" for one in json.loads(self.master.get("/get_segments_detail")[1])["segments"]), OWNER_S + 5)


@pytest.fixture(scope="module", params=["shm", "tcp"])
def scene(request):
    made = Scene(request.param)
    yield made
    made.close()


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_killed_in(scene, kind):
    chance = random.Random(kind)
    for _ in range(KILLS):
        scene.fill()
        scene.kill_one(kind, chance.uniform(0, LIVES_S))
        scene.look()
    scene.empty()
    # All of the memory can be used: nothing is held by the dead.
    count = 2 * SEGMENT // SIZE * 3 // 4
    for number in range(count):
        assert scene.store.put(f"r-{number}", value(number)) == 0
    assert sum(scene.store.is_exist(f"r-{number}") == 1 for number in range(count)) == count, "evicted, though there was room"
    scene.empty()


def test_every_call_is_killed():
    """What moves no object and holds nothing is left out."""
    program = PROGRAM.read_text()
    assert all(f"    def {kind}(self)" in program for kind in KINDS) and program.count("(self):") == len(KINDS) + 2
    import mooncake.store as module
    from mooncake._setup import SetupCalls

    calls = {name for calls in (module._store.MooncakeDistributedStore, SetupCalls) for name in dir(calls) if not name.startswith("_")}
    known = {name for name in calls if f"store.{name}(" in program}
    assert calls - known == {
        # By the same code as their neighbours.
        "put_from_with_metadata", "upsert_parts", "upsert_from", "get_into_ranges", "is_exist", "get_replica_desc", "remove_all", "unmount_and_free_segment",
        "batch_put_session_revoke",
        # Nothing of them is left with the master.
        "register_buffer", "unregister_buffer", "get_hostname", "health_check", "query_task", "alloc_from_mem_pool", "get_offload_rpc_read_count",
        # Not there, or setups.
        "mount_segment", "unmount_local_disk_segment", "init_all", "setup_dummy",
    }
