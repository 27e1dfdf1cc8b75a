#!/usr/bin/env python3
"""The documents as a site of HTML: make_site.py PYTHONPATH TARGET

Pages are the Markdown files of the checkout, in the order of NAVIGATION, beside those that interfaces.py makes of headers, stubs and kept measurements; a file that a page links to is shown
as a page of its own. Nothing is fetched by whoever reads the site: one stylesheet, one script, an index for the search that the script reads. The same checkout
gives the same bytes. A link or an anchor that leads nowhere is an error, and nothing is left in TARGET then.
"""
import html
import html.parser
import json
import pathlib
import posixpath
import re
import shutil
import sys

import markdown
from markdown.extensions.toc import TocExtension

import interfaces

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")  # https:, mailto:

NAVIGATION = (
    ("Start", ("README.md", "docs/python.md", "docs/proxy.md", "docs/migration.md", "docs/status.md", "docs/glossary.md")),
    ("Integrations", ("examples/README.md", "examples/fastdeploy/README.md", "examples/vllm-store/README.md", "examples/lmcache/README.md",
                      "examples/kubernetes-rbg/README.md", "examples/vllm-connector/README.md")),
    ("Operations", ("docs/operations.md", "docs/deploy.md", "docs/security.md", "SECURITY.md", "docs/disk.md", "docs/connections.md", "docs/limits.md",
                    "docs/versions.md")),
    ("Reference", ("docs/commands.md", "docs/metrics.md", "reference/master.md", "reference/store.md", "reference/python.md", "reference/c.md", "docs/bindings.md",
                   "docs/compatibility.md", "reference/figures.md")),
    ("Design", ("ARCHITECTURE.md", "docs/life.md", "docs/ordering.md", "docs/network.md", "docs/protocol.md", "docs/transfer.md", "docs/rdma.md", "docs/threads.md",
                "docs/decisions.md")),
    ("Development", ("CONTRIBUTING.md", "bench/README.md", "sim/README.md")),
)


def slug(text, _separator):
    """An anchor as GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def address(path):
    """Where the page of a Markdown file lies in the site."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, "index.html" if name == "README.md" else name[:-3] + ".html")


def apart(text):
    """A list may follow a paragraph's line at once on GitHub; the library wants an empty line between them."""
    lines, is_code = [], False
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        before = lines[-1] if lines else ""
        if not is_code and re.match(r"(-|1\.) ", line) and before.strip() and not re.match(r"\s|-|#|\d+\. ", before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def relative(target, page):
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


class Site:
    def __init__(self, source, made):
        """made: {path: Markdown} of pages that are no files."""
        self.source, self.made = source, made
        self.paths = [path for _, paths in NAVIGATION for path in paths]
        self.files = {}  # what is shown of the checkout beside the pages: {path: address}
        self.index = []

    def text(self, path):
        return self.made[path] if path in self.made else (self.source / path).read_text()

    def target(self, path, link):
        """The address in the site of what a page links to."""
        name, _, anchor = link.partition("#")
        if ELSEWHERE.match(link) or not name:
            return link
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if found in self.paths:
            to = address(found)
        elif (self.source / found / "README.md").is_file() and f"{found}/README.md" in self.paths:
            to = address(f"{found}/README.md")
        elif (self.source / found).exists():
            to = self.files.setdefault(found, f"source/{found}.html")
        else:
            return link  # the checker says so
        return relative(to, address(path)) + ("#" + anchor if anchor else "")

    def body(self, path):
        """(title, HTML, contents) of a page."""
        converter = markdown.Markdown(extensions=["fenced_code", "tables", "sane_lists", TocExtension(slugify=slug, toc_depth="2-3")], output_format="html", tab_length=2)
        text = converter.convert(apart(self.text(path)))
        text = re.sub(r'(<a href=")([^"]*)(")', lambda link: link[1] + html.escape(self.target(path, html.unescape(link[2]))) + link[3], text)
        text = text.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
        title = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.S)
        if title is None:
            raise SystemExit(f"{path}: no heading")
        return re.sub(r"<[^>]+>", "", title[1]), text, contents(converter.toc_tokens)

    def page(self, template, where, title, text, contents, navigation):
        root = relative(".", where)
        values = {"title": title, "root": root, "navigation": navigation, "contents": contents, "text": text}
        return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], template)

    def navigation(self, titles, where):
        parts = []
        for section, paths in NAVIGATION:
            rows = "".join(f'<li><a href="{relative(address(path), where)}"{" aria-current=page" if address(path) == where else ""}>{titles[path]}</a></li>\n' for path in paths)
            parts.append(f"<h2>{section}</h2>\n<ul>\n{rows}</ul>\n")
        return "".join(parts)

    def build(self):
        """{address: content}"""
        template = (HERE / "page.html").read_text()
        bodies = {path: self.body(path) for path in self.paths}
        titles = {path: title for path, (title, _, _) in bodies.items()}
        found = {}
        for path, (title, text, below) in bodies.items():
            where = address(path)
            found[where] = self.page(template, where, title, text, below, self.navigation(titles, where))
            self.index += sections(where, title, text)
        for path, where in sorted(self.files.items()):
            title = html.escape(path)
            found[where] = self.page(template, where, title, f"<h1>{title}</h1>\n<pre><code>{html.escape(shown(self.source / path))}</code></pre>", "", self.navigation(titles, where))
        found["search-index.js"] = "window.searchIndex = " + json.dumps(self.index, ensure_ascii=False, separators=(",", ":")).replace("],[", "],\n[") + ";\n"
        for name in ("style.css", "search.js"):
            found[name] = (HERE / name).read_text()
        return found


