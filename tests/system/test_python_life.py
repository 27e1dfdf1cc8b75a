"""mooncake.store's life: many threads on one store, fork, destructors, interpreters that end, and nothing left behind."""
import gc
import hashlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref

import pytest

import cluster
from python_cluster import (  # noqa: F401
    BUFFER, CYCLES, SLOW, address, arguments, joined, master, node, pattern, stopped, store, wait_until, with_fields
)
from mooncake import store as module
from mooncake.store import MooncakeDistributedStore


# ---- threads ----


ENOUGH = 25  # turns of a thread that the call does not hold up; of one that it holds up: two or three


def progress_during(call, let_go=lambda: None):
    """How often this thread ran while another made the call, and what it returned. The call waits until let_go(), which is called after enough turns."""
    outcome, begun, count = [], [], 0

    def body():
        begun.append(True)
        outcome.append(call())
    thread = threading.Thread(target=body)
    thread.start()
    while thread.is_alive():
        count += len(begun)
        if count == ENOUGH:
            let_go()
        time.sleep(0.002)
    thread.join()
    return count, outcome[0]


BLOCKING = {
    "put": lambda store, base: store.put("new", b"v"),
    "put_parts": lambda store, base: store.put_parts("new", b"v"),
    "put_batch": lambda store, base: store.put_batch(["new"], [b"v"]),
    "put_from": lambda store, base: store.put_from("new", base, 5),
    "batch_put_from": lambda store, base: store.batch_put_from(["new"], [base], [5]),
    "batch_put_from_multi_buffers": lambda store, base: store.batch_put_from_multi_buffers(["new"], [[base]], [[5]]),
    "get": lambda store, base: store.get("big"),
    "get_batch": lambda store, base: store.get_batch(["big", "k"]),
    "get_buffer": lambda store, base: store.get_buffer("k"),
    "batch_get_buffer": lambda store, base: store.batch_get_buffer(["k"]),
    "get_into": lambda store, base: store.get_into("k", base, 5),
    "batch_get_into": lambda store, base: store.batch_get_into(["k"], [base], [5]),
    "batch_get_into_multi_buffers": lambda store, base: store.batch_get_into_multi_buffers(["k"], [[base]], [[5]]),
    "get_into_ranges": lambda store, base: store.get_into_ranges([base], [["k"]], [[[0]]], [[[0]]], [[[1]]]),
    "is_exist": lambda store, base: store.is_exist("k"),
    "batch_is_exist": lambda store, base: store.batch_is_exist(["k"]),
    "remove": lambda store, base: store.remove("k"),
    "batch_remove": lambda store, base: store.batch_remove(["k"]),
    "remove_by_regex": lambda store, base: store.remove_by_regex("k"),
    "remove_all": lambda store, base: store.remove_all(),
    "get_size": lambda store, base: store.get_size("k"),
    "get_replica_desc": lambda store, base: store.get_replica_desc("k"),
    "batch_get_replica_desc": lambda store, base: store.batch_get_replica_desc(["k"]),
    "upsert": lambda store, base: store.upsert("k", b"v"),
    "batch_upsert_from": lambda store, base: store.batch_upsert_from(["k"], [base], [5]),
    "batch_get_session_start": lambda store, base: store.batch_get_session_start(["k"]),
    "batch_put_session_start": lambda store, base: store.batch_put_session_start(["new"], [5]),
    "create_copy_task": lambda store, base: store.create_copy_task("k", [store.get_hostname()]),
    "batch_replica_clear": lambda store, base: store.batch_replica_clear(["k"]) or 0,
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_call_that_waits_lets_other_threads_run(master, store, name):
    memory = bytearray(8)
    assert store.put("k", b"value") == 0 and store.put("big", bytes(200_000)) == 0
    cluster.hold_still(master.pid)
    try:
        count, result = progress_during(lambda: BLOCKING[name](store, address(memory)), lambda: os.kill(master.pid, signal.SIGCONT))
    finally:
        os.kill(master.pid, signal.SIGCONT)
    assert count >= ENOUGH, f"{name} held the GIL, or did not wait: {result}"
    assert result not in (b"", None, []) and result != [-901]


def test_setup_lets_other_threads_run(monkeypatch):
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "1500")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = MooncakeDistributedStore()
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        count, result = progress_during(lambda: store.setup("127.0.0.1", "P2PHANDSHAKE", 0, BUFFER, "tcp", "", place))
    assert result < 0 and count >= ENOUGH


