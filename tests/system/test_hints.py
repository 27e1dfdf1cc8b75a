"""Hints over real processes: what is dropped goes first, what pauses is stored on a disk, what is needed soon is loaded from there; and
the first two outlive master and node."""
import pytest

from cluster import Master, wait_until
from python_cluster import SLOW, MooncakeDistributedStore
from store_process import StoreProcess
from test_pins import LONG_MS, MIB, MISSING, firm, opened, pin, pinned

PINNED, BEGUN = -1909, 1


def counted(master, hint, outcome):
    return master.metrics()[f'mooncake_hints_total{{hint="{hint}",outcome="{outcome}"}}']


def press(master, store, prefix, evicted=1):
    """Puts more than there is room for."""
    before = master.metrics()["master_evicted_key_count"]
    for number in range(64):
        assert store.put(f"{prefix}-{number}", bytes(MIB)) == 0
        if master.metrics()["master_evicted_key_count"] >= before + evicted:
            return
    raise AssertionError("nothing was evicted")


def test_what_is_dropped_goes_first():
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address).start()
        try:
            wait_until(lambda: store.put("old", bytes(MIB)) == 0)
            assert store.put("soft", bytes(MIB), pin(LONG_MS)) == 0
            assert store.put("firm", bytes(MIB), firm()) == 0
            assert store.put("young", bytes(MIB)) == 0
            assert store.get("young") == bytes(MIB)
            assert store.hint(["young", "firm", "none", "soft"], "drop") == [0, PINNED, MISSING, 0]
            assert pinned(master) == 0 and store.firm_pin_left("firm") > 0
            press(master, store, "a", 2)
            assert store.batch_is_exist(["old", "young", "soft", "firm"]) == [1, 0, 0, 1]
            assert counted(master, "drop", "done") == 2 and counted(master, "drop", "absent") == counted(master, "drop", "refused") == 1
            # Without disks the others change nothing.
            assert store.hint(["old", "none"], "pause", 60_000) == store.hint(["old", "none"], "prefetch") == [0, MISSING]
            assert store.hint([], "resume") == []
            for wrong, error in (("keep", ValueError), (3, TypeError)):
                with pytest.raises(error):
                    store.hint(["old"], wrong)
        finally:
            node.stop()


def kept(master):
    return master.metrics()["mooncake_hints_kept_total"]


def test_a_drop_outlives_master_and_node(folder):
    """Until it is used. The pin that it has ended does not come back."""
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address, data_dir=folder).start()
        try:
            wait_until(lambda: store.put("old", bytes(MIB)) == 0)
            assert store.put("k", bytes(MIB), pin(LONG_MS)) == store.put("used", bytes(MIB), pin(LONG_MS)) == 0
            assert store.hint(["k", "used"], "drop") == [0, 0] and pinned(master) == 0
            assert store.get("used") == bytes(MIB)
            wait_until(lambda: kept(master) == 3)
            for ends in ((master,), (node,), (node, master), (master, node)):
                for one in ends:
                    one.kill()
                for one in sorted(ends, key=(master, node).index):
                    one.start()
                wait_until(lambda: master.metrics()["master_key_count"] == 3, 30 * SLOW)
                assert pinned(master) == 0
            assert master.metrics()["mooncake_hints_recovered_total"] == 1
            wait_until(lambda: master.metrics()["mooncake_populated_bytes"] >= 32 << 20, 30 * SLOW)
            press(master, store, "a")
            assert store.batch_is_exist(["old", "k", "used"]) == [1, 0, 1]
        finally:
            node.stop()


def test_a_master_killed_at_once_leaves_what_it_said(folder):
    """What is answered has been told to the node: nobody waits for it to say that it keeps it."""
    with Master() as master, opened(master) as store:
        node = StoreProcess(master.address, data_dir=folder).start()
        try:
            wait_until(lambda: store.put("k-0", bytes(64)) == 0)
            keys = [f"k-{number}" for number in range(1000)]
            assert store.put_batch(keys, [bytes(64)] * 1000) == 0
            assert store.hint(keys, "drop") == [0] * 1000
            master.kill()
            master.start()
            wait_until(lambda: master.metrics()["master_key_count"] == 1000, 30 * SLOW)
            assert master.metrics()["mooncake_hints_recovered_total"] == 1000
        finally:
            node.stop()