def shown(path):
    """A file's text; of a folder, what lies in it."""
    if path.is_dir():
        return "".join(f"{one.name}{'/' * one.is_dir()}\n" for one in sorted(path.iterdir()) if not one.name.startswith((".", "__")))
    return path.read_text()


def contents(tokens):
    """A page's own headings, if there are several."""
    rows = [one for token in tokens for one in (token["children"] if token["level"] == 1 else [token])]
    if len(rows) < 2:
        return ""
    return '<nav class="contents" aria-label="On this page"><ul>\n' + "".join(f'<li><a href="#{row["id"]}">{row["name"]}</a></li>\n' for row in rows) + "</ul></nav>"


def sections(where, title, text):
    """[address, page, heading, words] of each heading of a page, for the search."""
    parts = re.split(r'<h[1-6] id="([^"]*)">(.*?)</h[1-6]>', text)
    for anchor, head, below in zip(parts[1::3], parts[2::3], parts[3::3]):
        words = html.unescape(re.sub(r"<[^>]+>", " ", below))
        yield [f"{where}#{anchor}", html.unescape(title), html.unescape(re.sub(r"<[^>]+>", "", head)), " ".join(words.split())]


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.add(values["id"])
        link = values.get("href") if tag in ("a", "link") else values.get("src")
        if link is not None:
            self.links.append(link)
            if tag != "a":
                self.loaded.append(link)


def broken(pages):
    """["page: link"] of what leads nowhere, and of what a page would have to fetch from elsewhere."""
    seen = {where: Links(text) for where, text in pages.items() if where.endswith(".html")}
    wrong = []
    for where, page in seen.items():
        wrong += [f"{where}: loads {link}" for link in page.loaded if ELSEWHERE.match(link) or link.startswith("//")]
        for link in page.links:
            name, _, anchor = link.partition("#")
            if ELSEWHERE.match(link):
                continue
            to = posixpath.normpath(posixpath.join(posixpath.dirname(where), name)) if name else where
            if to not in pages or (anchor and anchor not in (seen[to].ids if to in seen else ())):
                wrong.append(f"{where}: {link}")
    return wrong


def unlisted(source):
    """Pages of the checkout that the navigation does not have."""
    every = {str(path.relative_to(source)) for path in source.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(source).parts)}
    return sorted(path for path in every - {path for _, paths in NAVIGATION for path in paths} if not path.startswith("dist/"))


def main(python_path, target):
    target = pathlib.Path(target)
    pages = Site(SOURCE, interfaces.pages(SOURCE, pathlib.Path(python_path))).build()
    wrong = broken(pages) + [f"{path}: not in the navigation" for path in unlisted(SOURCE)]
    shutil.rmtree(target, ignore_errors=True)
    if wrong:
        raise SystemExit("".join(f"broken: {line}\n" for line in wrong) + f"{len(wrong)} broken links; no site was written")
    for where, text in sorted(pages.items()):
        (target / where).parent.mkdir(parents=True, exist_ok=True)
        (target / where).write_text(text)
    print(f"{sum(where.endswith('.html') for where in pages)} pages, {sum(len(text.encode()) for text in pages.values()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
