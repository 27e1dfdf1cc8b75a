"""Keys: who has none, or the wrong one, gets a refusal and nothing else; rights; rotation without a restart."""
import base64
import hashlib
import hmac
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time

import pytest

import keyed
import wire
from cluster import BUILD, Master, request, says, wait_until
from keyed import NOT_PERMITTED, Client, Key
from service_process import REST as SERVICE, Service, run
from store_process import StoreProcess

RIGHTS = ("read", "read,write", "node", "read,write,node,admin")
TAGS = 1 << 3  # the feature, in hellos of data connections


@pytest.fixture
def scene(tmp_path):
    """A master with keys, a store node, and the keys by their rights."""
    keys = {rights: Key(f"key-{number}", rights) for number, rights in enumerate(RIGHTS)}
    file = keyed.write(tmp_path, "keys", *keys.values())
    with Master(f"--auth_file={file}") as master:
        node = StoreProcess(master.address, **{"MC_AUTH_TOKEN": keys["node"].token}).start()
        try:
            wait_until(lambda: segments(master, keys["read,write,node,admin"]) == 1)
            yield master, keys, tmp_path
        finally:
            node.stop()


def segments(master, key):
    with Client(master, key) as client:
        return 1 if client.code == 0 and client.put("probe", "probe", 10) == 0 else 0


def connect(master):
    connection = socket.create_connection(("127.0.0.1", master.port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def hello(node=None, met_epoch=0, epoch_proof=b""):
    return wire.frame(wire.HELLO, 7, wire.record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, wire.ROLE_CALL, 0, node or os.urandom(16), 1, 0) +
                                                 wire.data(b"t") + wire.data(b"") + struct.pack("<QI", met_epoch, 0xFFFFFFFF) +
                                                 wire.data(b"") + bytes(33) + wire.data(b"") + bytes(16) + wire.data(epoch_proof)))


# ---- real processes ----

def test_who_has_a_key_puts_and_gets(scene):
    master, keys, _folder = scene
    with Client(master, keys["read,write"]) as client:
        assert client.code == 0
        assert [client.put(f"k{size}", f"n{size}", size) for size in (1, 4096, 1 << 20)] == [0, 0, 0]
        assert [client.same(f"k{size}", f"n{size}", size) for size in (1, 4096, 1 << 20)] == [True] * 3


def test_who_has_none_is_refused_and_told_what_to_do(scene):
    master, _keys, _folder = scene
    with Client(master) as client:
        assert client.code == NOT_PERMITTED
        client.tells("MC_AUTH_FILE or MC_AUTH_TOKEN")
    says(master, "it has shown no key")


def test_a_key_that_the_master_does_not_know(scene):
    master, _keys, _folder = scene
    with Client(master, Key("stranger")) as client:
        assert client.code == NOT_PERMITTED
        client.tells("does not know that key")


def test_a_key_with_another_secret_is_not_shown_to_that_master(scene):
    master, keys, _folder = scene
    with Client(master, Key(keys["read"].name)) as client:
        assert client.code == NOT_PERMITTED
        client.tells("it is no server of ours")
    assert "malformed" not in master.log()


def test_a_master_without_keys_is_not_believed(tmp_path):
    with Master() as master, Client(master, Key("k")) as client:
        assert client.code == -1011
        client.tells("start it with --auth_file")


@pytest.mark.parametrize("rights", ["read", "read,write"])
def test_who_lends_no_memory_moves_no_epoch(scene, rights):
    """A master that believes in a later one than itself begins again, which costs everybody a recovery."""
    master, keys, _folder = scene
    nodes = [os.urandom(16) for _ in range(3)]
    with Client(master, keys["read,write"]) as client:
        assert client.put("mine", "m", 4096) == 0
        for _word in range(5):
            for node in nodes:
                connection, right = proved(master, keys[rights])
                with connection:
                    connection.sendall(right + hello(node, 1 << 34))
                    assert keyed.read_all(connection) == b""  # an answer would be that of a master of the past
            time.sleep(0.7)
        assert client.same("mine", "m", 4096)
        assert client.put("other", "o", 4096) == 0
    assert "we are late" not in master.log()
    says(master, "so its word does not count, and it stays outside")


def epoch_proof(masters, epoch):
    parts = (b"mooncake epoch 1", struct.pack("<Q", epoch))
    return hmac.new(masters.secret, b"".join(struct.pack("<I", len(part)) + part for part in parts), hashlib.sha256).digest()


