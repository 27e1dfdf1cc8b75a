"""Keys of the tools: the doctor and the benches reach what wants keys, and say so where they may not."""
import json
import os
import subprocess

import pytest

import keyed
from cluster import BUILD, Master, wait_until
from keyed import Key
from test_keys_engine import Engine

UNSET = {name: value for name, value in os.environ.items() if name not in ("MC_AUTH_FILE", "MC_AUTH_TOKEN")}


def run(command, *words, environment=UNSET):
    return subprocess.run([str(BUILD / command), *map(str, words)], capture_output=True, text=True, timeout=150, env=environment)


@pytest.fixture
def file(tmp_path):
    return keyed.write(tmp_path, "keys", Key("all"), Key("other", "read"))


def facts_of(done):
    return {(fact["section"], fact["name"]): fact for fact in json.loads(done.stdout)["facts"]}


def test_the_doctor(file, tmp_path):
    with Master(f"--auth_file={file}", metadata=True) as master, Engine(tmp_path, "peer", file=file) as peer:
        words = ("--json", "--master", master.address, "--admin", f"127.0.0.1:{master.metrics_port}", "--metadata",
                 f"http://127.0.0.1:{master.metadata_port}/metadata")
        done = run("mooncake_doctor", *words, f"--auth_file={file}")
        facts = facts_of(done)
        for name in ("master", "admin port", "capacity", "metadata server"):
            assert facts["cluster", name]["verdict"] in ("fine", "warning"), facts["cluster", name]
        assert "0 bytes lent" in facts["cluster", "capacity"]["value"]
        refused = facts_of(run("mooncake_doctor", *words))
        assert refused["cluster", "master"]["verdict"] == "broken" and "NOT_PERMITTED" in refused["cluster", "master"]["value"]
        assert "answers 401" in refused["cluster", "capacity"]["value"]
        for auth, works in ((f"--auth_file={file}", True), ("--auth_file=", False)):
            told = facts_of(run("mooncake_doctor", peer.target, "--json", auth))
            assert ("works" in told.get(("peer", "path tcp"), {"value": ""})["value"]) == works, told
        bad = run("mooncake_doctor", "--auth_file=/no/such/file")
        assert bad.returncode == 2 and "/no/such/file" in bad.stderr and bad.stdout == ""


def test_the_bench_of_the_store(file, tmp_path):
    """What it starts wants keys too: who has none is refused there, which the log of its master says."""
    done = run("mooncake_bench", "work", f"--auth_file={file}", "--operations=put,get", "--keys=64", "--seconds=0.1", "--capacity=64M", "--json=-")
    assert done.returncode == 0, done.stderr
    assert run("mooncake_bench", "work", "--auth_file=/no/such/file").returncode == 2
    with Master(f"--auth_file={file}") as master:
        refused = run("mooncake_bench", "work", f"--master={master.address}", "--operations=put", "--keys=1")
        assert refused.returncode == 3 and "NOT_PERMITTED" in refused.stderr
        node = subprocess.Popen([BUILD / "mooncake_bench", "node", f"--master={master.address}", "--segment=64M", f"--auth_file={file}"], env=UNSET,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: run("mooncake_bench", "work", f"--master={master.address}", f"--auth_file={file}", "--operations=put", "--keys=1",
                                   "--seconds=0.01").returncode == 0)
        finally:
            node.terminate()
            node.wait(30)


def test_the_benches_of_the_engine(file):
    target = subprocess.Popen([BUILD / "transfer_engine_bench", "--mode=target", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1",
                               "--protocol=tcp", "--buffer_size=67108864", f"--auth_file={file}"], env=UNSET, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        name = next(line.split()[1] for line in target.stdout if line.startswith("target "))
        words = ("--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1", "--protocol=tcp", f"--segment_id={name}", "--buffer_size=67108864",
                 "--duration=1", "--threads=1")
        assert run("transfer_engine_bench", *words, f"--auth_file={file}").returncode == 0
        assert run("transfer_engine_bench", *words).returncode != 0
    finally:
        target.terminate()
        target.communicate(timeout=30)
    assert run("mooncake_bench", "engine", f"--auth_file={file}", "--sizes=64K", "--seconds=0.1", "--total=16M", "--path=tcp").returncode == 0
