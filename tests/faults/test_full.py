"""Everything asks for everything while the store is full: puts never fail, eviction goes on."""
import os
import threading
import time

import cluster
from python_cluster import MooncakeDistributedStore, wait_until

SECONDS = 20 if os.environ.get("MC_TEST_ALL") else 4  # and for as long as it takes to ask that much, where this machine does other things
ASKED_PER_S = 100_000
ENOUGH = 0 if cluster.SANITIZED else SECONDS * ASKED_PER_S // 2
PUTS = 100
LONGEST_S = 120
SEGMENT = 64 << 20
SIZE = 16 << 10
BATCH = 1000


def test_exists_over_a_full_store_keep_nothing_alive():
    with cluster.Master() as master:
        store, asker = MooncakeDistributedStore(), MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, 16 << 20, "tcp", "", master.address) == 0
        assert asker.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.address) == 0
        wait_until(lambda: master.metrics()["mooncake_populated_bytes"] >= SEGMENT, 30)
        value, names, made = bytes(SIZE), [], [0]
        while master.metrics()["master_evicted_key_count"] == 0:
            for _ in range(200):
                assert store.put(f"key-{made[0]}", value) == 0
                made[0] += 1
        asked, present, bad = [0], [0], []

        def ask():
            """Over every key there can be, again and again, at the rate or as fast as it goes."""
            begun = time.monotonic()
            while goes_on():
                last = made[0]
                for first in range(max(0, last - SEGMENT // SIZE), last, BATCH):
                    names = [f"key-{number}" for number in range(first, min(first + BATCH, last))]
                    found = asker.batch_is_exist(names)
                    bad.extend(code for code in found if code not in (0, 1))
                    present[0] += sum(found)
                    asked[0] += len(names)
                    ahead = asked[0] / (ASKED_PER_S * 1.5) - (time.monotonic() - begun)
                    if ahead > 0:
                        time.sleep(ahead)

        evicted = master.metrics()["master_evicted_key_count"]
        thread = threading.Thread(target=ask)
        start = time.monotonic()

        def goes_on():
            took = time.monotonic() - start
            return took < SECONDS or (asked[0] < ENOUGH or made[0] - first <= PUTS) and took < LONGEST_S
        failures, slowest, first = [], 0.0, made[0]
        thread.start()
        while goes_on():
            begun = time.monotonic()
            rc = store.put(f"key-{made[0]}", value)
            slowest = max(slowest, time.monotonic() - begun)
            if rc != 0:
                failures.append(rc)
            made[0] += 1
        thread.join()
        took = time.monotonic() - start
        puts = made[0] - first
        gone = master.metrics()["master_evicted_key_count"] - evicted
        print(f"{asked[0] / took:.0f} exists/s, {puts / took:.0f} puts/s, {len(failures)} failed, {gone:.0f} evicted, slowest put {slowest * 1000:.1f} ms")
        assert not failures and not bad
        assert present[0] > 0
        assert gone > 0 and gone >= puts - 2 * SEGMENT // SIZE
        assert puts > PUTS and asked[0] >= ENOUGH
        asker.close()
        store.close()
