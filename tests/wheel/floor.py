#!/usr/bin/env python3
"""Is a wheel's tag true? Every ELF file in it is for the tag's processor, needs no library but those of glibc and those that it finds beside itself,
and no symbol of glibc's that is newer than the glibc of the tag (manylinux_2_28_x86_64: 2.28): the loader of such a system finds all it asks for.
And the modules have names by which the tag's Python finds them (cp313-cp313t: thing.cpython-313t-...so).

floor.py WHEEL...     exits 1 and names each symbol, library or file that breaks the promise
"""
import re
import subprocess
import sys
import tempfile
import zipfile

MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
TAG = re.compile(r"-manylinux_(\d+)_(\d+)_(\w+?)\.whl$")
PYTHON_TAG = re.compile(r"-cp(\d+)-(abi3|cp\1t?)-manylinux_")
MODULE = re.compile(r"\.(abi3|cpython-\w+)(?:-[\w-]+)?\.so$")
MACHINE = re.compile(r"^ *Machine: +(.*)$", re.M)
NEEDED = re.compile(r"\(NEEDED\) .*\[(.*)\]")
SEARCHED = re.compile(r"\((?:RPATH|RUNPATH)\) .*\[(.*)\]")
VERSION = re.compile(r" Name: (\S+) +Flags: ")
# value, size, type, binding, visibility, UND, name[@version]
DEFINED = re.compile(r"^ *\d+: [0-9a-f]+ +\S+ +\S+ +(?:GLOBAL|WEAK) +\S+ +\d+ ([^@\s]+)", re.M)
UNDEFINED = re.compile(r"^ *\d+: [0-9a-f]+ +\S+ +\S+ +(\S+) +\S+ +UND ([^@\s]+)(?:@+(\S+))?", re.M)


def readelf(path):
    """All that is asked, in one text; an ELF file that readelf does not understand is an error."""
    run = subprocess.run(["readelf", "--wide", "--file-header", "--dynamic", "--dyn-syms", "--version-info", path],
                         capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    return run.stdout


def is_above(version, floor):
    """Is that version of a symbol not in that glibc? GLIBC_PRIVATE and GLIBC_ABI_... are promised by no tag."""
    number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
    return number is None or (int(number[1]), int(number[2])) > floor


def problems_of(text, floor, machine, others):
    """What keeps a file with these headers from being loaded on a system of that floor. others: those of the wheel's files in its folder, by name."""
    is_searched = any(part.rstrip("/") == "$ORIGIN" for path in SEARCHED.findall(text) for part in path.split(":"))
    beside = {name: other for name, other in others.items() if is_searched and name in NEEDED.findall(text)}
    offered = {name for other in beside.values() for name in DEFINED.findall(other)}
    found = MACHINE.search(text)
    if found is None or found[1] != MACHINES[machine]:
        yield f"is for {found and found[1]}, not {machine}"
    for library in NEEDED.findall(text):
        if library not in LIBRARIES and library not in beside:
            yield f"needs {library}"
    for path in SEARCHED.findall(text):
        if any(not part.startswith("$ORIGIN") for part in path.split(":")):
            yield f"looks for libraries in {path}"
    named = set()
    for binding, name, version in UNDEFINED.findall(text):
        if version:
            named.add(version)
            if is_above(version, floor):
                yield f"needs {name}, {version}"
        elif binding != "WEAK" and not re.match("_?Py", name) and name not in offered:
            yield f"needs {name}, of no library's version"
    for version in set(VERSION.findall(text)) - named:  # the loader wants it though no symbol has it
        if is_above(version, floor):
            yield f"needs the version {version}"


def names_unfit(wheel, names):
    """Modules that the Python of the tag does not find: it looks for its own suffix, and for abi3's where it has a stable interface."""
    tag = PYTHON_TAG.search(wheel)
    wanted = tag and tag[2].replace("cp", "cpython-")
    return [name for name in names if (module := MODULE.search(name)) and module[1] != wanted]


def check(wheel):
    """(problems, number of ELF files, newest version that one of them needs)"""
    tag = TAG.search(wheel)
    if tag is None or tag[3] not in MACHINES:
        return [f"{wheel}: its tag promises nothing: no manylinux_2_NN_ARCHITECTURE"], 0, ""
    floor, texts, newest = (int(tag[1]), int(tag[2])), {}, (0, 0)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if content[:4] != b"\x7fELF":
                continue
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                texts[name] = readelf(file.name)
            newest = max([newest, *((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", texts[name]))])
    problems, count = [f"{wheel}: {name} is not for the Python of its tag" for name in names_unfit(wheel, texts)], len(texts)
    for name, text in texts.items():
        folder = name.rpartition("/")[0]
        others = {path.rpartition("/")[2]: other for path, other in texts.items() if path.rpartition("/")[0] == folder}
        problems += [f"{wheel}: {name} {problem}" for problem in problems_of(text, floor, tag[3], others)]
    if count == 0:
        problems.append(f"{wheel}: holds no ELF file")
    return problems, count, "%d.%d" % newest


def main(wheels):
    bad = not wheels
    for wheel in wheels:
        problems, count, newest = check(wheel)
        print("\n".join(problems) if problems else f"{wheel}: {count} ELF files, none needs more than glibc {newest}")
        bad = bad or bool(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
