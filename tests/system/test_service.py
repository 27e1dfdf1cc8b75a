"""The store service: every REST route with the codes of the original (observed on mooncake-transfer-engine-non-cuda 0.3.13.post1), its life, and
strangers. Where ours differs on purpose the test says so."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

from cluster import SANITIZED, START_S, Master, request, says, wait_until
from ports import free_port
from service_process import CLIENT, MODULE, REST, SEGMENT, Service, run

SUCCESS = {"status": "success"}


@pytest.fixture(scope="module")
def master():
    with Master("--default_kv_lease_ttl=300ms", metadata=True) as running:
        yield running


@pytest.fixture(scope="module")
def service(master):
    with Service(MOONCAKE_MASTER=master.address) as running:
        running.put("warm up", "x" * 100000)
        yield running


def segments(master):
    status, body = master.get("/get_all_segments")
    return body.decode().split() if status == 200 else []


# ---- objects ----

def test_put_get_exist_remove(service):
    assert service.call("PUT", "/api/put", {"key": "a", "value": "hällo\n\"\\ \U0001f600"}) == (200, SUCCESS)
    assert service.call("GET", "/api/exist/a") == (200, {"exists": True})
    assert service.call("GET", "/api/get/a") == (200, "hällo\n\"\\ \U0001f600".encode())
    # The key exists: success, and the old value stays.
    assert service.call("PUT", "/api/put", {"key": "a", "value": "other"}) == (200, SUCCESS)
    assert service.call("GET", "/api/get/a")[1].startswith("hällo".encode())
    # It was read just now: leased.
    status, body = service.call("DELETE", "/api/remove/a")
    assert (status, body["error"], body["code"]) == (500, "Remove operation failed", -706)
    wait_until(lambda: service.call("DELETE", "/api/remove/a") == (200, SUCCESS), 5)
    assert service.call("GET", "/api/exist/a") == (200, {"exists": False})
    assert service.call("GET", "/api/get/a") == (404, {"error": "Key not found"})
    status, body = service.call("DELETE", "/api/remove/a")
    assert (status, body["error"], body["code"]) == (500, "Remove operation failed", -704)


@pytest.mark.parametrize("key, path", [("model@tp_rank:0@deadbeef", "model@tp_rank:0@deadbeef"), ("a/b c", "a%2Fb%20c"), ("ä+%", "%C3%A4+%25"), ("k" * 1024, "k" * 1024)])
def test_keys(service, key, path):
    service.put(key, "v:" + key)
    assert service.call("GET", f"/api/get/{path}") == (200, ("v:" + key).encode())
    assert service.call("GET", f"/api/exist/{path}?x=1") == (200, {"exists": True})


def test_remove_all(service):
    def removed():
        status, body = service.call("DELETE", "/api/remove_all")
        assert status == 200
        return int(re.fullmatch(r"success removed (\d+) keys", body["status"]).group(1))
    time.sleep(0.4)  # leases of other tests
    removed()
    for i in range(3):
        service.put(f"r{i}", "x")
    assert removed() == 3
    assert removed() == 0


@pytest.mark.parametrize("body, error", [
    ({"key": "", "value": "x"}, "Missing key or value"),
    ({"key": "b"}, "Missing key or value"),
    ({"value": "b"}, "Missing key or value"),
    ({"key": "b", "value": None}, "Missing key or value"),
    # Ours: 400, the original answers 500 with the words of its Python.
    ({"key": "b", "value": 5}, "value must be a string"),
    ({"key": 7, "value": "x"}, "key must be a string"),
    ([1], "Request body must be a JSON object"),
    ('{"key":', "Malformed JSON body: line 1"),
    (None, "Malformed JSON body: line 1"),
    ('{"key":"s","value":"\\ud800"}', "\\u escape"),
])
def test_put_refuses(service, body, error):
    status, reply = service.call("PUT", "/api/put", body)
    assert status == 400 and error in reply["error"], reply


@pytest.mark.parametrize("body, code", [({"key": "b", "value": ""}, -600), ({"key": "k" * 1025, "value": "x"}, -400)])
def test_put_fails(service, body, code):
    status, reply = service.call("PUT", "/api/put", body)
    assert (status, reply["error"], reply["code"]) == (500, "PUT operation failed", code)


def test_paths_and_methods(service):
    assert service.call("GET", "/api/get/a/b") == (404, b"404: Not Found")
    assert service.call("GET", "/api/get/") == (404, b"404: Not Found")
    assert service.call("GET", "/") == (404, b"404: Not Found")
    assert service.call("POST", "/api/put", {}) == (405, b"405: Method Not Allowed")
    assert service.call("PUT", "/api/get/a") == (405, b"405: Method Not Allowed")
    assert service.call("GET", "/api/get/%zz")[0] == 400
    assert service.call("GET", "/api/get/" + "k" * 1025)[0] == 400


def test_head(service):
    service.put("head", "hello")
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    for path, status, length in (("/api/get/head", 200, "5"), ("/api/get/nothing", 404, "26")):
        connection.request("HEAD", path)
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("Content-Length"), reply.read()) == (status, length, b"")
    connection.close()


# ---- mounts ----

def test_mount_and_unmount(service, master):
    before = set(segments(master))
    status, body = service.call("POST", "/api/mount", {"size": 16 << 20})
    assert status == 200 and body["status"] == "success" and body["allocated_size"] == 16 << 20
    [name] = body["segment_ids"]
    assert re.fullmatch(r"\d+-\d+", name)
    wait_until(lambda: len(set(segments(master)) - before) == 1, START_S)
    assert service.call("POST", "/api/unmount", {"segment_ids": name}) == (200, SUCCESS)
    assert set(segments(master)) == before
    status, body = service.call("POST", "/api/unmount", {"segment_ids": [name]})
    assert (status, body["error"]) == (500, "Unmount and free failed, ret=-600")


def test_unmount_with_grace(service, master):
    before = set(segments(master))
    # As the original: sizes are rounded up to 16 MiB.
    status, body = service.call("POST", "/api/mount", {"size": 100, "protocol": "tcp", "location": ""})
    assert status == 200 and body["allocated_size"] == 16 << 20
    wait_until(lambda: len(set(segments(master)) - before) == 1, START_S)
    assert service.call("POST", "/api/unmount", {"segment_ids": body["segment_ids"], "grace_period_seconds": 1}) == (200, SUCCESS)
    assert len(set(segments(master)) - before) == 1
    assert service.call("POST", "/api/unmount", {"segment_ids": body["segment_ids"]})[0] == 500
    wait_until(lambda: set(segments(master)) == before, START_S)


@pytest.mark.parametrize("path, body, status, error", [
    ("mount", {"size": True}, 400, "Invalid size, must be a positive integer"),
    ("mount", {"size": 0}, 400, "Invalid size, must be a positive integer"),
    ("mount", {"size": -1}, 400, "Invalid size, must be a positive integer"),
    ("mount", {"size": 1.5}, 400, "Invalid size, must be a positive integer"),
    ("mount", {"size": "1"}, 400, "Invalid size, must be a positive integer"),
    ("mount", {}, 400, "Invalid size, must be a positive integer"),
    ("mount", {"size": 1, "protocol": 5}, 400, "Invalid protocol or location, must be a string"),
    ("mount", {"size": 1, "protocol": "pigeon"}, 500, "Allocate and mount failed, ret=-600"),
    ("mount", "x", 400, "Malformed JSON body: line 1 column 1"),
    ("mount", None, 400, "Malformed JSON body: line 1 column 1"),
    ("unmount", {}, 400, "Missing segment_ids"),
    ("unmount", {"segment_ids": []}, 400, "Missing segment_ids"),
    ("unmount", {"segment_ids": "nonsense"}, 500, "Unmount and free failed, ret=-1"),
    ("unmount", {"segment_ids": ["1-2"]}, 500, "Unmount and free failed, ret=-600"),
    ("unmount", {"segment_ids": [5]}, 400, "Invalid segment_ids, must be strings"),
    ("unmount", {"segment_ids": ["1-2"], "grace_period_seconds": -1}, 400, "Invalid grace_period_seconds"),
    ("unmount", {"segment_ids": ["1-2"], "grace_period_seconds": True}, 400, "Invalid grace_period_seconds"),
    ("unmount_local_disk", {"grace_period_seconds": 3601}, 400, "Invalid grace_period_seconds, must be a non-negative integer no greater than 3600"),
    ("unmount_local_disk", {"grace_period_seconds": 1.0}, 400, "Invalid grace_period_seconds"),
    ("unmount_local_disk", {"grace_period_seconds": True}, 400, "Invalid grace_period_seconds"),
    ("unmount_local_disk", "x", 400, "Malformed JSON body"),
    ("unmount_local_disk", "[]", 400, "Request body must be a JSON object"),
    # Files of others are not lent: a clear refusal where the original mounts them.
    ("mount_shm", {"name": "n", "size": 1}, 500, "Mount failed, ret=-1012"),
    ("mount_shm", {"name": "..", "size": 1}, 400, "Missing or invalid name or size"),
    ("mount_shm", {"name": "a/b", "size": 1}, 400, "Missing or invalid name or size"),
    ("mount_shm", {"name": "/", "size": 1}, 400, "Missing or invalid name or size"),
    ("mount_shm", {"name": "n"}, 400, "Missing or invalid name or size"),
    ("unmount_shm", {}, 400, "Missing segment_ids"),
    ("reconfigure", {"mode": "x"}, 400, "Invalid mode. Use 'decode' or 'prefill'"),
    ("reconfigure", {}, 400, "Invalid mode. Use 'decode' or 'prefill'"),
    ("reconfigure", {"mode": "decode"}, 400, "Missing path or size for decode mode"),
    ("reconfigure", {"mode": "decode", "path": "/dev/shm/x", "size": 1}, 500, "Mount failed, ret=-1012; rolled back to prefill"),
])
def test_mount_calls_refuse(service, path, body, status, error):
    got, reply = service.call("POST", f"/api/{path}", body)
    assert got == status and reply["error"].startswith(error), reply


def test_mode_and_disk(service):
    assert service.call("POST", "/api/reconfigure", {"mode": "PREFILL"}) == (200, {"status": "success", "mode": "prefill"})
    assert service.call("POST", "/api/unmount_local_disk", {"grace_period_seconds": 3600}) == (200, SUCCESS)
    assert service.call("POST", "/api/unmount_shm", {"segment_ids": "x"}) == \
        (500, {"error": "Unmount failed for one or more segments", "failed_segment_ids": ["x"]})


# ---- health ----

def test_health_and_metrics(service):
    assert service.call("GET", "/health") == (200, {"status": "healthy", "code": 0})
    status, text = service.call("GET", "/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert int(values["mooncake_client_put_objects_total"]) > 0 and int(values["mooncake_client_segment_capacity_bytes"]) == SEGMENT
    assert service.call("GET", "/metrics/summary")[1].startswith(b"Client Metrics Summary\n")


def test_killed_master():
    with Master() as master, Service(MOONCAKE_MASTER=master.address, MC_RPC_TIMEOUT_MS=1000) as service:
        service.put("kept", "value")
        master.kill()
        wait_until(lambda: service.call("GET", "/health") == (503, {"status": "master_unreachable", "code": 2}), 10)
        for method, path, body, error in (("PUT", "/api/put", {"key": "z", "value": "x"}, "PUT operation failed"),
                                          ("GET", "/api/exist/zzz", None, "Exist check failed"),
                                          ("GET", "/api/get/zzz", None, "Exist check failed"),
                                          ("DELETE", "/api/remove/zzz", None, "Remove operation failed"),
                                          ("DELETE", "/api/remove_all", None, "RemoveAll operation failed")):
            status, reply = service.call(method, path, body)
            assert (status, reply["error"]) == (500, error)
        master.start()
        wait_until(lambda: service.call("GET", "/health")[0] == 200, START_S)
        wait_until(lambda: service.call("GET", "/api/get/kept") == (200, b"value"), START_S)
        master.kill()
        start = time.monotonic()
        assert service.stop() == 0  # also without a master it ends, and soon
        assert time.monotonic() - start < 15
        master.start()


# ---- life ----

@pytest.mark.parametrize("command", [REST, MODULE], ids=["native", "python -m"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_leaves_the_cluster(master, command, number):
    before = set(segments(master))
    service = Service(command=command, MOONCAKE_MASTER=master.address).start()
    pid = service.process.pid
    assert os.readlink(f"/proc/{pid}/exe").endswith("mc_store_rest_server")  # the module has become it
    wait_until(lambda: set(segments(master)) != before, START_S)
    assert service.stop(number) == 0
    assert set(segments(master)) == before  # at once, not by a timeout
    says(service, "Mooncake service stopped")


def test_starts_before_the_master():
    with Master() as master:
        address = master.address
        master.kill()
        service = Service("--max-wait-time=60", MOONCAKE_MASTER=address).spawn()
        wait_until(lambda: "not joined yet" in service.log(), START_S)
        assert service.process.poll() is None
        master.start()
        service.wait()
        service.put("a", "b")
        assert service.stop() == 0


def test_gives_up_without_a_master():
    with Master() as master:
        address = master.address
        master.kill()
        start = time.monotonic()
        result = run(REST, "--port=0", "--max-wait-time", "1.5", MOONCAKE_MASTER=address, MC_RPC_TIMEOUT_MS=300)
        assert result.returncode == 1 and 1.4 < time.monotonic() - start < 20
        assert re.search(r"^mc_store_rest_server: the store could not join the cluster at \S+ within [0-9.]+ s \(max_wait_time is 1.5 s\): ", result.stderr, re.M)
        # A signal while it waits ends it well.
        service = Service("--max-wait-time=60", MOONCAKE_MASTER=address).spawn()
        wait_until(lambda: "not joined yet" in service.log(), START_S)
        assert service.stop() == 0
        master.start()


def test_port_is_open_only_when_ready():
    """Readiness by TCP: nobody can connect while there is no master."""
    port = free_port()
    with Master() as master:
        address = master.address
        master.kill()
        service = Service(ports=(f"--port={port}",), MOONCAKE_MASTER=address).spawn()
        wait_until(lambda: "not joined yet" in service.log(), START_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        master.start()
        service.wait()
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        assert service.stop() == 0


def test_port_in_use_is_an_error_at_once(service, master):
    result = run(REST, f"--port={service.port}", MOONCAKE_MASTER=master.address)
    assert result.returncode == 1
    assert re.fullmatch(r"mc_store_rest_server: cannot listen on 0.0.0.0 port \d+ \(port\): Address already in use; .*--port\n", result.stderr)


def test_two_services_of_one_name(master):
    before = set(segments(master))
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1") as one, \
            Service(MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME="127.0.0.1") as two:
        wait_until(lambda: len(set(segments(master)) - before) == 2, START_S)
        one.put("shared", "x" * 1000)
        assert two.call("GET", "/api/get/shared") == (200, b"x" * 1000)
    assert set(segments(master)) == before


def test_two_services_of_one_name_and_port(master):
    """A file that several processes share may name a port: one gets it, the other says that it takes another."""
    name = f"127.0.0.1:{free_port()}"
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME=name), \
            Service(MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_HOSTNAME=name) as two:
        assert name in segments(master)
        says(two, f"{name} is in use")


def test_pure_server_and_pure_client(master):
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_LOCAL_BUFFER_SIZE=0) as server, \
            Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE=0) as client:
        client.put("from a client", "v")
        assert client.call("GET", "/api/get/from%20a%20client") == (200, b"v")
        status, reply = server.call("PUT", "/api/put", {"key": "q", "value": "v"})
        assert (status, reply["code"]) == (500, -600)


def test_mooncake_client(master):
    """The flags that SGLang's own test fixture gives."""
    before = set(segments(master))
    service = Service("--host=127.0.0.1", "--port=50052", f"--master_server_address={master.address}",
                      f"--metadata_server=http://127.0.0.1:{master.metadata_port}/metadata", "--protocol=tcp", "--device_names=",
                      "--global_segment_size=64 MB", "--enable_http_server=true", "--http_port=0", command=CLIENT, ports=())
    service.spawn().wait(r"Client HTTP server started on port (\d+)")
    assert service.call("GET", "/health") == (200, {"status": "healthy", "code": 0})
    assert service.call("GET", "/metrics")[0] == 200
    assert service.call("GET", "/api/exist/a")[0] == 404  # no REST on this port
    wait_until(lambda: set(segments(master)) != before, START_S)
    assert service.stop() == 0
    assert set(segments(master)) == before


