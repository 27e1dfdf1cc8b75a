#!/usr/bin/env python3
"""What a comparison must be before anybody may quote it, and the tables of the documents that are made of those that are.

    ./dev bench figures [--check]      writes the tables; --check: says which are not what they would be

A run (store, engine, faults, engine-e2e) writes .cache/bench/NAME-<date>.{json,txt}, which begin with the machine, the date, the load and the
rounds. With --keep it also writes bench/NAME.{json,txt}, from which the tables are made: between `<!-- figures: NAME -->` and
`<!-- figures end -->` in README.md and docs/. A run on a machine that has other work waits for its end; with --busy, with fewer than three
rounds, or without what belongs to it, it is marked as not to be quoted, and is not kept.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUNDS_MIN = 3
LOAD_MAX = 1.5  # of the machine before anything is measured
OTHERS_MAX = 0.25  # processors that others use meanwhile
REST_SECONDS = 300  # to wait for, after a build perhaps
COLUMNS = 120  # of a line of a document at most
NAMES = ("store", "engine", "faults", "engine-e2e")
MARKS = re.compile(r"^<!-- figures: ([\w-]+) -->\n(.*?)^<!-- figures end -->$", re.M | re.S)


def machine():
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:
            model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "")
    except OSError:
        pass
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}


def tree():
    """The commit, and whether something was changed behind it."""
    def git(*words):
        if shutil.which("git") is None:
            return ""
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (", changed" if git("status", "--porcelain", "--untracked-files=no") else "")


def used_seconds():
    """(of all processes, of this one and its children that have ended)."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = sum(int(word) for word in stat.readline().split()[1:4])
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system + own.children_user + own.children_system


class Conditions:
    """Under which a run is made: begin() when all is installed, end() when all of its processes have ended."""

    def __init__(self, arguments, name=None):
        self.command = " ".join(["./dev bench", name or pathlib.Path(sys.argv[0]).stem, *sys.argv[1:]])
        self.is_partial = any(getattr(arguments, name, None) for name in ("only", "contestants", "fault", "keys", "huge"))
        self.may_be_busy = arguments.busy or arguments.quick

    def begin(self, load=os.getloadavg):
        until = time.monotonic() + (0 if self.may_be_busy else REST_SECONDS)
        while load()[0] > LOAD_MAX and time.monotonic() < until:
            time.sleep(2)
        self.load = load()[0]
        if self.load > LOAD_MAX and not self.may_be_busy:
            raise SystemExit(f"the machine has other work: load {self.load:.2f}, and {LOAD_MAX} is the most; --busy measures all the same")
        self.date, self.started, self.used = time.strftime("%Y-%m-%d %H:%M"), time.monotonic(), used_seconds()
        return self

    def end(self, rounds, modes, problems):
        seconds = time.monotonic() - self.started
        machine_used, own_used = (now - before for now, before in zip(used_seconds(), self.used))
        return {
            "command": self.command, "date": self.date, "seconds": seconds, "machine": machine(), "tree": tree(), "load": self.load,
            "others": max(0.0, machine_used - own_used) / seconds, "rounds": rounds, "modes": list(modes), "problems": len(problems),
            "partial": self.is_partial,
        }  # fmt: skip


def why_not(conditions):
    """What speaks against quoting a run; nothing: it may be."""
    found = []
    if conditions["rounds"] < ROUNDS_MIN:
        found.append(f"{conditions['rounds']} round(s), fewer than {ROUNDS_MIN}")
    if conditions["load"] > LOAD_MAX:
        found.append(f"load {conditions['load']:.2f} before it, more than {LOAD_MAX}")
    if conditions["others"] > OTHERS_MAX:
        found.append(f"others used {conditions['others']:.2f} processors meanwhile, more than {OTHERS_MAX}")
    if conditions["modes"] and set(conditions["modes"]) != {"pinned", "spread"}:
        found.append("not both on one core and over two")
    if conditions["partial"]:
        found.append("a part of it only")
    if conditions["problems"]:
        found.append(f"{conditions['problems']} problem(s)")
    return found


def where_and_when(conditions):
    one = conditions["machine"]
    return (f"{conditions['date']}, {one['cores']} cores of {one['cpu'] or 'an unknown processor'}, Linux {one['kernel']}, tree {conditions['tree']}; "
            f"load {conditions['load']:.2f} before it, {conditions['others']:.2f} processors used by others meanwhile; {conditions['rounds']} round(s)")


