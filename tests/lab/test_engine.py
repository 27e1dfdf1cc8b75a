"""The transfer engine on a network that fails."""
import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest

from many_peers import BLOCK, held
from test_nixl_plugin import Pair, all_failed, all_succeeded

HERE = pathlib.Path(__file__).resolve().parent
SYSTEM = HERE.parent / "system"
WANTED = int(os.environ.get("MC_ENGINE_PEERS", 10_000 if os.environ.get("MC_TEST_ALL") else 1_000))
PEERS = min(WANTED, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 500)  # a descriptor for each, at either end
PEER_BYTES, THREAD_BYTES = 20 << 10, 100 << 10  # private memory that each may cost


@pytest.mark.parametrize("loss", [0, 0.01])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_what_nixl_sees_of_a_target_that_is_cut_off(make_lab, tmp_path, operation, loss):
    """tests/system/test_nixl_plugin.py has the other faults. When the cut is healed, nothing of what had failed is written."""
    lab = make_lab(seed=3, loss=loss, delay_ms=1)
    far, near = lab.host("far"), lab.host("near")
    with Pair(tmp_path, operation, (far.address, near.address), (far.popen, near.popen)) as pair:
        pair.moving()
        far.partition()
        all_failed(pair.fault())
        far.heal()
        pair.moving()
        all_succeeded(pair.fault())


def test_many_peers(make_lab, record_property):
    """One engine meets very many, over a network that loses: what that costs it, and what as many connections cost the engine they lead to."""
    lab = make_lab(seed=4, loss=0.01, delay_ms=1)
    far, near = lab.host("far"), lab.host("near")
    far.run(["ip", "route", "add", "local", "10.128.0.0/9", "dev", "lo"])
    near.run(["ip", "route", "add", "10.128.0.0/9", "via", far.address])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    values = {**os.environ, "MC_LOG_LEVEL": "ERROR", "MC_TRANSFER_TIMEOUT": "60"}
    target = far.popen([sys.executable, "-B", SYSTEM / "engine_peer.py", far.address, "P2PHANDSHAKE", PEERS * BLOCK], env=values, **pipes)
    children = [target]
    try:
        code, port, place = map(int, target.stdout.readline().split())
        assert code == 0
        initiator = near.popen([sys.executable, "-B", HERE / "many_peers.py", near.address, *map(str, (PEERS, far.number, port, place))], env=values, **pipes)
        children.append(initiator)
        assert initiator.stdout.readline() == "ready\n"
        rows = {"alone": (held(initiator.pid), held(target.pid))}
        for word in ("open", "write", "read"):
            initiator.stdin.write(word + "\n")
            initiator.stdin.flush()
            seen = json.loads(initiator.stdout.readline())
            rows[word] = (seen, held(target.pid))
            assert seen["failed"] == seen["wrong"] == 0, rows
        record_property("peers", PEERS)
        for word, row in rows.items():
            record_property(word, json.dumps(row))
        alone, after = rows["alone"], rows["read"]
        for side in range(2):
            assert 0.9 * PEERS <= after[side]["descriptors"] - alone[side]["descriptors"] <= 1.1 * PEERS + 64, rows
            assert after[side]["bytes"] - alone[side]["bytes"] < PEERS * PEER_BYTES + after[side]["threads"] * THREAD_BYTES, rows
        assert after[0]["most_threads"] <= 1024 + 8 and after[1]["threads"] == alone[1]["threads"], rows
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
