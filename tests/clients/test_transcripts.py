"""Clients that do not run on this machine, or not any more, by the calls that they make: vLLM V0 (seed 001) and FastDeploy (seed 000).

FastDeploy's engine does not run here; the class that it keeps its KV cache in does, from its checkout below MC_FOREIGN_SOURCES.
"""
import json

from suites import sources

LANE = "transcripts"


def until_end(child):
    """Its steps, until it says that it is through; it goes on living."""
    steps = {}
    for step in child.lines(120):
        name = step.pop("step")
        if name == "end":
            return steps
        steps[name] = step
    return {**steps, "end": {"error": child.stderr()[-1000:]}}


def two(script, first, second, words):
    """One process, then another while the first still lives."""

    def play(cluster):
        given = words(cluster)
        steps = {}
        for what in first, second:
            child = cluster.start(script, LANE, what, *given)
            steps.update({f"{what}: {name}": step for name, step in until_end(child).items()})
        return steps

    return play


def test_vllm_v0(compare, tmp_path):
    def config(cluster):
        path = tmp_path / f"{cluster.side.name}.json"
        path.write_text(json.dumps({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "device_name": "",
                                    "master_server_address": cluster.master.address}))
        return [str(path)]

    steps = compare("vLLM V0 MooncakeStore", two("vllm_v0.py", "produce", "consume", config), node_bytes=0)
    assert steps["produce: setup, seven positional"] == steps["consume: setup, seven positional"] == 0
    assert steps["produce: setup returns at once"] is True
    assert steps["produce: put safetensors"] == [0] * 6 and steps["produce: put once more"] == [0, 0]
    assert steps["produce: get"] == steps["consume: get"]
    assert all(found[0] == "bytes" and found[2] is True for found in steps["consume: get"])
    assert steps["consume: get what nobody put"] == ["b''", False]
    assert steps["consume: no memory beyond what is used"] is True


def test_fastdeploy(compare):
    # A short lease, so that the wait after `remove` is short.
    steps = compare("FastDeploy", two("fastdeploy.py", "first", "second", lambda cluster: []), flags=("--default_kv_lease_ttl=1000",))
    assert steps["first: setup, by keywords"] == 0
    for who in "first", "second":
        assert steps[f"{who}: warm-up: put"] == 0 and steps[f"{who}: warm-up: exists"] == 1 and steps[f"{who}: warm-up: get"] is True
        assert steps[f"{who}: get"] == ["list", ["int"], [64 << 10] * 8] and steps[f"{who}: bytes are those put"] is True
        assert steps[f"{who}: get of a miss between"][2] == [64 << 10, -704]
        assert steps[f"{who}: get into too little"][2] == [-600]
        assert steps[f"{who}: nothing at all"] == [["list", [], []]] * 3
    assert steps["first: put"] == ["list", ["int"], [0] * 8] and steps["first: put, results.count(0)"] == 8
    assert steps["second: remove right after get"] == -706 and steps["second: remove until it goes"] is True
    assert steps["second: remove what is not there"] == -704
    assert steps["second: none is left"][2] == [0] * 8


def test_fastdeploy_own_store(compare):
    folder = str(sources("FastDeploy", "fastdeploy/cache_manager/transfer_factory/mooncake_store"))
    steps = compare("FastDeploy's MooncakeStore", two("fastdeploy_own.py", "first", "second", lambda cluster: [folder]), flags=("--default_kv_lease_ttl=1000",))
    assert steps["first: query before"] == 0 and steps["first: set"] == steps["first: set again"] == [0] * 8
    for who in "first", "second":
        assert steps[f"{who}: query"] == 4 and steps[f"{who}: query, the third is nobody's"] == 2
        assert steps[f"{who}: get"] == [64 << 10] * 8 and steps[f"{who}: bytes"] is True
        assert steps[f"{who}: get with a miss"] == [64 << 10, -704]
    assert steps["second: delete"] is True and steps["second: query when the first is gone"] == 0
    assert steps["second: delete what is not there"] is False and steps["second: clear"] is True
