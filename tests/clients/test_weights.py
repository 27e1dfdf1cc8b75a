"""Weights between processes, by the programs' own code: checkpoint-engine's P2PStore and verl's checkpoint engine, both on mooncake.engine."""
import os

import pytest
from sides import CLIENTS, SCENARIOS, Child, environment_python, free_port

PACKAGES = "suites"
LANE = "vllm"  # whose torch they take


def start(cluster, script, *words):
    return cluster.start(script, LANE, *words, LANE_PATH=os.pathsep.join(str(CLIENTS / name) for name in (PACKAGES, "verl")))


def where(child):
    for step in child.lines(120):
        if "pointers" in step or "error" in step:
            return step
    return {"error": f"ended: {child.stderr()[-2000:]}"}


def reads(owner, reader):
    """{step: ...} of a checkpoint's life: read, updated in place, read, given up."""
    steps = {"reader: register": reader.ask("register", 120), "read": reader.ask("read"), "owner: update": owner.ask("update"), "read updated": reader.ask("read updated"),
             "read beyond": reader.ask("read beyond"), "read from nobody": reader.ask("read from nobody")}
    steps["owner: unregister"] = owner.ask("unregister")
    steps["owner: register again"] = owner.ask("register again")
    steps["read once more"] = reader.ask("read updated")
    steps["reader: unregister"] = reader.ask("unregister")
    return steps


def check(steps):
    assert steps["read"] is steps["read updated"] is steps["read once more"] is True, "bucket for bucket the bytes of the owner"
    assert steps["read beyond"] is steps["read from nobody"] is True, "a read that fails must not return"
    assert steps["owner: unregister"] == 4 and steps["reader: unregister"] == [1, []]


def test_checkpoint_engine(compare):
    def play(cluster):
        owner = start(cluster, "checkpoint_p2p.py", "owner")
        found = where(owner)
        if "error" in found:
            return {"owner": found}
        reader = start(cluster, "checkpoint_p2p.py", "reader", found["address"], ",".join(map(str, found["pointers"])))
        return reads(owner, reader)

    check(compare("checkpoint-engine P2PStore", play, node_bytes=0))


@pytest.mark.parametrize("owner_side, reader_side", [("ours", "original"), ("original", "ours")])
def test_checkpoint_engine_of_both(both, owner_side, reader_side):
    """A fleet is changed over rank by rank: one rank has ours, the other the original."""

    def begin(side, *words):
        env = side.env()
        env["PYTHONPATH"] = os.pathsep.join([str(side.path), str(SCENARIOS), str(CLIENTS / PACKAGES)])
        return Child([environment_python(LANE), "-u", str(SCENARIOS / "checkpoint_p2p.py"), *words], env)

    children = [begin(both[owner_side], "owner")]
    try:
        found = where(children[0])
        assert "error" not in found, found
        children.append(begin(both[reader_side], "reader", found["address"], ",".join(map(str, found["pointers"]))))
        steps = reads(*children)
        assert not {name: step for name, step in steps.items() if "error" in step}, steps
        check({name: step["result"] for name, step in steps.items()})
    finally:
        for child in children:
            child.stop()


def test_verl_checkpoint_engine(compare):
    """A trainer and two rollout ranks: what the last gets has passed the memory of the one between."""
    world = 3

    def play(cluster):
        port = str(free_port())
        children = [start(cluster, "verl_checkpoint.py", str(rank), str(world), port) for rank in range(world)]
        steps = {}
        for rank, child in reversed(list(enumerate(children))):
            if rank == 0:
                child.say("all have what they want")
            steps.update({f"rank {rank}: {name}": step for name, step in cluster.finish(child).items()})
        return steps

    steps = compare("verl checkpoint engine", play, node_bytes=0)
    for rank in 1, 2:
        assert steps[f"rank {rank}: receive 100"] is steps[f"rank {rank}: receive 200"] is True, "weight for weight what was sent, in two rounds"
