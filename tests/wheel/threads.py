"""Many threads use one store, one config and one engine at once, each call with values of its own: nothing is mixed up, also where no GIL keeps them
apart. Usage: python threads.py; says whether there was a GIL. Standard library only."""
import sys
import threading

import smoke

THREADS, ROUNDS = 8, 200


def together(work):
    """Runs work(i) in all threads, which begin at the same moment; raises what one of them raised."""
    barrier, wrong, results = threading.Barrier(THREADS), [], [None] * THREADS

    def run(i):
        try:
            barrier.wait()
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return results


def use_store(port):
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    store = MooncakeDistributedStore()
    joined = together(lambda i: store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{port}"))
    assert sorted(joined) == [-600] * (THREADS - 1) + [0], joined
    configs = [ReplicateConfig() for _ in range(THREADS)]
    for i, config in enumerate(configs):
        config.replica_num = 1 + i % 2 * 7  # every second one is more than there is
        config.preferred_segments = [f"nowhere-{i}"] * i

    def work(i):
        for turn in range(ROUNDS):
            key, value = f"{i}-{turn}", bytes([i, turn % 256]) * (50 + turn * 400)
            code = store.put(key, value, configs[(i + turn) % THREADS])
            while code == -200:  # no room yet, or some is being made
                code = store.put(key, value)
            assert code == 0, (key, code)
            assert store.get(key) == value and store.get_size(key) == len(value), key
            assert store.get_batch([key, "nothing"]) == [value, b""]
            assert store.batch_is_exist([key, "nothing"]) == [1, 0]
            assert bytes(store.get_buffer(key)) == value
            assert len(store.get_replica_desc(key)) == 1
            assert store.remove(key, force=True) == 0, key

    together(work)
    assert together(lambda i: store.close()) == [0] * THREADS


def use_engine():
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    begun = together(lambda i: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
    assert sorted(begun) == [-1] * (THREADS - 1) + [0], begun
    target = f"127.0.0.1:{engine.get_rpc_port()}"

    def work(i):
        source, sink = engine.allocate_managed_buffer(4096), engine.allocate_managed_buffer(4096)
        for turn in range(ROUNDS):
            text = f"{i} {turn}".encode().ljust(64)
            assert engine.write_bytes_to_buffer(source, text, 64) == 0
            assert engine.transfer_sync_write(target, source, sink, 64) == 0
            assert engine.read_bytes_from_buffer(sink, 64) == text
        return engine.free_managed_buffer(source, 4096), engine.free_managed_buffer(sink, 4096)

    assert together(work) == [(0, 0)] * THREADS


def main():
    process, port = smoke.start("master", [smoke.find_master(), "--rpc_port=0", "--metrics_port=0"], r"Master service started on port (\d+)")
    try:
        use_store(port)
        use_engine()
    finally:
        process.kill()
        process.wait()
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert has_gil != ("free-threading" in sys.version), "a module has called the GIL back"
    print(f"{THREADS} threads, {'with a' if has_gil else 'without a'} GIL: every value was right")


if __name__ == "__main__":
    main()
