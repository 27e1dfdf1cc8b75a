#!/usr/bin/env python3
"""What the comparisons have kept, as one page of HTML with plots: ours, the original, Redis, NIXL, and what the machine can do.

    ./dev bench report [--since 20261128-120000] [--out FILE]

It is made of bench/NAME.json (store, engine, faults, engine-e2e: `--keep`), and loads nothing from elsewhere. --since takes the latest run of each that was
written since then instead, also one that may not be quoted, and says of it why not. Each plot has a line for each contestant from the least to the most of the rounds, with a mark at
the median, and its numbers beside it. ./dev docs has the kept ones as a page of the site.
"""
import argparse
import dataclasses
import html
import json
import math
import pathlib
import statistics
import sys

import figures

ROOT = figures.ROOT
TITLE = "Figures beside others"
WIDTH, LEFT, RIGHT, LINE, HEAD = 860, 170, 640, 17, 22  # of a plot: all, where its axis begins and ends, a contestant, a work's name
LOG_FROM = 30  # so many times the least is the most: a logarithmic axis
WHO = {"none": "no store", "ours": "ours", "c": "ours from C", "allocated": "ours, allocated", "original": "the original", "original-snapshot": "the original, snapshots",
       "ours-plain": "ours, no data directory", "redis": "Redis", "nixl": "NIXL", "raw": "the machine", "bare": "the machine: bare loop", "memcpy": "the machine: memcpy"}
COLOURS = {"ours": 0, "c": 0, "allocated": 0, "ours-plain": 0, "original": 1, "original-snapshot": 1, "redis": 2, "nixl": 3}  # others: 4
MODES = {"pinned": "on one core", "spread": "over two cores"}
STYLE = """<style>
.plot { --c0: #0b6bcb; --c1: #c2410c; --c2: #7c3aed; --c3: #0f766e; --c4: #6b7280; overflow-x: auto; }
@media (prefers-color-scheme: dark) { .plot { --c0: #7ab8ff; --c1: #ff9d66; --c2: #c4a7ff; --c3: #5eead4; --c4: #a3acb5; } }
.plot svg { width: 100%; min-width: 44rem; height: auto; font: 11.5px system-ui, sans-serif; fill: currentColor; }
.plot .work { font-weight: 600; } .plot .axis { stroke: currentColor; stroke-opacity: .18; } .plot .tick { fill-opacity: .65; }
.plot .k0 { stroke: var(--c0); } .plot .k1 { stroke: var(--c1); } .plot .k2 { stroke: var(--c2); } .plot .k3 { stroke: var(--c3); } .plot .k4 { stroke: var(--c4); }
</style>"""