@pytest.fixture
def disk_node(folder, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 << 20))
    stores = []

    def opens(master):
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 32 << 20, 1 << 20, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
        stores.append(store)
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1, 20 * SLOW)
        return store

    yield opens
    for store in stores:
        store.close()


def on_disk(master):
    return master.metrics()["file_cache_nums_"]


def test_what_pauses_is_stored_and_what_resumes_is_loaded(disk_node):
    with Master("--enable_offload", "--offload_on_evict") as master:
        node = disk_node(master)
        wait_until(lambda: node.put("k", b"k" * MIB) == 0)
        assert node.hint(["k"], "pause", 500) == [0] and on_disk(master) == 0  # it is back too soon
        assert node.hint(["k"], "pause", 60_000) == [BEGUN]
        wait_until(lambda: on_disk(master) == 1, 20 * SLOW)
        assert node.hint(["k"], "pause") == [0]
        press(master, node, "a")
        assert master.metrics()["mooncake_loads_begun_total"] == 0
        wait_until(lambda: node.hint(["k"], "resume") == [BEGUN], 20 * SLOW)  # as soon as there is room
        wait_until(lambda: node.hint(["k"], "resume") == [0], 20 * SLOW)
        loads = master.metrics()["mooncake_loads_begun_total"]
        assert loads == 1 and node.get("k") == b"k" * MIB
        assert master.metrics()["mooncake_loads_begun_total"] == loads and counted(master, "resume", "done") == 1
        # Master and node are started again: what was stored is there, and can be loaded ahead.
        assert node.close() == 0
        master.kill()
        master.start()
        node = disk_node(master)
        wait_until(lambda: node.hint(["k", "none"], "prefetch") == [BEGUN, MISSING], 30 * SLOW)
        wait_until(lambda: node.hint(["k"], "prefetch") == [0], 20 * SLOW)
        assert node.get("k") == b"k" * MIB


def test_a_pause_outlives_the_master(disk_node):
    """What is paused has left memory first under the next master too, and is on the disk."""
    with Master("--enable_offload", "--offload_on_evict") as master:
        node = disk_node(master)
        wait_until(lambda: node.put("old", b"o" * MIB) == 0)
        assert node.put("k", b"k" * MIB) == 0
        assert node.hint(["k"], "pause", 60_000) == [BEGUN]
        wait_until(lambda: on_disk(master) == 1 and kept(master) >= 1, 20 * SLOW)
        master.kill()
        master.start()
        wait_until(lambda: master.metrics()["mooncake_hints_recovered_total"] == 1 and on_disk(master) == 1, 30 * SLOW)
        press(master, node, "a")
        assert node.hint(["old"], "resume") == [0]
        wait_until(lambda: node.hint(["k"], "resume") == [BEGUN], 20 * SLOW)  # as soon as there is room
        wait_until(lambda: node.get("k") == b"k" * MIB, 20 * SLOW)


def test_hints_load_only_so_much(disk_node):
    """A sixteenth of 32 MiB, until somebody comes for it; reads go on as they did."""
    with Master("--enable_offload") as master:
        node = disk_node(master)
        keys = [f"k-{number}" for number in range(8)]
        wait_until(lambda: node.put(keys[0], b"0" * (MIB // 2)) == 0)
        for key in keys[1:]:
            assert node.put(key, key[-1:].encode() * (MIB // 2)) == 0
        wait_until(lambda: on_disk(master) == 8, 20 * SLOW)
        assert node.close() == 0
        master.kill()
        master.start()
        node = disk_node(master)
        wait_until(lambda: node.batch_is_exist(keys) == [1] * 8, 30 * SLOW)
        wait_until(lambda: master.metrics()["mooncake_populated_bytes"] >= 32 << 20, 20 * SLOW)
        first = node.hint(keys, "prefetch")
        assert first.count(BEGUN) == 3 and first.count(-200) == 5  # each is a little more than half a MiB
        wait_until(lambda: node.hint(keys[:3], "prefetch") == [0] * 3, 20 * SLOW)
        for key in keys:
            assert node.get(key) == key[-1:].encode() * (MIB // 2)
        assert counted(master, "prefetch", "no_room") == 5
