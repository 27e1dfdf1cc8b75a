"""No setting is silent: each one that the original has works here, or is one line of the log that says what to do."""
import os
import subprocess
import sys

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
