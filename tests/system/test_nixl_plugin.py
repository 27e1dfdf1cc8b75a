"""What NIXL's Mooncake plugin makes of us when its target is stopped or killed: errors, and no success whose bytes are not there. tests/lab/test_engine.py cuts it off."""
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from cluster import hold_still
from nixl_plugin import ERR_BACKEND, SIZE, SLOTS, SUCCESS

PROGRAM = pathlib.Path(__file__).with_name("nixl_plugin.py")
TIMEOUT_S = 5  # the least that there is
SLOW = 5 if os.environ.get("MC_SANITIZER") else 2


class Pair:
    """A target and an initiator. start: how a process is started on one's host and on the other's."""

    def __init__(self, folder, operation, addresses=("127.0.0.1", "127.0.0.1"), start=(subprocess.Popen, subprocess.Popen), **environment):
        memory, values = folder / "memory", {**os.environ, "MC_TRANSFER_TIMEOUT": str(TIMEOUT_S), "MC_LOG_LEVEL": "ERROR", **environment}
        memory.write_bytes(bytes(SIZE))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        command = [sys.executable, "-B", str(PROGRAM)]
        self.target = start[0]([*command, "target", addresses[0], str(memory)], env={**values, "MC_TCP_BIND_ADDRESS": addresses[0]}, **pipes)
        name, place = self.target.stdout.readline().split()
        self.initiator = start[1]([*command, "initiator", addresses[1], str(memory), name, place, operation],
                                  env={**values, "MC_TCP_BIND_ADDRESS": addresses[1]}, **pipes)

    def moving(self):
        assert self.initiator.stdout.readline() == "moving\n"

    def tell(self, word):
        self.initiator.stdin.write(word + "\n")
        self.initiator.stdin.flush()

    def fault(self):
        self.tell("fault")
        return json.loads(self.initiator.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.initiator, self.target):
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def all_failed(seen):
    """What was posted after the fault ended by the deadline, and none as a success; no byte of what succeeded before was missing; no handle stayed."""
    assert seen["after"] == {SUCCESS: 0, ERR_BACKEND: SLOTS}, seen
    assert seen["wrong"] == 0 and seen["kept"] == 0 and seen["before"][SUCCESS] > 0, seen
    assert seen["slowest_s"] < 2 * TIMEOUT_S + SLOW, seen  # those under way at the fault, and those behind them


def all_succeeded(seen):
    assert seen["after"] == {SUCCESS: SLOTS, ERR_BACKEND: 0} and seen["wrong"] == 0 and seen["kept"] == 0, seen


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("path", ["tcp", "host"])
def test_a_target_is_killed(tmp_path, path, operation):
    with Pair(tmp_path, operation, **({"MC_FORCE_TCP": "1"} if path == "tcp" else {})) as pair:
        pair.moving()
        pair.target.kill()
        pair.target.wait()
        all_failed(pair.fault())


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_target_is_stopped(tmp_path, operation):
    """And goes on: nothing of what had failed is written then."""
    with Pair(tmp_path, operation, MC_FORCE_TCP="1") as pair:
        pair.moving()
        hold_still(pair.target.pid)
        all_failed(pair.fault())
        pair.target.send_signal(signal.SIGCONT)
        pair.moving()
        all_succeeded(pair.fault())
        pair.tell("end")
        assert pair.initiator.wait(30) == 0


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_target_of_this_machine_is_stopped(tmp_path, operation):
    """Its memory is there all the same: the kernel copies, or it is an error; no third."""
    with Pair(tmp_path, operation) as pair:
        pair.moving()
        hold_still(pair.target.pid)
        seen = pair.fault()
        assert seen["after"][SUCCESS] + seen["after"][ERR_BACKEND] == SLOTS and seen["wrong"] == 0 and seen["kept"] == 0, seen
