#!/usr/bin/env python3
"""The shape of the source: includes point downward only, files stay under 1,000 lines and lines within 120 columns, long functions
are listed.

check_includes.py [CHECKOUT]. Exits 1 and names every line that breaks a rule. Without argument: the checkout this file lies in.
"""
import pathlib
import re
import sys

FILE_LINES_MAX = 1000
LINE_COLUMNS_MAX = 120  # of C, comments too, which the formatter leaves as they are; not of tables that it is told to leave
FUNCTION_LINES_MAX = 60  # longer ones are reported; a table of cases may be right as it is

# Each room, a folder below src, and the rooms that it may include besides itself and the public headers.
FLOOR = ("base", "env")
ALLOWED = {
    "base": (),
    "net": ("base",),
    "env": ("base", "net"),
    "web": (*FLOOR, "net"),
    "gpu": FLOOR,
    "rdma": FLOOR,
    "store/wire": FLOOR,
    "store/segment": (*FLOOR, "rdma", "store/wire"),
    "store/disk": FLOOR,
    "store/path": (*FLOOR, "gpu", "rdma", "store/wire", "store/segment"),
    "store/owner": (*FLOOR, "store/wire", "store/segment", "store/disk", "store/path"),
    "store/client": (*FLOOR, "rdma", "store/wire", "store/segment", "store/disk", "store/path", "store/owner"),
    "store/core": ("base", "store/wire"),
    "store/master": (*FLOOR, "net", "web", "store/wire", "store/segment", "store/core"),
    "store/service": (*FLOOR, "net", "web"),  # and the store by its public header alone
    "store/original": (),  # the original's names over the store's public header
    "transfer/wire": (*FLOOR, "gpu", "rdma"),
    "transfer/state": (*FLOOR, "gpu", "rdma", "transfer/wire"),
    "transfer/peer": (*FLOOR, "gpu", "rdma", "transfer/wire", "transfer/state"),
    "transfer/serve": (*FLOOR, "gpu", "rdma", "transfer/wire", "transfer/state", "transfer/peer"),
    "transfer/run": (*FLOOR, "gpu", "rdma", "transfer/wire", "transfer/state", "transfer/peer", "transfer/serve"),
    "transfer/engine": (*FLOOR, "gpu", "rdma", "transfer/wire", "transfer/state", "transfer/peer", "transfer/serve", "transfer/run"),
    "proxy": (*FLOOR, "net"),
    "doctor": (*FLOOR, "rdma", "store/wire", "store/disk", "transfer/wire", "transfer/state", "transfer/engine"),
    "console": FLOOR,
    "cmd": (*FLOOR, "console", "rdma", "store/disk", "store/master", "store/service", "proxy", "doctor"),
    # bench/tool, the benchmarks that users have; store and transfer engine by their public headers alone. The queue of disk I/O is no part of
    # either's interface, and what is measured must be that queue, or a comparison with other tools would say nothing of the tier.
    "tool": (*FLOOR, "store/disk"),
    "policy": (*FLOOR, "tool", "store/wire", "store/core"),  # bench/policy: runs the core in its own process, which no public header offers
    "python": (*FLOOR, "gpu", "store/client", "store/service", "transfer/engine"),
}
# Of a segment these know the layout alone. The master's core is pure besides: no socket, clock, thread or file.
CORE = "store/core"
MAY_ALSO = {CORE: "store/segment/layout.h", "store/disk": "store/segment/layout.h"}
CORE_SYSTEM_FORBIDDEN = re.compile(r"(sys/(socket|epoll|mman|time|uio)|pthread|unistd|fcntl|time|netdb|arpa/.*|netinet/.*|event2/.*|stdatomic|threads)\.h$")


def check_include(room, name, quoted):
    if room == CORE and not quoted and CORE_SYSTEM_FORBIDDEN.match(name):
        return f"the master's core is pure; <{name}> is not"
    if quoted and MAY_ALSO.get(room) == name:
        return None
    if not quoted or name in ("mooncake.h", "mooncake_engine.h", "store_c.h", "transfer_engine_c.h"):
        return None
    target = name.rpartition("/")[0]
    if not target:
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


def wide_lines(lines):
    is_formatted = True
    for number, line in enumerate(lines, 1):
        if "clang-format o" in line:
            is_formatted = "clang-format on" in line
        elif is_formatted and len(line) > LINE_COLUMNS_MAX:
            yield number, len(line)


def check_file(path, room, problems, long_functions):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) >= FILE_LINES_MAX:
        problems.append(f"{path}: {len(lines)} lines; the limit is {FILE_LINES_MAX}")
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match and room:
            problem = check_include(room, match.group(2), match.group(1) == '"')
            if problem:
                problems.append(f"{path}:{number}: {problem}")
    if path.suffix in (".c", ".h"):
        problems += [f"{path}:{number}: {columns} columns; the limit is {LINE_COLUMNS_MAX}" for number, columns in wide_lines(lines)]
    if path.suffix == ".c":
        long_functions += [(length, f"{path}:{start}", name) for name, start, length in function_lengths(lines) if length > FUNCTION_LINES_MAX]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    problems, long_functions, count = [], [], 0
    bench = [root / "bench" / room for room in ("tool", "policy")]
    for path in sorted([*(root / "src").rglob("*.[ch]"), *(path for folder in bench for path in folder.glob("*.[ch]"))]):
        room = str(path.parent.relative_to(root / "bench" if path.parent in bench else root / "src"))
        if room not in ALLOWED:
            problems.append(f"{path}: no such room as {room}; say in tests/check_includes.py what it may include")
            room = None
        check_file(path, room, problems, long_functions)
        count += 1
    for folder in ("include", "tests", "fuzz", "bench", "sim", "python"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".py", ".sh", ".pyi") and "__pycache__" not in path.parts and not (path.parent in bench and path.suffix != ".py"):
                check_file(path, None, problems, long_functions)
                count += 1
    if (root / "dev").is_file():
        check_file(root / "dev", None, problems, long_functions)
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
