#!/usr/bin/env python3
"""A trace of real requests against a store node with little memory and a disk behind it, ours and the original, beside what the policy alone gives.

    ./dev bench disk-trace [--memory_blocks 10240] [--disk_blocks 20480] [--only ours,original] [--offload put,evict] [--limit N] [--path FOLDER]

For each contestant and each time of storing (when put, or when evicted) in turn: a master, one `mooncake_client` with that memory and disk, and a
client that plays the requests at so many times their own pace (--speed): it gets all blocks of a request, compares every byte, and puts those
that were not there. What is shown counts blocks, and depends on the machine's speed only where a disk cannot keep up: so the folder is best on a
tmpfs, and blocks are small (--block).

"hits" is the share of blocks that were got, "from disk" of those that were not in memory (the masters' file_cache_hit_nums_), "written for each"
blocks written to the disk for each of those (the nodes' mooncake_ssd_write_bytes_total; ours with what is written once more). The last column is
`mooncake_bench policy` for the same memory and disk: the core with nothing that takes time.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import figures
from contestants import Original, Ours
from contestants.base import HERE, ROOT, START_SECONDS_MAX, Process, Run, answers, apt_install, free_port
from disk_e2e import CACHE, MIB, bytes_of
from e2e_client import counter

SLICE = 200  # requests for which the worker is asked at a time
PAGE = 4096  # what an extent is rounded up to on our disk, with a table and the key


class Deployment:
    """Master, node with a disk, and the worker that plays."""

    def __init__(self, contestant, when, folder, arguments, logs):
        self.ours = isinstance(contestant, Ours)
        port, self.metrics, self.node_port = free_port(), free_port(), free_port()
        memory, disk = arguments.memory_blocks * arguments.block, arguments.disk_blocks * (arguments.block + PAGE)
        cores, env = os.sched_getaffinity(0), {**contestant.env, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder), "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(disk)}
        flags = ["--enable_offload=true", f"--default_kv_lease_ttl={int(10_000 / arguments.speed)}", *(["--offload_on_evict=true"] if when == "evict" else [])]
        if not self.ours:  # as its documents on offloading advise, with the whole disk in use, small buckets and a beat each second
            flags += ["--promotion_on_hit=true", "--promotion_max_per_heartbeat=1000"]
            env.update({"MC_STORE_CLIENT_METRIC": "1", "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1", "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(16 * MIB),
                        "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(16 * MIB // arguments.block), "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": str(disk),
                        "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru", "MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION": "false"})  # fmt: skip
        stem, self.children = f"disk-trace-{contestant.name}-{when}", []
        self.start([*contestant.server_command(port, self.metrics), *flags], f"{stem}-master", cores, env, logs)
        self.wait(self.metrics, "the master")
        self.start([contestant.master.parent / "mooncake_client", "--host=127.0.0.1", f"--port={free_port()}", f"--global_segment_size={memory}", "--local_buffer_size=0",
                    "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{port}", "--protocol=tcp", "--enable_offload=true", "--enable_http_server=true",
                    f"--http_port={self.node_port}"], f"{stem}-node", cores, env, logs)  # fmt: skip
        self.wait(self.node_port, "the node")
        self.worker = Process([contestant.python, "-B", HERE / "disk_trace_worker.py", "--trace", arguments.trace, "--block", arguments.block, "--speed", arguments.speed,
                               "--limit", arguments.limit, "--address", f"127.0.0.1:{port}"], logs / f"{stem}-worker.log", cores, env, talk=True)  # fmt: skip
        self.children.append(self.worker)

    def start(self, command, name, cores, env, logs):
        self.children.append(Process(command, logs / f"{name}.log", cores, env))

    def wait(self, port, who):
        until = time.monotonic() + START_SECONDS_MAX
        while not answers(f"http://127.0.0.1:{port}/metrics"):
            if time.monotonic() > until or self.children[-1].child.poll() is not None:
                self.children[-1].fail(f"{who} does not answer at /metrics")
            time.sleep(0.05)

    def __enter__(self):
        self.worker.read(START_SECONDS_MAX)
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.stop(10)

    def counted(self, block):
        """Blocks that came from the disk, blocks that were written to it, objects there."""
        written = counter(self.node_port, "mooncake_ssd_write_bytes_total") + counter(self.node_port, "mooncake_client_disk_rewritten_bytes_total")
        return {"from_disk": counter(self.metrics, "file_cache_hit_nums_"), "written": written / block, "on_disk": counter(self.metrics, "file_cache_nums_"),
                "late": counter(self.metrics, "mooncake_offload_late_total")}  # fmt: skip


def measure(run, contestant, when, arguments):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{contestant.name}-", dir=arguments.path))
    total = {}
    try:
        with Deployment(contestant, when, folder, arguments, run.logs) as deployment:
            while True:
                done = deployment.worker.ask(step="play", count=SLICE)
                for name, value in done.items():
                    total[name] = total.get(name, 0) + value
                if done["requests"] == 0:
                    break
            total.update(deployment.counted(arguments.block))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    run.figures[contestant.name, when] = total
    if total["wrong"]:
        run.problem(f"{contestant.name}, {when}: {total['wrong']} blocks with wrong bytes")
    if total["failed_puts"]:
        run.say(f"{contestant.name}, {when}: {total['failed_puts']} puts failed")
    run.say(f"{contestant.name}, {when}: {total}")


def of_policy(arguments):
    """What the core alone does: {when: (hits, from disk, written for each)}, and with no disk."""
    program = pathlib.Path(os.environ["MC_BUILD"]) / "mooncake_bench"
    command = [program, "policy", arguments.trace, f"--capacities={arguments.memory_blocks}", "--policies=s3fifo", f"--disk_blocks={arguments.disk_blocks}", "--segments=1",
               f"--block_bytes={arguments.block}", f"--offload={','.join(arguments.offload)}", f"--limit={arguments.limit}", "--json=-"]  # fmt: skip
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):])


def row(title, result):
    hits, disk = (result[name] / result["blocks"] * 100 for name in ("hits", "from_disk"))
    each = f"{result['written'] / result['from_disk']:.2f}" if result["from_disk"] else "-"
    return f"| {title} | {hits:.2f} | {disk:.2f} | {each} | {result['written']:.0f} | {result['wrong']} | {result['failed_puts']} |"


def main():
    parser = figures.parser_of(__doc__, "the first 2,000 requests", rounds="always 1", keep=False)
    parser.add_argument("--trace", type=pathlib.Path, default=ROOT / "traces" / "conversation_trace.jsonl.gz")
    parser.add_argument("--path", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="where the disk's folders are made (default: %(default)s)")
    parser.add_argument("--only", default="ours,original")
    parser.add_argument("--offload", default="put,evict", help="when it is stored (default: %(default)s)")
    parser.add_argument("--memory_blocks", type=int, default=10240)
    parser.add_argument("--disk_blocks", type=int, default=20480)
    parser.add_argument("--block", default="128K", help="bytes of a block (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=20, help="times the trace's own pace (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=0, help="only the first so many requests; 0: all")
    arguments = parser.parse_args()
    arguments.keep, arguments.rounds, arguments.block, arguments.offload = False, 1, bytes_of(arguments.block), arguments.offload.split(",")
    if arguments.quick and not arguments.limit:
        arguments.limit = 2000
    apt_install("libibverbs1")
    build, contestants = pathlib.Path(os.environ["MC_BUILD"]), []
    for contestant in (Ours(), Original()):
        if contestant.name in arguments.only.split(","):
            contestants.append(contestant)
            if isinstance(contestant, Ours):
                contestant.use_build(sys.executable, os.environ["MC_PYTHONPATH"], build / "mooncake_master", build / "mooncake_bench")
            else:
                contestant.prepare(CACHE)
    conditions = figures.Conditions(arguments, "disk-trace").begin()
    run = Run(arguments, CACHE)
    policy = of_policy(arguments)
    for when in arguments.offload:
        for contestant in contestants:
            run.attempt_and_say(f"{contestant.name}, {when}", measure, run, contestant, when, arguments)
    lines = ["| who, when stored | hits % | from disk % | written for each | blocks written | wrong | puts failed |", "|---|---|---|---|---|---|---|"]
    lines += [row(f"{name}, {when}", result) for (name, when), result in run.figures.items()]
    lines += ["", f"the core alone: {json.dumps(policy)}"]
    rows = [{"who": who, "when": when, **result} for (who, when), result in run.figures.items()]
    return figures.finish("disk-trace", arguments, conditions.end(1, [], run.problems), lines, {"rows": rows, "policy": policy}, run.problems)


if __name__ == "__main__":
    sys.exit(main())