def test_no_epoch_is_believed_without_its_proof(tmp_path):
    """Where masters have a key of their own, those of right node cannot make up a later one either; whoever has met it can prove it."""
    everything, node_key, masters = Key("all"), Key("node", "node"), Key("masters", "master")
    file = keyed.write(tmp_path, "keys", masters, everything, node_key)
    with Master(f"--auth_file={file}") as master, StoreProcess(master.address, **{"MC_AUTH_TOKEN": node_key.token}) as node:
        connection, right = proved(master, everything)
        with connection:
            connection.sendall(right + hello())
            body = keyed.receive(connection)[1]
        epoch = struct.unpack_from("<Q", body, 2 + 4 + 4 + 8 + 16 + 8)[0]
        assert epoch_proof(masters, epoch) in body
        later = epoch + 100000
        with Client(master, everything) as client:
            assert client.put("mine", "m", 4096) == 0
            nodes = [os.urandom(16) for _ in range(3)]
            for made_up in (b"", epoch_proof(masters, epoch), epoch_proof(everything, later), b"x" * 33):
                for _word in range(2):
                    for one in nodes:
                        connection, right = proved(master, node_key)
                        with connection:
                            connection.sendall(right + hello(one, later, made_up))
                            assert keyed.read_all(connection) == b""
                    time.sleep(0.7)
            assert client.same("mine", "m", 4096)
            assert "we are late" not in master.log()
            says(master, "it has no proof of that, so its word does not count, and it stays outside")
            for _word in range(5):
                for one in nodes[:2]:
                    connection, right = proved(master, everything)
                    with connection:
                        connection.sendall(right + hello(one, later, epoch_proof(masters, later)))
                        keyed.receive(connection)  # an answer once the master has begun again
                time.sleep(0.7)
            says(master, "we are late")
            wait_until(lambda: client.same("mine", "m", 4096) is True, 30)  # what had been put has come along
        assert node.process.poll() is None


def test_the_key_of_masters_opens_nothing(tmp_path):
    masters, everything = Key("masters", "master"), Key("all")
    file = keyed.write(tmp_path, "keys", masters, everything)
    with Master(f"--auth_file={file}") as master:
        with Client(master, masters) as client:
            assert client.code == NOT_PERMITTED
        assert request(master.metrics_port, "GET", "/metrics", headers=bearer(masters))[0] == 401
        with Client(master, everything) as client:
            assert client.code == 0
    told = command("token", file, "masters")
    assert told.returncode == 2 and masters.secret.hex() not in told.stdout + told.stderr
    made = command("new", file, "later", "master")
    assert made.returncode == 0 and made.stdout == ""
    last = command("revoke", file, "all")  # with what is left nobody could come in
    assert last.returncode == 2 and "is the last key" in last.stderr
    assert "later master\n" in command("list", file).stdout


def test_a_key_that_may_only_read(scene):
    master, keys, _folder = scene
    with Client(master, keys["read,write"]) as client:
        assert client.put("there", "there", 5000) == 0
    with Client(master, keys["read"]) as client:
        assert client.code == 0
        assert client.same("there", "there", 5000) is True
        assert client.exist(["there", "not"]) == [1, 0]
        assert client.put("mine", "mine", 10) == NOT_PERMITTED
        assert client.remove("there") == NOT_PERMITTED
        assert client.same("there", "there", 5000) is True
    says(master, "its key has no right to write")


def test_a_key_that_may_not_lend_memory(scene):
    master, keys, _folder = scene
    with Client(master, keys["read,write"], segment=16 << 20) as client:
        wait_until(lambda: "its key has no right to lend memory" in master.log())
        client.tells("NOT_PERMITTED")


def test_keys_are_added_and_revoked_without_a_restart(scene):
    master, keys, folder = scene
    late = Key("late", "read,write")
    keyed.write(folder, "keys", *[key for rights, key in keys.items() if rights != "read"], late)

    def code(key):
        with Client(master, key) as client:
            return client.code
    wait_until(lambda: code(late) == 0)
    assert code(keys["read"]) == NOT_PERMITTED
    (folder / "keys").write_text("late nonsense\n")
    wait_until(lambda: "the keys before stay" in master.log() or code(late) not in (0,))
    assert code(late) == 0
    assert late.secret.hex() not in master.log()


