#!/usr/bin/env python3
"""The shape of the source: includes point downward only, files stay under 1,000 lines, long functions are listed.

check_includes.py [CHECKOUT]. Exits 1 and names every line that breaks a rule. Without argument: the checkout this file lies in.
"""
import pathlib
import re
import sys

FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 60  # longer ones are reported; a table of cases may be right as it is

# Each room and what it may include besides itself and include/mooncake.h.
ALLOWED = {
    "base": (),
    "env": ("base",),
    "wire": ("base", "env"),
    "device": ("base", "env"),
    "rdma": ("base", "env"),
    "engine": ("base", "env", "wire", "device", "rdma"),
    "transfer": ("base", "env", "device", "rdma"),
    "master": ("base", "env", "wire", "engine", "web"),
    "store": ("base", "env", "wire", "device", "engine", "rdma"),
    "proxy": ("base", "env"),
    "web": (),
    "service": ("base", "env"),  # and the store by its public header alone
    "doctor": ("base", "env", "wire", "rdma", "transfer"),
    "cmd": ("base", "env", "wire", "engine", "master", "store", "service", "proxy", "rdma", "transfer", "doctor"),
    "python": ("base", "env", "device", "store", "transfer"),
}
# The master's core is pure: no socket, clock, thread or file, so not all of the rooms below it.
CORE_ALLOWED = re.compile(r"(base|wire|master)/|engine/layout\.h$|mooncake\.h$")
CORE_SYSTEM_FORBIDDEN = re.compile(r"(sys/(socket|epoll|mman|time|uio)|pthread|unistd|fcntl|time|netdb|arpa/.*|netinet/.*|event2/.*|stdatomic|threads)\.h$")


def shell_stems(root):
    """Names of the files of the master's shell, as the one source list has them. What else lies in src/master is the core."""
    listed = re.search(r"master_src = files\((.*?)\)", (root / "meson.build").read_text(encoding="utf-8"), re.S)
    return {pathlib.PurePath(name).stem for name in re.findall(r"'([^']+)'", listed.group(1))}


def check_include(path, room, name, quoted, shell):
    if room == "master" and path.stem not in shell:
        if quoted and not CORE_ALLOWED.match(name):
            return f"the master's core must not include {name}"
        if quoted and name.startswith("master/") and pathlib.PurePath(name).stem in shell:
            return f"the master's core must not include its shell, {name}"
        if not quoted and CORE_SYSTEM_FORBIDDEN.match(name):
            return f"the master's core is pure; <{name}> is not"
    if not quoted or name in ("mooncake.h", "mooncake_engine.h", "transfer_engine_c.h"):
        return None
    target = name.split("/")[0] if "/" in name else None
    if target is None:
        return f'"{name}" must be written with its folder'
    if target not in ALLOWED:
        return f"{name} is in no known room"
    if target != room and target not in ALLOWED[room]:
        return f"{room} must not include {name}: includes point downward only"
    return None


def function_lengths(lines):
    """(name, line, length) of every function, by the house's brace style: the body's braces stand in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            head = " ".join(lines[max(0, start - 4):start - 1])
            names = re.findall(r"(\w+)\(", head)
            yield (names[-1] if names else "?", start, number - start + 1)
            start = None


def check_file(path, room, shell, problems, long_functions):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) >= FILE_LINES_MAX:
        problems.append(f"{path}: {len(lines)} lines; the limit is {FILE_LINES_MAX}")
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match and room:
            problem = check_include(path, room, match.group(2), match.group(1) == '"', shell)
            if problem:
                problems.append(f"{path}:{number}: {problem}")
    if path.suffix == ".c":
        long_functions += [(length, f"{path}:{start}", name) for name, start, length in function_lengths(lines) if length > FUNCTION_LINES_MAX]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    problems, long_functions, count = [], [], 0
    shell = shell_stems(root)
    for path in sorted((root / "src").rglob("*.[ch]")):
        room = path.relative_to(root / "src").parts[0]
        if room not in ALLOWED:
            problems.append(f"{path}: no such room as {room}; say in tests/check_includes.py what it may include")
            room = None
        check_file(path, room, shell, problems, long_functions)
        count += 1
    for folder in ("include", "tests", "fuzz", "bench", "sim", "python"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".py", ".sh", ".pyi") and "__pycache__" not in path.parts:
                check_file(path, None, shell, problems, long_functions)
                count += 1
    for length, place, name in sorted(long_functions, reverse=True):
        print(f"note: {place}: {name} has {length} lines")
    for problem in problems:
        print(problem)
    if count == 0:
        print(f"{root}: no source found")
    print(f"{count} files, {len(problems)} problems, {len(long_functions)} functions over {FUNCTION_LINES_MAX} lines")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
