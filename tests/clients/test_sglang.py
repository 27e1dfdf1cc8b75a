"""SGLang 0.5.23, unmodified: HiCache's MooncakeStore, and the engine of prefill/decode disaggregation."""
from sides import free_port

LANE = "sglang"
PAGES = 6


def until(child, name):
    """Its steps up to the one of that name."""
    steps = {}
    for step in child.lines(180):
        steps[step.pop("step")] = step
        if name in steps:
            return steps
    return {**steps, name: {"error": f"ended: {child.stderr()[-1500:]}"}}


def test_hicache_store(compare):
    """One process sets, another gets, both at once on the cluster."""

    def play(cluster):
        steps = {}
        for what in "write", "read":
            child = cluster.start("sglang_hicache.py", LANE, what)
            steps.update({f"{what}: {name}": step for name, step in until(child, "end").items()})
        return steps

    steps = compare("SGLang HiCache", play)
    assert steps["write: single: exists before"] is False and steps["write: single: set"] is True
    for who in "write", "read":
        assert steps[f"{who}: single: get"] == [True, True] and steps[f"{who}: single: get of nothing"] is False
        assert steps[f"{who}: plain: bytes"] == [True] * 4
        for name in "mha", "mla", "rank", "multi", "groups", "groups of multi":
            assert steps[f"{who}: {name}: exist"] == PAGES and steps[f"{who}: {name}: get"] == [True] * PAGES, name
            assert steps[f"{who}: {name}: bytes are those set"] is True, name
            assert steps[f"{who}: {name}: get with a miss"] == [True, False], name
        for name in "hybrid", "hybrid mla":
            assert all(all(pages) for pages in steps[f"{who}: {name}: get side pools"].values()), name
            assert steps[f"{who}: {name}: bytes are those set"] == [True, True], name
            assert steps[f"{who}: {name}: exist"][0] == str(PAGES), name
    for name in "mha", "mla", "rank", "multi", "groups", "groups of multi":
        assert steps[f"write: {name}: exist before"] == 0 and steps[f"write: {name}: exist half"] == 3
    assert steps["write: hybrid: exist before"][0] == "0", "pages without their side pools are no prefix"


def test_standalone_storage(compare):
    """An engine without a pool of its own: setup_dummy at a mooncake_client, whose memory takes its pages."""

    def play(cluster):
        daemon = cluster.start_daemon(64 << 20)
        return until(cluster.start("sglang_hicache.py", LANE, "standalone", LANE_DAEMON=daemon), "end")

    steps = compare("SGLang HiCache, standalone storage", play, node_bytes=0)
    assert steps["standalone: exist before"] == 0 and steps["standalone: exist half"] == 3 and steps["standalone: exist"] == PAGES
    assert steps["standalone: get"] == [True] * PAGES and steps["standalone: bytes are those set"] is True
    assert steps["standalone: get with a miss"] == [True, False]


def test_disk(ours, tmp_path):
    """With enable_ssd_offload as its users set it: three times its memory is read back, by it and by the next process with its directory."""
    with ours.cluster("--enable_offload", "--default_kv_lease_ttl=100", node_bytes=0) as cluster:
        for what in "write", "read":
            child = cluster.start("sglang_hicache.py", LANE, "disk", what, LANE_DISK=str(tmp_path))
            steps = until(child, "end")
            assert not {name: step for name, step in steps.items() if "error" in step}, steps
            results = {name: step["result"] for name, step in steps.items()}
            assert results["exist"] == 48
            assert all(done for name, done in results.items() if name.startswith("stored"))
            assert all(done == [True] * 4 for name, done in results.items() if name.startswith(("set", "get")))
            assert results["bytes are those set"] is True
            child.process.kill()
    assert [one.name for one in tmp_path.iterdir()] == ["rank_0_0_0_0"], "SGLang gives each rank a directory of its own"


def test_transfer_engine(compare):
    def play(cluster):
        decode = cluster.start("sglang_engine.py", LANE, "decode")
        steps = until(decode, "decode: where")
        where = steps["decode: where"]
        if "error" in where:
            return steps
        steps.update(cluster.run("sglang_engine.py", LANE, "prefill", where["session"], str(where["address"])))
        steps["bytes"] = decode.ask("bytes")
        steps["deregister"] = decode.ask("deregister")
        decode.say("end")
        return steps

    steps = compare("SGLang MooncakeTransferEngine", play, node_bytes=0)
    assert steps["prefill: probe"] == 0 and steps["prefill: probe of nobody"] is True
    assert steps["prefill: write one"] == steps["prefill: write batch"] == 0 and steps["prefill: write by eight threads"] == [0]
    assert steps["bytes"][0] is True
    assert steps["prefill: write to nobody"] is True and steps["prefill: write beyond"] is True
    assert steps["prefill: deregister"] == [None, True] and steps["deregister"] == 0


def test_sender_and_receiver(compare):
    """A prefill and a decode manager with the bootstrap server: pages of all layers and the auxiliary row, in two chunks, twice."""

    def play(cluster):
        port = str(free_port())
        prefill = cluster.start("sglang_pair.py", LANE, "prefill", port)
        steps = {f"prefill: {name}": step for name, step in until(prefill, "set up").items()}
        decode = cluster.start("sglang_pair.py", LANE, "decode", port)
        steps.update({f"decode: {name}": step for name, step in until(decode, "set up").items()})
        for room in 7, 8:
            if any("error" in step for step in steps.values()):
                return steps
            prefill.say(f"send {room}")
            steps[f"receive {room}"] = decode.ask(f"receive {room}")
            steps.update(until(prefill, f"send {room}"))
        return steps

    steps = compare("SGLang sender and receiver", play, node_bytes=0)
    success, waiting = 4, 2
    for room in 7, 8:
        known, state, pages, aux = steps[f"receive {room}"]
        assert known is True and state == success
        assert steps[f"send {room}"] == [waiting, success, pages, aux]