def test_who_is_connected_when_its_key_is_revoked_is_let_go(scene):
    """With the next thing that it says, also when only the secret, or the rights, have changed; others are not."""
    master, keys, folder = scene
    with Client(master, keys["read,write"]) as writer, Client(master, keys["read"]) as reader, Client(master, keys["read,write,node,admin"]) as other:
        assert writer.put("mine", "m", 100) == 0 and reader.exist(["mine"]) == [1] and other.exist(["mine"]) == [1]
        changed = Key(keys["read,write"].name, "read,write")
        keyed.write(folder, "keys", *[key for rights, key in keys.items() if rights not in ("read", "read,write")], changed)
        wait_until(lambda: "was read again" in master.log())
        assert writer.put("again", "a", 100) < 0
        assert reader.exist(["mine"]) != [1]
        assert other.exist(["mine"]) == [1] and other.put("other", "o", 100) == 0
        assert other.exist(["again"]) == [0]
    says(master, f"its key, {changed.name}, is not what it was any more")


def test_a_file_system_that_hangs_holds_up_nobody(scene):
    """A pipe in the file's place: whoever opens it waits. Keys that are known go on being known, by every port."""
    master, keys, folder = scene
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "pipe").rename(folder / "keys")
    late = Key("late", "read,write")
    with (folder / "keys").open("wb") as pipe:  # opened, so the reader has begun, and waits for the end
        for number in range(3):
            assert master.get("/metrics", headers=bearer(keys["read"]))[0] == 200
            with Client(master, keys["read,write"]) as client:
                assert client.code == 0 and client.put(f"hung{number}", "hung", 100) == 0
            with Client(master, late) as client:
                assert client.code == NOT_PERMITTED
        pipe.write(late.line.encode())
    wait_until(lambda: "was read again: 1 keys" in master.log())
    with Client(master, late) as client:
        assert client.code == 0


