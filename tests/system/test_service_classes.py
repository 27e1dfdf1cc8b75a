"""The services as classes of Python, in a process of one's own: started, used, stopped, and gone with their process."""
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import types
from urllib.parse import quote

import pytest

from cluster import request, wait_until
from ports import free_port
from python_cluster import SEGMENT, master, wait_until as wait  # noqa: F401
from service_process import MODULE, environment, run
from mooncake.http_metadata_server import KVBootstrapServer, KVPoll
from mooncake.mooncake_store_service import MooncakeStoreService


@pytest.fixture
def settings(master, monkeypatch):
    for name in list(os.environ):
        if name.startswith("MOONCAKE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MOONCAKE_MASTER", master.address)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", str(SEGMENT))
    monkeypatch.setenv("PATH", f"{os.environ['MC_BUILD']}:{os.environ['PATH']}")


def is_open(port):
    """Whether anybody listens, be it one who answers nothing."""
    try:
        socket.create_connection(("127.0.0.1", port), 20).close()
    except ConnectionError:
        return False
    return True


# ---- MooncakeStoreService ----


def test_the_command_loads_nothing_of_the_class():
    """Python has nothing to do but to become the command."""
    done = run([sys.executable, "-S", "-X", "importtime", *MODULE[1:]], "--version")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-500:]
    assert "mooncake._native" in done.stderr and not {"asyncio", "json", "dataclasses"} & {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


def test_setup_is_given_what_the_original_gives_it(settings):
    """Tests of the original's users put a stand-in in the place of the store, and look at what it was called with."""
    original = {"local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices", "master_server_addr",
                "enable_ssd_offload", "ssd_offload_path", "tenant_id", "enable_client_http_server", "client_http_port"}
    service = MooncakeStoreService(cli_config={"local_hostname": "127.0.0.1"})
    assert set(service._settings()) == original
    service.config.stamp = "llama fp8"
    assert set(service._settings()) == original | {"stamp"} and service._settings()["stamp"] == "llama fp8"


def test_store_and_rest_are_of_one_process(settings):
    async def life():
        service = MooncakeStoreService(cli_config={"local_hostname": "127.0.0.1"})
        assert service.config.local_hostname == "127.0.0.1" and service.store is None
        with pytest.raises(RuntimeError):
            await service.start_http_service(0)
        assert await service.start_store_service() is True and await service.start_http_service(0) is True
        port, store = service.http_port, service.store
        call = asyncio.get_running_loop().run_in_executor
        body = json.dumps({"key": "by rest", "value": "v"})
        await call(None, lambda: wait(lambda: request(port, "PUT", "/api/put", body=body)[0] == 200))
        assert store.get("by rest") == b"v" and store.put("by call", b"w") == 0
        assert await call(None, request, port, "GET", "/api/get/by%20call") == (200, b"w")
        with pytest.raises(OSError, match="one already"):
            await service.start_http_service(0)
        other = MooncakeStoreService(cli_config={"global_segment_size": 0})
        assert await other.start_store_service() is True
        with pytest.raises(OSError, match=str(port)):
            await other.start_http_service(port)
        assert await other.start_http_service(0) is True and other.http_port != port
        await other.stop()
        await service.stop()
        assert not is_open(port) and service.store is None and service.http_port is None and store.get("by rest") == b""
        await service.stop()
        assert await service.start_store_service() is True, "it can be started again"
        await service.stop()

    asyncio.run(life())


class Answer:
    """What aiohttp's Response is made from."""

    def __init__(self, status, text=None, body=None, content_type=None):
        self.status, self.body, self.content_type = status, text.encode() if body is None else body, content_type


class Request:
    def __init__(self, key, body):
        self.match_info, self.body = {"key": key}, body

    async def json(self):
        return json.loads(self.body)


# (route, handler, key, body): asked in this order of both, who have one store. WHO stands for who is asked, SHM for a file of memory.
ASKED = [
    ("PUT /api/put", "put", "", '{"key": "of WHO", "value": "v"}'),
    ("PUT /api/put", "put", "", '{"key": "", "value": "v"}'),
    ("PUT /api/put", "put", "", '{"key": "k"}'),
    ("PUT /api/put", "put", "", '[]'),
    ("GET /api/get/", "get", "of WHO", ""),
    ("GET /api/get/", "get", "nowhere", ""),
    ("GET /api/exist/", "exist", "of WHO", ""),
    ("GET /api/exist/", "exist", "nowhere", ""),
    ("DELETE /api/remove/", "remove", "nowhere", ""),
    ("POST /api/mount", "mount", "", '{"size": 0}'),
    ("POST /api/mount", "mount", "", '{"size": 1.5}'),
    ("POST /api/unmount", "unmount", "", "{}"),
    ("POST /api/unmount", "unmount", "", '{"segment_ids": [1]}'),
    ("POST /api/unmount", "unmount", "", '{"segment_ids": "no such"}'),
    ("POST /api/unmount", "unmount", "", '{"segment_ids": ["x"], "grace_period_seconds": 3601}'),
    ("POST /api/unmount_local_disk", "unmount_local_disk", "", '{"grace_period_seconds": true}'),
    ("POST /api/unmount_local_disk", "unmount_local_disk", "", "{}"),
    ("POST /api/mount_shm", "mount_shm", "", '{"name": "a/b", "size": 4096}'),
    ("POST /api/mount_shm", "mount_shm", "", '{"name": "/SHM", "size": 4096}'),
    ("POST /api/unmount_shm", "unmount_shm", "", '{"segment_ids": ["no such"]}'),
    ("POST /api/reconfigure", "reconfigure", "", '{"mode": "decode", "size": 4096}'),
    ("POST /api/reconfigure", "reconfigure", "", '{"mode": "Decode", "path": "/dev/shm/SHM", "size": 4096}'),
    ("POST /api/reconfigure", "reconfigure", "", '{"mode": "prefill"}'),
    ("POST /api/reconfigure", "reconfigure", "", "{}"),
]


def plain(status, body):
    """Without what only one of them says: what a code means."""
    try:
        found = json.loads(body)
    except ValueError:
        return status, body
    found.pop("reason", None)
    return status, found


def test_handlers_answer_as_the_rest_api(settings, monkeypatch):
    """For an application of aiohttp, which is not needed here: what it would hand in and take."""
    monkeypatch.setitem(sys.modules, "aiohttp", types.SimpleNamespace(web=types.SimpleNamespace(Response=Answer)))
    memory = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="mc-test-")
    memory.truncate(4096)

    async def life():
        service = MooncakeStoreService(cli_config={"local_hostname": "127.0.0.1"})
        assert await service.start_store_service() is True and await service.start_http_service(0) is True
        call = asyncio.get_running_loop().run_in_executor
        await call(None, lambda: wait(lambda: service.store.put("ready", b"1") == 0))
        for route, name, key, body in ASKED:
            method, path = route.split(" ")
            there, here = ([text.replace("WHO", who).replace("SHM", os.path.basename(memory.name)) for text in (key, body)] for who in ("rest", "handler"))
            said = await call(None, lambda: request(service.http_port, method, path + quote(there[0]), body=there[1] or None))
            answer = await getattr(service, f"handle_{name}")(Request(*here))
            assert plain(answer.status, answer.body) == plain(*said), (route, key, body)
        answer = await service.handle_mount(Request("", json.dumps({"size": 1})))
        made = json.loads(answer.body)
        assert answer.status == 200 and answer.content_type == "application/json" and made["allocated_size"] >= 1 << 24, made
        answer = await service.handle_unmount(Request("", json.dumps({"segment_ids": made["segment_ids"]})))
        assert answer.status == 200, answer.body
        service.store.remove_all(True)
        assert json.loads((await service.handle_remove_all(Request("", ""))).body) == {"status": "success removed 0 keys"}
        assert (service.current_mode, service.mounted_segment_ids) == ("prefill", [])
        await service.stop()
        assert (await service.handle_exist(Request("a", ""))).status == 500, "there is no store"

    asyncio.run(life())


