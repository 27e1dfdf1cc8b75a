"""What is said of ours beside the original: the tables of the documents are those of bench/*.json, what was kept keeps the rules, and nothing else says such a thing."""
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
sys.path.insert(0, str(SOURCE / "bench"))

import figures  # noqa: E402
from cluster import wait_until  # noqa: E402

MODES = ("pinned", "spread")
GOOD = {"command": "./dev bench store --keep", "date": "2026-11-22 10:00", "seconds": 600.0, "machine": {"cpu": "a processor", "cores": 2, "kernel": "6.18", "python": "3.11"},
        "tree": "abc", "load": 0.2, "others": 0.01, "rounds": 3, "modes": ["pinned", "spread"], "problems": 0, "partial": False}
ROW = {"work": "put 4 KiB, p50", "unit": "us", "scale": 1.0, "ours": [20.0, 25.0, 30.0], "original": [80.0, 90.0, 100.0], "ours_over_original": [4.0, 3.6, 3.3], "raw": [], "redis": [],
       "percent_of_raw": [], "bar": "", "verdict": "PASS"}


def test_the_tables_are_those_of_the_runs_that_were_kept():
    marked = [name for path in figures.pages() for name, _ in figures.MARKS.findall(path.read_text())]
    assert sorted(marked) == sorted(figures.NAMES)
    for path in figures.pages():
        assert path.read_text() == figures.filled(path), f"{path}: ./dev bench figures writes its tables"


def test_what_was_kept_may_be_quoted():
    for path in (SOURCE / "bench").glob("*.json"):
        assert path.stem in figures.NAMES
        document = json.loads(path.read_text())
        assert figures.why_not(document["conditions"]) == []
        text = path.with_suffix(".txt").read_text()
        assert text.startswith("\n".join(figures.heading(document["conditions"])).strip())
        for row in document.get("rows", []):
            for name in ("ours", "original"):
                assert len(row[name]) in (0, 1, document["conditions"]["rounds"]), row
    for path in (SOURCE / "bench").glob("*.txt"):
        assert path.with_suffix(".json").exists() or path.stem == "lab", f"{path}: no run says so"


def test_nothing_else_compares():
    """Outside of the tables no figure stands beside the original."""
    figure = re.compile(r"\d[\d.,]*(?:x\b| ?(?:%|ms|us|µs|s|GB/s|MB/s|KiB/s)(?![\w/]))|\d+(?:\.\d+)? times")
    pages = [SOURCE / "README.md", SOURCE / "docs" / "status.md", SOURCE / "docs" / "migration.md", SOURCE / "bench" / "lab.txt"]
    for path in pages:
        for part in parts(figures.MARKS.sub("", path.read_text())):
            if re.search(r"\b(?:the )?original(?:'s)?\b", part):
                found = [text for text in figure.findall(part)]
                assert not found or is_a_bar(part), f"{path}: {found} in: {part}"
    assert figure.findall("10x / 12x the original") and figure.findall("67 ms (the original 438 ms)") and figure.findall("1.5 times") and not figure.findall("0.3.13.post1")


def parts(text):
    """Cells of tables, items of lists with what is nested below them apart, and lines of all other text."""
    text = re.sub(r"^( *)- .*(?:\n\1  (?!- ).*)*", lambda item: " ".join(item[0].split()), text, flags=re.M)
    return [part.strip() for line in text.splitlines() for part in (line.split("|") if line.startswith("|") else [line])]


def is_a_bar(cell):
    """What ours does not reach is no praise."""
    return re.search(r"\bmissed\b|\bbelow its bar\b", cell) is not None


@pytest.mark.parametrize("change,said", [
    ({"rounds": 2}, "2 round(s), fewer than 3"), ({"load": 4.0}, "load 4.00"), ({"load": 1.51}, "load 1.51"), ({"others": 0.5}, "others used 0.50"), ({"modes": ["pinned"]}, "over two"),
    ({"partial": True}, "a part"), ({"problems": 1}, "1 problem")])
def test_what_breaks_a_rule_is_marked_and_not_kept(tmp_path, monkeypatch, capsys, change, said):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / ".cache" / "bench").mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    (tmp_path / "docs").mkdir()
    page = "a\n<!-- figures: store -->\nold\n<!-- figures end -->\nb\n"
    (tmp_path / "README.md").write_text(page)
    document = {"conditions": {**GOOD, **change}, "rows": [{**ROW, "mode": mode} for mode in ("pinned", "spread")]}
    assert figures.write("store", types.SimpleNamespace(keep=True), document, ["the table"]) is False
    [text] = (tmp_path / ".cache" / "bench").glob("store-*.txt")
    assert "NOT TO BE QUOTED: " in text.read_text() and said in text.read_text() and text.read_text().endswith("the table\n")
    assert not list((tmp_path / "bench").iterdir()) and (tmp_path / "README.md").read_text() == page
    # The same without the fault is kept, and its table written.
    document["conditions"] = GOOD
    assert figures.write("store", types.SimpleNamespace(keep=True), document, ["the table"]) is True
    kept = (tmp_path / "bench" / "store.txt").read_text()
    assert "NOT TO BE QUOTED" not in kept and all(word in kept for word in ("./dev bench store --keep", "2026-11-22", "2 cores of a processor", "load 0.20", "3 round(s)"))
    text = (tmp_path / "README.md").read_text()
    assert text.count("| put 4 KiB, p50 | us | 25 (20-30) | 90 (80-100) | 3.60 (3.30-4.00)x |\n") == 2 and "old" not in text and text.endswith("b\n")
    assert re.search(r"^On one core:\n\n\|.*^Over two cores:\n\n\|", text, re.M | re.S) and max(map(len, text.splitlines())) <= 120
    assert figures.update(check=True) == []
    (tmp_path / "README.md").write_text(text.replace("25 (20-", "24 (20-", 1))
    assert figures.update(check=True) == [tmp_path / "README.md"] and "24 (20-" in (tmp_path / "README.md").read_text()


def test_a_busy_machine_is_waited_for_and_then_refused(monkeypatch):
    monkeypatch.setattr(figures, "REST_SECONDS", 3)
    loads = iter([9.0, 2.0, 1.4, 1.4])
    free = figures.Conditions(types.SimpleNamespace(busy=False, quick=False)).begin(load=lambda: (next(loads),))
    assert free.load == 1.4
    with pytest.raises(SystemExit, match="other work"):
        figures.Conditions(types.SimpleNamespace(busy=False, quick=False)).begin(load=lambda: (9.0,))
    marked = figures.Conditions(types.SimpleNamespace(busy=True, quick=False)).begin(load=lambda: (9.0,)).end(3, MODES, [])
    assert any("load 9.00" in text for text in figures.why_not(marked))


def test_work_of_others_is_seen_and_our_own_is_not(tmp_path):
    """A process that is no child of ours is another's."""
    burn = f"import time, pathlib\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\npathlib.Path({str(tmp_path / 'done')!r}).touch()"
    words = types.SimpleNamespace(busy=True, quick=False)
    mine = figures.Conditions(words).begin()
    subprocess.run([sys.executable, "-c", burn], check=True)
    own = figures.used_seconds()[1] - mine.used[1]
    assert own > 0.5
    (tmp_path / "done").unlink()
    other = figures.Conditions(words).begin()
    # The shell ends at once; what it has started is not ours any more.
    subprocess.run(["sh", "-c", '"$0" -c "$1" & exec sleep 0', sys.executable, burn], check=True)
    wait_until((tmp_path / "done").exists, 30)
    found = other.end(3, MODES, [])
    assert found["others"] * found["seconds"] > 0.4, found
