"""One cluster for LMCache, SGLang, vLLM, FastDeploy and vLLM V0: each finds its own keys, none sees another's bytes."""
import json
import tempfile

from test_lmcache import LANE as LMCACHE
from test_sglang import LANE as SGLANG
from test_sglang import until
from test_transcripts import LANE as TRANSCRIPTS
from test_transcripts import until_end
from test_vllm import TOKENS, workers


def test_four_clients_on_one_cluster(ours):
    """All write; then all read, in other processes; then FastDeploy removes everything, and everyone has misses and nothing else."""
    with ours.cluster(node_bytes=512 << 20) as cluster, tempfile.TemporaryDirectory() as folder:
        config = f"{folder}/v0.json"
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "device_name": "",
                       "global_segment_size": 32 << 20, "local_buffer_size": 16 << 20, "master_server_address": cluster.master.address}, file)
        # LMCache of both modes, as two deployments would be.
        lmcache = {}
        for mode in "0", "1":
            writer = cluster.start("lmcache_connector.py", LMCACHE, mode, "write")
            lmcache[mode] = until(writer, "get at once from threads")
        hicache = until(cluster.start("sglang_hicache.py", SGLANG, "write"), "end")
        fastdeploy = until_end(cluster.start("fastdeploy.py", TRANSCRIPTS, "first"))
        v0 = until_end(cluster.start("vllm_v0.py", TRANSCRIPTS, "produce", config))
        for steps in (*lmcache.values(), hicache, fastdeploy, v0):
            assert not [name for name, step in steps.items() if "error" in step], steps
        with workers(cluster, [0], 1, 3, folder) as ([vllm], set_up):
            assert "error" not in set_up["rank 0: set up"], set_up
            assert vllm.ask("save")["result"] == [True, {"1": 1}]
            check_lmcache(cluster, lmcache)
            check_hicache(cluster, hicache)
            assert vllm.ask("lookup")["result"] == [TOKENS, 3 * 16, 0]
            assert vllm.ask("load")["result"][:3] == [True, [], True]
            again = until_end(cluster.start("vllm_v0.py", TRANSCRIPTS, "consume", config))
            assert again["get"]["result"] == v0["get"]["result"]
            # It removes all in its end.
            second = until_end(cluster.start("fastdeploy.py", TRANSCRIPTS, "second"))
            assert second["bytes are those put"]["result"] is True and second["none is left"]["result"][2] == [0] * 8
            assert vllm.ask("lookup")["result"] == [0, 0, 0]
            came, errors, same = vllm.ask("load what nobody saved")["result"]
            assert came and errors and not same
        gone = cluster.run("lmcache_connector.py", LMCACHE, "0", "read")
        assert gone["get batch"]["result"] == [None] * 7


def check_lmcache(cluster, written):
    for mode, steps in written.items():
        read = cluster.run("lmcache_connector.py", LMCACHE, mode, "read")
        assert [piece[1] for piece in read["get batch"]["result"]] == steps["bytes put"]["result"]
        assert read["exists"]["result"] == [True] * 7 + [False]


def check_hicache(cluster, written):
    read = until(cluster.start("sglang_hicache.py", SGLANG, "read"), "end")
    for name, step in read.items():
        if name.endswith("bytes") or name.endswith("bytes are those set"):
            assert step["result"] == written[name]["result"], name