# What the numbers of a plot mean, and what they do not: (comparison, kind) of PARTS.
STORE_PATHS = "Buffers rotate over 512 MiB on each side, so nothing comes from a processor's cache, and what came back was compared byte by byte. "
MEANING = {
    ("store", "memory"): STORE_PATHS + "A client and a store node of one host: ours over shared memory, the original (this wheel) and Redis "
    "over the loopback interface. The machine's line is a plain memcpy to or from shared memory, which a copy that passes the processor's cache by can exceed. It "
    "says nothing of two hosts.",
    ("store", "TCP"): STORE_PATHS + "Ours is told to use TCP alone. The machine's line is a bare send and receive loop over one connection; over two cores more than one "
    "connection can exceed it. All of it is the loopback interface: no network card, no distance, no loss.",
    ("store", "us"): "The median time of one call with 4 KiB by one client, within a host. It says nothing of the slowest calls, of many clients at a time, or of a network between.",
    ("store", "rate"): "What one client that waits for each answer reaches; batches count keys. It is no limit of the master, which serves many clients at a time.",
    ("store", "full"): "Objects of one size into an empty store up to 70 % of it, then three times its capacity more, with nothing read in between: the rate of the latter beside "
    "that of the former, and how many puts failed. It says nothing of which objects stayed.",
    ("store", "master"): "A master alone: idle figures with nothing in it, bytes of its resident memory for an object by all objects that it knew. A single value is one measurement.",
    ("engine", "GB/s"): "Two processes of one host, buffers of 256 MiB that rotate, checksums compared before. The original has TCP alone, so it takes the same way in both plots; the "
    "figures are two measurements. NIXL's is the best of its ways. A bare loop is the same copy without any engine around it. It says nothing of RDMA or of two hosts.",
    ("engine", "us"): "The median time of one transfer of 4 KiB, called from Python where it is not said otherwise. It says nothing of the slowest ones.",
    ("engine", "s/GB"): "Processor time that the side which asks spends for a gigabyte, in user and kernel mode. What the other side spends is not in it.",
    ("engine-e2e", "e2e"): "Two unmodified vLLM servers on processors, one core each, with a model of 147 M parameters: what is saved is computed again here far more slowly than on a GPU, so "
    "a store is worth more than it would be there, and what differs between two stores is worth less. All that a conversation brings is new to every contestant. It says nothing of a GPU, of RDMA or of two hosts.",
    ("faults", "recovered"): "Seconds from the fault until the last key that came back at all had come back, puts succeeded, and calls took less than 200 ms. Contestants hold different "
    "numbers of keys (in the table). It says nothing of faults of a network or of a disk.",
    ("faults", "lost"): "Keys that could not be read at the end, of all that were put, in percent. A cache may lose keys; an engine computes them again.",
}


@dataclasses.dataclass
class Mark:
    """What one contestant has reached with a work; None among its values: that round never came to an end."""

    who: str
    values: list
    title: str = ""
    scale: float = 1.0

    @property
    def reached(self):
        return [value for value in self.values if value is not None]

    def shown(self):
        never = len(self.values) - len(self.reached)
        if never == 0 or never == len(self.values):
            return "never" if never else figures.spread_of(self.values, self.scale)
        return f"{figures.spread_of(self.reached, self.scale)}, never in {never} of {len(self.values)}"

    def ends(self):
        """(least, median, most)"""
        return [one(self.reached) * self.scale for one in (min, statistics.median, max)]


@dataclasses.dataclass
class Part:
    """A plot: works, each with a mark for each contestant, in one unit."""

    comparison: str
    kind: str
    title: str
    unit: str
    works: list  # (name, [Mark, ...])
    lower: bool = False

    def meaning(self):
        return MEANING[self.comparison, self.kind]


# --- from what was kept to parts ---


def marks_of(row, names):
    return [Mark(name, row[name], scale=row.get("scale", 1.0)) for name in names if row.get(name)]


def store_kind(row):
    work, unit = row["work"], row["unit"]
    if unit == "GB/s":
        return "TCP" if work.startswith("TCP") else "memory"
    return "full" if work.startswith("full store") else "master" if work.startswith("master") else "us" if unit == "us" else "rate"


STORE_KINDS = (("memory", "Large objects within a host", False), ("TCP", "Large objects by TCP", False), ("us", "One small call", True), ("rate", "Calls and keys", False),
               ("full", "A full store", False), ("master", "The master", True))


def store_parts(document):
    for mode, where in MODES.items():
        for kind, title, lower in STORE_KINDS:
            rows = [row for row in document["rows"] if row["mode"] == mode and store_kind(row) == kind]
            for unit in dict.fromkeys(row["unit"] for row in rows):
                works = [(row["work"], marks_of(row, ("ours", "original", "redis", "raw"))) for row in rows if row["unit"] == unit]
                lower_here = lower or (kind == "full" and not unit)
                yield Part("store", kind, f"{title}, {where}: {unit or 'how many'}", unit, works, lower_here)


def engine_parts(document):
    names = ("ours", "c", "allocated", "original", "nixl", "bare", "memcpy")
    for mode, where in MODES.items():
        for path, title in (("same-host", "Transfers within a host"), ("tcp", "Transfers by TCP")):
            rows = [row for row in document["rows"] if row["mode"] == mode and row["path"] == path]
            for unit in dict.fromkeys(row["unit"] for row in rows):
                works = [(row["work"], marks_of(row, names)) for row in rows if row["unit"] == unit]
                yield Part("engine", unit, f"{title}, {where}: {unit}", unit, works, unit != "GB/s")


