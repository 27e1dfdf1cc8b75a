"""An engine that forks while it holds handles: its death is known at once, and the child it left behind does no harm."""
import os
import subprocess
import sys
import time

import cluster
from python_cluster import MooncakeDistributedStore, lateness, wait_until

PARENT = """
import os, sys, time
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
config = ReplicateConfig()
config.preferred_segment = store.get_hostname()
end = time.monotonic() + 20
while True:                            # until it lies in our own memory, which is not there at once
    if store.put("of the parent", bytes(1 << 20), config) == 0:
        found = store.get_replica_desc("of the parent")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_
        if found == store.get_hostname():
            break
        store.remove("of the parent", True)
    assert time.monotonic() < end
    time.sleep(0.01)
assert store.get("of the other") == b"2" * 100000
handle = store.get_buffer("of the parent")
pid = os.fork()
if pid == 0:
    sys.stdin.readline()           # until the parent is dead
    results = [store.put("of the child", b"x" * 1000), store.is_exist("of the other"), store.remove("of the other"), store.health_check(),
               len(store.get("of the other")), store.batch_is_exist(["of the other"])[0]]
    assert bytes(handle) == bytes(1 << 20)   # what it had read is its own memory
    print("child", *results, flush=True)
    fresh = MooncakeDistributedStore()
    rc = fresh.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1])
    print("fresh", rc, fresh.is_exist("of the other") if rc == 0 else None, flush=True)
    store.close()
    del store, fresh
    sys.exit(0)
print("ready", pid, flush=True)
time.sleep(600)
"""


def test_a_forked_child_neither_hides_a_death_nor_does_harm():
    with cluster.Master("--default_kv_lease_ttl=0ms") as master:
        other = MooncakeDistributedStore()
        assert other.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master.address) == 0
        wait_until(lambda: other.put("of the other", b"2" * 100000) == 0)
        parent = subprocess.Popen([sys.executable, "-B", "-c", PARENT, master.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = None
        try:
            line = parent.stdout.readline().split()
            assert line[0] == "ready"
            child = int(line[1])
            mine = {d.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for d in other.get_replica_desc("of the parent")}
            segments = master.get("/get_all_segments")[1].decode().split()
            assert len(segments) == 2
            others = [f"o-{number}" for number in range(50)]
            assert all(other.put(key, key.encode() * 100) == 0 for key in others)
            lost = {key for key in others + ["of the parent", "of the other"]
                    if {d.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for d in other.get_replica_desc(key)} <= mine}
            with lateness() as late_s:
                os.kill(parent.pid, 9)
                parent.wait()
                killed = time.monotonic()  # until here it was dying
                assert os.path.exists(f"/proc/{child}"), "the child must outlive its parent"
                wait_until(lambda: other.is_exist("of the parent") != 1)
                known = time.monotonic() - killed
                assert known < (0.2 if not cluster.SANITIZED else 2.0) + late_s()
            start = time.monotonic()
            assert other.get("of the parent") == b""
            assert time.monotonic() - start < 1.0
            parent.stdin.write("go\n")
            parent.stdin.flush()
            said = parent.stdout.readline().split()
            assert said[0] == "child"
            put, exist, remove, health, length, batch = map(int, said[1:])
            assert put < 0 and exist < 0 and remove < 0 and health != 0 and length == 0 and batch < 0
            fresh = parent.stdout.readline().split()
            assert fresh[:2] == ["fresh", "0"] and fresh[2] == "1"
            assert parent.stdout.readline() == "", "the child must end"
            for key in others:
                if key not in lost:
                    assert other.get(key) == key.encode() * 100
            assert other.put("later", b"3" * 1000) == 0
            print(f"death known after {known * 1000:.1f} ms")
            other.close()
        finally:
            for pid in filter(None, (parent.pid if parent.poll() is None else None, child)):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            parent.stdin.close()
            parent.stdout.close()
