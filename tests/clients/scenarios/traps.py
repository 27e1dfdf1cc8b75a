"""What real clients lean on without saying so; a step for each. See test_traps.py for what must come out, and who leans on it."""
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import mooncake.store
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from steps import MASTER, SIDE, pattern, scenario, step

SIZE = 1 << 16


def made(size=16 << 20, **more):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", size, 16 << 20, "tcp", "", MASTER, **more)
    assert code == 0, code
    return store


def first_put(store, key, value=b"1"):
    end = time.monotonic() + 30
    while (code := store.put(key, value)) != 0 and time.monotonic() < end:
        time.sleep(0.05)
    return code


def setup_dict(**keys):
    """LMCache's: every value a str."""
    store = MooncakeDistributedStore()
    given = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "16777216", "local_buffer_size": "16777216",
             "protocol": "tcp", **keys}
    return [store.setup({name: str(value) for name, value in given.items()}), first_put(store, "put by " + " ".join(keys))]


def dict_setup():
    canonical = setup_dict(master_server_addr=MASTER, rdma_devices="")
    if SIDE == "original":  # asks 127.0.0.1:50051 for 100 s
        return [canonical, "does not know master_server_address"]
    return [canonical, setup_dict(master_server_address=MASTER, device_name=""),
            setup_dict(master_server_address="127.0.0.1:1", master_server_addr=MASTER, device_name="", rdma_devices="")]


def keywords():
    store = MooncakeDistributedStore()
    code = store.setup(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", global_segment_size=16 << 20, local_buffer_size=16 << 20,
                       protocol="tcp", rdma_devices="", master_server_addr=MASTER)
    value = ctypes.create_string_buffer(pattern(SIZE), SIZE)
    at = ctypes.addressof(value)
    config = ReplicateConfig()
    first_put(store, "keywords")
    return [code, store.register_buffer(buffer_ptr=at, size=SIZE), store.put(key="k1", value=b"1", config=config),
            store.put_from(key="k2", buffer_ptr=at, size=SIZE, config=config), store.put_parts("k3", b"1", b"2", config=config),
            store.batch_put_from(keys=["k4"], buffer_ptrs=[at], sizes=[SIZE], config=config),
            store.batch_put_from_multi_buffers(keys=["k5"], all_buffer_ptrs=[[at]], all_sizes=[[SIZE]], config=config),
            store.batch_get_into(keys=["k4"], buffer_ptrs=[at], sizes=[SIZE]),
            store.batch_get_into_multi_buffers(keys=["k5"], all_buffer_ptrs=[[at]], all_sizes=[[SIZE]], prefer_alloc_in_same_node=False),
            store.batch_get_buffer(["nobody's"]),
            store.unregister_buffer(buffer_ptr=at), store.remove(key="nobody's", force=True)]