def test_setup_dummy_by_way_of_a_client(master):
    """An engine's process without a pool of its own asks the node of its machine which master it uses."""
    from python_cluster import MooncakeDistributedStore
    flags = (f"--master_server_address={master.address}", "--global_segment_size=64 MB", "--http_port=0", "--enable_http_server=false")
    service = Service("--port=0", *flags, command=CLIENT, ports=())
    service.spawn().wait(r"setup_dummy is answered on port (\d+)")
    store = MooncakeDistributedStore()
    assert store.setup_dummy(16 << 20, 16 << 20, f"127.0.0.1:{service.port}") == 0
    wait_until(lambda: store.put("of an engine", b"v" * 100000) == 0, START_S)
    assert store.get("of an engine") == b"v" * 100000
    pointer = store.alloc_from_mem_pool(4096)
    assert pointer != 0 and store.get_into("of an engine", pointer, 4096) == -600
    # Connections that say or do nothing hinder nobody, and another node on the port says that it cannot.
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        other = MooncakeDistributedStore()
        assert other.setup_dummy(0, 1 << 20, f"127.0.0.1:{service.port}") == 0
        assert other.get("of an engine") == b"v" * 100000
        assert other.close() == 0
    second = Service(f"--port={service.port}", *flags, command=CLIENT, ports=())
    second.spawn().wait(r"is running")
    says(second, "setup_dummy cannot ask here")
    assert second.stop() == 0 and store.close() == 0 and service.stop() == 0