def test_a_bad_file_stops_the_master_with_its_line(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# comment\nfirst " + "ab" * 32 + " read\nsecond secret read\n")
    with pytest.raises(AssertionError, match="line 3: the secret is to be 64 hexadecimal digits"), Master(f"--auth_file={file}"):
        pass


# ---- by hand ----

def test_nothing_is_answered_before_the_proof(scene):
    master, keys, _folder = scene
    def state():
        lines = master.get("/metrics", headers=bearer(keys["read"]))[1].decode().splitlines()
        return [line for line in lines if line.split(" ")[0] in ("mooncake_epoch", "mooncake_epochs_doubted_total", "mooncake_foreign_refused_total")]
    before = state()
    assert len(before) == 3
    for first in (hello(), wire.frame(wire.EXIST, 1, wire.record() + wire.records([wire.data(b"probe")])), keyed.proof(bytes(32)),
                  keyed.auth(keys["read"], b"short"), keyed.auth(b"", bytes(32)), keyed.auth(b"x" * 300, bytes(32))):
        with connect(master) as connection:
            connection.sendall(first)
            answer = keyed.receive(connection)
            if answer is not None:
                assert answer[0] in (wire.HELLO_REPLY, keyed.CHALLENGE)
                assert struct.unpack_from("<i", answer[1], 2)[0] < 0
                assert b"probe" not in answer[1]
                assert keyed.receive(connection) is None
    assert state() == before


def proved(master, key):
    connection, nonce = connect(master), os.urandom(32)
    connection.sendall(keyed.auth(key, nonce))
    kind, body = keyed.receive(connection)
    assert kind == keyed.CHALLENGE
    code, server, theirs = keyed.challenge_of(body)[:3]
    assert code == 0 and len(server) == 32
    assert theirs == keyed.proof_of("server", key.secret, nonce, server, key.name.encode())
    return connection, keyed.proof(keyed.proof_of("caller", key.secret, nonce, server, key.name.encode()))


def test_the_proof_by_hand(scene):
    master, keys, _folder = scene
    connection, right = proved(master, keys["read"])
    with connection:
        connection.sendall(right + hello())  # the hello need not wait
        kind, body = keyed.receive(connection)
        assert kind == wire.HELLO_REPLY and struct.unpack_from("<i", body, 2)[0] == 0


def test_a_proof_counts_once(scene):
    master, keys, _folder = scene
    connection, right = proved(master, keys["read"])
    with connection:
        connection.sendall(right + hello())
        assert keyed.receive(connection)[0] == wire.HELLO_REPLY
        connection.sendall(right)  # and not in the middle either
        answer = keyed.receive(connection)
        assert answer is None or answer[0] != wire.HELLO_REPLY
    connection, _own = proved(master, keys["read"])
    with connection:
        connection.sendall(right + hello())
        assert keyed.receive(connection) is None


def test_the_servers_proof_is_none_of_the_callers(scene):
    master, keys, _folder = scene
    key, connection, nonce = keys["read"], connect(master), os.urandom(32)
    with connection:
        connection.sendall(keyed.auth(key, nonce))
        _code, _server, theirs = keyed.challenge_of(keyed.receive(connection)[1])[:3]
        connection.sendall(keyed.proof(theirs) + hello())
        assert keyed.receive(connection) is None


# ---- HTTP ----

def bearer(key):
    return {"Authorization": f"Bearer {key.token}"}


def basic(key):
    return {"Authorization": "Basic " + base64.b64encode(key.token.encode()).decode()}


def test_http_of_the_master(scene):
    master, keys, _folder = scene
    assert master.get("/health")[0] == 200
    for path in ("/", "/metrics", "/get_all_keys", "/get_all_segments", "/metrics/summary", "/leader"):
        assert master.get(path)[0] == 401, path
        assert master.get(path, headers=bearer(keys["node"]))[0] == 403, path
        assert master.get(path, headers=bearer(keys["read"]))[0] == 200, path
        assert master.get(path, headers=basic(keys["read"]))[0] == 200, path
        for wrong in (bearer(Key(keys["read"].name)), bearer(Key("stranger")), {"Authorization": "Bearer"}, {"Authorization": "Bearer x"},
                      {"Authorization": "Basic !!"}, {"Authorization": "Basic " + "A" * 4000}, {"Authorization": keys["read"].token}):
            assert master.get(path, headers=wrong)[0] == 401, (path, wrong)
    assert b"probe" not in master.get("/get_all_keys")[1]
    drain = {"segments": ["127.0.0.1"]}
    for headers, status in ((None, 401), (bearer(keys["read,write"]), 403)):
        assert request(master.metrics_port, "POST", "/api/v1/drain_jobs", body=json.dumps(drain).encode(), headers=headers)[0] == status
    assert request(master.metrics_port, "POST", "/api/v1/drain_jobs", body=b"{}", headers=bearer(keys["read,write,node,admin"]))[0] not in (401, 403)


def test_http_of_the_metadata_server(tmp_path):
    reader, node = Key("reader", "read"), Key("node", "read,node")
    with Master(f"--auth_file={keyed.write(tmp_path, 'keys', reader, node)}", metadata=True) as master:
        def ask(method, key=None, body=None):
            return request(master.metadata_port, method, "/metadata?key=a", body=body, headers=bearer(key) if key else None)[0]
        assert request(master.metadata_port, "GET", "/health")[0] == 200
        assert [ask("PUT", None, b"x"), ask("PUT", reader, b"x"), ask("PUT", node, b"x")] == [401, 403, 200]
        assert [ask("GET"), ask("GET", reader)] == [401, 200]
        assert [ask("DELETE"), ask("DELETE", reader), ask("GET", reader), ask("DELETE", node)] == [401, 403, 200, 200]


def test_a_node_goes_on_when_the_key_of_its_file_is_replaced(tmp_path):
    """A process whose file has another first key comes back with that one, as who it was: what it holds stays."""
    first, second, engine = Key("first"), Key("second"), Key("engine", "read,write")
    file = keyed.write(tmp_path, "keys", first, engine)
    with Master(f"--auth_file={file}") as master, Client(master, file=file, segment=64 << 20) as node, Client(master, engine) as client:
        assert node.code == 0 and client.put("kept", "k", 5000) == 0
        keyed.write(tmp_path, "keys", first, second, engine)
        says(master, "3 keys")
        keyed.write(tmp_path, "keys", second, engine)
        says(master, "its key, first, is not what it was any more")
        wait_until(lambda: segments(master, second) == 1 and client.same("kept", "k", 5000) is True, 20)
        time.sleep(12)  # longer than a member without a word is kept
        assert client.same("kept", "k", 5000) is True and client.put("more", "m", 5000) == 0
        assert "is given up" not in master.log() and "starts again empty" not in node.said()


# ---- the command ----

def command(*words):
    return subprocess.run([BUILD / "mooncake_key", *words], capture_output=True, text=True, timeout=30)


def test_keys_made_listed_and_revoked(tmp_path):
    file = tmp_path / "keys"
    first = command("new", file, "engines", "read,write", "blue")
    assert (first.returncode, first.stderr) == (0, "")
    name, secret = first.stdout.strip().split(":")
    assert name == "engines" and len(secret) == 64 and file.stat().st_mode & 0o777 == 0o600
    file.write_text("# who may\n" + file.read_text())
    file.chmod(0o640)
    assert command("new", file, "nodes", "node").returncode == 0
    assert command("list", file).stdout == "engines read,write blue\nnodes node\n"
    assert command("token", file, "engines").stdout == first.stdout
    again = command("new", file, "nodes", "read")
    assert again.returncode == 2 and "revoke that first" in again.stderr
    assert command("revoke", file, "engines").returncode == 0
    assert file.read_text().startswith("# who may\nnodes ") and file.stat().st_mode & 0o777 == 0o640
    last = command("revoke", file, "nodes")
    assert last.returncode == 2 and "the last key" in last.stderr
    assert command("list", file).stdout == "nodes node\n"
    assert [one.name for one in tmp_path.iterdir()] == ["keys"]


def test_the_command_says_what_is_wrong(tmp_path):
    file = tmp_path / "keys"
    for words, code, says in (((), 2, "--help"), (("new", file, "a"), 2, "--help"), (("new", file, "a", "all"), 2, "rights"),
                              (("new", file, "a b", "read"), 2, "secret"), (("list", file), 1, "No such file"), (("list", file, "x"), 2, "--help")):
        done = command(*words)
        assert done.returncode == code and says in done.stderr and done.stdout == "", (words, done)
    file.write_text("something else\n")
    for words in (("list", file), ("new", file, "a", "read"), ("revoke", file, "something")):
        assert command(*words).returncode == 1
    assert file.read_text() == "something else\n"
    assert command("new", tmp_path / "no" / "folder", "a", "read").returncode == 1


# ---- the other servers ----

def test_a_store_service_with_keys(scene):
    master, keys, folder = scene
    with Service("--max-wait-time=20", f"--auth-file={folder / 'keys'}", MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE=0) as service:
        # It shows the first key of the file, which may only read.
        def ask(method, path, body=None, key=None):
            return request(service.port, method, path, body=body and json.dumps(body).encode(), headers=bearer(key) if key else None)[0]
        assert ask("GET", "/health") == 200
        assert [ask("GET", path) for path in ("/api/exist/probe", "/api/get/probe", "/metrics")] == [401] * 3
        assert [ask("GET", path, key=keys["read"]) for path in ("/api/exist/probe", "/api/get/probe", "/metrics")] == [200] * 3
        assert [ask("PUT", "/api/put", {"key": "a", "value": "b"}, key) for key in (None, keys["read"])] == [401, 403]
        assert [ask("DELETE", "/api/remove_all", key=key) for key in (None, keys["read"])] == [401, 403]
        assert [ask("POST", "/api/mount", {"size": 1}, key) for key in (None, keys["read,write"])] == [401, 403]
        assert ask("DELETE", "/api/remove/probe", key=keys["read,write"]) not in (200, 401, 403)  # its own key may only read


def test_a_store_service_whose_file_names_its_keys(scene):
    """As the rest of its settings; what the environment says counts where the file says nothing of it."""
    master, keys, folder = scene
    config = folder / "mooncake.json"
    config.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": master.address,
                                  "global_segment_size": 0, "auth_file": str(folder / "keys")}))
    with Service("--max-wait-time=20", f"--config={config}", MC_AUTH_TOKEN=Key("stranger").token) as service:
        assert request(service.port, "GET", "/api/exist/probe")[0] == 401
        assert request(service.port, "GET", "/api/exist/probe", headers=bearer(keys["read"]))[0] == 200
    program = ("import asyncio, os, sys; sys.path.insert(0, os.environ['MC_PYTHONPATH']); from mooncake.mooncake_store_service import MooncakeStoreService\n"
               "async def main():\n    one = MooncakeStoreService(sys.argv[1]); print(await one.start_store_service(5), one.store.is_exist('probe')); await one.stop()\n"
               "asyncio.run(main())")
    for before, is_told in ((None, False), (folder / "keys", False), (folder / "other", True)):
        done = subprocess.run([sys.executable, "-c", program, config], capture_output=True, text=True, timeout=60, env=keyed.environment(None, before))
        assert done.stdout.split() == ["True", "1"], done.stderr
        assert (f"auth_file {folder / 'keys'} takes the place of MC_AUTH_FILE={folder / 'other'}, for all of this process" in done.stderr) == is_told, done.stderr


