"""SGLang 0.5.23, HiCache's MooncakeStore: single objects, batches, multi-buffer pages, hybrid pools. argv: "write" or "read"; "standalone"
for a store without a pool of its own, beside the daemon at LANE_DAEMON; "disk write" or "disk read" for one with little memory and a disk at LANE_DISK.

The host pools are CPU tensors with the accessors that MooncakeStore calls, as in SGLang's own test of it.
"""
import os
import sys
import time
import types
import urllib.request

from steps import MASTER, digest, fill, say, scenario, step

os.environ.update(MOONCAKE_MASTER=MASTER, MOONCAKE_PROTOCOL="tcp", MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", LOCAL_HOSTNAME="127.0.0.1",
                  MOONCAKE_TE_META_DATA_SERVER="P2PHANDSHAKE", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(64 << 20),
                  MOONCAKE_MASTER_METRICS_PORT=os.environ["MC_METRICS_PORT"], MOONCAKE_CHECK_SERVER="true")

import cpu_torchvision  # noqa: E402, F401
import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeHostTensorAllocator, MooncakeStore  # noqa: E402

PAGES = 6
ELEMENTS = 512
DISK_PAGES = 48


class Pool:
    """`entries` buffers for each page of `page_size` tokens; `layers` > 1: each page lies in as many pieces, and is one object of many buffers."""

    layout = "page_first"
    page_size = 1
    elements = ELEMENTS

    def __init__(self, entries=2, layers=1, pages=2 * PAGES, page_size=1):
        self.page_size = page_size
        self.entries, self.layers, self.pages = entries, layers, pages
        self.kv_buffer = torch.zeros(layers, pages, entries, self.elements, dtype=torch.float32)

    def get_page_buffer_meta(self, indices):
        pointers, sizes = [], []
        for token in indices.tolist()[:: self.page_size]:
            page = token // self.page_size
            for entry in range(self.entries):
                for layer in range(self.layers):
                    pointers.append(self.kv_buffer[layer, page, entry].data_ptr())
                    sizes.append(self.elements * 4)
        return pointers, sizes

    def get_ksize_per_token(self):
        return self.entries * self.layers * self.elements * 4 // self.page_size

    def page(self, number):
        return self.kv_buffer[:, number].contiguous()

    def fill(self, seed):
        """The first half; the second is where pages are read to."""
        self.kv_buffer[:, : self.pages // 2] = fill(torch.zeros_like(self.kv_buffer[:, : self.pages // 2]).contiguous(), seed)

    def first(self):
        return torch.arange(self.pages // 2 * self.page_size)

    def second(self):
        return torch.arange(self.pages // 2 * self.page_size, self.pages * self.page_size)

    def digests(self):
        return [digest(self.page(i)) for i in range(self.pages // 2, self.pages)]

    def get_hybrid_pool_buffer(self):
        return [self.kv_buffer]


class LargePool(Pool):
    """Pages of 1 MiB: many times the store's memory."""

    elements = 1 << 17


class MambaPool(Pool):
    """A temporal state and two convolution states for each page, in tensors of their own."""

    temporal_state_elem_size = ELEMENTS

    def __init__(self):
        super().__init__(entries=3)
        self.conv_buffer = [object(), object()]


class SwaPool(Pool):
    v_buffer = True


class SharedPool(Pool):
    """Its memory is the daemon's too: standalone storage asks for SGLang's allocator of such memory."""

    def __init__(self):
        super().__init__(entries=2)
        self.allocator = MooncakeHostTensorAllocator()
        self.kv_buffer = self.allocator.allocate(tuple(self.kv_buffer.shape), torch.float32)
        self.kv_buffer.zero_()

    def as_seen(self):
        """What MooncakeStore looks at when it sums up what the daemon must be able to see."""
        return types.SimpleNamespace(allocator=self.allocator, kv_buffer=self.kv_buffer)


def made(mem_pool=None, **more):
    given = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
                 is_page_first_layout=True, model_name="lane/sglang")
    return MooncakeStore(HiCacheStorageConfig(**{**given, **more}), mem_pool)


def single(writing):
    store, pool = made(), Pool(entries=2)
    store.register_mem_pool_host(pool)
    pool.fill(1)
    here, there = pool.kv_buffer[0, 0, 0], pool.kv_buffer[0, PAGES, 0]
    size = ELEMENTS * 4
    if writing:
        step("single: exists before")(lambda: store.exists("single"))
        step("single: set")(lambda: store.set("single", target_location=here.data_ptr(), target_sizes=size))
        step("single: set again")(lambda: store.set("single", target_location=there.data_ptr(), target_sizes=size))
    step("single: exists")(lambda: store.exists("single"))
    step("single: get")(lambda: [store.get("single", target_location=there.data_ptr(), target_sizes=size), digest(there) == digest(here)])
    step("single: get of nothing")(lambda: store.get("nobody's", target_location=there.data_ptr(), target_sizes=size))
    keys = [f"plain {i}" for i in range(4)]
    if writing:
        step("plain: batch set")(lambda: store.batch_set(keys, None, [pool.kv_buffer[0, i, 0].data_ptr() for i in range(4)], [size] * 4))
        step("plain: batch set again")(lambda: store.batch_set(keys, None, [pool.kv_buffer[0, i, 0].data_ptr() for i in range(4)], [size] * 4))
    step("plain: batch get")(lambda: store.batch_get(keys, [pool.kv_buffer[0, PAGES + i, 0].data_ptr() for i in range(4)], [size] * 4))
    step("plain: bytes")(lambda: [digest(pool.kv_buffer[0, PAGES + i, 0]) == digest(pool.kv_buffer[0, i, 0]) for i in range(4)])
    return store


def batch(name, writing, pool, **more):
    """Pages by the v1 interface."""
    store = made(**more)
    store.register_mem_pool_host(pool)
    pool.fill(len(name))
    keys = [f"{name}{i:04x}" for i in range(PAGES)]
    if writing:
        step(f"{name}: exist before")(lambda: store.batch_exists(keys))
        step(f"{name}: set half")(lambda: store.batch_set_v1(keys[:3], pool.first()[: 3 * pool.page_size]))
        step(f"{name}: exist half")(lambda: store.batch_exists(keys))
        step(f"{name}: set all")(lambda: store.batch_set_v1(keys, pool.first()))
    step(f"{name}: exist")(lambda: store.batch_exists(keys + ["beyond"]))
    step(f"{name}: get")(lambda: store.batch_get_v1(keys, pool.second()))
    step(f"{name}: bytes")(lambda: pool.digests())
    step(f"{name}: bytes are those set")(lambda: pool.digests() == [digest(pool.page(i)) for i in range(PAGES)])
    step(f"{name}: get with a miss")(lambda: store.batch_get_v1([keys[1], "nobody's"], pool.second()[: 2 * pool.page_size]))
    return store


def hybrid(name, writing, main_pool, pools, **more):
    """Side pools by the v2 interface: all of an operation are one call of the store."""
    store = made(**more)
    store.register_mem_pool_host(main_pool)
    main_pool.fill(90)
    keys = [f"{name}{i:04x}" for i in range(PAGES)]
    for seed, (pool_name, pool) in enumerate(pools.items()):
        pool.fill(100 + seed)
        store.register_mem_host_pool_v2(pool, pool_name)
    if writing:
        step(f"{name}: set pages")(lambda: store.batch_set_v1(keys, main_pool.first()))

    def transfers(half):
        return [PoolTransfer(name=pool_name, host_indices=getattr(pool, half)(), keys=keys) for pool_name, pool in pools.items()]

    def by_name(results):
        return {str(pool_name.value): done for pool_name, done in results.items()}

    if writing:
        step(f"{name}: exist before")(lambda: exists(store, keys, transfers("first")))
        step(f"{name}: set side pools")(lambda: by_name(store.batch_set_v2(transfers("first"))))
        step(f"{name}: set side pools again")(lambda: by_name(store.batch_set_v2(transfers("first"))))
    step(f"{name}: exist")(lambda: exists(store, keys, transfers("first")))
    step(f"{name}: get side pools")(lambda: by_name(store.batch_get_v2(transfers("second"))))
    step(f"{name}: bytes")(lambda: {pool_name.value: pool.digests() for pool_name, pool in pools.items()})
    step(f"{name}: bytes are those set")(lambda: [pool.digests() == [digest(pool.page(i)) for i in range(PAGES)] for pool in pools.values()])
    return store


def exists(store, keys, transfers):
    import dataclasses

    for transfer in transfers:
        transfer.hit_policy = PoolHitPolicy.ALL_PAGES
    return [str(value) for value in dataclasses.astuple(store.batch_exists_v2(keys, transfers))]


def in_a_child(part, *words, **more):
    """One store for each process, as one server has: the original cannot have two. It lives, with its segment, until this process ends."""
    ready, tell = os.pipe()
    stay, leave = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        os.close(leave)
        try:
            store = part(*words, **more)
        except Exception as error:
            say(step=f"{words[0]}", error=f"{type(error).__name__}: {error}"[:500])
            os._exit(1)
        os.write(tell, b"1")
        os.read(stay, 1)
        del store
        os._exit(0)
    os.close(tell)
    os.close(stay)
    os.read(ready, 1)
    os.close(ready)
    return leave


def standalone():
    os.environ.update(MOONCAKE_STANDALONE_STORAGE="true", MOONCAKE_CLIENT=os.environ["LANE_DAEMON"])
    pool = SharedPool()
    store = batch("standalone", True, pool, mem_pool=pool.as_seen())
    step("end")(lambda: store is not None)
    sys.stdin.readline()


def all_on_disks():
    asked = urllib.request.Request(f"http://127.0.0.1:{os.environ['MC_METRICS_PORT']}/metrics", headers={"Authorization": f"Bearer {os.environ.get('MC_AUTH_TOKEN')}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        told = dict(line.split()[:2] for line in answer.read().decode().splitlines() if line[:1] not in ("", "#"))
    return 0 < float(told["master_key_count"]) == float(told["file_cache_nums_"])


def until(look, seconds=20):
    end = time.monotonic() + seconds
    while not look() and time.monotonic() < end:
        time.sleep(0.05)
    return look()


def disk(writing):
    """Pages as one process of SGLang has set them, read by it and by the next one, which has its directory."""
    os.environ.update(MOONCAKE_CHECK_SERVER="false",  # which waits for somebody else's memory
                      MOONCAKE_GLOBAL_SEGMENT_SIZE=str(16 << 20), MOONCAKE_ENABLE_SSD_OFFLOAD="true",
                      MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=os.environ["LANE_DISK"], MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(1 << 30))
    store, pool = made(), LargePool(pages=2 * DISK_PAGES)
    store.register_mem_pool_host(pool)
    pool.fill(7)
    keys = [f"disk{i:04x}" for i in range(DISK_PAGES)]
    if writing:
        for at in range(0, DISK_PAGES, 4):  # the disk keeps up
            step(f"set {at}")(lambda at=at: store.batch_set_v1(keys[at : at + 4], pool.first()[at : at + 4]))
            step(f"stored {at}")(lambda: until(all_on_disks))
    step("exist")(lambda: until(lambda: store.batch_exists(keys) == DISK_PAGES) and store.batch_exists(keys))
    for at in range(0, DISK_PAGES, 4):
        step(f"get {at}")(lambda at=at: store.batch_get_v1(keys[at : at + 4], pool.second()[at : at + 4]))
    step("bytes are those set")(lambda: pool.digests() == [digest(pool.page(i)) for i in range(DISK_PAGES)])
    step("end")(lambda: None)
    sys.stdin.readline()


def main():
    if sys.argv[1] == "disk":
        return disk(sys.argv[2] == "write")
    if sys.argv[1] == "standalone":
        return standalone()
    writing = sys.argv[1] == "write"
    by_config = {"master_server_address": MASTER, "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
                 "global_segment_size": 64 << 20, "enable_group_semantics": True}
    alive = [
        in_a_child(single, writing),
        in_a_child(batch, "mha", writing, Pool(entries=2)),
        in_a_child(batch, "mla", writing, Pool(entries=1), is_mla_model=True, tp_rank=3, tp_size=4),
        in_a_child(batch, "rank", writing, Pool(entries=2, page_size=4), tp_rank=1, tp_size=4),
        in_a_child(batch, "multi", writing, Pool(entries=1, layers=5), is_mla_model=True),
        in_a_child(batch, "groups", writing, Pool(entries=2), extra_config={**by_config, "extra_backend_tag": "tag"}),
        in_a_child(batch, "groups of multi", writing, Pool(entries=1, layers=3), is_mla_model=True, extra_config={**by_config, "global_segment_size": 0}),
        in_a_child(hybrid, "hybrid", writing, Pool(entries=2), {PoolName.MAMBA: MambaPool(), PoolName.SWA: SwaPool(entries=2)}),
        in_a_child(hybrid, "hybrid mla", writing, Pool(entries=1), {PoolName.INDEXER: Pool(entries=1), PoolName.DEEPSEEK_V4_C4: Pool(entries=1, layers=4)},
                   is_mla_model=True),
    ]
    step("end")(lambda: len(alive))
    sys.stdin.readline()


if __name__ == "__main__":
    with scenario():
        main()