def test_a_store_that_is_dropped_takes_its_rest_along(settings):
    service = MooncakeStoreService()
    assert asyncio.run(service.start_store_service()) and asyncio.run(service.start_http_service(0))
    port = service.http_port
    assert is_open(port)
    service.store = None
    assert not is_open(port)


def test_a_forked_child_keeps_no_port(settings):
    service = MooncakeStoreService()
    assert asyncio.run(service.start_store_service()) and asyncio.run(service.start_http_service(0))
    port, (ours, theirs) = service.http_port, os.pipe()
    with socket.create_connection(("127.0.0.1", port), 20) as kept:
        kept.settimeout(20)
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200"), "so it is taken before the fork"
        child = os.fork()
        if child == 0:
            kept.close()
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        try:
            assert is_open(port)
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while kept.recv(4096):
                pass  # the child's copy of the connection does not keep it open
            asyncio.run(service.stop())
            assert not is_open(port)
        finally:
            os.close(theirs)
            assert os.waitpid(child, 0)[1] == 0


def test_a_service_that_cannot_join(settings):
    async def tries():
        nobody = {"master_server_address": f"127.0.0.1:{free_port()}"}
        assert await MooncakeStoreService(cli_config=nobody).start_store_service(max_wait_time=0) is False
        assert await MooncakeStoreService(cli_config={"protocol": "carrier pigeon"}).start_store_service(max_wait_time=600) is False
        asked = asyncio.Event()
        asked.set()
        ended = MooncakeStoreService()
        assert await ended.start_store_service(shutdown_event=asked) is False and ended.store is None
        later = asyncio.Event()
        waiting = asyncio.ensure_future(MooncakeStoreService(cli_config=nobody).start_store_service(600, later))
        asyncio.get_running_loop().call_later(0.2, later.set)
        assert await waiting is False

    asyncio.run(tries())


