#!/usr/bin/env python3
"""Which lines of its parser each fuzz target reaches with all inputs that are there: fuzz/corpus, and what ./dev fuzz has found on this machine.

coverage.py BUILD KEPT [TARGET...]     BUILD has replay_TARGET, built for coverage; KEPT is where ./dev fuzz keeps inputs and how long it ran

Prints a table: target, seconds and executions of ./dev fuzz so far, inputs, lines reached of the files that are its parser; --lines: each file.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARSERS = {
    "fuzz_answers": "env/http env/json env/redis",
    "fuzz_ask": "transfer/peer/ask transfer/peer/peer transfer/peer/settle",
    "fuzz_client": "store/client/get store/client/get_call store/client/put store/client/link store/client/call store/client/endpoints store/client/heartbeat "
                   "store/path/tcp_lane store/path/tcp_open store/path/tcp store/path/shm store/path/path",
    "fuzz_console": "console/ask console/drain console/lists console/print console/status console/top doctor/segments doctor/cluster doctor/facts doctor/doctor",
    "fuzz_core": "store/core/machine store/core/request store/core/member store/core/segment store/core/put store/core/query store/core/recover store/core/replica",
    "fuzz_disk": "store/disk/format store/disk/journal store/disk/recover store/disk/walk store/disk/region",
    "fuzz_election": "env/etcd env/etcd_login env/k8s env/leader store/master/election_etcd store/master/election_k8s store/master/quotas store/master/quotas_etcd",
    "fuzz_host": "transfer/serve/host_serve transfer/peer/host_open transfer/peer/host_map transfer/state/host_table",
    "fuzz_keys": "env/keys store/wire/proof",
    "fuzz_master": "web/web web/web_loop store/master/http store/master/admin store/master/metadata store/master/connections",
    "fuzz_options": "base/options store/master/options",
    "fuzz_owner": "store/owner/link store/owner/master store/owner/owner store/owner/inventory store/owner/epoch",
    "fuzz_proxy": "proxy/edit proxy/join net/message",
    "fuzz_rdma": "rdma/link_text rdma/remote",
    "fuzz_regex": "base/regex",
    "fuzz_serve": "store/segment/serve_lane",
    "fuzz_service": "store/service/config store/service/put_body web/web net/message",
    "fuzz_transfer": "transfer/wire/document transfer/wire/handshake transfer/wire/preface transfer/serve/inbound transfer/run/outbound env/etcd",
    "fuzz_wire": "store/wire/wire",
    "fuzz_zmtp": "store/master/zmtp",
}


def tool(name):
    return next(one for one in (f"/usr/bin/{name}-14", f"/usr/lib/llvm-14/bin/{name}", name) if "/" not in one or pathlib.Path(one).exists())


def reached(program, inputs):
    """{file below src: (lines reached, lines)}"""
    with tempfile.TemporaryDirectory() as folder:
        raw, merged = f"{folder}/raw", f"{folder}/merged"
        done = subprocess.run([str(program), *map(str, inputs)], env={"LLVM_PROFILE_FILE": raw}, capture_output=True, text=True, errors="replace", timeout=1800)
        if done.returncode != 0:
            raise SystemExit(f"{program.name}: {done.stdout[-500:]}{done.stderr[-2000:]}")
        subprocess.run([tool("llvm-profdata"), "merge", "-sparse", raw, "-o", merged], check=True)
        told = subprocess.run([tool("llvm-cov"), "export", "-summary-only", str(program), f"-instr-profile={merged}"], check=True, capture_output=True, text=True)
    files = json.loads(told.stdout)["data"][0]["files"]  # what nothing of it was linked is not there
    found = {one["filename"].rsplit("/src/", 1)[-1]: (one["summary"]["lines"]["covered"], one["summary"]["lines"]["count"]) for one in files}
    return int(done.stdout.split()[-2]), found


def tally(path):
    """Seconds and executions, of all runs."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return sum(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)


def main():
    words = [word for word in sys.argv[1:] if word != "--lines"]
    build, kept = map(pathlib.Path, words[:2])
    print(f"{'target':14} {'seconds':>8} {'executions':>11} {'inputs':>7} {'reached':>8} {'lines':>6}")
    for name in words[2:] or PARSERS:
        inputs, found = reached(build / f"replay_{name}", [one for one in (ROOT / "fuzz/corpus" / name, kept / name) if one.is_dir() and any(one.iterdir())])
        files = {f"{file}.c": found[f"{file}.c"] for file in PARSERS[name].split() if f"{file}.c" in found}
        seconds, executions = tally(kept / f"{name}.tally")
        covered, count = (sum(column) for column in zip(*files.values()))
        print(f"{name[5:]:14} {seconds:8} {executions:11} {inputs:7} {100 * covered // count:7}% {count:6}", flush=True)
        if "--lines" in sys.argv:
            print("".join(f"    {file}: {has} of {all_}\n" for file, (has, all_) in files.items()), end="")


if __name__ == "__main__":
    main()