def faults_parts(document):
    for name, kind, title, unit in (("recovered", "recovered", "Time to recover", "s"), ("lost_percent", "lost", "Keys lost", "%")):
        faults = {}
        for row in document["results"]:
            faults.setdefault(row["fault"], []).append(Mark(row["contestant"], [run[name] for run in row["runs"]], row["title"]))
        yield Part("faults", kind, f"{title}: {unit}", unit, list(faults.items()), True)


def e2e_parts(document):
    plots = {}
    for experiment, work, unit, lower, values in figures.e2e_rows(document):
        plots.setdefault((unit, lower), []).append((f"{experiment}: {work}", [Mark(name, all_of_it) for name, all_of_it in values.items()]))
    for (unit, lower), works in plots.items():
        yield Part("engine-e2e", "e2e", f"Two vLLM servers on one store: {unit}", unit, works, lower)


PARTS = {"store": store_parts, "engine": engine_parts, "faults": faults_parts, "engine-e2e": e2e_parts}
HEADS = {"store": "The store", "engine": "The transfer engine", "faults": "Faults", "engine-e2e": "A real engine, end to end"}


# --- drawing ---


def escaped(text):
    return html.escape(str(text), quote=True)


class Axis:
    def __init__(self, values):
        self.most = max(values, default=0) or 1
        least = min((value for value in values if value > 0), default=self.most)
        self.is_log = self.most / least > LOG_FROM
        self.least = 10 ** math.floor(math.log10(least)) if self.is_log else 0
        step = 10 ** math.floor(math.log10(self.most))
        self.step = next(part * step for part in (0.1, 0.2, 0.5, 1, 2) if self.most / (part * step) <= 8)

    def place(self, value):
        if self.is_log:
            part = math.log10(max(value, self.least) / self.least) / math.log10(self.most / self.least)
        else:
            part = value / self.most
        return LEFT + part * (RIGHT - LEFT)

    def ticks(self):
        if self.is_log:
            return [10.0**power for power in range(round(math.log10(self.least)), math.floor(math.log10(self.most)) + 1)]
        return [number * self.step for number in range(math.floor(self.most / self.step + 1e-9) + 1)]


def line(mark, axis, y):
    """A contestant's: its name, from the least to the most, the median, and the numbers."""
    name = escaped(mark.title or WHO.get(mark.who, mark.who))
    said = f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{name}</text>'
    shown = f'<text x="{RIGHT + 12}" y="{y + 4}">{escaped(mark.shown())}</text>'
    if not mark.reached:
        return f'<g data-who="{escaped(mark.who)}">{said}{shown}</g>'
    least, middle, most = mark.ends()
    left, at, right = (axis.place(value) for value in (least, middle, most))
    drawn = (f'<path class="k{COLOURS.get(mark.who, 4)}" fill="none" stroke-width="3" d="M{left:.1f} {y}H{right:.1f}"/>'
             f'<path class="k{COLOURS.get(mark.who, 4)}" fill="none" stroke-width="3" d="M{at:.1f} {y - 6}V{y + 6}"/>')  # fmt: skip
    return f'<g data-who="{escaped(mark.who)}" data-least="{least!r}" data-median="{middle!r}" data-most="{most!r}">{said}{drawn}{shown}</g>'


