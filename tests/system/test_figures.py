"""What is said of ours beside the original: the tables of the documents are those of bench/*.json, what was kept keeps the rules, and nothing else says such a thing."""
import html
import html.parser
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import types

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
sys.path.insert(0, str(SOURCE / "bench"))

import figures  # noqa: E402
import report  # noqa: E402
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


STORE = {"conditions": GOOD, "rows": [
    {**ROW, "mode": mode, "work": work, "unit": unit, "scale": scale, "redis": [55.5, 54.25, 57.125], "raw": [10.0, 11.5, 12.25] if unit == "GB/s" else []}
    for mode in MODES for work, unit, scale in (("put 4 KiB <b>&\"p50\"", "us", 1.0), ("put_from 1 MiB", "GB/s", 1.0), ("is_exist", "k/s", 1e-3), ("master: RSS / objects", "B", 1.0))]}
ENGINE = {"conditions": GOOD, "rows": [
    {"mode": mode, "path": path, "work": "write 64 KiB", "unit": "GB/s", "ours": [4.5, 4.25, 4.75], "c": [5.0, 5.1, 5.2], "original": [0.5, 0.125, 0.25], "nixl": [2.0, 2.5, 3.5],
     "bare": [5.5, 5.25, 5.75], "memcpy": [7.0, 7.5, 6.5], "allocated": [6.0, 6.25, 6.5], "ratios": {}} for mode in MODES for path in ("same-host", "tcp")]}
FAULTS = {"conditions": {**GOOD, "modes": []}, "results": [
    {"contestant": who, "title": title, "fault": "master <killed>", "runs": [{"keys": 1000 + turn, "recovered": recovered and recovered + turn, "lost_percent": lost} for turn in range(3)]}
    for who, title, recovered, lost in (("ours", "ours & files", 1.5, 0.0), ("original", "the <original>", None, 100.0))]}

TURNS = {"ttft_mean_s": 1.0, "input_tokens_per_s": 500.0, "between_tokens_s": 0.05, "first_turn_ttft_s": 0.5}
E2E = {"conditions": {**GOOD, "modes": [], "rounds": 7}, "parts": {
    "turns": {"data": {"ample": {name: [{key: value * times * (1 + turn / 100) for key, value in TURNS.items()} for turn in range(7)]
                                 for name, times in (("none", 4.0), ("ours", 1.0), ("original", 2.0))}}},
    "lmcache": {"data": {name: [{"ttft_s": ttft + turn / 100, "tokens_per_s": 100 / ttft} for turn in range(7)] for name, ttft in (("redis", 0.5), ("ours", 0.25), ("original", 1.0))}}}}


class Drawn(html.parser.HTMLParser):
    """{(heading, work, contestant): (least, median, most, all that its line says)}"""

    def __init__(self, text):
        super().__init__()
        self.found, self.tags, self.heading, self.work, self.who, self.open = {}, set(), "", None, None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.add(tag)
        assert not {"src", "href", "onload"} & set(values), "it loads nothing"
        if tag in ("h2", "h3"):
            self.heading = ""
        self.open.append(tag)
        self.work = values.get("data-work", self.work)
        if "data-who" in values:
            self.who = (self.heading, self.work, values["data-who"])
            self.found[self.who] = tuple(float(values[name]) for name in ("data-least", "data-median", "data-most") if name in values) + ("",)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass
        if tag == "g":
            self.who = None

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.heading += data
        elif self.who and self.open[-1] == "text":
            *ends, said = self.found[self.who]
            self.found[self.who] = (*ends, (said + " " + data).strip())


def reported(tmp_path, **kept):
    for name, document in kept.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    text = report.page(report.documents(tmp_path))
    return text, Drawn(text)


def expected(document, names):
    for row in document["rows"]:
        for name in names:
            if row[name]:
                yield row, name, [one(row[name]) * row.get("scale", 1.0) for one in (min, statistics.median, max)], figures.spread_of(row[name], row.get("scale", 1.0))


def agree(drawn, document, names):
    """How many lines there are of it; each with the numbers of the run, and no others are there."""
    count = 0
    for row, name, ends, said in expected(document, names):
        found = [line for (heading, work, who), line in drawn.found.items() if work == row["work"] and who == name and report.MODES[row["mode"]] in heading
                 and ("by TCP" in heading) == (row.get("path", "") == "tcp" or row["work"].startswith("TCP"))]
        assert len(found) == 1 and list(found[0][:3]) == ends, (row["work"], name)
        assert found[0][3] == f"{report.WHO[name]} {said}"
        count += 1
    return count