def run_threads(count, body):
    failures = []

    def guarded(number):
        try:
            body(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60 * SLOW)
        assert not thread.is_alive()
    assert failures == []


def test_one_store_from_many_threads(store):
    memory = [bytearray(70_000) for _ in range(8)]

    def work(number):
        for turn in range(40):
            key, value = f"{number}/{turn}", pattern(1000 + 1601 * turn, number)
            assert store.put(key, value) == 0
            assert store.get(key) == value
            assert store.get_into(key, address(memory[number]), 70_000) == len(value)
            assert memory[number][: len(value)] == value
            assert store.batch_is_exist([key, "none"]) == [1, 0]
            assert bytes(store.get_buffer(key)) == value
            assert store.remove(key, True) == 0

    run_threads(8, work)


def test_two_threads_may_put_the_same_key(store):
    def work(number):
        for turn in range(50):
            assert store.put(f"shared {turn}", pattern(3000, number)) in (0, -1902)
            assert store.get(f"shared {turn}") in [b""] + [pattern(3000, each) for each in range(4)]

    run_threads(4, work)
    assert all(store.get(f"shared {turn}") in [pattern(3000, each) for each in range(4)] for turn in range(50))


def test_close_while_others_call(master):
    for turn in range(5):
        store = joined(master)
        wait_until(lambda: store.put(f"close {turn}", pattern(100_000)) == 0)
        ended = []

        def work(number):
            while (code := store.is_exist(f"close {turn}")) >= 0:
                assert store.get(f"close {turn}") in (b"", pattern(100_000))
                store.put(f"close {turn} {number} {time.monotonic()}", b"v")
            ended.append(code)

        closer = threading.Timer(0.05, store.close)
        closer.start()
        run_threads(4, work)
        closer.join()
        assert set(ended) <= {-600, -1010} and store.close() == 0


def test_setup_and_close_from_many_threads(master):
    store = MooncakeDistributedStore()

    def work(number):
        for _ in range(5):
            assert store.setup(*arguments(master, 0)) in (0, -600)
            assert store.is_exist("k") in (0, -600)
            assert store.close() == 0

    run_threads(4, work)
    assert store.close() == 0 and store.health_check() == 1


def test_caller_changes_its_list_during_the_call(master, store):
    keys = ["changing %d" % i for i in range(500)]
    assert store.put_batch(keys, [b"v"] * 500) == 0
    given = list(keys)
    timer = stopped(master, 0.2)
    outcome, begun, interval = [], threading.Event(), sys.getswitchinterval()

    def body():
        begun.set()
        outcome.extend(store.batch_is_exist(given))
    thread = threading.Thread(target=body)
    del keys
    sys.setswitchinterval(60)  # once it has begun, this thread runs when the call waits, and not before
    try:
        thread.start()
        begun.wait()
    finally:
        sys.setswitchinterval(interval)
    given.clear()
    gc.collect()
    junk = ["x" * 10 for _ in range(1000)]
    thread.join()
    timer.join()
    assert outcome == [1] * 500 and junk


# ---- life of the object ----


def test_destructor_closes(master, store):
    other = joined(master)
    wait_until(lambda: other.put("of another", b"v", with_fields(preferred_segment=other.get_hostname())) == 0)
    name = other.get_hostname()
    gone = weakref.ref(other)
    held = store.get_replica_desc("of another")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_ == name
    del other
    gc.collect()
    assert gone() is None
    if held:
        wait_until(lambda: store.is_exist("of another") == 0)


def test_a_subclass_works_and_closes(master):
    class Mine(MooncakeDistributedStore):
        def __init__(self):
            self.cycle = self

        def get(self, key):
            return super().get(key) or b"default"

    store = Mine()
    assert store.setup(*arguments(master, 0)) == 0
    assert store.get("nothing") == b"default"
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


def usage():
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
        "memory": int(re.search(r"VmRSS:\s+(\d+)", status)[1]),
        "maps": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
    }


