"""What newcomers stumbled over: wrong reasons, typos that pass in silence, signals, codes without a name, a node that is drained or lost and does not look so."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from cluster import BUILD, Master, request, says, wait_until
from ports import free_port
from service_process import Service, run
from test_documents import document


def python(code, **variables):
    done = subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == 0, done.stderr
    return done


# ---- reasons ----

def last_error(master, code="-900 RPC_FAIL"):
    done = python(f"""
        from mooncake.store import MooncakeDistributedStore
        print(MooncakeDistributedStore().setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "{master}"))
        """, MC_RPC_TIMEOUT_MS=700)
    number, name = code.split()
    assert done.stdout == f"{number}\n"
    [line] = [line for line in done.stderr.splitlines() if line.startswith("E")]
    return line.split(f"{name}: ")[1]


def test_why_no_master_answers():
    assert last_error("no-such-host.invalid:50051") == "there is no host of that name"
    port = free_port()
    assert last_error(f"127.0.0.1:{port}") == "Connection refused; check the address and that mooncake_master runs"
    assert last_error(f"etcd://127.0.0.1:{port}").startswith("it does not say who leads: is it up, and is that its address?")
    with Master() as master:
        assert last_error(f"127.0.0.1:{master.metrics_port}", "-1904 PROTOCOL").startswith("what listens there does not answer as a master: is it the rpc_port (50051)")
    with socket.socket() as silent:  # takes connections, says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "does not answer as a master" in last_error(f"127.0.0.1:{silent.getsockname()[1]}")


# ---- typos ----

@pytest.mark.parametrize("level, is_said", [("bogus", True), ("warning", False), ("3", False)])
def test_a_level_that_is_none(level, is_said, monkeypatch):
    monkeypatch.setenv("MC_LOG_LEVEL", level)
    done = run([str(BUILD / "mc_store_rest_server")], "--port=0", "--max_wait_time=0.1", MOONCAKE_MASTER="127.0.0.1:1", MC_LOG_LEVEL=level)
    assert done.returncode == 1
    assert (f"MC_LOG_LEVEL={level} is no level: TRACE, DEBUG, INFO, WARNING or ERROR; INFO is used" in done.stderr) == is_said


def test_check_config(tmp_path):
    config = tmp_path / "master.yaml"
    for text, code, says in (("rpc_port: 0\n", 0, "the settings are right\n"), ("rcp_port: 3\n", 1, f"{config}:1: unknown setting 'rcp_port'; did you mean rpc_port?"),
                             ("kv_events_replay_endpoint: tcp://*:1\n", 0, "--kv_events_replay_endpoint changes nothing without"), ("quota_bytes: 7\n", 0, "--quota_bytes says"),
                             ("enable_kv_events: true\nkv_events_replay_endpoint: tcp://*:1\n", 0, "--kv_events_replay_endpoint changes nothing without"),
                             ("kv_events_bind_endpoint: tcp://*:2\n", 0, "--kv_events_bind_endpoint changes nothing without"), ("rpc_port: x\n", 1, "rpc_port: bad value 'x'"), ("enable_ha: true\n", 1, "etcd_endpoints")):
        config.write_text(text)
        done = subprocess.run([BUILD / "mooncake_master", "--check_config", f"--config_path={config}"], capture_output=True, text=True, timeout=30)
        assert done.returncode == code and says in done.stdout + done.stderr, done


# ---- signals, and what is said at the start ----

def test_hangup_ends_nothing():
    with Master() as master, Service(MOONCAKE_MASTER=master.address) as node:
        metadata = subprocess.Popen([BUILD / "mooncake_http_metadata_server", "--port=0", "--host=127.0.0.1"], stderr=subprocess.PIPE, text=True)
        proxy = subprocess.Popen([BUILD / "mooncake_proxy", "--port=0", "--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:1"], stderr=subprocess.PIPE, text=True)
        try:
            for child, ready in ((metadata, "started on"), (proxy, "Proxy started")):
                while ready not in child.stderr.readline():
                    assert child.poll() is None
            for process in (master.process, node.process, metadata, proxy):
                process.send_signal(signal.SIGHUP)
            for log in (master.log, node.log):
                wait_until(lambda: "SIGHUP changes nothing" in log(), 20, "the word")
            for child in (metadata, proxy):
                while "SIGHUP changes nothing" not in child.stderr.readline():
                    assert child.poll() is None
            assert master.get("/health")[0] == 200 and node.call("GET", "/health")[0] == 200
        finally:
            for child in (metadata, proxy):
                child.terminate()
                assert child.wait(timeout=30) == 0
                child.stderr.close()


def test_what_a_master_says_first(tmp_path):
    config = tmp_path / "master.yaml"
    config.write_text("client_ttl: 12\n")
    with Master(f"--config_path={config}") as master:
        version = subprocess.run([master.program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        assert re.search(rf"mooncake_master {re.escape(version)} .*: RPC on 127\.0\.0\.1:{master.port}, HTTP on 127\.0\.0\.1:{master.metrics_port}; settings: 5 flags, and {config}$", master.log(), re.M), master.log()


# ---- codes ----

def test_names_of_codes():
    known = re.findall(r"^    X\(([A-Z_]+), (-\d+)", document("include/mooncake.h"), re.M)
    done = python("""
        from mooncake import store
        for code in {codes}:
            print(store.error_name(code), "|", store.error_text(code))
        """.replace("{codes}", str([int(value) for _, value in known] + [0, 7, -9999, 1 << 70, -(1 << 70)])))
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == [name for name, _ in known] + ["OK", "OK", "UNKNOWN", "OK", "UNKNOWN"]
    assert all(text for _, text in lines) and dict(lines)["RPC_FAIL"].startswith("the master cannot be reached")


def test_codes_that_stand_for_several_things():
    with Master() as master:
        done = python(f"""
            from mooncake.store import MooncakeDistributedStore
            store = MooncakeDistributedStore()
            assert store.setup("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", "{master.address}") == 0
            print(store.put("large", bytes(80 << 20)), store.put("empty", b""), store.remove_by_regex("("))
            store.close()
            asks = MooncakeDistributedStore()
            assert asks.setup("localhost", "P2PHANDSHAKE", 64 << 20, 0, "tcp", "", "{master.address}") == 0
            print(asks.put("a", b"b"))
            """)
    assert done.stdout == "-200 -600 -600\n-600\n"
    for words in ("a value of 83886080 bytes is not put: no segment has room for it (NO_AVAILABLE_HANDLE)", "a value of 0 bytes is not put (INVALID_PARAMS)",
                  "nothing is removed: '(' is no expression (INVALID_PARAMS)", "set up with local_buffer_size 0"):
        assert words in done.stderr, done.stderr


def test_with():
    with Master() as master:
        done = python(f"""
            import asyncio
            from mooncake.async_store import MooncakeDistributedStoreAsync
            from mooncake.store import BufferPool, MooncakeDistributedStore
            where = ("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", "{master.address}")
            with MooncakeDistributedStore() as store:
                assert store.setup(*where) == 0
                with BufferPool(store) as pool, pool.acquire(1000) as lease:
                    assert lease is not None
            assert store.put("a", b"b") < 0

            async def awaited():
                async with MooncakeDistributedStoreAsync() as store:
                    assert await store.async_setup(*where) == 0
                return store
            assert asyncio.run(awaited()).put("a", b"b") < 0
            try:
                with MooncakeDistributedStore() as store:
                    raise KeyError("x")
            except KeyError:
                print("raised")
            """)
        assert done.stdout == "raised\n"


# ---- nodes that leave ----

def status_of(master, name):
    return next(one["status"] for one in json.loads(master.get("/get_segments_detail")[1])["segments"] if one["segment_name"] == name)


def test_a_drained_node_looks_so():
    with Master("--default_kv_lease_ttl=100") as master, Service(MOONCAKE_MASTER=master.address) as first:
        first.put("a", "b")
        [name] = master.get("/get_all_segments")[1].decode().split()
        assert status_of(master, name) == "OK"
        assert request(master.metrics_port, "POST", "/api/v1/drain_jobs", body=json.dumps({"segments": [name]}))[0] == 200
        assert status_of(master, name) == "DRAINING"  # there is nowhere to go
        says(master, f"({name}) is being drained")
        wait_until(lambda: "could not be moved away yet: NO_AVAILABLE_HANDLE" in first.log(), 20, "the reason")
        with Service(MOONCAKE_MASTER=master.address):
            wait_until(lambda: status_of(master, name) == "DRAINED", 30, "the end of the drain")
            says(master, f"({name}) is drained: it can be unmounted")


def test_the_loss_of_a_node_is_a_warning():
    with Master("--client_ttl=3s") as master:
        with Service(MOONCAKE_MASTER=master.address) as node:
            node.put("a", "b")
            [name] = master.get("/get_all_segments")[1].decode().split()
            member = json.loads(master.get("/get_segments_detail")[1])["segments"][0]["client_id"]  # the same words everywhere
            assert f"client_id={member}, action=mount_segment" in node.log() and f"member {member}/" in master.log()
            node.kill()
            said = wait_until(lambda: re.search(rf"^W.*store node {re.escape(name)} \(member {member}/\d+\) is lost, with replicas of 1 objects: no sign of life within client_ttl$",
                                                master.log(), re.M), 30, "the loss")
            assert said


def test_a_clean_leave_is_no_suspicion():
    with Master() as master:
        with Service(MOONCAKE_MASTER=master.address) as node:
            node.put("a", "b")
        wait_until(lambda: "is gone, with replicas of" in master.log(), 20, "the leave")
        assert "is suspect: its owner's connection has ended" in master.log() or "is suspect" not in master.log()
        assert "is lost" not in master.log() and not re.search(r"^W(?!.*has no keys)", master.log(), re.M)