def plot(part):
    works = [(work, marks) for work, marks in part.works if marks]
    axis = Axis([value for _, marks in works for mark in marks if mark.reached for value in mark.ends()])
    height = HEAD + sum(HEAD + LINE * len(marks) for _, marks in works) + 8
    drawn = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(part.title)}">']
    for tick in axis.ticks():
        x = axis.place(tick)
        drawn.append(f'<path class="axis" d="M{x:.1f} {HEAD}V{height - 4}"/><text class="tick" x="{x:.1f}" y="14" text-anchor="middle">{tick:g}</text>')
    y = HEAD
    for work, marks in works:
        drawn.append(f'<g data-work="{escaped(work)}"><text class="work" x="8" y="{y + 15}">{escaped(work)}</text>')
        y += HEAD
        for mark in marks:
            drawn.append(line(mark, axis, y + LINE // 2 - 2))
            y += LINE
        drawn.append("</g>")
    scale = "logarithmic" if axis.is_log else "linear, from 0"
    better = "Less is better" if part.lower else "More is better"
    return f'<div class="plot">{"".join(drawn)}</svg></div>\n<p>{better}; the axis is {scale}. {escaped(part.meaning())}</p>'


def faults_table(document):
    rows = [[escaped(text) for text in (row["fault"], row["title"], figures.spread_of([run["keys"] for run in row["runs"]], form="{:.0f}"))] for row in document["results"]]
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr><th>fault</th><th>who</th><th>keys</th></tr>{cells}</table>"


# --- the page ---


def newest(name, folder, since):
    return max((path for path in folder.glob(f"{name}-[0-9]*.json") if path.stem >= f"{name}-{since}"), default=None)


def documents(folder, since=None):
    """[(name, document or None)]. since: of all runs in the folder the latest that is not older; else those that were kept there."""
    for name in figures.NAMES:
        path = newest(name, folder, since) if since else folder / f"{name}.json"
        yield name, json.loads(path.read_text()) if path is not None and path.exists() else None


INTRODUCTION = (
    "Each line goes from the least to the most of the rounds, with a mark at the median; beside it stand the median and, in brackets, both ends. Contestants take turns within a "
    "round, in an order that rotates, with the settings that their documents advise. All processes run on one machine: a figure of another machine is another figure. How it is "
    "measured, and what may be quoted, says bench/README.md.")


def body(found):
    """[(heading or None, HTML)] of what documents() gave."""
    blocks = [(None, f"{STYLE}\n<p>{escaped(INTRODUCTION)}</p>")]
    for name, document in found:
        if document is None:
            blocks.append((HEADS[name], f"<p>Not measured yet by these rules; <code>./dev bench {name} --keep</code> does it.</p>"))
            continue
        conditions = document["conditions"]
        against = figures.why_not(conditions)
        warning = f"<p><strong>NOT TO BE QUOTED: {escaped('; '.join(against))}</strong></p>\n" if against else ""
        text = f"{warning}<p><code>{escaped(conditions['command'])}</code>, {escaped(figures.where_and_when(conditions))}.</p>"
        blocks.append((HEADS[name], text + ("\n" + faults_table(document) if name == "faults" else "")))
        blocks += [(part.title, plot(part)) for part in PARTS[name](document) if any(marks for _, marks in part.works)]
    return blocks


def markdown(kept=ROOT / "bench"):
    """The page for the site."""
    parts = [f"# {TITLE}"]
    level = {title: "##" for title in HEADS.values()}
    for heading, text in body(documents(kept)):
        parts += [f"{level.get(heading, '###')} {html.escape(heading)}"] if heading else []
        parts.append(text)
    return "\n\n".join(parts) + "\n"


def page(found):
    """The page alone, with all that it needs."""
    style = (ROOT / "packaging" / "site" / "style.css").read_text()
    parts = [f"{'<h2>' if heading in HEADS.values() else '<h3>'}{escaped(heading)}{'</h2>' if heading in HEADS.values() else '</h3>'}\n{text}" if heading else text
             for heading, text in body(found)]
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark">\n<title>{TITLE}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<div class="columns"><main>\n'
            f"<h1>{TITLE}</h1>\n" + "\n".join(parts) + "\n</main></div>\n</body>\n</html>\n")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", help="of the latest runs since then instead of those that were kept")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / ".cache" / "bench" / "report.html")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    folder = ROOT / ".cache" / "bench" if arguments.since else ROOT / "bench"
    arguments.out.write_text(page(documents(folder, arguments.since)))
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    sys.exit(main())