def test_setup_and_close_many_times_leak_nothing(master):
    def cycle(number):
        store = MooncakeDistributedStore()
        assert store.setup(*arguments(master, (number % 2) * (4 << 20))) == 0
        assert store.is_exist("k") == 0
        if number % 3 == 0:
            assert store.close() == 0

    for number in range(20):
        cycle(number)
    before = usage()
    for number in range(CYCLES):
        cycle(number)
    after = usage()
    assert after["descriptors"] <= before["descriptors"] + 2 and after["threads"] <= before["threads"] + 1, (before, after)
    assert cluster.SANITIZED or (after["memory"] <= before["memory"] + 8192 and after["maps"] <= before["maps"] + 16), (before, after)


def test_calls_leak_no_objects(store):
    memory = bytearray(100_000)
    base = address(memory)
    config = with_fields(preferred_segments=["a:1"], group_ids=["g"])

    def all_calls(turn):
        key = f"leak {turn % 10}"
        store.put(key, memory, config)
        store.put_parts("p", b"1", memoryview(b"1.2.")[::2], config=config)
        store.put_batch([key, "b"], [b"1", memory])
        store.batch_put_from([key, "n"], [base, 0], [10, 10])
        store.batch_put_from_multi_buffers([key], [[base, base]], [[10, 10]])
        store.get(key), store.get_batch([key, "none"]), store.get_buffer(key), store.batch_get_buffer([key, "none"])
        store.get_into(key, base, 100_000), store.batch_get_into([key], [base], [100_000])
        store.batch_get_into_multi_buffers([key], [[base]], [[100_000]])
        store.get_into_ranges([base], [[key]], [[[0]]], [[[0]]], [[[1]]])
        store.is_exist(key), store.batch_is_exist([key] * 50), store.get_size(key), store.get_hostname()
        store.get_replica_desc(key), store.batch_get_replica_desc([key, "none"])
        store.remove(key, True), store.batch_remove(["p", "b"], True), str(config), config.preferred_segments
        for bad in (lambda: store.put(1, b""), lambda: store.put_parts("k", memory, 1), lambda: store.batch_put_from(["k"], ["x"], [1])):
            with pytest.raises(TypeError):
                bad()

    for turn in range(50):
        all_calls(turn)
    gc.collect()
    blocks, before = sys.getallocatedblocks(), usage()
    for turn in range(500):
        all_calls(turn)
    gc.collect()
    assert sys.getallocatedblocks() < blocks + 200
    # An address sanitizer keeps freed memory for a while.
    assert cluster.SANITIZED or usage()["memory"] < before["memory"] + 8192


def in_child(body):
    """Runs body in a forked child; its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(20 * SLOW)
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_after_fork_the_childs_store_is_dead_and_harmless(master, store):
    assert store.put("k", b"value") == 0

    def child():
        assert store.put("k2", b"v") == -1010 and store.get("k") == b"" and store.get_buffer("k") is None
        assert store.batch_is_exist(["k"]) == [-1010] and store.remove_all(True) == -1010
        assert store.get_hostname() == "" and store.health_check() == 1
        fresh = joined(master, 0)
        assert fresh.get("k") == b"value" and fresh.close() == 0
        assert store.close() == 0
        assert store.setup(*arguments(master, 0)) == 0 and store.get("k") == b"value"
        assert store.close() == 0

    assert in_child(child) == 0
    assert store.get("k") == b"value" and store.is_exist("k2") == 0 and store.health_check() == 0


def test_fork_while_other_threads_call(store):
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            store.put("busy", bytes(1000))
            store.get("busy")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()

    def child():
        assert store.is_exist("busy") == -1010
        assert store.close() == 0

    try:
        assert [in_child(child) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert store.is_exist("busy") == 1


SCRIPT = """
import atexit, os, sys, threading, time
sys.path.insert(0, {path!r})
from mooncake.store import MooncakeDistributedStore
def joined(segment=1 << 22):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 1 << 20, "tcp", "", {master!r}) == 0
    return store
{body}
"""

ENDINGS = {
    "held by the module": "store = joined()",
    "held by itself": "class Mine(MooncakeDistributedStore): pass\nstore = Mine(); store.setup('127.0.0.1', 'P', 0, 1 << 20, 'tcp', '', {master!r}); store.me = store",
    "never deleted": "sys.hold = [joined()]; import builtins; builtins.hold = sys.hold",
    "daemon threads in calls": """
