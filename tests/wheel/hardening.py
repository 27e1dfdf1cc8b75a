#!/usr/bin/env python3
"""Has what was built the protections that meson.build asks compiler and linker for? What each looks like in an ELF file.

hardening.py FILE...     programs, shared objects, or wheels, of which each ELF file; exits 1 and names what is missing in which
"""
import re
import subprocess
import sys
import tempfile
import zipfile

LARGE = 64 << 10  # bytes of code, in which there is a function of each kind that is protected
LARGEST_WITHOUT_FORTIFY = 160 << 10  # clang calls a checked function only where it knows the size and cannot prove the use: rarely
ENTRIES_LEAST = 16 << 10  # bytes of code for each place that an indirect branch may reach, at most
ENTRY = b"\xf3\x0f\x1e\xfa"  # endbr64
# A page of a large frame is touched before the next one is used: or, and by clang mov, of zero to where the stack pointer points.
PROBES = (b"\x48\x83\x0c\x24\x00", b"\x48\xc7\x04\x24\x00\x00\x00\x00")


def readelf(path):
    return subprocess.run(["readelf", "--wide", "--file-header", "--program-headers", "--section-headers", "--dynamic", "--dyn-syms", path],
                          capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def code_of(text, content):
    found = re.search(r"\] \.text +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", text)
    return b"" if found is None else content[int(found[1], 16):int(found[1], 16) + int(found[2], 16)]


def problems_of(text, code):
    """text: what readelf says. code: the bytes of .text"""
    if not re.search(r"^ *GNU_STACK .* RW +0", text, re.M):
        yield "its stack may be executed"
    if "GNU_RELRO" not in text or not re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", text):
        yield "its table of functions can be written (no full RELRO)"
    if "(TEXTREL)" in text:
        yield "its code is written when it is loaded"
    if not re.search(r"Type: +DYN ", text) or (" INTERP " in text and not re.search(r"\(FLAGS_1\).* PIE", text)):
        yield "lies at a fixed address (no PIE)"
    if len(code) < LARGE:
        return
    named = set(re.findall(r" UND (\w+)", text))
    if "__stack_chk_fail" not in named:
        yield "has no stack protector"
    if "X86-64" in text and code.count(ENTRY) * ENTRIES_LEAST < len(code):
        yield "has no places for indirect branches (-fcf-protection)"
    if "X86-64" in text and not any(probe in code for probe in PROBES):
        yield "touches no pages of its stack (-fstack-clash-protection)"


def is_fortified(text):
    return re.search(r" UND __(?!stack)\w+_chk", text) is not None


def check(path):
    """(problems, number of ELF files)"""
    contents = {}
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            contents = {f"{path}: {name}": archive.read(name) for name in archive.namelist()}
    else:
        with open(path, "rb") as file:
            contents = {path: file.read()}
    problems, count, code_size, fortified = [], 0, 0, False
    for name, content in contents.items():
        if content[:4] != b"\x7fELF":
            continue
        count += 1
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            text = readelf(file.name)
        code_size, fortified = max(code_size, len(code_of(text, content))), fortified or is_fortified(text)
        problems += [f"{name} {problem}" for problem in problems_of(text, code_of(text, content))]
    # Of a wheel, whose files are compiled alike, some file has to have it: of one alone the linker may leave out every function that needs it.
    if code_size > LARGEST_WITHOUT_FORTIFY and not fortified:
        problems.append(f"{path} has no FORTIFY_SOURCE")
    return (problems if count > 0 else [f"{path} holds no ELF file"]), count


def main(paths):
    bad = not paths
    for path in paths:
        problems, count = check(path)
        print("\n".join(problems) if problems else f"{path}: {count} ELF files, all protected")
        bad = bad or bool(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