def test_the_report_has_each_contestant_and_its_spread(tmp_path):
    text, drawn = reported(tmp_path, store=STORE, engine=ENGINE, faults=FAULTS)
    lines = agree(drawn, STORE, ("ours", "original", "redis", "raw")) + agree(drawn, ENGINE, ("ours", "c", "allocated", "original", "nixl", "bare", "memcpy"))
    assert lines == 2 * (4 * 3 + 1) + 4 * 7
    assert drawn.found["Time to recover: s", "master <killed>", "ours"] == (1.5, 2.5, 3.5, "ours & files 2.5 (1.5-3.5)")
    assert drawn.found["Time to recover: s", "master <killed>", "original"] == ("the <original> never",)
    assert drawn.found["Keys lost: %", "master <killed>", "original"][:3] == (100.0, 100.0, 100.0) and len(drawn.found) == lines + 4
    for what in (GOOD["date"], f"tree {GOOD['tree']}", "2 cores of a processor", "3 round(s)", "1001 (1000-1002)"):
        assert what in text
    assert text.count("<svg") == text.count("the axis is") and "NOT TO BE QUOTED" not in text
    assert not {"script", "link", "img", "iframe"} & drawn.tags and "prefers-color-scheme: dark" in text and "url(" not in text and "@import" not in text


def test_the_report_and_the_table_of_the_engines(tmp_path):
    text, drawn = reported(tmp_path, **{"engine-e2e": E2E})
    work = "conversations that change the instance, ample local KV: mean time to the first token"
    assert drawn.found["Two vLLM servers on one store: s", work, "ours"] == (1.0, 1.03, 1.06, "ours 1.03 (1-1.06)")
    assert drawn.found["Two vLLM servers on one store: s", work, "none"][3] == "no store 4.12 (4-4.24)" and text.count("Not measured yet") == 3
    assert ("Two vLLM servers on one store: tokens/s", "LMCache, one prompt on both instances: throughput there", "redis") in drawn.found and len(drawn.found) == 4 * 3 + 2 * 3
    table = figures.e2e_table(E2E)
    assert "| mean time to the first token | s | 4.12 (4-4.24) | 1.03 (1-1.06) | 2.06 (2-2.12) | 2.00 (2.00-2.00)x |" in table
    assert "| throughput of input | tokens/s | 2.06e+03 (2e+03-2.12e+03) | 515 (500-530) | 1.03e+03 (1e+03-1.06e+03) | 0.50 (0.50-0.50)x |" in table
    assert [line for line in table if line.startswith("| work")][1] == "| work | unit | Redis | ours | the original | ours times as good as the original |"


def test_a_median_is_sure_by_enough_rounds_alone():
    """By counting: so many of all draws of N rounds have the true median between these two."""
    assert figures.surely([1.0, 2.0, 3.0, 4.0, 5.0]) is None and figures.surely([]) is None
    assert figures.surely([6.0, 2.0, 3.0, 5.0, 4.0, 1.0]) == (1.0, 6.0) and figures.surely(list(range(8))) == (0, 7) and figures.surely(list(range(9))) == (1, 7)
    for count in (6, 7, 8, 9, 12):
        least, most = figures.surely(list(range(count)))
        # Each round lies above the median or below it, as a coin falls; the median is outside where fewer than so many lie on one side.
        outside = sum(1 for coins in range(2**count) if not least < bin(coins).count("1") <= most)
        assert outside / 2**count <= 0.05


def test_a_round_without_an_end_hides_no_other(tmp_path):
    runs = [{"keys": 1000, "recovered": recovered, "lost_percent": 0.0} for recovered in (2.5, None, 1.5)]
    _, drawn = reported(tmp_path, faults={**FAULTS, "results": [{**FAULTS["results"][0], "runs": runs}]})
    assert drawn.found["Time to recover: s", "master <killed>", "ours"] == (1.5, 2.0, 2.5, "ours & files 2 (1.5-2.5), never in 1 of 3")


def test_the_report_installs_nothing(tmp_path):
    """It only draws what was kept."""
    for name in ("dpkg-query", "apt-get", "sudo"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run([SOURCE / "dev", "bench", "report", f"--out={tmp_path}/page.html"], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "page.html").exists() and not (tmp_path / "asked").exists(), done


def test_the_report_escapes_what_others_are_named(tmp_path):
    text, drawn = reported(tmp_path, store=STORE, faults=FAULTS)
    assert "<b>" not in text and "put 4 KiB &lt;b&gt;&amp;&quot;p50&quot;" in text and "<original>" not in text and "ours &amp; files" in text
    assert "b" not in drawn.tags and "original" not in drawn.tags


def test_the_report_says_what_is_not_measured_and_what_may_not_be_quoted(tmp_path):
    text, drawn = reported(tmp_path)
    assert text.count("Not measured yet by these rules") == len(figures.NAMES) == 4 and drawn.found == {}
    for name in ("store-20260101-000000", "store-20260102-000000"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**STORE, "conditions": {**GOOD, "rounds": 1, "date": name}}))
    text = report.page(report.documents(tmp_path, "20260101"))
    assert "NOT TO BE QUOTED: 1 round(s), fewer than 3" in text and "store-20260102" in text and "store-20260101" not in text
    assert "store-2026" not in report.page(report.documents(tmp_path, "20260103"))


def test_the_report_of_what_is_kept():
    text = report.page(report.documents(SOURCE / "bench"))
    drawn = Drawn(text)
    for name, names in (("store", ("ours", "original", "redis", "raw")), ("engine", ("ours", "c", "allocated", "original", "nixl", "bare", "memcpy"))):
        document = json.loads((SOURCE / "bench" / f"{name}.json").read_text())
        assert agree(drawn, document, names) > 100
        assert html.escape(figures.where_and_when(document["conditions"])) in text
