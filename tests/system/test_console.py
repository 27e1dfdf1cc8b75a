"""`mooncake`: what it prints for people and for scripts, its exit codes, what it says when something is wrong, and `top` in a terminal."""
import json
import os
import pty
import select
import subprocess
import time

import certificates
import keyed
import pytest
from cluster import BUILD, Master, wait_until
from keyed import Key
from older_master import OlderMaster
from ports import free_ports
from wire import EXIST, EXIST_REPLY, FIRM_PIN, FIRM_PINS, HINTS, SOFT_PIN, FakeOwner, data, record, records

COMMAND = BUILD / "mooncake"
STAYS = "--client_ttl=600s"  # owners made by hand send no heartbeats
PLAIN = {name: value for name, value in os.environ.items() if name not in ("MC_AUTH_FILE", "MC_AUTH_TOKEN", "MOONCAKE_MASTER")}


def run(master, *words, code=0, environment=PLAIN):
    done = subprocess.run([COMMAND, f"--admin=127.0.0.1:{master.metrics_port}", *words], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == code and (done.stderr == "" or code != 0 or words[0] == "drain"), (words, done)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def pool():
    with Master(STAYS) as master:
        owner = FakeOwner(master.port, "node-a:1", features=FIRM_PINS | HINTS)
        assert owner.put([b"model/%02d" % number for number in range(20)] + [b"<script>", b"a\x1b[31mred\xc2\x9b1m"], 4096) == [0] * 22
        yield master, owner
        owner.close()


def test_status(pool):
    master, _owner = pool
    text = run(master, "status")
    assert text.startswith("master    leader, serving; 0.") and " (git " in text.splitlines()[0]
    assert f"leader    {master.address}\n" in text and "64.00 MB used" in text and "objects   22, 0" in text
    assert "segments  1; 1 members" in text and "disks" not in text and "draining" not in text
    told = json.loads(run(master, "status", "--json"))
    assert told["objects"] == 22 and told["role"] == "leader"


def test_nodes(pool):
    master, _owner = pool
    others = [FakeOwner(master.port, f"other-{number}:1") for number in range(3)]
    lines = run(master, "nodes", "--sort=name").splitlines()
    assert lines[0].split()[:2] == ["NODE", "STATE"] and [line.split()[:3] for line in lines[1:]] == [["node-a:1", "OK", "22"]] + [[f"other-{number}:1", "OK", "0"] for number in range(3)]
    assert [node["name"] for node in json.loads(run(master, "nodes", "other", "--json"))] == [f"other-{number}:1" for number in range(3)]
    assert len(run(master, "nodes", "--limit", "2").splitlines()) == 3 and json.loads(run(master, "nodes", "zzz", "--json")) == []
    for other in others:
        other.close()
    wait_until(lambda: "SUSPECT" in run(master, "nodes").splitlines()[1])


def test_keys(pool):
    master, _owner = pool
    keys = json.loads(run(master, "keys", "--json"))
    assert len(keys) == 22 and {"key": "<script>", "bytes": 4096} in keys
    assert sorted(key["key"] for key in json.loads(run(master, "keys", "--prefix", "model/1", "--json"))) == [f"model/{number}" for number in range(10, 20)]
    text = run(master, "keys")
    assert "\x1b" not in text and "\x9b" not in text and "  a?[31mred?1m\n" in text, "a terminal takes no orders from a key"
    assert run(master, "keys", "model/03") == "model/03: 4.00 KB\n  on node-a:1 (127.0.0.1:9), memory, OK\n"
    assert json.loads(run(master, "keys", "--json", "--", "model/03"))["replicas"][0]["node"] == "node-a:1"
    gone = subprocess.run([COMMAND, "keys", "nobody", f"--admin=127.0.0.1:{master.metrics_port}"], capture_output=True, text=True, timeout=60, env=PLAIN)
    assert (gone.returncode, gone.stdout) == (1, "nobody is not there: never_stored\n")
    few = subprocess.run([COMMAND, "keys", "--limit=3", f"--admin=127.0.0.1:{master.metrics_port}"], capture_output=True, text=True, timeout=60, env=PLAIN)
    assert few.returncode == 0 and len(few.stdout.splitlines()) == 3 and "there may be more" in few.stderr


def test_many_keys_come_in_pages(pool):
    master, owner = pool
    for part in range(0, 3000, 1000):
        assert set(owner.put([b"page/%04d" % number for number in range(part, part + 1000)], 4096)) == {0}
    assert len({key["key"] for key in json.loads(run(master, "keys", "--prefix=page/", "--json", "--limit=100000"))}) == 3000


def test_pins_hints_and_evictions_of_status(pool):
    master, owner = pool
    assert "pinned  " not in run(master, "status") and "hints  " not in run(master, "status") and "room for" not in run(master, "status")
    assert owner.put([b"kept"], 4096, flags=SOFT_PIN | FIRM_PIN, pin_ms=600_000) == [0]
    assert owner.hint(1, [b"model/00", b"nobody"]) == [0, -704]
    text = run(master, "status")
    assert "pinned    4.06 KB of 16.00 MB firmly, 1 objects; 0 were refused; 0 B for ever\n" in text, text
    assert "hints     drop done 1, drop absent 1\n" in text, text
    told = json.loads(run(master, "status", "--json"))
    assert told["firm_pins"] == {"objects": 1, "bytes": 4160, "budget_bytes": 16 << 20, "expired": 0, "refused": 0} and told["hints"]["drop"]["done"] == 1


def test_a_master_of_the_release_before(pool):
    """What it does not say is not shown, and what it does not know is said where one looks."""
    master, owner = pool
    for number in range(128):
        owner.put([b"%d/%d" % (number, one) for one in range(8)], 1 << 16)  # it clears nothing: some find no room
        if master.metrics()["master_evicted_key_count"] > 0:
            break
    assert "\nroom for  " in run(master, "status")
    with OlderMaster(master, refused=("/api/v1/misses",)) as older:
        text = run(older, "status")
        assert "evicted   " in text and "room for" not in text, text
        text = run(older, "top")
        assert f"mooncake: 127.0.0.1:{older.metrics_port} answers 404: it does not know this question" in text and "node-a:1" in text, text


def test_misses(pool):
    master, owner = pool
    assert run(master, "misses") == "found     0.0 % of 0 lookups\nadvice    nothing was looked for yet\n"
    keys = [b"model/%02d" % number for number in range(20)] + [b"no/%d" % number for number in range(20)]
    for _ in range(2):
        owner.caller.call(EXIST, EXIST_REPLY, record() + records([data(key) for key in keys]))
    text = run(master, "misses")
    assert text.startswith("found     50.0 % of 80 lookups; 50.0 % lately\nmissed    never_stored               40 100.0 %\n"), text
    assert "64.00 MB            50.0 %  (as it is)\n" in text and "\nadvice    16.00 MB more: +0.0 points; 32.00 MB more: +0.0 points; 64.00 MB more: +0.0 points\n" in text and "\nused again" in text
    assert json.loads(run(master, "misses", "--json"))["misses"]["never_stored"] == 40
    assert run(master, "misses", "model/03") == "model/03 is there\n" and json.loads(run(master, "misses", "model/03", "--json"))["is_there"]
    gone = subprocess.run([COMMAND, "misses", "no/\x1b1", f"--admin=127.0.0.1:{master.metrics_port}"], capture_output=True, text=True, timeout=60, env=PLAIN)
    assert (gone.returncode, gone.stdout) == (1, "no/?1 is not there: never_stored\n")
    shown = run(master, "top").splitlines()
    assert "missed    never_stored 100.0 %" in shown and any(line.startswith("advice    16.00 MB more: +0.0 points; ") for line in shown)


def test_events(pool):
    master, _owner = pool
    lines = run(master, "events").splitlines()
    assert "leader" in lines[0] and any("node-a:1" in line and "is mounted" in line for line in lines)
    assert [event["kind"] for event in json.loads(run(master, "events", "--limit=1", "--json"))] == ["trust"]


def test_events_are_followed(pool):
    master, _owner = pool
    following = subprocess.Popen([COMMAND, "events", "--follow", f"--admin=127.0.0.1:{master.metrics_port}"], stdout=subprocess.PIPE, text=True, env=PLAIN)
    try:
        assert "leader" in following.stdout.readline()
        run(master, "drain", "--nowait", "node-a:1")
        while "is being drained" not in following.stdout.readline():
            assert following.poll() is None
    finally:
        following.terminate()
        following.wait(timeout=30)
        following.stdout.close()


def test_drain_and_undrain(pool):
    master, _owner = pool
    empty = FakeOwner(master.port, "empty:1")
    assert "drained: the node can be ended" in run(master, "drain", "empty:1")
    assert json.loads(run(master, "drain", "empty:1", "--json"))["status_name"] == "SUCCEEDED"
    assert "being drained" in run(master, "drain", "--nowait", "node-a:1")
    assert run(master, "drain").splitlines()[0] == "RUNNING   node-a:1: 0 of 22 objects, 0 B moved"
    assert "draining  [                        ]   0 %  node-a:1: 0 of 22 objects moved" in run(master, "status") and "1 being drained" in run(master, "status")
    jobs = json.loads(run(master, "drain", "--json"))
    assert [job["status"] for job in jobs] == ["RUNNING", "SUCCEEDED", "SUCCEEDED"]
    assert [[name in job for name in ("since_ms", "units_per_second", "left_ms")] for job in jobs] == [[True] * 3, [False] * 3, [False] * 3]  # nobody may have looked when it ended
    assert run(master, "undrain", "node-a:1", "empty:1") == "takes objects again\n"
    assert "CANCELED" in run(master, "drain").splitlines()[0] and "drain" not in run(master, "status")
    assert "there is no such node" in run(master, "drain", "nobody", code=1) and "there is no such node" in run(master, "undrain", "nobody", code=1)
    empty.close()


def test_a_drain_that_is_taken_back_ends_the_wait(pool):
    master, _owner = pool
    waiting = subprocess.Popen([COMMAND, "drain", "node-a:1", f"--admin=127.0.0.1:{master.metrics_port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN)
    wait_until(lambda: "RUNNING" in run(master, "drain"), 30)
    run(master, "undrain", "node-a:1")
    _out, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 1 and said.startswith("mooncake: the drain has ended without success: CANCELED; ") and said.count("\n") == 1  # no word before it


def test_a_master_on_all_addresses_is_where_it_was_asked():
    with Master("--rpc_address=0.0.0.0") as master:
        assert f"leader    127.0.0.1:{master.port}\n" in run(master, "status")


def test_what_is_wrong_is_said():
    port = free_ports(1)[0]
    def fails(*words, code, **more):
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60, env={**PLAIN, **more})
        assert done.returncode == code and done.stdout == "" and done.stderr.startswith("mooncake: "), done
        return done.stderr
    assert "Connection refused. Is a master there?" in fails("status", f"--admin=127.0.0.1:{port}", code=1)
    assert "'[::' is no address" in fails("status", "--master=[::", code=2)
    assert "mooncake: status, nodes" in fails(code=2) and "mooncake: status, nodes" in fails("stats", code=2) and "mooncake: status, nodes" in fails("top", "x", code=2)
    assert "are for scripts" in fails("top", "--json", f"--admin=127.0.0.1:{port}", code=2)
    assert "undrain NODE" in fails("undrain", f"--admin=127.0.0.1:{port}", code=2)


def test_keys_are_shown(tmp_path):
    reader, admin = Key("reader", "read"), Key("admin", "read,admin")
    file = keyed.write(tmp_path, "keys", admin, reader)
    with Master(f"--auth_file={file}") as master:
        assert "MC_AUTH_TOKEN" in run(master, "status", code=1)
        assert "leader" in run(master, "status", environment=keyed.environment(reader)) and "leader" in run(master, "status", f"--auth_file={file}")
        assert "may not do that" in run(master, "drain", "x", code=1, environment=keyed.environment(reader))
        assert "there is no such node" in run(master, "drain", "x", code=1, environment=keyed.environment(admin))


def test_tls(tmp_path):
    authority = certificates.Authority(tmp_path, "ca")
    cert, key = authority.sign("server", ["IP:127.0.0.1"])
    with Master(f"--tls_cert={cert}", f"--tls_key={key}") as master:
        assert "leader" in run(master, "status", f"--tls_ca_cert={authority.certificate}") and "leader" in run(master, "status", environment={**PLAIN, "MC_TLS_CA_CERT": str(authority.certificate)})
        assert "MC_TLS_CA_CERT" in run(master, "status", code=1)


def test_top_without_a_terminal(pool):
    master, _owner = pool
    text = run(master, "top")
    assert "\x1b" not in text and "node-a:1" in text and "leader" in text and "is mounted" in text and "of lookups, last hour" in text


def test_top_in_a_terminal(pool):
    master, owner = pool
    main, side = pty.openpty()
    shown = subprocess.Popen([COMMAND, "top", "--interval=1", f"--admin=127.0.0.1:{master.metrics_port}"], stdin=side, stdout=side, stderr=side, env=PLAIN, start_new_session=True)
    os.close(side)
    text = b""
    def seen(what, end=time.monotonic() + 60):
        nonlocal text
        while what not in text:
            assert time.monotonic() < end, text
            if select.select([main], [], [], 1)[0]:
                text += os.read(main, 65536)
    try:
        seen(b"\x1b[?1049h")
        seen(b"node-a:1")
        assert owner.put([b"one more"], 4096) == [0]
        seen(b"objects   23")
        os.write(main, b"q")
        seen(b"\x1b[?1049l")
        assert shown.wait(timeout=30) == 0
    finally:
        os.close(main)
        if shown.poll() is None:
            shown.kill()
        shown.wait()
