#!/usr/bin/env python3
"""Is this tree slower than the release before it, than another commit, or than a wheel that was built of it? The same work on both, in turn, in one run.

    ./dev bench before [store|engine|core] [--rounds 4] [--modes pinned,spread] [--commit 3f6ce5a]
    ./dev bench before [store|engine] --wheel dist/*_x86_64.whl [...]     this tree as its compiler builds it, and as that of the wheel did

The other tree is built once from the repository's history (tests/released.py). In each round the two take turns, the order changes from round
to round, and a ratio is taken within a round: above 1 this tree is better. A row is worse when its median ratio is below 0.97. Exit code 1
when a row is worse, or a call failed.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys

import paths  # noqa: F401, before what it makes importable
import engine
import figures
import released
import store
from contestants import Ours
from figures import spread_of

CACHE = store.ROOT / ".cache"
WORSE = 0.97
LOWER = ("_us", "_ms", "_s_per_gb")  # names of figures of which less is better


def store_figures(arguments, old, new):
    """{(mode, what): ([figure of this tree, a round each], [of the release])}"""
    contestants = []
    for name, release in (("ours", new), ("before", old)):
        for tcp in (False, True):
            one = Ours(tcp)
            one.name = f"{name}-tcp" if tcp else name
            one.use_build(sys.executable, release.python_path, release.build / "mooncake_master", None)
            contestants.append(one)
    run = store.Run(arguments, CACHE)
    for number in range(arguments.rounds):
        for mode in arguments.modes:
            for one in contestants if number % 2 == 0 else contestants[2:] + contestants[:2]:
                run.attempt_and_say(f"round {number + 1} {mode}: {one.name}", run.session, one, mode)
    found = {}
    for (name, mode, key), values in run.figures.items():
        if name.startswith("ours"):
            title = f"{'tcp ' if name.endswith('tcp') else ''}{key}"
            found[mode, title] = (values, run.figures.get((name.replace("ours", "before"), mode, key), []))
    return found, run.problems


def engine_figures(arguments, old, new):
    """Both sides are begun anew in each round, in turn the one and the other first: the kernel gives the first other pages than the second,
    and the same binary was 20 % slower as the first of two. So an even number of rounds says more."""
    run = engine.Run(arguments, CACHE)
    works = list(dict.fromkeys(row.work for row in engine.make_rows(True)))
    for number in range(arguments.rounds):
        sides = (("ours", new), ("before", old))
        pairs = []
        try:
            for name, release in sides if number % 2 == 0 else reversed(sides):
                for tcp in (False, True):
                    env = {"PYTHONPATH": str(release.python_path), **({"MC_FORCE_TCP": "1"} if tcp else {})}
                    pairs.append(engine.Pair(f"{name}-tcp" if tcp else name, sys.executable, run.logs, env=env))
            for mode in arguments.modes:
                for work in works:
                    for pair in (pair for pair in pairs if pair.name.endswith("tcp") == (work[0] == "tcp")):
                        run.attempt(f"{pair.name}, {mode}, {work}", run.measure, pair, ["python"], mode, work)
                run.say(f"round {number + 1} of {arguments.rounds}, {mode}")
        finally:
            for pair in pairs:
                pair.stop()
    found = {}
    for (name, mode, work), results in run.figures.items():
        if name.startswith("ours"):
            others = run.figures.get((name.replace("ours", "before"), mode, work), [])
            path, write, size, batch = work
            title = engine.Row(path, write, size, batch).title
            for figure in ("p50_us", "gbps"):
                found[mode, f"{path} {title} {figure}"] = ([one[figure] for one in results], [one[figure] for one in others])
    return found, run.problems


def core_figures(arguments, old, new):
    """bench_core of either tree as a program of its own, on one processor. {("alone", what): ...} as above."""
    programs = {"ours": new.build / "bench" / "bench_core", "before": released.measurement(old, "bench_core")}
    found = {}
    for number in range(arguments.rounds):
        for name in list(programs) if number % 2 == 0 else reversed(programs):
            text = subprocess.run(["taskset", "-c", "1", programs[name]], capture_output=True, check=True, text=True).stdout
            for title, value, unit in re.findall(r"^(\S.*?) {2,}([\d.]+) (M/s|ms|us)", text, re.M):
                key = "alone", title + {"ms": "_ms", "us": "_us"}.get(unit, "")
                found.setdefault(key, ([], []))[name == "before"].append(float(value))
    return found, []


def report(found):
    """How many rows are worse."""
    worse = []
    form = "{:<7} {:<34} {:<26} {:<26} {:<20} {}"
    print(form.format("", "median (min-max)", "this tree", "the other", "ratio, 1 or more", ""))
    for (mode, title), (mine, others) in sorted(found.items()):
        pairs = [(a, b) for a, b in zip(mine, others) if a and b]
        if not pairs:
            continue
        ratios = figures.times_as_good(any(mark in title for mark in LOWER), *zip(*pairs))
        is_worse = statistics.median(ratios) < WORSE
        worse += [f"{mode}: {title}"] if is_worse else []
        print(form.format(mode, title, spread_of(mine), spread_of(others), spread_of(ratios, form="{:.3f}"), "WORSE" if is_worse else "").rstrip())
    print(f"\n{len(worse)} of {len(found)} rows are worse by more than 3 %" + "".join(f"\n  {text}" for text in worse))
    return len(worse)


def main():
    parser = figures.parser_of(__doc__, "less of everything", rounds="4; even: each side is the first as often", keep=False)
    parser.add_argument("what", nargs="?", choices=("store", "engine", "core"), default="store")
    parser.add_argument("--commit", default=released.COMMIT, help="the other tree: %(default)s, the release before")
    parser.add_argument("--wheel", type=pathlib.Path, help="in place of a commit: a wheel")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["pinned", "spread"], help="pinned: all on one core; spread: on two")
    parser.set_defaults(rounds=4)
    arguments = parser.parse_args()
    new = released.Release(pathlib.Path(os.environ["MC_BUILD"]), pathlib.Path(os.environ["MC_PYTHONPATH"]))
    if arguments.wheel and arguments.what == "core":
        parser.error("a wheel does not hold the measurement of the core")
    print(f"the other: {arguments.wheel}" if arguments.wheel else f"building {arguments.commit} …", flush=True)
    old = released.unpack(CACHE, arguments.wheel) if arguments.wheel else released.build(CACHE, arguments.commit)
    if old is None:
        raise SystemExit(released.WHY)
    conditions = figures.Conditions(arguments, "before").begin()
    found, problems = {"store": store_figures, "engine": engine_figures, "core": core_figures}[arguments.what](arguments, old, new)
    for text in problems:
        print(f"PROBLEM: {text}")
    print("\n".join(figures.heading(conditions.end(arguments.rounds, arguments.modes, problems))))
    return 1 if report(found) or problems else 0


if __name__ == "__main__":
    sys.exit(main())