def test_a_service_whose_key_is_refused_says_so_and_ends(scene):
    master, _keys, _folder = scene
    done = run(SERVICE, "--port=0", "--max-wait-time=2", MOONCAKE_MASTER=master.address, MC_AUTH_TOKEN=Key("stranger").token, MOONCAKE_GLOBAL_SEGMENT_SIZE=0)
    assert done.returncode == 1 and "does not know that key" in done.stderr


def test_the_metadata_server_alone(tmp_path):
    reader = Key("reader", "read")
    file = keyed.write(tmp_path, "keys", reader)
    serving = subprocess.Popen([BUILD / "mooncake_http_metadata_server", "--port=0", "--host=127.0.0.1", f"--auth_file={file}"], stderr=subprocess.PIPE, text=True)
    try:
        port = int(next(found.group(1) for line in serving.stderr if (found := re.search(r"started on \S+:(\d+)", line))))
        assert request(port, "GET", "/metadata?key=a")[0] == 401
        assert request(port, "GET", "/metadata?key=a", headers=bearer(reader))[0] == 404
        assert request(port, "PUT", "/metadata?key=a", body=b"x", headers=bearer(reader))[0] == 403
    finally:
        serving.terminate()
        serving.communicate(timeout=30)
    done = subprocess.run([BUILD / "mooncake_http_metadata_server", "--port=0", "--auth_file=/no/such/file"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "/no/such/file" in done.stderr


STRANGER = """
import http.client, socket, subprocess, sys
master, mode = sys.argv[1:]
import os, re
environment = {**os.environ, **({"MC_PROTECTED_MODE": mode} if mode else {})}
process = subprocess.Popen([master, "--rpc_port=0", "--metrics_port=0"], stderr=subprocess.PIPE, text=True, env=environment)
port, lines = None, []
for line in process.stderr:
    lines.append(line)
    if found := re.search(r"HTTP metrics server started on port (\\d+)", line):
        port = int(found.group(1))
        break
def ask(source, path, method="GET", body=None):
    connection = http.client.HTTPConnection("198.51.100.8", port, timeout=20, source_address=(source, 0))
    connection.request(method, path, body=body)
    return connection.getresponse().status
drain = ("/api/v1/drain_jobs", "POST", b"{}")
answers = [ask("198.51.100.7", "/metrics"), ask("198.51.100.7", *drain) == 403, ask("198.51.100.8", *drain) == 403, ask("10.9.9.9", *drain) == 403]
process.terminate()
lines += process.stderr.readlines()
print(answers, sum("has no keys" in line for line in lines))
process.wait(30)
"""


@pytest.mark.parametrize("mode,refused", [("", True), ("no", False)])
def test_strangers_may_not_drain_without_keys(mode, refused):
    setup = "ip link set lo up && ip address add 198.51.100.7/32 dev lo && ip address add 198.51.100.8/32 dev lo && ip address add 10.9.9.9/32 dev lo && exec \"$@\""
    done = subprocess.run(["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--", "sh", "-c", setup, "sh", sys.executable, "-c", STRANGER,
                           str(BUILD / "mooncake_master"), mode], capture_output=True, text=True, timeout=60, env=keyed.environment())
    # Its calls and its HTTP; who says that everybody may knows it.
    assert done.stdout == f"[200, {refused}, False, False] {2 if refused else 0}\n", done.stderr


# ---- data connections ----

class Owner:
    """A segment's owner, as a SEGMENT_REPLY has told that node of it."""

    def __init__(self, node, record):
        self.node = node
        self.owner, self.incarnation = struct.unpack_from("<16sQ", record, struct.calcsize("<iI"))
        self.segment, = struct.unpack_from("<I", record, 4)
        self.nonce, = struct.unpack_from("<Q", record, struct.calcsize("<iI16sQ16sQI"))
        at, texts = struct.calcsize("<iI16sQ16sQIQ16s"), []
        while at < len(record):
            size, = struct.unpack_from("<H", record, at)
            texts.append(record[at + 2:at + 2 + size])
            at += 2 + size
        self.name, self.address, self.unix, self.ticket, self.secret = texts[0], texts[1].decode(), texts[2].decode(), texts[3], texts[4]

    def connect(self):
        host, port = self.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def hello(self, node=None):
        return wire.frame(wire.HELLO, 0, wire.record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, 3, TAGS, node or self.node, 1, self.nonce) +
                                                     wire.data(b"") + wire.data(b"") + struct.pack("<QI", 0, 0xFFFFFFFF)))

    def prove(self, connection, ticket=None):
        """(does the owner know the ticket's secret?, our proof)"""
        nonce, ticket = os.urandom(32), ticket or self.ticket
        connection.sendall(keyed.auth(ticket, nonce))
        code, *rest = keyed.challenge_of(keyed.receive(connection)[1])
        if code < 0:
            return False, b""
        server, theirs = rest[:2]
        return (theirs == keyed.proof_of("server", self.secret, nonce, server, ticket),
                keyed.proof(keyed.proof_of("caller", self.secret, nonce, server, ticket)))

    def open(self):
        connection = self.connect()
        known, right = self.prove(connection)
        assert known
        connection.sendall(right + self.hello())
        kind, body = keyed.receive(connection)
        assert kind == wire.HELLO_REPLY and struct.unpack_from("<i", body, 2)[0] == 0
        return connection