def test_settings_of_a_file(settings, tmp_path, caplog):
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1", "protocol": "tcp"}))
    service = MooncakeStoreService(str(file), {"master_server_address": "n:2", "nothing": 5})
    assert service.config.master_server_address == "n:2" and "nothing" in caplog.text
    assert (service.current_mode, service.mounted_segment_ids, service.last_mount_info) == ("prefill", [], {})
    with pytest.raises(ValueError):
        file.write_text("{")
        MooncakeStoreService(str(file))


# ---- KVBootstrapServer ----


class MetadataRequest:
    """Of aiohttp's Request what KVBootstrapServer asks for."""

    def __init__(self, method, key, body, headers=None):
        self.method, self.query, self.body, self.headers = method, {} if key is None else {"key": key}, body, headers or {}

    async def read(self):
        return self.body


def test_metadata_server(settings):
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() is KVPoll.Failed
    thread = server.run()
    assert thread is server.thread and thread.is_alive() and server.poll() is KVPoll.Success and server.port != 0
    with pytest.raises(RuntimeError):
        server.run()
    assert request(server.port, "PUT", "/metadata?key=a", body=b"1") == (200, b"metadata updated")
    assert request(server.port, "GET", "/metadata?key=a") == (200, b"1")
    taken = KVBootstrapServer(server.port, "127.0.0.1")
    taken.run()
    assert taken.poll() is KVPoll.Failed
    server.close()
    assert server.poll() is KVPoll.Failed and not thread.is_alive() and not is_open(server.port)
    server.close()
    assert KVBootstrapServer(0).close() is None
    server.run()
    assert request(server.port, "GET", "/metadata?key=a")[0] == 404, "it begins anew"
    server.close()


