"""The site that ./dev docs makes, and the manual pages: what is in them, that a broken link stops it, that the search finds."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
PROGRAM = SOURCE / "packaging" / "site" / "make_site.py"
sys.path[:0] = [str(PROGRAM.parent), str(SOURCE / "bench")]

import interfaces  # noqa: E402
import make_site  # noqa: E402
import report  # noqa: E402


def make(target, hash_seed="1"):
    return subprocess.run([sys.executable, "-B", str(PROGRAM), os.environ["MC_PYTHONPATH"], str(target)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": f"UTC{hash_seed}"})


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("made") / "site"
    result = make(target)
    assert result.returncode == 0, result.stderr
    return target


def test_twice_the_same_bytes(site, tmp_path):
    assert make(tmp_path / "site", "7").returncode == 0
    assert files(tmp_path / "site") == files(site)


def test_every_page_is_there(site):
    assert make_site.unlisted(SOURCE) == []
    for _, paths in make_site.NAVIGATION:
        for path in paths:
            text = (site / make_site.address(path)).read_text()
            assert "<h1" in text and text.count("aria-current") == 1, path


def test_nothing_is_fetched(site):
    for name, content in files(site).items():
        if name.endswith((".html", ".css")):
            assert not re.search(rb'(?:src|<link[^>]*href)="[a-z]*:?//|@import|url\(', content), name


def test_interfaces(site):
    """Each function of the headers and each method of the stubs has a heading of its own."""
    page = (site / "reference" / "c.html").read_text()
    for name in interfaces.HEADERS:
        declared = re.findall(r"API [^;{]*?\b([a-zA-Z]\w+)\(", (SOURCE / "include" / name).read_text())
        assert len(declared) > 5
        for function in declared:
            assert re.search(rf"<h3[^>]*>[^<]*\b{function}\b", page), function
    page = (site / "reference" / "python.html").read_text()
    for stub in interfaces.STUBS:
        for name in re.findall(r"^    (?:async )?def ([a-z]\w*)\(", (SOURCE / "python" / "mooncake" / f"{stub}.pyi").read_text(), re.M):
            assert re.search(rf"<h4[^>]*>{stub}\.\w+\.{name}<", page), name
    assert "existing key keeps its value" in (site / "reference" / "store.html").read_text()


def test_the_figures_have_their_plots(site):
    """Those that bench/report.py draws, whole; the library leaves them as they are."""
    page = (site / "reference" / "figures.html").read_text()
    drawn = report.markdown()
    assert page.count("<svg") == drawn.count("<svg") > 20
    assert all(plot in page for plot in re.findall(r"<svg.*?</svg>", drawn, re.S))


BAD = {"[here](nowhere.md)": "nowhere.md", "[here](deploy.md#nothing)": "deploy.html#nothing", "[here](#nothing)": "#nothing", '<img src="https://example.com/a.png">': "loads"}


@pytest.mark.parametrize("text", BAD)
def test_a_broken_link_stops_it(text):
    class Broken(make_site.Site):
        def text(self, path):
            return super().text(path) + (f"\n\n{text}\n" if path == "docs/limits.md" else "")

    pages = Broken(SOURCE, interfaces.pages(SOURCE, pathlib.Path(os.environ["MC_PYTHONPATH"]))).build()
    assert [line for line in make_site.broken(pages) if line.startswith("docs/limits.html") and BAD[text] in line] == make_site.broken(pages) != []


def test_lists_and_anchors_are_those_of_github():
    assert make_site.slug("HTTP on `metrics_port`".replace("`", ""), "-") == "http-on-metrics_port"
    assert make_site.apart("words:\n- one\n- two\n  more\n```\na\n- b\n```") == "words:\n\n- one\n- two\n  more\n```\na\n- b\n```"


def chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(chromium() is None, reason="no browser here")
def test_the_search_finds(site):
    def shown(page):
        words = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom", f"file://{site}/{page}"]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<ol id="found">(.*?)</ol>', shown("docs/limits.html#search=RPC_FAIL%20firewall"), re.S)[1]
    assert re.match(r'<li><a href="\.\./docs/operations\.html#by-error-code">', found) and "<mark>firewall</mark>" in found
    assert "Nothing found." in shown("index.html#search=zyxwvut")


PAGES = sorted((SOURCE / "packaging" / "manual" / "man1").glob("*.1"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_manual_pages(page):
    """groff has nothing to say of it, and shows each flag."""
    result = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-ww", str(page)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == ""
    flags = re.findall(r"^\.B \\-\\-(\w+)", page.read_text(), re.M)
    assert f"\nNAME\n       {page.stem} - " in result.stdout
    assert flags or page.stem == "mooncake_bench"
    for flag in flags:
        assert f"--{flag}" in result.stdout, flag