class Told(Owner):
    """What the master tells who holds that key of the segment that there is."""

    def __init__(self, master, key):
        node = os.urandom(16)
        connection, right = proved(master, key)
        with connection:
            connection.sendall(right + wire.frame(wire.HELLO, 7, wire.record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, wire.ROLE_CALL, 0, node, 1, 0) +
                                                                             wire.data(b"t") + wire.data(b"") + struct.pack("<QI", 0, 0xFFFFFFFF))))
            assert keyed.receive(connection)[0] == wire.HELLO_REPLY
            connection.sendall(wire.frame(wire.SEGMENTS, 8, wire.record(struct.pack("<Q16s", 0, bytes(16)))))
            kind, body = keyed.receive(connection)
            assert kind == wire.SEGMENTS_REPLY
            connection.sendall(wire.frame(wire.GET, 9, wire.record(struct.pack("<I", 0)) + wire.records([wire.data(b"probe")])))
            kind, found = keyed.receive(connection)
            assert kind == wire.GET_FOUND
        reader = wire.Reader(body)
        reader.record()
        super().__init__(node, reader.list()[0])
        reader = wire.Reader(found)
        reader.record()
        reader.list()
        self.slot, self.generation, self.offset, self.tag = struct.unpack_from("<IQQxQ", reader.list()[0], 4)

    def read(self):
        """The first bytes of the probe; None: the connection was closed."""
        with self.open() as connection:
            connection.sendall(wire.frame(64, 5, wire.record(struct.pack("<IBQQQIQ", self.slot, 0, self.generation, 0, 10, 0, self.tag))))
            answer = keyed.receive(connection)
            if answer is None:
                return None
            assert struct.unpack_from("<i", answer[1], 2)[0] == 0
            return connection.recv(10)