def test_health_page_beside_the_rest_api(master):
    with Service("--enable_client_http_server", "--client_http_port=0", MOONCAKE_MASTER=master.address) as service:
        port = int(re.search(r"Client HTTP server started on port (\d+)", service.log()).group(1))
        assert request(port, "GET", "/health")[0] == 200
        # A port in use does not keep a node from lending its memory.
        with Service("--enable_client_http_server", f"--client_http_port={port}", MOONCAKE_MASTER=master.address) as other:
            says(other, "there will be no health page")


@pytest.mark.parametrize("command, name", [(REST, "mc_store_rest_server"), (CLIENT, "mooncake_client"), (MODULE, "mc_store_rest_server")])
def test_help_and_version(command, name):
    result = run(command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    for flag in ("--max_wait_time", "--global_segment_size", "--master_server_address", "--protocol"):
        assert flag in result.stdout
    assert re.fullmatch(rf"{name} \d+\.\d+\S*\n", run(command, "--version").stdout)
    result = run(command, "--max-wait-tim=1")
    assert (result.returncode, result.stderr) == (1, f"{name}: unknown flag --max-wait-tim; did you mean --max_wait_time?\n")


# ---- strangers ----

def raw(service, data, timeout_s=20):
    """Everything that comes back until the other end closes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=timeout_s) as connection:
        connection.sendall(data)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


@pytest.mark.parametrize("data, status", [
    (b"GET /\r\n\r\n", 400),
    (b"GET / HTTP/3.0\r\n\r\n", 505),
    (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    (b"GET /" + b"x" * 20000, 431),
    (b"PUT /api/put HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"PUT /api/put HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"PUT /api/put HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
])
def test_bad_heads(service, data, status):
    assert raw(service, data).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("data", [b"", b"G", b"PUT /api/put HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"PUT /api/put HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_cut_requests(service, data):
    """The client goes away in the middle; what it began is forgotten."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(data)
    assert service.call("GET", "/health")[0] == 200


def test_pipeline_and_keep_alive(service):
    service.put("pipe", "lined")
    reply = raw(service, b"GET /api/get/pipe HTTP/1.1\r\n\r\nGET /api/exist/pipe HTTP/1.1\r\n\r\n"
                b"PUT /api/put HTTP/1.1\r\nContent-Length: 3\r\n\r\n{}}GET /api/exist/no HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert reply.count(b"HTTP/1.1 200 OK") == 3 and reply.count(b"HTTP/1.1 400 ") == 1
    assert b"lined" in reply and b'{"exists": true}' in reply and reply.endswith(b'{"exists": false}')


def test_body_of_another_call_is_no_request(service):
    """A short body that no handler reads is passed over; what follows is the next request."""
    reply = raw(service, b"GET /api/exist/no HTTP/1.1\r\nContent-Length: 24\r\n\r\nDELETE /api/remove_all x\nGET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b'{"exists": false}' in reply and b"404: Not Found" in reply and b"removed" not in reply


def test_chunked_put(service):
    text = json.dumps({"key": "chunked", "value": "v" * 300000}).encode()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(text[i:i + 70000]), text[i:i + 70000]) for i in range(0, len(text), 70000))
    reply = raw(service, b"PUT /api/put HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 OK"), reply
    assert service.call("GET", "/api/get/chunked") == (200, b"v" * 300000)


def test_giant_body(master):
    """100 MiB are the limit, as in the original (which answers 500); nothing beyond is read into memory."""
    value = "v" * (90 << 20)
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE="256mb") as service:
        service.put("large", value)
        assert service.call("GET", "/api/get/large", timeout_s=60) == (200, value.encode())
        status, reply = service.call("PUT", "/api/put", json.dumps({"key": "giant", "value": "v" * (100 << 20)}), timeout_s=60)
        assert (status, reply) == (413, {"error": "Request Entity Too Large"})
        assert raw(service, b"PUT /api/put HTTP/1.1\r\nContent-Length: 999999999999\r\nExpect: 100-continue\r\n\r\n").startswith(b"HTTP/1.1 413 ")
        assert raw(service, b"POST /api/mount HTTP/1.1\r\nContent-Length: 65537\r\n\r\n").startswith(b"HTTP/1.1 413 ")
        assert raw(service, b"PUT /api/put HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n").startswith(b"HTTP/1.1 413 ")
        assert raw(service, b"PUT /api/put HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n").startswith(b"HTTP/1.1 413 ")
        # A body that is announced and does not come holds nobody up.
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as slow:
            slow.sendall(b"PUT /api/put HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n{")
            assert service.call("GET", "/health")[0] == 200


