#!/usr/bin/env python3
"""What it costs the master's core to know why keys are missing, what more memory would find, and to tell KV events: on puts, gets, existence
checks and on memory.

    ./dev bench cost [--objects 1000000] [--rounds 7]

The core alone, by its time on a processor, with batches of 128 keys: as it is; without the reasons and the sample of uses (bench_core_bare, whose
calls of them are bound to nothing); and with events, written into their ring. They take turns, in an order that rotates, and what one costs more is
taken within a round. A call of a client takes many times as long as its part in the core: the last column sets the difference against
the medians of 4 KiB that `./dev bench store --keep` has kept, where the issue's bar is 2 %; and 16 bytes an object.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import figures

BUILD = pathlib.Path(os.environ.get("MC_BUILD", figures.ROOT / ".cache" / "build-release")) / "bench"
WHO = {"as it is": ["bench_core"], "bare": ["bench_core_bare"], "with events": ["bench_core", "events"]}
CALLS = {"put_ns": "put 4 KiB, p50", "put_evicting_ns": "put 4 KiB, p50", "get_ns": "get 4 KiB, p50", "get_absent_ns": "get 4 KiB, p50"}
COST_MAX, BYTES_MAX = 0.02, 16


def measured(words, objects):
    program, *more = words
    said = subprocess.run([BUILD / program, "cost", str(objects), *more], check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.split() for line in said.splitlines() if line.split()[0].endswith(("_ns", "_object")))}


def calls_us():
    """{name of a call: median of it on one core in microseconds}, of ours, as it was kept."""
    kept = json.loads((figures.ROOT / "bench" / "store.json").read_text())
    rows = {row["work"]: statistics.median(row["ours"]) * row["scale"] for row in kept["rows"] if row["mode"] == "pinned" and row["ours"]}
    return {name: rows[work] for name, work in CALLS.items() if work in rows}


def main():
    parser = figures.parser_of(__doc__, "one round with 100,000 objects", "7, with --quick 1", keep=False)
    parser.add_argument("--objects", type=int, help="1,000,000, with --quick 100,000")
    options = parser.parse_args()
    options.keep = False
    rounds = options.rounds or (1 if options.quick else 7)
    objects = options.objects or (100000 if options.quick else 1000000)
    conditions = figures.Conditions(options, "cost").begin()
    found = {name: [] for name in WHO}
    for number in range(rounds):
        turn = number % len(WHO)
        for name in [*list(WHO)[turn:], *list(WHO)[:turn]]:
            found[name].append(measured(WHO[name], objects))
        print(f"round {number + 1}/{rounds}", file=sys.stderr, flush=True)
    calls, missed = calls_us(), 0
    lines = [f"{objects} objects, {rounds} rounds; nanoseconds of the core a key, median (least to most)", "",
             "| what | as it is | bare | with events | reasons and curve cost | events cost more | both, of a client's call of 4 KiB |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for what in found["bare"][0]:
        values = {name: [one[what] for one in all_of_it] for name, all_of_it in found.items()}
        reasons = [mine - bare for mine, bare in zip(values["as it is"], values["bare"])]
        events = [told - mine for told, mine in zip(values["with events"], values["as it is"])]
        both = statistics.median(told - bare for told, bare in zip(values["with events"], values["bare"]))
        share = "-"
        if what in calls:
            share = f"{both / 1000 / calls[what]:.2%} of {calls[what]:.1f} us"
            missed += both / 1000 / calls[what] > COST_MAX
        missed += what == "bytes_an_object" and both > BYTES_MAX
        lines.append(f"| {what} | " + " | ".join(figures.spread_of(one, form="{:.1f}") for one in (*values.values(), reasons, events)) + f" | {share} |")
    lines += ["", f"{missed} bars missed (at most {COST_MAX:.0%} of a call, {BYTES_MAX} bytes an object)"]
    return figures.finish("cost", options, conditions.end(rounds, [], []), lines, {"found": found}) or missed > 0


if __name__ == "__main__":
    sys.exit(main())