def eighth_argument():
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", MASTER, None)
    names = []
    try:
        MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", MASTER, None, no_such_option=True)
    except TypeError as error:
        names.append("no_such_option" in str(error))
    return [code, names, MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", MASTER, None, tenant_id="default")]


def result_types(store):
    value = ctypes.create_string_buffer(pattern(SIZE), 2 * SIZE)
    at = ctypes.addressof(value)
    results = [store.batch_put_from(["t1", "t2"], [at, at], [SIZE, SIZE]), store.batch_get_into(["t1", "none"], [at, at + SIZE], [SIZE, SIZE]),
               store.batch_is_exist(["t1", "none"]), store.batch_put_from_multi_buffers(["t3"], [[at, at + 10]], [[10, 20]]),
               store.batch_get_into_multi_buffers(["t3", "none"], [[at, at + 10], [at]], [[10, 20], [SIZE]]), store.batch_put_from([], [], []),
               store.batch_get_into([], [], []), store.batch_is_exist([])]
    return [[type(result) is list, all(type(code) is int for code in result), result] for result in results]


def codes(store):
    """Existing key, empty value, missing key, too little room, leased, unknown memory, no room at all."""
    value = ctypes.create_string_buffer(pattern(SIZE), SIZE)
    at = ctypes.addressof(value)
    found = {"put": store.put("c1", b"first"), "put again": store.put("c1", b"second"), "old value stays": store.get("c1") == b"first",
             "empty value": store.put("c2", b""), "remove while leased": store.remove("c1"), "remove by force": store.remove("c1", True),
             "remove nothing": store.remove("none"), "missing": store.batch_get_into(["none"], [at], [SIZE]),
             "register": store.register_buffer(at, SIZE), "register twice": store.register_buffer(at, SIZE),
             "unregister": store.unregister_buffer(at), "unregister twice": store.unregister_buffer(at)}
    store.put("c3", b"x" * 1000)
    found["too little"] = store.batch_get_into(["c3"], [at], [999])
    huge = ctypes.create_string_buffer(1)
    found["more than there is"] = store.batch_put_from(["c4"], [ctypes.addressof(huge)], [1 << 40])
    return found


def released_while_waiting(store):
    """Eight threads in calls that wait for a stopped master; the interpreter goes on."""
    master = int(os.environ["MC_MASTER_PID"])
    calls = [lambda: store.get("g"), lambda: store.put("g", b"1"), lambda: store.is_exist("g"), lambda: store.batch_is_exist(["g"]),
             lambda: store.batch_get_buffer(["g"]), lambda: store.remove("g"), lambda: store.put_parts("h", b"1", b"2"), lambda: store.batch_get_replica_desc(["g"])]
    os.kill(master, signal.SIGSTOP)
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    try:
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        slowest, last, end = 0.0, time.monotonic(), time.monotonic() + 0.5
        while time.monotonic() < end:
            time.sleep(0.001)
            now = time.monotonic()
            slowest, last = max(slowest, now - last), now
        waiting = sum(thread.is_alive() for thread in threads)
    finally:
        os.kill(master, signal.SIGCONT)
    for thread in threads:
        thread.join(30)
    return [waiting == len(calls), slowest < 0.4, sum(thread.is_alive() for thread in threads)]


def many_threads(store):
    """One store, 16 threads, keys of their own: each gets its own bytes."""
    wrong = []

    def work(number):
        target = ctypes.create_string_buffer(SIZE)
        for turn in range(10):
            value = pattern(SIZE, number * 100 + turn)
            source = ctypes.create_string_buffer(value, SIZE)
            key = f"thread {number} {turn}"
            put = store.batch_put_from([key], [ctypes.addressof(source)], [SIZE])
            # A cache may miss while a starved machine lets a path time out; it may not deliver other bytes.
            end = time.monotonic() + 5
            while (got := store.batch_get_into([key], [ctypes.addressof(target)], [SIZE])) == [-704] and time.monotonic() < end:
                time.sleep(0.01)
            if put != [0] or got != [SIZE] or target.raw != value:
                wrong.append([key, put, got])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return wrong


def features():
    return {"class group_ids": hasattr(ReplicateConfig, "group_ids"), "object group_ids": hasattr(ReplicateConfig(), "group_ids"),
            "session_ids": hasattr(ReplicateConfig, "session_ids")}


IMPORTS = """
import sys
sys.path[:] = [{path!r}] + [p for p in sys.path if "mooncake" not in p and "pypath" not in p and "original" not in p]
try:
    import mooncake.{module}
except ImportError as error:
    print("ImportError")
except BaseException as error:
    print(type(error).__name__)
else:
    print("imported")
"""


def broken_import(module):
    """The extension is cut short, as by a full disk."""
    import pathlib
    import tempfile

    package = pathlib.Path(mooncake.store.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "mooncake"
        target.mkdir()
        for file in package.iterdir():
            if file.suffix == ".py":
                (target / file.name).write_bytes(file.read_bytes())
            elif file.suffix == ".so":
                (target / file.name).write_bytes(file.read_bytes()[:100])
        done = subprocess.run([sys.executable, "-S", "-c", IMPORTS.format(path=folder, module=module)], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"]})
    return done.stdout.strip()


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def lazy_memory():
    before = resident_bytes()
    store = MooncakeDistributedStore()
    start = time.monotonic()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 4 << 30, 4 << 30, "tcp", "", MASTER)
    seconds = time.monotonic() - start
    grown = resident_bytes() - before
    store.close()
    return [code, seconds < 2, grown < 1 << 30]


def rdma_without_device():
    """SGLang's and vLLM's default protocol on a machine that has no such device, with the switch that SGLang names."""
    os.environ["MC_FORCE_TCP"] = "1"
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "rdma", "", MASTER)
    del os.environ["MC_FORCE_TCP"]
    return [code, first_put(store, "over rdma that is tcp"), store.get("over rdma that is tcp") == b"1"]


NEVER_CLOSED = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
print(store.put("by one that never closes", b"1"), store.get("by one that never closes"))
"""


def never_closed():
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", NEVER_CLOSED, MASTER], capture_output=True, text=True, timeout=60)
    return [done.returncode, done.stdout.strip().splitlines()[-1:], time.monotonic() - start < 20]


def no_master():
    """What a client gets that was never set up, or lost its master, is a miss or a code; never an exception."""
    store = MooncakeDistributedStore()
    at = ctypes.addressof(ctypes.create_string_buffer(16))
    return {"exists": store.is_exist("k"), "batch exists": [type(code) is int and code != 1 for code in store.batch_is_exist(["k"])],
            "get": repr(store.get("k")), "buffers": store.batch_get_buffer(["k"]), "get into": [code < 0 for code in store.batch_get_into(["k"], [at], [16])],
            "put": store.put("k", b"1") < 0, "close": [store.close(), store.close()]}


LOST_MASTER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
print("ready", store.is_exist("nobody's"), flush=True)
sys.stdin.readline()
codes = [store.is_exist("nobody's"), *store.batch_is_exist(["nobody's", "ready"])]
print([type(code) is int and code < 0 and bool(code) for code in codes], flush=True)
"""


def lost_master():
    """A failure is negative, and so true for who takes it as an answer to "is it there?": it must not come where a miss is known."""
    child = subprocess.Popen([sys.executable, "-c", LOST_MASTER, MASTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "MC_RPC_TIMEOUT_MS": "1500"})
    ready = child.stdout.readline().strip()
    master = int(os.environ["MC_MASTER_PID"])
    os.kill(master, signal.SIGSTOP)
    try:
        answer = child.communicate("go\n", timeout=60)[0].strip().splitlines()[-1:]
    finally:
        os.kill(master, signal.SIGCONT)
        child.kill()
        child.wait()
    return [ready, answer]


def zero_length(store):
    """What a get of nothing returns is no success for who wants more than 0: such an object must not be there."""
    at = ctypes.addressof(ctypes.create_string_buffer(16))
    put = [store.put("z1", b""), store.put_parts("z1", b"", b""), store.put_from("z1", at, 0), store.upsert_from("z1", at, 0), *store.batch_put_from(["z2"], [at], [0]), *store.batch_put_from_multi_buffers(["z3"], [[at]], [[0]])]
    put += store.batch_upsert_from(["z2"], [at], [0])
    return [put, store.batch_is_exist(["z1", "z2", "z3"]), store.batch_get_into(["z1", "z2", "z3"], [at] * 3, [16] * 3)]


KEYS = ["test-model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@deadbeef", "sglang_0123456789abcdef_0_k", "vllm@lane/model@1@0@abc123@bfloat16",
        "org/model name with spaces@1", "k/../../etc", "schlüssel-鍵", "%41%00", "a" * 200, "-", "key\nwith a line"]


def odd_keys(store):
    put = [store.put(key, f"{i} {key}".encode()) for i, key in enumerate(KEYS)]
    return [put, [store.get(key) == f"{i} {key}".encode() for i, key in enumerate(KEYS)], store.batch_is_exist(KEYS), store.is_exist("test-model@tp_rank:0")]


def buffers(store):
    """What LMCache does with batch_get_buffer's: memoryview, slices, and the object stays alive while it is exported."""
    store.put("b1", pattern(5000))
    handle, missing = store.batch_get_buffer(["b1", "none"])
    view = memoryview(handle)
    head = view[:28]
    del handle
    return [missing, view.format in ("b", "B"), view.itemsize, view.ndim, len(view), bytes(view) == pattern(5000), bytes(head) == pattern(5000)[:28]]


def main():
    step("01 dict setup")(dict_setup)
    step("02 keyword names")(keywords)
    step("03 eighth argument")(eighth_argument)
    store = made(64 << 20)
    first_put(store, "ready", bytes(1 << 20))
    step("04 result types")(lambda: result_types(store))
    step("04 zero length")(lambda: zero_length(store))
    step("05 codes")(lambda: codes(store))
    step("06 get of nothing")(lambda: [repr(store.get("none")), repr(MooncakeDistributedStore().get("none"))])
    step("08 threads")(lambda: many_threads(store))
    step("08 interpreter goes on")(lambda: released_while_waiting(store))
    step("09 features")(features)
    step("10 broken store")(lambda: broken_import("store"))
    step("10 broken engine")(lambda: broken_import("engine"))
    step("11 lazy memory")(lazy_memory)
    step("11 rdma by tcp")(rdma_without_device)
    step("12 never closed")(never_closed)
    step("14 keys")(lambda: odd_keys(store))
    step("15 buffers")(lambda: buffers(store))
    step("13 lost master")(lost_master)
    step("13 never set up")(no_master)  # last: the original ends by SIGSEGV there


if __name__ == "__main__":
    with scenario():
        main()
