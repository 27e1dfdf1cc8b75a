"""TLS by flags: each command takes them, and they win against the environment."""
import contextlib
import os
import subprocess

import pytest

from cluster import BUILD, Master, wait_until
from proxy_engines import Engine
from service_process import CLIENT, REST, Service, run
from test_doctor import Report
from test_metadata_server import NATIVE, Server
from test_proxy_tls import serving
from test_tls import VARIABLES
from test_tls_http import Files, Port, SecureProxy

KINDS = {"tls_cert": "MC_TLS_CERT", "tls_key": "MC_TLS_KEY", "tls_ca_cert": "MC_TLS_CA_CERT", "tls_client_ca_cert": "MC_TLS_CLIENT_CA_CERT",
         "tls_server_name": "MC_TLS_SERVER_NAME"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


def flags_of(files, *names, **more):
    values = {"tls_cert": files.first.certificate, "tls_key": files.first.key, "tls_ca_cert": files.ca.certificate, **more}
    return [f"--{name}={values[name]}" for name in names]


ALL = ("tls_cert", "tls_key", "tls_ca_cert")


@pytest.fixture
def misled(files, monkeypatch):
    """An environment in which nothing fits."""
    values = {"MC_TLS_CA_CERT": files.other.certificate, "MC_TLS_CERT": files.stranger.certificate, "MC_TLS_KEY": files.stranger.key,
              "MC_TLS_SERVER_NAME": "nobody", "MC_TLS_CLIENT_CA_CERT": ""}
    assert set(values) == set(VARIABLES) == set(KINDS.values())
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def answers(files, port, log, path="/health"):
    """By the certificate that the flags name: it is believed, the environment's would not be."""
    return wait_until(lambda: Port(files, port, log, path).call("GET", path)[0] == 200, 30, "an answer")


def test_flags_win(files, misled):
    named = flags_of(files, *ALL, "tls_server_name", tls_server_name="localhost")
    with contextlib.ExitStack() as stack:
        engine = Engine("d", tls=serving(files.first))
        stack.callback(engine.kill)
        master = stack.enter_context(Master(*named, metadata=True))
        answers(files, master.metrics_port, master.log)
        answers(files, master.metadata_port, master.log)
        service = stack.enter_context(Service(*named, command=REST, MOONCAKE_MASTER=master.address))
        answers(files, service.port, service.log)
        port = Port(files, service.port, service.log, "/")
        assert wait_until(lambda: port.call("PUT", "/api/put", b'{"key": "a", "value": "b"}')[0] == 200, 30, "room")
        assert port.call("GET", "/api/get/a") == (200, b"b")
        node = Service(*named, "--host=localhost", f"--master_server_address={master.address}", "--port=0", "--http_port=0", "--global_segment_size=16MB",
                       command=CLIENT, ports=()).spawn()
        stack.callback(lambda: (node.process.kill(), node.process.wait()))
        wait_until(lambda: "is running" in node.log() or node.process.poll() is not None, 30, "a node")
        assert node.process.poll() is None, node.log()
        proxy = stack.enter_context(SecureProxy(files, "--decode", engine.url, *flags_of(files, *ALL, "tls_server_name", tls_server_name="localhost")))
        assert proxy.complete()[0] == 200
        server = Server(NATIVE, "--host=127.0.0.1", *flags_of(files, "tls_cert", "tls_key"))
        stack.callback(server.stop)
        answers(files, server.port, lambda: "")
        asked = ["--master", master.address, "--admin", f"127.0.0.1:{master.metrics_port}"]
        environment = {name: os.environ[name] for name in VARIABLES}
        report = Report(*asked, *named, **environment)
        assert [report.verdict(name) for name in ("master", "admin port")] == ["fine"] * 2, report.facts
        report = Report(*asked, **environment)
        assert [report.verdict(name) for name in ("master", "admin port")] == ["broken"] * 2, report.facts
        bench = [str(BUILD / "mooncake_bench"), "node", f"--master={master.address}", "--segment=16MiB", "--seconds=0.1"]
        assert subprocess.run([*bench, *named], capture_output=True, timeout=60).returncode == 0
        assert subprocess.run(bench, capture_output=True, timeout=60).returncode != 0


def test_callers_certificates_by_a_flag(files, misled):
    wanted = flags_of(files, "tls_cert", "tls_key", "tls_client_ca_cert", tls_client_ca_cert=files.ca.certificate)
    server = Server(NATIVE, "--host=127.0.0.1", *wanted)
    try:
        port = Port(files, server.port, lambda: "", "/metadata?key=a")
        assert port.call("GET", port.path)[0] == 403
        assert port.call("GET", port.path, pair=files.client)[0] == 404
    finally:
        assert server.stop() == 0


def test_empty_flags_say_nothing(files, misled):
    """As --auth_file: the environment says it."""
    said = run(NATIVE, "--port=0", "--tls_cert=", MC_TLS_CERT="/no/such/file")
    assert said.returncode != 0 and "MC_TLS_CERT=/no/such/file" in said.stderr + said.stdout


@pytest.mark.parametrize("command", ["mooncake_master", "mooncake_client", "mc_store_rest_server", "mooncake_proxy"])
def test_what_a_flag_names_is_looked_at_before_the_start(files, misled, command):
    more = {"mooncake_proxy": ["--decode=127.0.0.1:1"], "mooncake_master": ["--rpc_port=0"]}.get(command, ["--max_wait_time=0.1"])
    said = run([str(BUILD / command)], *more, "--tls_cert=/no/such/file", "--tls_key=/no/such/file", MOONCAKE_MASTER="127.0.0.1:1")
    assert said.returncode == 1 and "/no/such/file" in said.stderr + said.stdout, said
