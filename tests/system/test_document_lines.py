"""No command line of the documents that users follow is without a test: documents.py is the list. And no line of our own is too long."""
import ast
import os
import pathlib
import re

import pytest

from documents import FILES, LINES
from test_documents import pages

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
TESTS = [*(SOURCE / "tests" / "system").glob("test_*.py"), *(SOURCE / "tests" / "faults").glob("test_*.py")]
COLUMNS = 120
# How a command line, a block of environment or a configuration begins.
COMMAND = re.compile(r"\s*-?\s*\"?(mooncake_\w+( |$)|python3? -|python3? \S+\.py|curl |pip3? |uv pip |git |bash |cd |etcd -|vllm serve|(sudo )?ps aux|netstat|ss -|kill |find /|kubectl |"
                     r"ibv_\w+|grep |export \w+=|[A-Z][A-Z0-9_]+=\S+|- name: MOONCAKE|- name: POD_IP|\{$|chunk_size:)")


def documents():
    folder = SOURCE.parent / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("the documents are not beside this checkout")
    for document, number in FILES.items():
        [path] = folder.glob(number + "_*.txt")
        yield document, path.read_text().splitlines()


def functions():
    """The source of each test that may be named; of the program of network namespaces all of it."""
    found = {}
    for path in TESTS:
        source = path.read_text()
        lines = source.splitlines()
        found.update({one.name: "\n".join(lines[one.lineno - 1:one.end_lineno]) for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)})
    found["test_the_roles_of_the_document"] += (SOURCE / "tests" / "faults" / "kubernetes.py").read_text()
    return found


def test_each_is_taken_by_its_test():
    tests = functions()
    for name, (test, _) in LINES.items():
        if test.startswith("not here: "):
            continue
        assert test in tests, f"{name}: there is no {test}"
        document, line = name.split(":")
        # A test that takes many lines in a loop says so: ("lmcache", 65, 66)
        ranges = re.findall(rf'\("{document}", (\d+), (\d+)\)', tests[test])
        assert f'"{name}"' in tests[test] or any(int(first) <= int(line) <= int(last) for first, last in ranges), f"{name}: {test} does not take it"


def test_each_stands_in_the_document():
    for document, lines in documents():
        for name, (_, text) in LINES.items():
            if name.startswith(document + ":"):
                first = int(name.split(":")[1])
                below = [line for line in lines[first - 1:] if not line.strip().startswith("#")]
                for i, line in enumerate(one for one in text.splitlines()):
                    assert " ".join(line.split()) in " ".join(below[i].split()), (name, line, below[i])


def test_no_command_of_the_documents_is_missing():
    for document, lines in documents():
        covered = set()
        for name, (_, text) in LINES.items():
            if name.startswith(document + ":"):
                first = int(name.split(":")[1])
                covered.update(range(first, first + len(text.splitlines())))
        missing = [(i, line) for i, line in enumerate(lines, 1) if COMMAND.match(line) and i not in covered]
        assert not missing, document


def test_no_line_is_too_long():
    """Of any document of ours: prose, rows of tables, what stands in blocks."""
    documents = pages() | {path: path.read_text() for path in (SOURCE / "NOTICE", SOURCE / "LICENSE", SOURCE / "traces" / "NOTICE")}
    long = [f"{path.relative_to(SOURCE)}:{i}" for path, text in documents.items() for i, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]
    assert not long, f"longer than {COLUMNS} columns"
