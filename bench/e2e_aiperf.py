"""aiperf, unmodified, replays conversations of the published trace against both servers, turn about, so that a turn's prompt is the store's or is
computed anew. Nothing of it is ours but the trace, written for an engine of this size: a quarter of the lengths, so that one of its blocks (512
tokens) is one of the engine's (128), and an hour in REPLAY_SECONDS. Each block's words follow from its hash in the trace.
"""

import gzip
import json
import shutil
import subprocess
from collections import defaultdict

import e2e_client
from e2e_parts import Result
from e2e_servers import BLOCK_TOKENS, CLIENTS, FOLDER, MIB, ROOT, Pair, plain_env, say

TRACE = ROOT / "traces/conversation_trace.jsonl.gz"
TRACE_BLOCK_TOKENS = 512
SCALE = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
INPUT_TOKENS_MAX = 13000  # of the trace: a quarter fits the engine's context
TURNS_MIN, TURNS_MAX = 3, 6
REQUESTS, REQUESTS_QUICK = 40, 16
ANSWER_TOKENS_MAX = 24
REPLAY_SECONDS = 60
REPLAY_SECONDS_MAX = 900
SEGMENT_BYTES = 1024 * MIB


def conversations(count):
    """The first requests of the trace that belong to conversations of some turns which fit, `count` of them, in the trace's order."""
    with gzip.open(TRACE, "rt") as lines:
        requests = [json.loads(line) for line in lines]
    groups = defaultdict(list)
    for request in requests:
        if len(request["hash_ids"]) > 1 and request["input_length"] <= INPUT_TOKENS_MAX:
            groups[request["hash_ids"][1]].append(request)  # the first block is the same system's prompt for all
    chosen = []
    for group in groups.values():
        if len(group) >= TURNS_MIN and len(chosen) < count:
            chosen += group[:TURNS_MAX]
    return sorted(chosen[:count], key=lambda request: request["timestamp"])


def text_of(request):
    words = []
    for block in request["hash_ids"]:
        words += e2e_client.prompt(f"block {block}", BLOCK_TOKENS)
    return " ".join(f"w{word}" for word in words[: request["input_length"] // SCALE])


def write_trace(path, requests):
    last = requests[-1]["timestamp"]
    with open(path, "w", encoding="ascii") as file:
        for request in requests:
            line = {"timestamp": round(request["timestamp"] * REPLAY_SECONDS * 1000 / last), "text_input": text_of(request),
                    "output_length": min(max(request["output_length"], 2), ANSWER_TOKENS_MAX)}  # fmt: skip
            file.write(json.dumps(line) + "\n")


def replay(pair, trace, folder):
    """aiperf's own summary."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [CLIENTS / "aiperf/bin/aiperf", "profile", "--model", e2e_client.MODEL, "--tokenizer", FOLDER / "model", "--endpoint-type", "completions",
             "--streaming", "--input-file", trace, "--custom-dataset-type", "mooncake_trace", "--fixed-schedule", "--extra-inputs", "ignore_eos:true",
             "--extra-inputs", "temperature:0", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none",
             "--workers-max", "1", "--record-processors", "1", "--random-seed", "1", "--artifact-dir", folder]  # fmt: skip
    for engine in pair.engines:
        words += ["--url", f"http://127.0.0.1:{engine.port}"]
    env = {**plain_env(), "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}  # HF_HUB_OFFLINE would make it take a folder for a name
    done = subprocess.run([str(word) for word in words], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=REPLAY_SECONDS_MAX, check=False)  # fmt: skip
    (FOLDER / "log" / f"aiperf-{pair.name}.log").write_text(done.stdout + done.stderr)
    summary = folder / "profile_export_aiperf.json"
    if done.returncode != 0 or not summary.exists():
        raise RuntimeError(f"aiperf ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return json.loads(summary.read_text())


ROWS = {"time_to_first_token": ("TTFT", ("avg", "p50", "p90")), "inter_token_latency": ("between tokens", ("avg",)),
        "request_latency": ("whole answer", ("avg", "p90")), "total_token_throughput": ("all tokens/s", ("avg",)),
        "benchmark_duration": ("replay", ("avg",))}  # fmt: skip


def show(result, name, summary):
    for key, (title, values) in ROWS.items():
        if key in summary:
            said = ", ".join(f"{value} {summary[key][value]:.1f}" for value in values)
            result.row(f"{name}: {title}, {summary[key]['unit']}", said)


def aiperf(options):
    result = Result()
    requests = conversations(REQUESTS_QUICK if options.quick else REQUESTS)
    given = sum(request["input_length"] // SCALE for request in requests)
    trace = FOLDER / "aiperf.jsonl"
    write_trace(trace, requests)
    say(f"{len(requests)} requests, {given} input tokens")
    for number in range(options.rounds):
        turn = number % len(options.variants)
        for name in options.variants[turn:] + options.variants[:turn]:
            one_round(result, name, trace, requests, given)
    return result


def one_round(result, name, trace, requests, given):
    with Pair(name, label=f"aiperf-{name}", segment_bytes=SEGMENT_BYTES) as pair:
        pair.wait()
        before = sum(e2e_client.external_hits(engine.port) for engine in pair.engines)
        summary = replay(pair, trace, FOLDER / f"aiperf-{name}")
        taken = sum(e2e_client.external_hits(engine.port) for engine in pair.engines) - before
    answered = summary["request_count"]["avg"]
    result.check(f"{name}: aiperf counts every request as answered", answered == len(requests), f"{answered:.0f} of {len(requests)}")
    if pair.master is not None:
        result.check(f"{name}: prompts come from the store", taken > 0, f"{taken:.0f} of {given} input tokens")
    asked = summary["total_usage_prompt_tokens"]["avg"]
    result.check(f"{name}: the engines read the trace's words", asked == given, f"{asked:.0f} of {given} input tokens")
    show(result, name, summary)
    result.data.setdefault(name, []).append({key: summary[key] for key in ROWS if key in summary} | {"from_store": taken})