def test_a_ticket_lets_its_holder_read_and_nothing_else(scene):
    master, keys, _folder = scene
    told = Told(master, keys["read"])
    assert len(told.ticket) == 18 and len(told.secret) == 32
    before = told.read()
    assert before == b"probe|prob"
    for words in (wire.frame(63, 0, wire.record(struct.pack("<IQQQ", told.slot, told.generation + 1, told.offset, 10))) + b"x" * 10,
                  wire.frame(62, 0, wire.record() + wire.records([struct.pack("<IIQQQQQHBBBQ", told.slot, 0, 1 << 60, told.offset, 10, 1, 2, 3, 16, 0, 0, 0)])),):
        with told.open() as connection:
            connection.sendall(words)
            assert keyed.receive(connection) is None
    assert told.read() == before
    with Client(master, keys["read"]) as client:
        assert client.same("probe", "probe", 10) is True


def said(master, key, role, node, incarnation):
    """The code of a hello with that role, by who says that it is that process."""
    connection, right = proved(master, key)
    with connection:
        connection.sendall(right + wire.frame(wire.HELLO, 7, wire.record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, role, 0, node, incarnation, 0) +
                                                                         wire.data(b"t") + wire.data(b"") + struct.pack("<QI", 0, 0xFFFFFFFF))))
        return struct.unpack_from("<i", keyed.receive(connection)[1], 2)[0]