store = joined()
def busy():
    while True:
        store.put("k", bytes(300000)); store.get("k"); store.remove("k", True)
for _ in range(3): threading.Thread(target=busy, daemon=True).start()
time.sleep(0.2)""",
    "closed at exit under daemon threads": """
store = joined(0)
def busy():
    while True: store.is_exist("k")
for _ in range(3): threading.Thread(target=busy, daemon=True).start()
time.sleep(0.1)
atexit.register(store.close)""",
    "closed by a destructor at the end": """
class Owner:
    def __init__(self): self.store = joined()
    def __del__(self): self.store.close()
owner = Owner()""",
    "buffers left": "store = joined()\nwhile store.put('k%d' % os.getpid(), bytes(100000)) != 0: time.sleep(0.01)\nbuffers = store.batch_get_buffer(['k%d' % os.getpid()] * 5)",
    "an exception": "store = joined()\nraise SystemExit(0)",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_interpreter_ends_cleanly_without_close(master, name):
    values = {"path": os.environ["MC_PYTHONPATH"], "master": master.address}
    script = SCRIPT.format(body=ENDINGS[name].format(**values) if "{master" in ENDINGS[name] else ENDINGS[name], **values)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20 * SLOW)
    assert ended.returncode == 0, ended.stderr
    assert "Fatal" not in ended.stderr and "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr, ended.stderr


def test_another_process_gets_the_same_bytes(master, store):
    data = pattern(3_000_001)
    assert store.put("between processes", data) == 0
    body = """
import hashlib
store = joined(0)
print(hashlib.sha256(store.get("between processes")).hexdigest())
assert store.put("back", b"from the other process") == 0
store.close()"""
    script = SCRIPT.format(body=body, path=os.environ["MC_PYTHONPATH"], master=master.address)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20 * SLOW)
    assert ended.stdout.strip() == hashlib.sha256(data).hexdigest(), ended.stderr
    assert store.get("back") == b"from the other process"


def test_import_of_the_package_is_light():
    script = f"import sys; sys.path.insert(0, {os.environ['MC_PYTHONPATH']!r}); import mooncake; assert 'mooncake.store' not in sys.modules; print(mooncake.__version__)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20 * SLOW)
    assert ended.stdout.strip() == module.__version__, ended.stderr


@pytest.mark.parametrize("name", ["store", "buffer_pool", "engine"])
def test_modules_that_are_attributes_of_the_package(name):
    script = f"import mooncake, sys; assert 'mooncake._store' not in sys.modules; print(mooncake.{name}.__name__, hasattr(mooncake, 'ep'))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20 * SLOW,
                           env=dict(os.environ, PYTHONPATH=os.environ["MC_PYTHONPATH"]))
    assert ended.stdout == f"mooncake.{name} False\n", ended.stderr


def test_parts_of_the_package_may_lie_elsewhere(tmp_path):
    """And ours come first."""
    (tmp_path / "mooncake").mkdir()
    for name in ("__init__", "elsewhere", "mooncake_config"):
        (tmp_path / "mooncake" / f"{name}.py").write_text("WHERE = 'elsewhere'\n")
    script = "import mooncake.elsewhere, mooncake.mooncake_config as ours; print(mooncake.elsewhere.WHERE, hasattr(ours, 'WHERE'))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20 * SLOW,
                           env=dict(os.environ, PYTHONPATH=f"{os.environ['MC_PYTHONPATH']}:{tmp_path}"))
    assert ended.stdout == "elsewhere False\n", ended.stderr


def test_a_dead_master_is_an_error_within_the_deadline(monkeypatch):
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "500")
    with cluster.Master() as own:
        store = joined(own)
        wait_until(lambda: store.put("k", b"v") == 0)
        own.kill()
        start = time.monotonic()
        assert store.is_exist("k") < 0 and store.put("k2", b"v") < 0 and store.get("k") == b""
        assert all(code < 0 for code in store.batch_is_exist(["a", "b"]))
        assert store.health_check() == 2 and store.get_replica_desc("k") == []
        assert store.close() == 0
        assert time.monotonic() - start < 6 * SLOW
