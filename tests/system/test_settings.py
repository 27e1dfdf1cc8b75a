"""No setting is silent: each one that the original has works here, or is one line of the log that says what to do."""
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from cluster import Master

IN_VAIN = {"MC_TRANSFER_TIMOUT": "9", "MC_WORKERS_PER_CTX": "4", "MC_RPC_PROTOCOL": "rdma"}


def lines_of(text, name):
    return [line for line in text.splitlines() if f"environment: {name} " in line]


def test_a_process_says_once_what_its_environment_says_in_vain():
    """However many stores and engines it opens."""
    program = """
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
engines = [TransferEngine() for _ in range(2)]
stores = [MooncakeDistributedStore() for _ in range(2)]
for store in stores:
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "127.0.0.1:9") == -900
for engine in engines:
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], "MC_RPC_TIMEOUT_MS": "100", **IN_VAIN})
    assert done.returncode == 0, done.stderr
    assert {name: len(lines_of(done.stderr, name)) for name in IN_VAIN} == dict.fromkeys(IN_VAIN, 1)
    assert "did you mean MC_TRANSFER_TIMEOUT?" in lines_of(done.stderr, "MC_TRANSFER_TIMOUT")[0]
    assert done.stderr.count("environment: ") == len(IN_VAIN)


def test_arguments_that_change_nothing_are_said_once():
    """Those of setup, in either form, of a put and of a transfer."""
    program = """
import sys
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
for _ in range(2):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "http://127.0.0.1:9/metadata", 16 << 20, 1 << 20, "tcp", "", sys.argv[1], engine.get_engine()) == 0
    for key in "ab":
        config = ReplicateConfig()
        config.soft_pin_action, config.soft_pin_ttl_ms = SoftPinAction.ENABLE, 60000
        store.put(key, b"x", config)
    assert store.close() == 0
    store = MooncakeDistributedStore()
    assert store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": sys.argv[1], "global_segment_sise": "1mb",
                        "save_chunk_meta": "True", "tenant_id": "default"}) == 0
    assert store.close() == 0
    assert engine.transfer_sync_write("127.0.0.1:9", 0, 0, 0, "rdma") <= 0
    assert engine.transfer_sync("127.0.0.1:9", 0, 0, 0, 1, None, "") <= 0
"""
    with Master() as master:
        done = subprocess.run([sys.executable, "-c", program, master.address], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
    assert done.returncode == 0, done.stderr
    said = [line.split("] ", 1)[1] for line in done.stderr.splitlines() if "changes nothing" in line]
    assert sorted(line.split(" changes nothing")[0] for line in said) == \
        ["setup: engine", "setup: metadata_server", 'setup: unknown key "global_segment_sise"', "soft_pin_ttl_ms", "transport_hint"]
    assert 'did you mean "global_segment_size"?' in "".join(said)


def test_a_drain_job_says_what_it_does_not_take():
    with Master() as master:
        body = json.dumps({"segments": ["nobody:1"], "target_segments": ["a:1"], "max_concurrency": 4}).encode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{master.metrics_port}/api/v1/drain_jobs", body, timeout=10)
        said = re.findall(r'drain job: "(\w+)" changes nothing here', master.log())
    assert said == ["target_segments", "max_concurrency"]
