"""Settings from files and the environment: mooncake.mooncake_config and the native command read the same of them, and refuse the same."""
import dataclasses
import json
import logging
import os
import sys

import pytest

from service_process import REST, environment, run

sys.path.insert(0, os.environ.get("MC_PYTHONPATH", ""))
from mooncake.mooncake_config import MooncakeConfig, _parse_segment_size  # noqa: E402

OWN = {"local_hostname": "node1", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:50051"}
# Of the documents that users follow.
FASTDEPLOY = {"metadata_server": "http://0.0.0.0:15002/metadata", "master_server_addr": "0.0.0.0:15001", "global_segment_size": 1000000000,
              "local_buffer_size": 134217728, "protocol": "rdma", "rdma_devices": ""}
VLLM_V0 = {"local_hostname": "192.168.0.137", "metadata_server": "etcd://192.168.0.137:2379", "protocol": "rdma", "device_name": "erdma_0",
           "master_server_address": "192.168.0.137:50001"}
VLLM_V1 = {"mode": "embedded", "metadata_server": "http://127.0.0.1:8080/metadata", "master_server_address": "127.0.0.1:50051", "global_segment_size": "4GB",
           "local_buffer_size": "4GB", "protocol": "tcp", "device_name": ""}
LMCACHE = {**OWN, "protocol": "tcp", "global_segment_size": 3355443200, "local_buffer_size": 1073741824, "transfer_timeout": 1, "mooncake_master_server_addr": "other:1"}
SGLANG = {**OWN, "check_server": False, "standalone_storage": False, "master_metrics_port": 9003, "tenant_id": None}


def native(*flags, **variables):
    """The settings as mc_store_rest_server would use them, or its error line."""
    result = run(REST, "--print_config", *flags, **variables)
    assert result.returncode in (0, 1)
    return (json.loads(result.stdout) if result.returncode == 0 else None), result.stderr


def python(monkeypatch, load, **variables):
    for name in list(os.environ):
        if name.startswith("MOONCAKE_") or name == "LOCAL_HOSTNAME":
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return dataclasses.asdict(load())


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "mooncake.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)
    return write


@pytest.mark.parametrize("content, expected", [
    (OWN, {"global_segment_size": 3355443200, "local_buffer_size": 1073741824, "protocol": "tcp", "device_name": "", "tenant_id": "default", "client_http_port": 9300}),
    (FASTDEPLOY, {"local_hostname": "localhost", "master_server_address": "0.0.0.0:15001", "global_segment_size": 1000000000, "protocol": "rdma"}),
    (VLLM_V0, {"local_hostname": "192.168.0.137", "device_name": "erdma_0", "global_segment_size": 3355443200}),
    (VLLM_V1, {"local_hostname": "localhost", "global_segment_size": 4 << 30}),
    (LMCACHE, {"master_server_address": "m:50051"}),
    (SGLANG, {"tenant_id": "default"}),
    ({**OWN, "enable_ssd_offload": "yes", "ssd_offload_path": None, "enable_client_http_server": 1, "client_http_port": "0"},
     {"enable_ssd_offload": True, "ssd_offload_path": "", "enable_client_http_server": True, "client_http_port": 0}),
    ({**OWN, "tenant_id": 5, "device_name": 3, "ssd_offload_path": 0, "stamp": -7}, {"tenant_id": "5", "device_name": "3", "ssd_offload_path": "0", "stamp": "-7"}),
    ({**OWN, "enable_offload": "off", "global_segment_size": 1.9, "local_buffer_size": 0}, {"enable_ssd_offload": False, "global_segment_size": 1, "local_buffer_size": 0}),
])
def test_files(written, monkeypatch, content, expected):
    path = written(content)
    ours, errors = native("--config", path)
    assert ours is not None, errors
    assert ours == python(monkeypatch, lambda: MooncakeConfig.from_file(path))
    assert {name: ours[name] for name in expected} == expected
    assert "unknown" not in errors
    # By the environment it is the same file.
    assert native(MOONCAKE_CONFIG_PATH=path)[0] == ours == python(monkeypatch, MooncakeConfig.load_from_env, MOONCAKE_CONFIG_PATH=path)


SIZES = [("50gb", 50 << 30), ("1.5 GB", 3 << 29), ("4096", 4096), ("10b", 10), ("1k", 1024), ("2kb", 2048), ("3m", 3 << 20), (" 16 MB ", 16 << 20), ("1tb", 1 << 40),
         ("1T", 1 << 40), ("1e3", 1000), ("0", 0), ("9223372036854775807", (1 << 63) - 1)]
BAD_SIZES = ["", "gb", "b", "x", "-1", "1 b b", "nan", "inf", "1gbb", "0x10", "1_0", "9223372036854775808", "8388608tb"]


@pytest.mark.parametrize("text, size", SIZES)
def test_sizes(text, size):
    assert _parse_segment_size(text) == size
    assert native(MOONCAKE_MASTER="m:1", MOONCAKE_GLOBAL_SEGMENT_SIZE=text)[0]["global_segment_size"] == size


@pytest.mark.parametrize("text", BAD_SIZES)
def test_bad_sizes(text, monkeypatch):
    with pytest.raises(ValueError, match="MOONCAKE_GLOBAL_SEGMENT_SIZE"):
        python(monkeypatch, MooncakeConfig.load_from_env, MOONCAKE_MASTER="m:1", MOONCAKE_GLOBAL_SEGMENT_SIZE=text)
    ours, error = native(MOONCAKE_MASTER="m:1", MOONCAKE_GLOBAL_SEGMENT_SIZE=text)
    assert ours is None and "MOONCAKE_GLOBAL_SEGMENT_SIZE" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("variables, expected", [
    ({"MOONCAKE_MASTER": "m:1"}, {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "global_segment_size": 3355443200}),
    # Seed 003
    ({"MOONCAKE_MASTER": "s-demo-mooncake-master:50051", "MOONCAKE_TE_META_DATA_SERVER": "http://s-demo-mooncake-master:8080/metadata",
      "MOONCAKE_GLOBAL_SEGMENT_SIZE": "50gb", "MOONCAKE_LOCAL_BUFFER_SIZE": "4194304", "MOONCAKE_PROTOCOL": "tcp", "MOONCAKE_DEVICE": ""},
     {"global_segment_size": 50 << 30, "local_buffer_size": 4 << 20, "metadata_server": "http://s-demo-mooncake-master:8080/metadata"}),
    # Seed 000
    ({"MOONCAKE_MASTER_SERVER_ADDR": "127.0.0.1:15001", "MOONCAKE_METADATA_SERVER": "http://127.0.0.1:15002/metadata", "MOONCAKE_PROTOCOL": "rdma",
      "MOONCAKE_RDMA_DEVICES": "mlx5_0"}, {"master_server_address": "127.0.0.1:15001", "metadata_server": "http://127.0.0.1:15002/metadata", "device_name": "mlx5_0"}),
    ({"MOONCAKE_MASTER": "m:1", "MOONCAKE_MASTER_SERVER_ADDR": "other:1", "LOCAL_HOSTNAME": "h", "MOONCAKE_TENANT_ID": "t", "MOONCAKE_OFFLOAD_ENABLED": "True",
      "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/x", "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER": "on", "MOONCAKE_CLIENT_HTTP_PORT": "1"},
     {"master_server_address": "m:1", "local_hostname": "h", "tenant_id": "t", "enable_ssd_offload": True, "ssd_offload_path": "/x",
      "enable_client_http_server": True, "client_http_port": 1}),
])
def test_environment(monkeypatch, variables, expected):
    ours, errors = native(**variables)
    assert ours is not None, errors
    assert ours == python(monkeypatch, MooncakeConfig.load_from_env, **variables)
    assert {name: ours[name] for name in expected} == expected


def test_nothing_is_set(monkeypatch):
    with pytest.raises(ValueError, match="MOONCAKE_CONFIG_PATH"):
        python(monkeypatch, MooncakeConfig.load_from_env)
    result = run(REST)
    assert result.returncode == 1 and "MOONCAKE_CONFIG_PATH" in result.stderr and "MOONCAKE_MASTER" in result.stderr


@pytest.mark.parametrize("content, place", [
    (b'{"a": 1,\n "b": }', ":2:"), (b"", ":1:"), (b"{", ":1:"), (b"[]", ":1:1:"), (b'"x"', ":1:1:"), (b'{"a": 1} x', ":1:"), (b"\xff\xfe", ""), (b"[" * 100000, ""),
])
def test_bad_json_says_where(written, monkeypatch, content, place):
    path = written(content)
    with pytest.raises(ValueError) as raised:
        python(monkeypatch, lambda: MooncakeConfig.from_file(path))
    assert path + place in str(raised.value)
    # As who knows the original's catches it; its own errors are other ones.
    assert isinstance(raised.value, json.JSONDecodeError) == (place not in ("", ":1:1:"))
    ours, error = native("--config", path)
    assert ours is None and path + place in error and len(error.splitlines()) == 1


def test_bad_json_ends_the_service(written):
    result = run(REST, "--port=0", "--config", written(b'{"local_hostname": "a",,}'))
    assert result.returncode == 1 and ":1:" in result.stderr and len(result.stderr.splitlines()) == 1
    assert run(REST, "--config", "/nonexistent.json").returncode == 1


@pytest.mark.parametrize("name", ["local_hostname", "metadata_server", "master_server_address"])
def test_required_fields(written, monkeypatch, name):
    for change in (None, "", "  "):
        content = {**OWN, name: change}
        if change is None:
            del content[name]
        path = written(content)
        with pytest.raises(ValueError, match=name):
            python(monkeypatch, lambda: MooncakeConfig.from_file(path))
        ours, error = native("--config", path)
        assert ours is None and name in error


@pytest.mark.parametrize("name, value", [
    ("local_hostname", 5), ("local_hostname", None), ("metadata_server", ["x"]), ("master_server_address", True), ("protocol", 1), ("protocol", ""), ("device_name", True), ("stamp", 1.5),
    ("global_segment_size", True), ("global_segment_size", None), ("global_segment_size", []), ("global_segment_size", "many"), ("local_buffer_size", -1),
    ("enable_ssd_offload", "perhaps"), ("enable_ssd_offload", {}), ("client_http_port", 70000), ("client_http_port", "x"), ("client_http_port", True), ("tenant_id", 1 << 63), ("tenant_id", ["x"]),
])
def test_wrong_values_name_the_key(written, monkeypatch, name, value):
    path = written({**OWN, name: value})
    with pytest.raises(ValueError, match=name):
        python(monkeypatch, lambda: MooncakeConfig.from_file(path))
    ours, error = native("--config", path)
    assert ours is None and name in error, (ours, error)


def test_unknown_key_names_the_nearest(written, monkeypatch, caplog):
    path = written({**OWN, "global_segment_sise": 1, "zzzzzzzzzzzzzz": 2})
    with caplog.at_level(logging.WARNING):
        python(monkeypatch, lambda: MooncakeConfig.from_file(path))
    assert "unknown key 'global_segment_sise' is ignored; did you mean 'global_segment_size'?" in caplog.text
    assert "unknown key 'zzzzzzzzzzzzzz' is ignored" in caplog.text
    ours, errors = native("--config", path)
    assert ours["global_segment_size"] == 3355443200
    assert "unknown key 'global_segment_sise' is ignored; did you mean 'global_segment_size'?" in errors and "unknown key 'zzzzzzzzzzzzzz' is ignored\n" in errors


def test_protocols(monkeypatch, caplog):
    values = {**OWN, "global_segment_size": 0, "local_buffer_size": 0, "device_name": ""}
    assert MooncakeConfig(protocol=" RDMA ", **values).protocol == "rdma"
    with caplog.at_level(logging.WARNING):
        assert MooncakeConfig(protocol="pigeon", **values).protocol == "pigeon"
    assert "pigeon" in caplog.text
    with pytest.raises(ValueError):
        MooncakeConfig(protocol="tcp", **{**values, "global_segment_size": -1})


def test_flags_and_defines_override(written):
    path = written({**OWN, "global_segment_size": "1gb"})
    ours, errors = native("--config", path, "--global_segment_size=2gb", "-Dlocal_hostname=example.com", "-D", "protocol=rdma", "--define=tenant_id=t", "--define",
                          "client_http_port=1", "-Dnonsense", "-Dlocal_hostnme=x")
    assert (ours["global_segment_size"], ours["local_hostname"], ours["protocol"], ours["tenant_id"], ours["client_http_port"]) == (2 << 30, "example.com", "rdma", "t", 1)
    assert "-Dnonsense is ignored" in errors and "did you mean 'local_hostname'?" in errors
    ours, error = native("--config", path, "-Dglobal_segment_size=x")
    assert ours is None and "global_segment_size" in error
    assert native("--config", path, "-D")[0] is None
    # Flags alone are enough.
    assert native("--master_server_address=m:1")[0]["local_hostname"] == "localhost"


def test_environment_of_tests_is_clean():
    assert not any(name.startswith("MOONCAKE_") for name in environment())
