"""The table ours/original per step, written while the tests run and printed at the end of the lane."""
import json
import os
import pathlib

DONE, WRONG, ABSENT = "yes", "NO", "-"


def cell(step):
    if step is None:
        return ABSENT
    if "error" in step:
        return WRONG
    return f"{step.get('seconds', 0) * 1000:.1f} ms"


def why_not(step):
    return "not reached" if step is None else step.get("error", "")


class Table:
    def __init__(self):
        self.rows = []

    def add(self, part, ours, original, reasons):
        """A part is one scenario; `reasons` says by step why the original's result is another."""
        names = list(ours) + [name for name in original if name not in ours]
        for name in names:
            mine, theirs = ours.get(name), original.get(name)
            same = mine is not None and theirs is not None and "error" not in theirs and mine.get("result") == theirs.get("result")
            note = "" if same else reasons.get(name, reasons.get("*", ""))
            if not same and theirs is not None and "error" not in theirs and mine is not None and "error" not in mine:
                note = f"{json.dumps(theirs.get('result'))[:60]} there, {json.dumps(mine.get('result'))[:60]} here; {note}"
            elif not same:
                note = "; ".join(word for word in (why_not(theirs)[:100] if original else "not run", note) if word)
            self.rows.append((part, name, cell(mine), cell(theirs) if original else ABSENT, "same" if same else "differs", note))

    def add_keys(self, part, same, count):
        """How many steps go with keys as they go without."""
        self.rows.append((part, "with keys", f"{same} of {count}", ABSENT, "same" if same == count else "differs", ""))

    def add_counts(self, part, counts, reasons):
        """{side: (cases that passed, all)} of one suite; `reasons`: the cases that pass with the original alone, for the reason that its test says."""
        cells = [f"{counts[side][0]} of {counts[side][1]}" for side in ("ours", "original")]
        self.rows.append((part, "cases", *cells, "differs" if reasons else "same", ", ".join(reasons)))

    def write(self, path):
        if not self.rows:
            return
        widths = [max(len(row[i]) for row in self.rows) for i in range(5)]
        lines = ["  ".join(word.ljust(width) for word, width in zip(row[:5], widths)) + (f"  {row[5]}" if row[5] else "") for row in self.rows]
        head = "  ".join(word.ljust(width) for word, width in zip(("client part", "step", "ours", "original", "result"), widths))
        pathlib.Path(path).write_text("\n".join([head.rstrip(), *[line.rstrip() for line in lines]]) + "\n")


TABLE_PATH = os.environ.get("MC_CLIENTS_TABLE")
