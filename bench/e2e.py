#!/usr/bin/env python3
"""A real engine, end to end: two unmodified vLLM servers on CPU, one core each, that share their KV cache by the store.

    ./dev bench engine-e2e [--quick] [--only same-prompt,turns,disk,pd,lmcache,kill,aiperf] [--variants none,ours,original] [--rounds N]

Prints the checks and a table, and writes .cache/bench/e2e-<date>.{txt,json}, marked if it may not be quoted (figures.py). Exit code 0 when every check passed. It needs the environments
.cache/clients/vllm, lmcache, aiperf and original (tests/clients), which `./dev` makes first.
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


def parse():
    parser = figures.parser_of("two vLLM servers on one store, end to end", "one round of everything", "of each measurement (default: 3, with --quick 1)", keep=False)
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
    options.rounds = figures.rounds_of(options)
    options.stores = [name for name in options.variants if name != "none"]
    options.folder = e2e_servers.FOLDER
    options.keep = False
    return options


def table(results):
    lines = []
    for name, result in results.items():
        lines += ["", f"{name} ({result['seconds']:.0f} s)"]
        lines += [f"  {'pass' if passed else 'FAIL'}  {text}: {facts}" for text, passed, facts in result["checks"]]
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
    conditions.is_partial = options.only != list(PARTS) or options.variants != VARIANTS
    conditions.begin()
    results = {}
    for name in options.only:
        print(f"{name}:", flush=True)
        start = time.monotonic()
        try:
            results[name] = PARTS[name](options).as_json()
        except (RuntimeError, OSError) as error:
            print(f"  {name} ended: {error}", file=sys.stderr, flush=True)
            results[name] = {"checks": [(f"{name} runs to its end", False, str(error)[:2000])], "rows": []}
        results[name]["seconds"] = time.monotonic() - start
    lines = table(results)
    print("\n".join(lines))
    failed = [text for result in results.values() for text, passed, _ in result["checks"] if not passed]
    figures.write("e2e", options, {"conditions": conditions.end(options.rounds, [], failed), "parts": results}, lines)
    print(f"{len(failed)} checks failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