def test_metadata_handler(settings, monkeypatch):
    """In an application of one's own: the answers of the command, from this process's memory, and from the command itself while that runs."""
    monkeypatch.setitem(sys.modules, "aiohttp", types.SimpleNamespace(web=types.SimpleNamespace(Response=Answer)))
    steps = [("GET", None, b""), ("PUT", "", b"1"), ("DELETE", " \t", b""), ("PATCH", "a", b""), ("GET", "a", b""), ("PUT", " a ", b"1"), ("GET", "a\n", b""),
             ("PUT", "a", b"2"), ("GET", "a", b""), ("DELETE", "a", b""), ("DELETE", "a", b""), ("PUT", "x/rpc_meta/y", b"1"), ("PUT", "x/rpc_meta/y", b"1"),
             ("PUT", "x/rpc_meta/y", b"2"), ("GET", "x/rpc_meta/y", b""), ("PUT", "k" * 4097, b""), ("PUT", "k", b"v" * ((1 << 20) + 1)), ("GET", "k", b""),
             ("PUT", "\N{SNOWMAN}&=", b"\0\xff"), ("GET", "\N{SNOWMAN}&=", b"")]

    async def answers(server):
        found = [await server._handle_metadata(MetadataRequest(*step)) for step in steps]
        return [(answer.status, answer.body if step[0] == "GET" and answer.status == 200 else None) for step, answer in zip(steps, found)]

    server = KVBootstrapServer(0, "127.0.0.1")
    alone = asyncio.run(answers(server))
    assert set(server.store) == {"x/rpc_meta/y", "\N{SNOWMAN}&="} and server.poll() is KVPoll.Failed
    assert [status for status, _ in alone] == [400, 400, 400, 405, 404, 200, 200, 200, 200, 200, 404, 200, 200, 400, 200, 413, 413, 404, 200, 200]
    assert [body for _, body in alone if body is not None] == [b"1", b"2", b"1", b"\0\xff"]
    server.run()
    served = asyncio.run(answers(server))
    assert served == alone
    assert request(server.port, "GET", "/metadata?key=x/rpc_meta/y") == (200, b"1"), "the command has it"
    server.close()


def test_metadata_handler_shows_the_callers_key(settings, monkeypatch, tmp_path):
    """It is the command that looks at it; whoever has none gets in by this way as little as by the other."""
    monkeypatch.setitem(sys.modules, "aiohttp", types.SimpleNamespace(web=types.SimpleNamespace(Response=Answer)))
    made = subprocess.run([os.path.join(os.environ["MC_BUILD"], "mooncake_key"), "new", str(tmp_path / "keys"), "me", "read,write,node"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    token = ":".join((tmp_path / "keys").read_text().split()[:2])
    monkeypatch.setenv("MC_AUTH_FILE", str(tmp_path / "keys"))
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()

    def status(*more):
        return asyncio.run(server._handle_metadata(MetadataRequest("PUT", "a", b"1", *more))).status

    assert [status(), status({"Authorization": f"Bearer {token}0"}), status({"Authorization": f"Bearer {token}"})] == [401, 401, 200]
    server.close()


@pytest.mark.parametrize("stderr", ["None", "open(__import__('os').devnull)", "sys.stderr"])
def test_metadata_server_whose_log_goes_nowhere(stderr):
    """Neither a level that hides the line by which it is known that the server listens, nor a stderr that cannot be written to, stops anybody."""
    code = f"import sys; sys.stderr = {stderr}; from mooncake.http_metadata_server import KVBootstrapServer as S; s = S(0, '127.0.0.1'); s.run(); print(s.poll().name, s.port); s.close()"
    done = subprocess.run([sys.executable, "-c", code], env={**environment(), "MC_LOG_LEVEL": "WARNING"}, capture_output=True, text=True, timeout=60)
    name, port = done.stdout.split()
    assert name == "Success" and int(port) > 0


def test_metadata_server_ends_with_its_process():
    """Also when a forked child of that process lives on."""
    ours, theirs = os.pipe()
    code = (f"import os; from mooncake.http_metadata_server import KVBootstrapServer as S; s = S(0, '127.0.0.1'); s.run()\n"
            f"if os.fork() == 0: os.read({ours}, 1); os._exit(0)\n"
            f"print(s.port, flush=True); input()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(),
                          pass_fds=[ours]) as process:
        port = int(process.stdout.readline())
        assert request(port, "GET", "/metadata?key=a")[0] == 404
        process.send_signal(signal.SIGKILL)
    os.close(ours)
    wait_until(lambda: not is_open(port), 20)
    os.write(theirs, b"x")  # the child is still there to read it, or this raises
    os.close(theirs)


def test_pools_are_names_of_the_package():
    code = "import sys, mooncake; assert {'BufferPool', 'RegisteredBufferPool'} <= set(dir(mooncake)) and 'mooncake._store' not in sys.modules; from mooncake import BufferPool, RegisteredBufferPool as R;" \
           "import mooncake.store; assert R is BufferPool is mooncake.store.BufferPool; assert mooncake.__version__; print(hasattr(mooncake, 'no'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout == "False\n", done.stderr