def test_slow_reader_holds_nobody_up(service):
    service.put("wanted", "w" * (4 << 20))
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(b"GET /api/get/wanted HTTP/1.1\r\nConnection: close\r\n\r\n")
        for _ in range(20):
            assert service.call("GET", "/api/exist/wanted") == (200, {"exists": True})
        total = 0
        while part := slow.recv(1 << 20):
            total += len(part)
        assert total > 4 << 20


def test_many_at_once(service):
    """100 clients that put, get and compare, at the same time."""
    start = threading.Barrier(100)

    def one(number):
        value = f"{number}:" * 2000
        start.wait(60)
        service.put(f"many{number}", value)
        return service.call("GET", f"/api/get/many{number}", timeout_s=60) == (200, value.encode())

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        assert all(pool.map(one, range(100)))


def test_more_connections_than_there_can_be(service):
    """Silent ones give way."""
    idle = [socket.create_connection(("127.0.0.1", service.port), timeout=10) for _ in range(300)]
    try:
        assert service.call("GET", "/health")[0] == 200
    finally:
        for one in idle:
            one.close()
    assert service.call("GET", "/health")[0] == 200


def test_stops_while_others_talk(master):
    service = Service(MOONCAKE_MASTER=master.address).start()
    service.put("a", "b")
    idle = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    half = socket.create_connection(("127.0.0.1", service.port), timeout=30)
    half.sendall(b"PUT /api/put HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    time.sleep(0.2)
    begin = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - begin < 12
    assert idle.recv(1) == b"" and half.recv(100) == b""


def test_memory_comes_back(master):
    """Large values in and out, and requests that were cut, leave nothing behind."""
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE="128mb") as service:
        def anonymous():
            with open(f"/proc/{service.process.pid}/smaps_rollup") as rollup:
                return int(re.search(r"Anonymous:\s+(\d+) kB", rollup.read()).group(1)) << 10
        service.put("warm", "x" * (32 << 20))
        assert service.call("GET", "/api/get/warm")[0] == 200
        before = anonymous()
        for i in range(5):
            with socket.create_connection(("127.0.0.1", service.port), timeout=10) as cut:
                cut.sendall(b"PUT /api/put HTTP/1.1\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 20000000)
            assert service.call("GET", "/api/get/warm")[0] == 200
        if not SANITIZED:
            wait_until(lambda: anonymous() < before + (24 << 20), 20, "the memory")


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own memory counts too")
def test_memory_is_bounded(master):
    """Twelve readers of 90 MiB at once: some wait, all are served, and no more than the budget of 512 MiB is in memory."""
    def read():
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
            connection.sendall(b"GET /api/get/large HTTP/1.1\r\nConnection: close\r\n\r\n")
            head, total = connection.recv(64), 0
            while part := connection.recv(1 << 20):
                total += len(part)
            results.append((head[9:12], total > 90 << 20))

    results, peak = [], 0
    with Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE="256mb") as service:
        service.put("large", "v" * (90 << 20))
        threads = [threading.Thread(target=read) for _ in range(12)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with open(f"/proc/{service.process.pid}/smaps_rollup") as rollup:
                peak = max(peak, int(re.search(r"Anonymous:\s+(\d+) kB", rollup.read()).group(1)) << 10)
            time.sleep(0.02)
    # One that waited for more than three seconds on a slow machine is told to come again.
    assert len(results) == 12 and {status for status, _ in results} <= {b"200", b"503"} and results.count((b"200", True)) >= 5, results
    assert peak < 600 << 20


# ---- documents that users follow ----

def test_kubernetes_roles():
    """Seed 003: the store's command and environment as written, the master with a metadata host and port only, curl as a reader would."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # curl hangs with a sanitizer's runtime
    with Master(metadata=True) as master:
        with Service(command=MODULE, MOONCAKE_MASTER=f"localhost:{master.port}", MOONCAKE_TE_META_DATA_SERVER=f"http://localhost:{master.metadata_port}/metadata",
                     MOONCAKE_GLOBAL_SEGMENT_SIZE="0.0625gb", MOONCAKE_LOCAL_BUFFER_SIZE="4194304", MOONCAKE_PROTOCOL="tcp", MOONCAKE_DEVICE="") as store:
            socket.create_connection(("127.0.0.1", store.port), timeout=5).close()  # its readinessProbe
            wait_until(lambda: f"/ {64 / 1024:.2f} GB" in master.get("/metrics/summary")[1].decode() or "64.00 MB" in master.get("/metrics/summary")[1].decode(), START_S,
                       "the store's memory in the master's line")
            for arguments, expected in ((["-X", "PUT", f"http://127.0.0.1:{store.port}/api/put", "-H", "Content-Type: application/json", "-d", '{"key":"k","value":"v"}'], '{"status": "success"}'),
                                        ([f"http://127.0.0.1:{store.port}/api/get/k"], "v"),
                                        ([f"http://127.0.0.1:{store.port}/api/exist/k"], '{"exists": true}')):
                wait_until(lambda: subprocess.run(["curl", "-s", *arguments], capture_output=True, text=True, timeout=20, env=plain).stdout == expected, START_S, str(arguments))


def test_advertises_a_routable_address():
    """localhost with a master elsewhere: others are told the address under which the master sees us, and the log says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            own = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
    with Master("--rpc_address=0.0.0.0") as master, Service(MOONCAKE_MASTER=f"{own}:{master.port}") as service:
        says(service, f"others are told {own}")
        wait_until(lambda: any(name.startswith(f"{own}:") for name in segments(master)), START_S)


def test_the_port_that_setup_dummy_asks(master):
    """It says what it offers to other machines; and where no descriptor is left for who waits there, nothing spins."""
    flags = [f"--master_server_address={master.address}", "--host=127.0.0.1", "--global_segment_size=16777216"]
    with contextlib.ExitStack() as stack:
        one = Service(*flags, command=CLIENT).spawn()
        stack.callback(one.stop)
        one.wait(r"setup_dummy is answered on port (\d+)")
        assert f"whoever reaches its port {one.port} may learn which master this store uses" in one.log()
        pid = one.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, before[1]))
        with socket.create_connection(("127.0.0.1", one.port), 30) as waits:
            def busy_s():
                with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
                    return int(file.read().split()[0]) / 1e9
            start = busy_s()
            time.sleep(3)
            assert busy_s() - start < 0.3
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert waits.makefile("rb").read() == f"mooncake_client {master.address}\n".encode()
