#!/usr/bin/env python3
"""A real engine, end to end: two unmodified vLLM servers on CPU, one core each, that share their KV cache by the store.

    ./dev bench engine-e2e [--quick] [--only same-prompt,turns,disk,pd,lmcache,kill,aiperf] [--variants none,ours,original] [--rounds N] [--keep]

Prints the checks and a table, and writes .cache/bench/engine-e2e-<date>.{txt,json}, marked if it may not be quoted (figures.py). Exit code 0 when
every check passed and every bar was reached; a run that missed a bar may be quoted. It needs the environments .cache/clients/vllm, lmcache, aiperf and
original (tests/clients), which `./dev` makes first. --keep keeps the headline experiments, turns and lmcache, with all that they are compared with.
"""

import signal
import sys
import time

import e2e_aiperf
import e2e_disk
import e2e_parts
import e2e_servers
import e2e_turns
import figures

PARTS = {
    "same-prompt": e2e_parts.same_prompt,
    "turns": e2e_turns.turns,
    "disk": e2e_disk.disk,
    "pd": e2e_parts.prefill_decode,
    "lmcache": e2e_parts.lmcache,
    "kill": e2e_parts.kill,
    "aiperf": e2e_aiperf.aiperf,
}
VARIANTS = ["none", "ours", "original"]
HEADLINES = ["turns", "lmcache"]
ROUNDS = 7  # as many as tell a median from 1 with 95 %, with one to spare


def parse():
    parser = figures.parser_of("two vLLM servers on one store, end to end", "one round of everything", f"of each measurement (default: {ROUNDS}, with --quick 1)")
    parser.prog = "./dev bench engine-e2e"
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default: %(default)s)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="what is compared (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="conversations at a time in turns (default: %(default)s)")
    parser.add_argument("--kv", default="limited,ample", help="local KV space in turns (default: %(default)s)")
    options = parser.parse_args()
    options.kv = options.kv.split(",")
    options.only = options.only.split(",")
    options.variants = options.variants.split(",")
    for words, known, what in ((options.only, PARTS, "part"), (options.variants, VARIANTS, "variant"),
                               (options.kv, e2e_turns.KV_BYTES, "KV space")):
        for word in words:
            if word not in known:
                parser.error(f"no such {what}: {word} (there are: {', '.join(known)})")
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    options.stores = [name for name in options.variants if name != "none"]
    options.folder = e2e_servers.FOLDER
    return options


def table(results):
    lines = []
    for name, result in results.items():
        lines += ["", f"{name} ({result['seconds']:.0f} s)"]
        lines += [f"  {'pass' if passed else 'FAIL'}  {text}: {facts}" for text, passed, facts in result["checks"]]
        lines += [f"  {'reached' if reached else 'MISSED'}  {text}: {facts}" for text, reached, facts in result["bars"]]
        lines += [f"        {title}: {value}" for title, value in result["rows"]]
    return lines


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped on the way out
    missing = e2e_servers.missing_environments(["vllm", *(["original"] if "original" in options.variants else []),
                                                *(name for name in ("lmcache", "aiperf") if name in options.only)])
    if missing:
        raise SystemExit(f"environments are missing in .cache/clients: {' '.join(missing)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    e2e_servers.make_model()
    conditions = figures.Conditions(options, "engine-e2e")
    conditions.is_partial = not set(HEADLINES) <= set(options.only) or options.variants != VARIANTS or options.kv != list(e2e_turns.KV_BYTES)
    conditions.begin()
    results = {}
    for name in options.only:
        print(f"{name}:", flush=True)
        start = time.monotonic()
        try:
            results[name] = PARTS[name](options).as_json()
        except (RuntimeError, OSError) as error:
            print(f"  {name} ended: {error}", file=sys.stderr, flush=True)
            results[name] = {"checks": [(f"{name} runs to its end", False, str(error)[:2000])], "bars": [], "rows": [], "data": {}}
        results[name]["seconds"] = time.monotonic() - start
    lines = table(results)
    print("\n".join(lines))
    failed = [text for result in results.values() for text, passed, _ in result["checks"] if not passed]
    missed = [text for result in results.values() for text, reached, _ in result["bars"] if not reached]
    written = figures.write("engine-e2e", options, {"conditions": conditions.end(options.rounds, [], failed), "parts": results}, lines)
    print(f"{len(failed)} checks failed, {len(missed)} bars missed")
    raise SystemExit(1 if failed or missed or not written else 0)


if __name__ == "__main__":
    main()
