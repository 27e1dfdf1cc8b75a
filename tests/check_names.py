#!/usr/bin/env python3
"""Names in the source: one tag is one thing, comments name files that are there, headers are included, functions are called, statics say
what they do.

check_names.py [CHECKOUT]. Exits 1 and names what breaks a rule. Without argument: the checkout this file lies in.
"""
import collections
import pathlib
import re
import sys

FOLDERS = ("src", "include", "tests", "sim", "fuzz", "bench", "examples", "packaging", "python")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
TAG = re.compile(r"^[ \t]*(?:(?:static|const|typedef) )*(?:struct|enum|union) (\w+) \{", re.M)  # of sources and within others, too
FILE = re.compile(r"(?<![\w./])((?:\w+/)*\w+\.(?:c|h|py|def))\b(?!\.)")
HEAD = r"^(?:[a-z_]\w*[\s*]+)+(\w+)\([^;{}]*\)"  # what a function begins with, at the left margin
DEFINITION, DECLARATION = re.compile(HEAD + r"\n\{", re.M), re.compile(HEAD + r";", re.M)
# What others call: the C interfaces, Python's entry points, tests of cmocka.
PUBLIC = ("mooncake.h", "mooncake_engine.h", "store_c.h", "transfer_engine_c.h")
# A static of such a name is found by no search: its name says what it does to what.
BARE = re.compile(r"^static [\w\s*]*\b(add|advance|begin|check|fail|find|get|give|heard|look|meet|mounted|moved|problem|put|stored|take)\(", re.M)
SYSTEM = re.compile(r"^(sys|net|netinet|arpa|linux|event2)/")


def sources(root):
    """{path below the root: its text} of all C and Python."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".py", ".def") and "__pycache__" not in path.parts:
                found[path.relative_to(root)] = path.read_text(encoding="utf-8", errors="replace")
    return found


def is_product(path):
    return path.parts[0] in ("src", "include") or path.parts[:2] == ("bench", "tool")


def doubled_tags(texts):
    places = collections.defaultdict(list)
    for path, text in texts.items():
        if is_product(path):
            for tag in TAG.findall(text):
                places[tag].append(str(path))
    return [f"{tag} is {len(where)} things: {', '.join(where)}" for tag, where in sorted(places.items()) if len(where) > 1]


def missing_files(texts):
    there = {str(path) for path in texts}
    problems = []
    for path, text in texts.items():
        if path.suffix not in (".c", ".h", ".def") or path.parts[0] not in ("src", "include", "sim", "bench"):
            continue
        for comment in COMMENT.findall(text):
            for name in FILE.findall(comment):
                if not SYSTEM.match(name) and not any(one == name or one.endswith("/" + name) for one in there):
                    problems.append(f"{path}: a comment names {name}, which is not there")
    return problems


def unused_headers(texts):
    included = {name for path, text in texts.items() if path.suffix in (".c", ".h") for name in re.findall(r'#\s*include "([^"]+)"', text)}
    return [f"{path}: nobody includes it" for path in texts
            if is_product(path) and path.parts[0] != "include" and path.suffix in (".h", ".def") and not any(str(path).endswith("/" + name) for name in included)]


def uncalled(texts):
    """Functions with a name for all that occurs where it is defined and declared, and nowhere else."""
    public = "".join(text for path, text in texts.items() if path.name in PUBLIC)
    defined, known, words = {}, collections.Counter(), collections.Counter()
    for path, text in texts.items():
        if path.suffix == ".py":
            words.update(re.findall(r"\w+", text))
            continue
        plain = COMMENT.sub("", text)
        words.update(re.findall(r"\w+", plain))
        for pattern in (DEFINITION, DECLARATION):
            for match in pattern.finditer(plain):
                known[match.group(1)] += 1
                if pattern is DEFINITION and is_product(path) and not match.group(0).startswith("static"):
                    defined[match.group(1)] = path
    pasted = tuple(re.findall(r"(\w+)##", "".join(text for path, text in texts.items() if path.suffix != ".py")))  # names that macros make
    return [f"{path}: nobody calls {name}" for name, path in sorted(defined.items())
            if words[name] <= known[name] and name != "main" and not name.startswith(pasted) and not re.search(rf"\b{name}\b", public)]


def bare_statics(texts):
    return [f"{path}: a static named {name} says not what it does to what" for path, text in texts.items()
            if path.parts[0] == "src" and path.suffix == ".c" for name in BARE.findall(text)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    texts = sources(root)
    problems = [problem for rule in (doubled_tags, missing_files, unused_headers, uncalled, bare_statics) for problem in rule(texts)]
    for problem in problems:
        print(problem)
    print(f"{len(texts)} files, {len(problems)} problems")
    return 1 if problems or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