def test_nobody_takes_the_place_of_a_node(scene):
    """Node ids and incarnations are told to everybody who asks for a segment."""
    master, keys, _folder = scene
    told = Told(master, keys["read"])
    assert said(master, keys["read"], wire.ROLE_OWNER, os.urandom(16), 1) == NOT_PERMITTED
    assert said(master, keys["node"], wire.ROLE_OWNER, os.urandom(16), 1) == 0
    for key in (keys["read"], keys["read,write,node,admin"]):
        for role in (wire.ROLE_CALL, 1, wire.ROLE_OWNER):
            assert said(master, key, role, told.owner, told.incarnation) < 0
    with Client(master, keys["read,write"]) as client:
        assert client.put("after", "after", 100) == 0 and client.same("after", "after", 100) is True
    assert "is suspect" not in master.log()


def test_a_master_without_keys_makes_no_tickets():
    """Whoever asks for them with his MOUNT: it may have nothing to make them by."""
    with Master() as master:
        owner = wire.Connection(master.port, wire.ROLE_OWNER, os.urandom(16))
        mount = struct.pack("<16sQQIQQ16s", os.urandom(16), 1 << 20, 1 << 20, 4096, 1, 0, bytes(16)) + wire.data(b"n:1") + wire.data(b"127.0.0.1:1") + \
            wire.data(b"") + struct.pack("<IIB", 0, 0, 0) + wire.data(b"") + struct.pack("<Q", 0) + wire.data(b"k" * 32)
        assert struct.unpack_from("<i", owner.call(wire.MOUNT, wire.MOUNT_REPLY, wire.record(mount)).record())[0] == 0
        caller = wire.Connection(master.port, wire.ROLE_CALL, os.urandom(16))
        reader = caller.call(wire.SEGMENTS, wire.SEGMENTS_REPLY, wire.record(struct.pack("<Q16s", 0, bytes(16))))
        reader.record()
        (told,) = reader.list()
        assert b"127.0.0.1:1" in told and told.endswith(wire.data(b"") * 3)  # no path, no ticket, no secret


def test_without_a_ticket_nobody_is_let_in(scene):
    master, keys, _folder = scene
    told = Told(master, keys["read"])
    with told.connect() as connection:  # with the segment's nonce, and without a ticket
        connection.sendall(told.hello())
        kind, body = keyed.receive(connection)
        assert kind == wire.HELLO_REPLY and struct.unpack_from("<i", body, 2)[0] == NOT_PERMITTED
        assert keyed.receive(connection) is None
    with told.connect() as connection:  # with somebody else's
        known, right = told.prove(connection)
        assert known
        connection.sendall(right + told.hello(os.urandom(16)))
        assert struct.unpack_from("<i", keyed.receive(connection)[1], 2)[0] == NOT_PERMITTED
    more = told.ticket[:1] + b"\x0f" + told.ticket[2:]  # with more rights than it had
    with told.connect() as connection:
        known, right = told.prove(connection, more)
        assert not known
        connection.sendall(right + told.hello())
        assert keyed.receive(connection) is None


def test_a_reader_uses_no_memory_that_it_could_write(scene):
    """Shared memory is mapped to be written: who may only read goes by tcp."""
    master, keys, _folder = scene
    with Client(master, keys["read,write"]) as client, Client(master, keys["read"], MC_LOG_LEVEL="DEBUG") as reader:
        assert client.put("big", "big", 1 << 20) == 0
        assert reader.same("big", "big", 1 << 20) is True
        wait_until(lambda: re.search("path shm to segment .*NOT_PERMITTED", reader.said()), 20, "the refusal")
        assert "path tcp" not in reader.said()  # it has not failed


def test_every_path_with_tickets(scene):
    master, keys, _folder = scene
    for paths in ("shm", "tcp", "shm,tcp"):
        with Client(master, keys["read,write"], MC_PATHS=paths) as client:
            assert [client.put(f"{paths}{size}", f"n{size}", size) for size in (1, 65537, 3 << 20)] == [0, 0, 0]
            assert [client.same(f"{paths}{size}", f"n{size}", size) for size in (1, 65537, 3 << 20)] == [True] * 3
