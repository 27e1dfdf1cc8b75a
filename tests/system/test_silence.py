"""Heartbeats and deadlines: a short client_ttl makes nobody flicker; a master that stops in the middle of calls makes none of them late."""
import ctypes
import os
import signal
import threading
import time

import pytest

import cluster
from python_cluster import MISSING, SLOW, MooncakeDistributedStore, arguments, lateness, wait_until

SIZE = 64 << 10
OWNER_SEGMENT = 32 << 20


def opened(master, segment=0):
    store = MooncakeDistributedStore()
    assert store.setup(*arguments(master, segment)) == 0
    return store


@pytest.mark.parametrize("ttl_ms", [600, 1000, 2000])
def test_a_short_client_ttl_makes_nobody_flicker(ttl_ms):
    with cluster.Master(f"--client_ttl={ttl_ms * SLOW}ms", "--default_kv_lease_ttl=0ms") as master, lateness() as late_s:
        owner = opened(master, OWNER_SEGMENT)
        watcher = opened(master)
        try:
            wait_until(lambda: watcher.put("key", b"value" * 1000) == 0)
            until, missed, looks = time.monotonic() + 5 * SLOW, 0, 0
            while time.monotonic() < until:
                looks += 1
                missed += watcher.get("key") != b"value" * 1000
                time.sleep(0.005)
        finally:
            log = master.log()
            watcher.close()
            owner.close()
        # Half of client_ttl without a processor for the owner would be a real silence.
        if late_s() < ttl_ms * SLOW / 8000:
            assert looks > 20 and missed == 0, f"{missed} of {looks} gets missed"
            assert "no sign of life" not in log


@pytest.mark.parametrize("call", ["put", "batch_put", "get", "exist", "remove"])
def test_no_call_is_late_when_the_master_stops(monkeypatch, call):
    """Four threads call all the time; the master stops again and again, in the middle of whatever is going on."""
    deadline_s, late, codes, end = 0.3, [], set(), threading.Event()
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", str(int(deadline_s * 1000)))
    with cluster.Master("--default_kv_lease_ttl=0ms") as master, lateness() as late_s:
        owner = opened(master, OWNER_SEGMENT * 4)
        stores = [opened(master) for _ in range(2)]
        wait_until(lambda: owner.put("ready", b"1") == 0)

        def work(number):
            buffers = [ctypes.create_string_buffer(SIZE) for _ in range(4)]
            places, turn, store = [ctypes.addressof(buffer) for buffer in buffers], 0, stores[number % 2]
            while not end.is_set():
                turn += 1
                key = f"key-{number}-{turn % 50}-{turn if 'put' in call else 0}"
                start = time.monotonic()
                if call == "put":
                    code = store.put_from(key, places[0], SIZE)
                elif call == "batch_put":
                    code = min(store.batch_put_from([f"{key}-{i}" for i in range(4)], places, [SIZE] * 4))
                elif call == "get":
                    code = store.get_into("ready", places[0], SIZE)
                elif call == "exist":
                    code = store.is_exist("ready")
                else:
                    code = store.remove(key, True)
                took = time.monotonic() - start
                codes.add(code)
                if took > deadline_s:
                    late.append(took - deadline_s)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(6):
                time.sleep(0.31 + turn * 0.013)
                os.kill(master.pid, signal.SIGSTOP)
                time.sleep(0.8)
                os.kill(master.pid, signal.SIGCONT)
        finally:
            end.set()
            for thread in threads:
                thread.join()
            for store in [*stores, owner]:
                store.close()
    print(f"{call}: {len(late)} calls at their deadline, latest {max(late, default=0) * 1000:.1f} ms after it; a sleeper waited {late_s() * 1000:.1f} ms; {codes}")
    assert late and codes & {0, 1, MISSING}, "nobody met a stopped master"
    assert max(late) < (0.010 + late_s() + 0.010) * SLOW