def heading(conditions):
    against = why_not(conditions)
    return [conditions["command"], where_and_when(conditions), *([f"NOT TO BE QUOTED: {'; '.join(against)}"] if against else []), ""]


def write(name, arguments, document, lines):
    """Writes what a run has found. False: it was to be kept and may not be."""
    conditions = document["conditions"]
    text = "\n".join([*heading(conditions), *lines]).strip() + "\n"
    data = json.dumps(document, indent=1) + "\n"
    stem = ROOT / ".cache" / "bench" / (name + time.strftime("-%Y%m%d-%H%M%S"))
    stem.parent.mkdir(parents=True, exist_ok=True)
    against = why_not(conditions)
    stems = [stem, ROOT / "bench" / name] if arguments.keep and not against else [stem]
    print("\n".join(heading(conditions)))
    for one in stems:
        one.with_suffix(".json").write_text(data)
        one.with_suffix(".txt").write_text(text)
        print(f"written: {one}.txt, .json")
    if arguments.keep and against:
        print("not kept, see above")
    elif arguments.keep:
        update()
    return not (arguments.keep and against)


def parser_of(doc, quick, rounds="3, with --quick 1", keep=True):
    """With the flags that all comparisons have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--rounds", type=int, help=rounds)
    parser.add_argument("--busy", action="store_true", help=f"measures at a load above {LOAD_MAX} too, and marks the run as not to be quoted")
    if keep:
        parser.add_argument("--keep", action="store_true", help="writes bench/NAME.txt and .json and the tables of the documents, if the run may be quoted")
    return parser


def rounds_of(arguments):
    return arguments.rounds or (1 if arguments.quick else ROUNDS_MIN)


def finish(name, arguments, conditions, lines, document, problems=()):
    """Shows and writes what a run has found. Its exit code."""
    print("\n".join(lines), flush=True)
    return 0 if write(name, arguments, {"conditions": conditions, **document, "problems": problems}, lines) and not problems else 1


# --- tables ---


def text_of(values, scale=1.0, form="{:.3g}", unit="", to=" to "):
    """Median (least to most)unit."""
    if not values:
        return "-"
    middle, least, most = (form.format(one(values) * scale) for one in (statistics.median, min, max))
    return (middle if len(values) == 1 else f"{middle} ({least}{to}{most})") + unit


def spread_of(values, scale=1.0, form="{:.3g}", unit=""):
    return text_of(values, scale, form, unit, "-")


def times_as_good(lower, ours, others):
    """Round by round. lower: less is better."""
    pairs = [(other, mine) if lower else (mine, other) for mine, other in zip(ours, others)]
    return [above / below if below else float("inf") for above, below in pairs]


def surely(values):
    """(least, most) between which the median of what the rounds are drawn from lies, with a probability of 95 % or more, whatever its
    distribution: values of the rounds in order. None: too few rounds to say so."""
    count, sure = len(values), None
    for skipped in range(count // 2):
        outside = 2 * sum(math.comb(count, below) for below in range(skipped + 1)) / 2**count
        if outside > 0.05:
            break
        sure = sorted(values)[skipped], sorted(values)[count - 1 - skipped]
    return sure


def by_mode(rows):
    """Two tables, a work a line, of rows that have a mode each: (title, unit, scale, mode, ours, original, ratios)."""
    works = {}
    for title, unit, scale, mode, ours, original, ratios in rows:
        cells = works.setdefault((title, unit), {})
        cells[mode] = [spread_of(ours, scale), spread_of(original, scale), spread_of(ratios, form="{:.2f}", unit="x" if ratios else "")]
    lines = []
    for mode, title in (("pinned", "On one core:"), ("spread", "Over two cores:")):
        lines += [title, "", "| work | unit | ours | original | times as good |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join([title, unit or "-", *cells.get(mode, ["-"] * 3)]) + " |" for (title, unit), cells in works.items()]
        lines.append("")
    return lines[:-1]


def store_table(document):
    return by_mode((row["work"], row["unit"], row["scale"], row["mode"], row["ours"], row["original"], row["ours_over_original"]) for row in document["rows"])


def engine_table(document):
    return by_mode((f"{row['path']}: {row['work']}", row["unit"], 1.0, row["mode"], row["ours"], row["original"], row["ratios"]["original"]) for row in document["rows"])


def faults_table(document):
    def one(runs, name, form):
        values = [run[name] for run in runs]
        return "never" if None in values else text_of(values, form=form)
    faults, heads = {}, ["| who | keys | recovered after s | keys lost, % | slowest call, ms | failed puts |", "|---|---|---|---|---|---|"]
    for row in document["results"]:
        cells = [one(row["runs"], name, form) for name, form in (("keys", "{:.0f}"), ("recovered", "{:.2f}"), ("lost_percent", "{:.1f}"), ("slowest_ms", "{:.0f}"), ("failed_puts", "{:.0f}"))]
        faults.setdefault(row["fault"], []).append("| " + " | ".join([row["title"], *cells]) + " |")
    return [line for fault, rows in faults.items() for line in ("", f"{fault}:", "", *heads, *rows)][1:]


def e2e_rows(document):
    """(experiment, work, unit, less is better, {contestant: values of the rounds}) of the headline experiments of engine-e2e."""
    for kv, rounds in document["parts"].get("turns", {}).get("data", {}).items():
        for key, work, unit, lower in (("ttft_mean_s", "mean time to the first token", "s", True), ("input_tokens_per_s", "throughput of input", "tokens/s", False),
                                       ("between_tokens_s", "mean time between tokens", "s", True), ("first_turn_ttft_s", "first turn: mean time to the first token", "s", True)):
            yield f"conversations that change the instance, {kv} local KV", work, unit, lower, {name: [one[key] for one in figures] for name, figures in rounds.items()}
    rounds = document["parts"].get("lmcache", {}).get("data", {})
    if rounds:
        for key, work, unit, lower in (("ttft_s", "time to the first token on the other instance", "s", True), ("tokens_per_s", "throughput there", "tokens/s", False)):
            yield "LMCache, one prompt on both instances", work, unit, lower, {name: [one[key] for one in figures] for name, figures in rounds.items()}


def e2e_table(document):
    titles = {"none": "no store", "redis": "Redis", "ours": "ours", "original": "the original"}
    found = {}
    for experiment, work, unit, lower, values in e2e_rows(document):
        found.setdefault(experiment, []).append((work, unit, lower, values))
    lines = []
    for experiment, rows in found.items():
        who = [name for name in titles if name in rows[0][3]]
        lines += ["", f"{experiment[0].upper()}{experiment[1:]}:", "", f"| work | unit | {' | '.join(titles[name] for name in who)} | ours times as good as the original |",
                  "|" + "---|" * (len(who) + 3)]  # fmt: skip
        for work, unit, lower, values in rows:
            ratios = times_as_good(lower, values.get("ours", []), values.get("original", []))
            lines.append(f"| {work} | {unit} | {' | '.join(spread_of(values[name]) for name in who)} | {spread_of(ratios, form='{:.2f}', unit='x' if ratios else '')} |")
    return lines[1:]


TABLES = {"store": store_table, "engine": engine_table, "faults": faults_table, "engine-e2e": e2e_table}


def table(name, up="", kept=None):
    """The text between the marks. up: the way from the page to the root."""
    path = (kept or ROOT / "bench") / f"{name}.json"
    if not path.exists():
        return f"Not measured yet by these rules; `./dev bench {name} --keep` does it, and writes the table here.\n"
    document = json.loads(path.read_text())
    source = f"[bench/{name}.txt]({up}bench/{name}.txt), {where_and_when(document['conditions'])}; median (least to most)."
    return "\n".join([*textwrap.wrap(source, COLUMNS, break_long_words=False, break_on_hyphens=False), "", *TABLES[name](document)]) + "\n"


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(path, kept=None):
    """A page as it should be."""
    up = "../" * len(path.relative_to(ROOT).parts[:-1])
    return MARKS.sub(lambda found: f"<!-- figures: {found[1]} -->\n{table(found[1], up, kept)}<!-- figures end -->", path.read_text())


def update(check=False):
    stale = [path for path in pages() if path.read_text() != filled(path)]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: " + ("its tables are not those of bench/*.json; ./dev bench figures writes them" if check else "written"))
        if not check:
            path.write_text(filled(path))
    return stale


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    return 1 if update(arguments.check) and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
