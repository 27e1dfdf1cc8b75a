"""/health and /metrics of a store in a Python process: setup's enable_client_http_server."""
import contextlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys

import pytest

import cluster
import keyed
import secured
from certificates import Authority
from cluster import request, samples_of
from keyed import Key
from ports import free_port
from python_cluster import MooncakeDistributedStore, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def master():
    with cluster.Master() as running:
        yield running


def setup(store, master, port, segment=32 * MIB, **more):
    return store.setup("127.0.0.1", "P2PHANDSHAKE", segment, MIB, "tcp", "", master.address, enable_client_http_server=True, client_http_port=port, **more)


def test_metrics_until_close(master):
    port = free_port()
    store = MooncakeDistributedStore()
    assert setup(store, master, port) == 0
    wait_until(lambda: store.put("key", bytes(1000)) == 0)
    assert store.get("key") == bytes(1000)
    assert (lambda status, body: (status, json.loads(body)["status"]))(*request(port, "GET", "/health")) == (200, "healthy")
    status, body = request(port, "GET", "/metrics")
    values = samples_of(body)
    assert status == 200 and values["mooncake_client_put_bytes_total"] >= 1000 and values["mooncake_client_get_objects_total"] == 1
    assert values["mooncake_client_segment_capacity_bytes"] == 32 * MIB
    assert request(port, "GET", "/api/get/key")[0] == 404  # a look, and no API
    assert store.close() == 0
    with pytest.raises(OSError):
        request(port, "GET", "/health")
    # The port is free, and the same object can have it anew.
    assert setup(store, master, str(port), segment=0) == 0
    assert request(port, "GET", "/health")[0] == 200
    assert store.close() == 0


PROGRAM = """
import os, sys
from mooncake.store import MooncakeDistributedStore
stores = [MooncakeDistributedStore() for _ in range(2)]
config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "0", "local_buffer_size": "1mb", "protocol": "tcp",
          "master_server_addr": sys.argv[1], "enable_client_http_server": "true", "client_http_port": sys.argv[2]}
codes = [store.setup(config) for store in stores]
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
codes += [store.close() for store in stores]
codes.append(stores[0].setup(config))  # the child has no copy of the listener
print(codes, flush=True)
codes = [stores[0].close()]
"""


def run(master, port):
    environment = {**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]}
    return subprocess.run([sys.executable, "-c", PROGRAM, master.address, str(port)], input="", capture_output=True, text=True, timeout=60, env=environment)


def test_a_port_that_is_taken_costs_a_warning(master):
    """Of two stores of a process one has it; both are stores."""
    done = run(master, free_port())
    assert done.returncode == 0 and done.stdout.strip() == "[0, 0, 0, 0, 0]", done.stderr
    assert len(re.findall(r"Client HTTP server started on port", done.stderr)) == 2, done.stderr
    assert len(re.findall(r"there will be no /health and /metrics: .*client_http_port", done.stderr)) == 1, done.stderr


def test_how_long_calls_take(master):
    port = free_port()
    store = MooncakeDistributedStore()
    assert setup(store, master, port) == 0
    try:
        wait_until(lambda: store.put("times", bytes(1000)) == 0)
        puts = samples_of(request(port, "GET", "/metrics")[1])["mooncake_client_put_seconds_count"]
        assert puts >= 1
        for _ in range(20):
            assert store.get("times") == bytes(1000)
        assert store.batch_is_exist(["times", "other"]) == [1, 0]
        assert store.get_batch(["times"] * 3) == [bytes(1000)] * 3
        assert store.upsert("times", b"x") == 0 and store.get("missing") == b""
        now = samples_of(request(port, "GET", "/metrics")[1])
        assert [now[f"mooncake_client_{what}_seconds_count"] for what in ("put", "get", "exist")] == [puts + 1, 22, 1]
        for what in ("put", "get", "exist"):
            buckets = [value for name, value in now.items() if name.startswith(f"mooncake_client_{what}_seconds_bucket")]
            assert len(buckets) == 21 and buckets == sorted(buckets) and buckets[-1] == now[f"mooncake_client_{what}_seconds_count"]
            assert 0 < now[f"mooncake_client_{what}_seconds_sum"] < 60
        text = request(port, "GET", "/metrics/summary")[1].decode()
        assert re.search(r"^Get: 22 calls, half within \d+ us, 99 % within \d+ us$", text, re.M), text
    finally:
        assert store.close() == 0


# One store, until its input ends.
HELD = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
print(store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1], enable_client_http_server=True, client_http_port=int(sys.argv[2])), flush=True)
sys.stdin.read()
print(store.close(), flush=True)
"""


@contextlib.contextmanager
def held(master, environment):
    """The port of its /metrics."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-B", "-c", HELD, master.address, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout.readline() == b"0\n"
        yield port
    finally:
        assert process.communicate(timeout=60)[0] == b"0\n"


def test_with_keys_it_tells_who_may_read(tmp_path):
    reader, writer, node = Key("reader", "read"), Key("writer", "write"), Key("node", "node")
    file = keyed.write(tmp_path, "keys", reader, writer, node)
    with cluster.Master(f"--auth_file={file}") as master, held(master, keyed.environment(file=file)) as port:
        for path in ("/metrics", "/metrics/summary"):
            assert request(port, "GET", path)[0] == 401
            for key, status in ((Key("stranger"), 401), (Key("reader"), 401), (node, 403), (writer, 403), (reader, 200)):
                assert request(port, "GET", path, headers={"Authorization": f"Bearer {key.token}"})[0] == status, (path, key.name)
        assert request(port, "GET", "/health")[0] == 200  # a probe has no key


@secured.by_hand
def test_with_tls_it_has_a_certificate(tmp_path):
    authority = Authority(tmp_path, "ca")
    pair, caller = authority.sign("own", ["IP:127.0.0.1"]), authority.sign("caller")
    environment = {**os.environ, "MC_TLS_CERT": str(pair.certificate), "MC_TLS_KEY": str(pair.key), "MC_TLS_CA_CERT": str(authority.certificate),
                   "MC_TLS_CLIENT_CA_CERT": str(authority.certificate)}

    def ask(port, path, certificate):
        context = ssl.create_default_context(cafile=authority.certificate)
        if certificate:
            context.load_cert_chain(certificate.certificate, certificate.key)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    with cluster.Master(environment=environment) as master, held(master, environment) as port:
        assert ask(port, "/metrics", caller) == 200
        assert ask(port, "/metrics", None) == 403 and ask(port, "/health", None) == 200
        status, said = request(port, "GET", "/metrics")
        assert status == 400 and b"https" in said, said


@pytest.mark.parametrize("port", [-1, 65536, "x", "", 1.5, None])
def test_a_port_that_is_none(master, port):
    store = MooncakeDistributedStore()
    assert setup(store, master, port) == -600
    assert store.close() == 0


def test_without_it_nobody_listens(master):
    done = subprocess.run([sys.executable, "-c", PROGRAM.replace('"true"', '"false"'), master.address, "0"], input="", capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
    assert done.returncode == 0 and "HTTP" not in done.stderr and "client_http" not in done.stderr, done.stderr
