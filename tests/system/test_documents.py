"""The documents name what is there, and all of it: metrics, flags, HTTP routes, environment variables, messages of the protocol."""
import json
import os
import pathlib
import re
import subprocess

import pytest

from cluster import BUILD, MASTER, Master
from service_process import Service
from wire import FakeOwner

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])


def document(name):
    return (SOURCE / name).read_text()


def section(text, title):
    """What stands below that heading, up to the next one of the same or a higher rank."""
    head = re.search(rf"^(#+) {re.escape(title)}\n", text, re.M)
    assert head, f"no heading '{title}'"
    below = text[head.end():]
    end = re.search(rf"^#{{1,{len(head.group(1))}}} ", below, re.M)
    return below[:end.start()] if end else below


def rows(text):
    """Cells of all table rows whose first cell holds names in backticks."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]


def items(text):
    """The items of lists, each in one line, without what is nested below it."""
    return [" ".join(item.split())[2:] for item in re.findall(r"^- .*(?:\n  (?!- ).*)*", text, re.M)]


def entries(text, kind):
    """Cells of all items that begin with names in backticks; each of them is of that kind, a pattern of what stands in its parentheses."""
    found = [(item, re.fullmatch(rf"(`.*?[`)]) \({kind}\): (.+)", item)) for item in items(text) if item.startswith("`")]
    assert all(match for _, match in found), [item for item, match in found if not match]
    return [match.groups() for _, match in found]


def paragraph(text, beginning):
    """What follows the beginning up to an empty line or another paragraph in bold, in one line."""
    below = text[text.index("\n" + beginning) + 1 + len(beginning):]
    return " ".join(re.split(r"\n(?=\n|\*\*)", below)[0].split())


def names(text):
    return re.findall(r"`([^`]+)`", text)


def same(ours, theirs, what):
    """Each name once, and the same on both sides."""
    assert len(ours) == len(set(ours)), sorted(name for name in ours if ours.count(name) > 1)
    assert set(ours) == set(theirs), f"{what}: not there {sorted(set(ours) - set(theirs))}, not written {sorted(set(theirs) - set(ours))}"


def flags_of_help(*command):
    """By name: (default, mark), where mark is 'absent', 'nothing', the name that it stands for, or ''."""
    text = subprocess.run([str(word) for word in command] + ["--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    if "  --helpfull  " in text:  # what is accepted and changes nothing is there only
        text = subprocess.run([str(word) for word in command] + ["--helpfull"], capture_output=True, text=True, timeout=30, check=True).stdout
    flags = {}
    for name, words, more in re.findall(r"^  --(\w+)  (.*)\n((?: {8}.*\n)?)", text, re.M):
        default = re.search(r"default ([^;\n]*)", more)
        alias = re.match(r"the same as --(\w+)$", words)
        mark = "absent" if re.search(r" \[not here: .*\]$", words) else "nothing" if words.endswith("[accepted, no effect here]") else \
            alias.group(1) if alias else ""
        flags[name] = (default.group(1).strip('"') if default else "", mark)
    assert flags, text
    return flags


def check_flags(text, flags):
    written = {names(cells[0])[0]: cells[1].split(" ")[0] for cells in rows(text) if len(cells) == 3}
    same(list(written), list(flags), "flags")
    for name, default in written.items():
        assert default == flags[name][0].split(" ")[0], f"--{name}: its default is {flags[name][0]}"


def metrics_of(text):
    """(names, kind, unit, meaning) of each item."""
    return entries(text, r"(\w+), ([^)]+)")


def test_metrics():
    text = document("docs/metrics.md")
    text = of_the_master(text)
    always_0 = section(text, "Always 0")
    unused = names(always_0)
    table = metrics_of(text.replace(always_0, ""))
    written = [name for cells in table for name in names(cells[0])]
    with Master() as master:
        exported = master.get("/metrics")[1].decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exported, re.M))
    same(written + unused, kinds, "metrics")
    for cells in table:
        assert len(cells) == 4 and cells[2] and cells[3], cells
        for name in names(cells[0]):
            assert kinds[name] == cells[1], name
    absent = re.findall(r"^# HELP (\w+) Kept for dashboards; there is nothing of it here\.$", exported, re.M)
    same(unused, absent, "metrics that are always 0")


def of_the_master(text):
    """Without the sections that test_engine_metrics.py and test_tenants.py look at, and that of store nodes."""
    for title in ("The transfer engine", "A store node", "Tenants"):
        text = text.replace(section(text, title), "")
    return text


def test_metrics_of_a_store_node(tmp_path):
    table = metrics_of(section(document("docs/metrics.md"), "A store node"))
    with Master("--enable_offload") as master:
        with Service(MOONCAKE_MASTER=master.address, MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path,
                     MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=256 << 20) as node:
            exported = node.call("GET", "/metrics")[1].decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exported, re.M))
    same([cells[0].strip("`") for cells in table], kinds, "metrics of a store node")
    for cells in table:
        name = cells[0].strip("`")
        assert kinds[name] == cells[1] and f"# HELP {name} " in exported
        assert re.search(rf"^{name}(_count)?[ {{]", exported, re.M), f"no sample of {name}"
    values = re.findall(r"^(mooncake_client_disk_\w+)\{disk=\"([^\"]*)\"", exported, re.M)
    assert len(values) > 40 and {path for _, path in values} == {f"{tmp_path}/mooncake-c.0"}


def test_metrics_of_one_row_are_equal():
    with Master() as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        assert owner.put([b"a", b"b", b"a"], 5000) == [0, 0, -705]
        values = master.metrics()
        owner.close()
    assert values["master_key_count"] == 2 and values["master_put_start_requests_total"] == 3 and values["master_put_start_failures_total"] == 0
    compared = 0
    text = of_the_master(document("docs/metrics.md"))
    for cells in metrics_of(text.replace(section(text, "Always 0"), "")):
        known = [name for name in names(cells[0]) if name in values]
        assert len({values[name] for name in known}) <= 1, cells[0]
        compared += len(known) > 1
    assert compared > 3


def test_flags_of_the_master():
    text = section(document("docs/commands.md"), "mooncake_master")
    flags = flags_of_help(MASTER)
    works = {name: value for name, value in flags.items() if value[1] == ""}
    table = "\n".join(line for line in text.splitlines() if line.startswith("| `") and "/" not in line.split("|")[1])
    check_flags(table, works)
    others = paragraph(text, "Other names: ")
    nothing = paragraph(text, "**Accepted without effect here**").split(": ", 1)[1]
    absent = text[text.index("**Not here**"):text.index("The log goes to stderr")]
    same(re.findall(r"`(\w+)` for `", others), [name for name, (_, mark) in flags.items() if mark not in ("", "absent", "nothing")], "other names")
    targets = re.findall(r"`(\w+)` for `(\w+)`", others)
    assert len(targets) == len(re.findall(" for ", others)) > 3
    for name, target in targets:
        assert flags[name][1] == target, name
    same(names(nothing), [name for name, (_, mark) in flags.items() if mark == "nothing"], "flags without effect")
    same([name for item in items(absent) for name in names(item.split(": ")[0])], [name for name, (_, mark) in flags.items() if mark == "absent"], "flags of what is not here")
    sentences = set(re.findall(r" \[not here: (.*)\]$", subprocess.run([str(MASTER), "--helpfull"], capture_output=True, text=True, timeout=30, check=True).stdout, re.M))
    same([item.split(": ", 1)[1].replace("`", "") for item in items(absent)], sentences, "what to do instead")


@pytest.mark.parametrize("command", ["replay", "engine", "node", "work", "disk", "policy", "raw"])
def test_flags_of_the_bench(command):
    flags = flags_of_help(BUILD / "mooncake_bench", command)
    assert flags.pop("help")[1] == ""
    check_flags(section(document("docs/commands.md"), command), flags)


def test_flags_of_the_topology_dump():
    check_named_flags("transfer_engine_topology_dump")


def test_flags_of_the_doctor():
    check_named_flags("mooncake_doctor")


def test_flags_of_the_key():
    check_named_flags("mooncake_key")


def test_flags_of_the_console():
    check_named_flags("mooncake")


def test_flags_of_the_disk():
    check_named_flags("mooncake_disk")


def check_named_flags(command):
    flags = {name: value for name, value in flags_of_help(BUILD / command).items() if value[1] == ""}
    check_flags(section(document("docs/commands.md"), command), flags)


def test_flags_of_the_engines_bench():
    flags, text = flags_of_help(BUILD / "transfer_engine_bench"), section(document("docs/commands.md"), "transfer_engine_bench")
    assert flags.pop("help")[1] == ""
    check_flags(text, {name: value for name, value in flags.items() if value[1] == ""})
    nothing = [name for name in names(paragraph(text, "Without effect here")) if not name.startswith("MC_")]
    same(nothing, [name for name, (_, mark) in flags.items() if mark == "nothing"], "flags without effect")


def test_commands_of_the_bench():
    text = subprocess.run([str(BUILD / "mooncake_bench"), "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    part = section(document("docs/commands.md"), "mooncake_bench")
    same(re.findall(r"^### (\w+)$", part, re.M), re.findall(r"^  (\w+) ", text, re.M), "commands")


def test_routes():
    table = rows(section(document("docs/commands.md"), "HTTP on `metrics_port`"))
    routes = re.findall(r'\{"\w+", "(/[^"]*)"', document("src/store/master/admin.c"))
    assert len(routes) > 10
    same([name.split("?")[0] for cells in table for name in names(cells[0])], routes, "routes")


def known_variables():
    """The table of the source: by name (of a family with a star behind it) its use and its text."""
    text = subprocess.run([str(BUILD / "mooncake_doctor"), "--variables", "--json"], capture_output=True, text=True, timeout=30, check=True).stdout
    known = {row["name"] + "*" * row["is_family"]: (row["use"], row["text"]) for row in json.loads(text)}
    assert len(known) > 200 and {use for use, _ in known.values()} == {"read", "others", "needless", "absent"}
    return known


def is_known(name, known):
    return name in known or any(one.endswith("*") and name.startswith(one[:-1]) for one in known)


def test_environment():
    """Every variable that is read is told where its part is: in the environment's lists, those of store services and disks, or the proxy's page."""
    used = {name for name, (use, _) in known_variables().items() if use == "read"}
    text = document("docs/commands.md")
    # Variables are items of lists, those of RDMA rows of a table; below it stands more about some of them.
    part = section(text, "Environment")
    part = part.replace(section(part, "Variables that change nothing"), "")
    rdma = section(part, "RDMA")
    table = [name for cells in rows(rdma) for name in names(cells[0])]
    assert {names(item)[0] for item in items(rdma)} <= set(table) and not rows(part.replace(rdma, ""))
    written = table + [name for cells in entries(part.replace(rdma, ""), r"default (.+?)") for name in names(cells[0])]
    elsewhere = re.findall(r"`((?:MOONCAKE|LOCAL)_\w+)`", section(text, "mc_store_rest_server")) + re.findall(r"`(\w*[A-Z]_\w+)`", document("docs/proxy.md"))
    elsewhere += re.findall(r"^- `(\w+)`(?: or `(\w+)`)?: ", section(document("docs/disk.md"), "How it is switched on"), re.M)
    elsewhere = {one for name in elsewhere for one in ([name] if isinstance(name, str) else name)}
    same(written, used - elsewhere, "environment variables")


def test_variables_without_effect():
    """The three lists are the table of the source, word for word, but for the variables of our own tests."""
    part = section(document("docs/commands.md"), "Variables that change nothing")
    lists = re.split(r"^(With these|What these|Other software).*:$", part, flags=re.M)[2::2]
    for use, told in zip(("needless", "absent", "others"), lists, strict=True):
        written = [(name, sentence) for item in items(told) for named, sentence in [re.fullmatch(r"((?:`[\w*]+`(?:, )?)+): (.*)", item).groups()] for name in names(named)]
        same(written, [(name, text) for name, (its, text) in known_variables().items() if its == use and text != "tests"], f"variables: {use}")


def test_no_variable_is_read_that_is_not_in_the_table():
    """C reads the environment in one file, which knows the names of the table only; Python's names, and those of tests, are in it."""
    known, sources = known_variables(), [*(SOURCE / "src").rglob("*.[ch]"), *(SOURCE / "bench" / "tool").glob("*.[ch]")]
    assert [str(path.relative_to(SOURCE)) for path in sources if re.search(r"\b(secure_)?getenv\(", path.read_text())] == ["src/base/variables.c"]
    asked = set()
    for path in (*(SOURCE / "python").rglob("*.py"), *(SOURCE / "tests").rglob("*.py"), *(SOURCE / "bench").rglob("*.py"), *(SOURCE / "sim").rglob("*.py")):
        asked.update(re.findall(r"""\b(?:environ(?:\.get|\.setdefault|\.pop)?[\[(]|getenv\()['"]((?:MC|MOONCAKE)_\w+)""", path.read_text()))
    for path in (*(SOURCE / "tests").rglob("*.c"), *(SOURCE / "fuzz").glob("*.c")):
        asked.update(re.findall(r'getenv\("((?:MC|MOONCAKE)_\w+)"', path.read_text()))
    assert len(asked) > 20
    assert [name for name in sorted(asked) if not is_known(name, known)] == []
    named = {name for path in (SOURCE / "python").rglob("*.py") for name in re.findall(r"(?<!\w)(?:MC|MOONCAKE)_[A-Z0-9_]+\b", path.read_text())}
    assert [name for name in sorted(named) if not is_known(name, known)] == []


def test_what_is_said_to_be_read_is_read():
    """Each name that the table calls read stands in a call that reads it, or in a table of such calls."""
    found = set()
    for path in (*(SOURCE / "src").rglob("*.[ch]"), *(SOURCE / "bench" / "tool").glob("*.[ch]")):
        text = path.read_text()
        found.update(re.findall(r"\b(?:mc_variable\(|mc_setting_number\()(\w+)[,)]", text) + re.findall(r"\bMC_VARIABLE_(\w+)", text))
        found.update(name for row in re.findall(r"\{(?:V|NAME)\(.*|.*\{V\(.*", text) for name in re.findall(r"\b(?:V|NAME)\((\w+)\)", row))
    found.update(name for pair in re.findall(r"X\(\w+, (\w+), (\w+), -?\d+", document("src/rdma/settings.h")) for name in pair)
    read = {name for name, (use, _) in known_variables().items() if use == "read"}
    assert read - found == set()
    unknown = {name for name in found if re.match("(MC|MOONCAKE)_", name)} - read
    assert unknown == set(), "read, but the table calls them something else"


def test_variables_of_disks():
    """The list of disk.md has the variables of disks that are read with those that count beside them, and what the table knows without effect."""
    source, known = document("src/store/client/disks.c"), known_variables()
    read = re.findall(r"^    \{NAME\((\w+)\), NAME\((\w+)\),\s+take_\w+\},", source, re.M)
    assert len(read) == source.count("{NAME(") >= 10
    told = [re.fullmatch(r"(`MOONCAKE_OFFLOAD_\w+`(?: or `\w+`)?): (.+)", item) for item in items(section(document("docs/disk.md"), "How it is switched on"))]
    assert all(told)
    written = {tuple(re.findall(r"`(\w+)`", one.group(1))): one.group(2) for one in told}
    assert len(written) == len(told)
    working = {pair for pair, meaning in written.items() if not meaning.startswith("nothing")}
    same(sorted(working), [tuple(name for name in pair if name != "NONE") for pair in read] + [("MOONCAKE_OFFLOAD_ENABLED",), ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",)], "variables of disks")
    without = {name for name, (use, _) in known.items() if use == "needless" and name.startswith("MOONCAKE_OFFLOAD_")}
    same(sorted(pair[0] for pair in set(written) - working), without, "variables of disks without effect")
    assert all(known[name][0] == "needless" for pair in set(written) - working for name in pair)


def test_threads():
    """Threads.md has every thread that is started, with the file that starts it."""
    started, calls = [], 0
    for path in (SOURCE / "src").rglob("*.c"):
        text = path.read_text()
        started += [(name, str(path.relative_to(SOURCE / "src"))) for name in re.findall(r'\bmc_(?:thread|sleeper)_start\([^;"]*"([^"]+)"', text)]
        watching = re.findall(r'\bmc_watch\("([^"]+)"', text)
        started += [(name, "env/watch.c") for name in watching]
        calls += len(re.findall(r"\bmc_(?:thread|sleeper)_start\(|\bpthread_create\(", text)) * (path != SOURCE / "src/env/watch.c") + len(watching)
    assert calls == len(started) > 20
    told = [re.match(r"\*\*.*?\*\*, (mc-[\w-]+)[^(]* \(`([\w/.]+)`", item) for item in items(document("docs/threads.md"))]
    same([one.groups() for one in told if one], started, "threads")


def test_messages():
    """Every message is explained, and no other is spoken of."""
    text = document("docs/protocol.md")
    messages = re.findall(r"^    X\(([A-Z_]+), \d+, ", document("src/store/wire/rpc.def"), re.M)
    assert len(messages) > 30
    words = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", text))
    assert [name for name in messages if name not in words] == []
    # Those that do not look like other words in capitals: PUT_..., READ_...
    codes = re.findall(r"^    X\(([A-Z_]+), -\d+", document("include/mooncake.h"), re.M)
    strange = {word for word in words if "_" in word} - set(messages) - set(codes) - {"SCM_RIGHTS"}
    assert strange == set()


ROOMS = ("src", "include", "tests", "fuzz", "sim", "bench", "python", "examples")


def pages():
    """Every page of ours, by its path; what lies in .cache is not."""
    found = {path: path.read_text() for path in SOURCE.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(SOURCE).parts[:-1])}
    assert SOURCE / "README.md" in found and SOURCE / "docs" / "commands.md" in found
    return found


def anchors(text):
    """Of the headings, as GitHub names them."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links():
    looked_at = 0
    for path, text in pages().items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
            if re.match(r"https?://", target):
                continue
            looked_at += 1
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path
            assert other.exists(), f"{path}: {target}"
            assert not anchor or anchor in anchors(other.read_text()), f"{path}: {target}"
    assert looked_at > 50


def test_files_that_are_named():
    """A file or folder of ours that a page names is there: a whole path, or the end of one."""
    rooms = [*ROOMS, "packaging"]
    files = [str(path.relative_to(SOURCE)) for room in rooms if (SOURCE / room).is_dir() for path in (SOURCE / room, *(SOURCE / room).rglob("*"))]
    for path in pages():
        for name in re.findall(rf"`((?:(?:{'|'.join(rooms)})/[\w./-]*)|(?:[\w-]+/)*[\w-]+\.(?:c|h|def))`", path.read_text()):
            assert "NAME" in name or any(f"/{file}".endswith(f"/{name.rstrip('/')}") for file in files), f"{path}: no {name}"


def test_commands_that_are_named():
    """A native command begins a line of a block, or what stands in backticks; each is built."""
    looked_at = 0
    for path, text in pages().items():
        spoken = re.findall(r"(?:^|`)(mooncake_(?:master|client|bench|disk|doctor|proxy|http\w*|store_\w+)|mc_store_rest\w*|transfer_engine_\w+)(?= -| --|`|$)", text, re.M)
        for name in spoken:
            assert (BUILD / name).exists(), f"{path}: {name}"
            looked_at += 1
    assert looked_at > 20


def test_commands_of_dev():
    """`./dev test LANE PATTERN` and `./dev bench WORK` name what is there, and the pattern matches a test."""
    dev = document("dev")
    lanes = set(re.findall(r"^test_(\w+)\(\)", dev, re.M))
    works = {re.sub(r"^bench_|\.\w+$", "", path.name) for path in (SOURCE / "bench").iterdir() if path.suffix in (".py", ".c")}
    works |= set(re.search(r"^  bench \[(.*)\]$", document("packaging/dev-help.txt"), re.M).group(1).split("|"))
    tests = {"unit": " ".join(path.stem for path in (SOURCE / "tests" / "unit").glob("test_*.c")),
             **{lane: " ".join(f"{path.stem} " + " ".join(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
                               for path in (SOURCE / "tests" / lane).glob("test_*.py")) for lane in ("system", "faults", "lab", "rdma", "deploy")},
             "clients": re.search(r"^clients=\((.*)\)$", dev, re.M).group(1)}
    for path, text in pages().items():
        for command, word, pattern in re.findall(r"\./dev (\w+)(?: ([\w-]+))?(?: ([\w-]+))?", text):
            assert re.search(rf"^(command_)?{command}\(\)", dev, re.M), f"{path}: ./dev {command}"
            if command == "test" and word:
                assert word in lanes | {"all", "ci"}, f"{path}: ./dev test {word}"
                options = document(f"tests/{word}/run.py") if pattern.startswith("--") else ""
                assert not pattern or f'"{pattern}"' in options or pattern in lanes or pattern in tests[word], f"{path}: ./dev test {word} {pattern}"
            if command == "bench" and word:
                assert word in works, f"{path}: ./dev bench {word}"


def folders():
    """Those of the checkout and of src, as "src/store/client"; neither what is hidden nor what git ignores."""
    ignored = re.findall(r"^/?([\w.]+)/$", document(".gitignore"), re.M)
    found = [path for path in [*SOURCE.iterdir(), *(SOURCE / "src").rglob("*")] if path.is_dir() and path.name not in ignored and not path.name.startswith(".")]
    return {str(path.relative_to(SOURCE)) for path in found if any(one.is_file() for one in path.rglob("*"))}


def map_of_readme(text):
    """Folders of a line stand at its beginning; below a line that begins with src, those that it holds are indented."""
    shown = re.search(r"## Where things are\n```\n(.*?)```", text, re.S).group(1)
    named, folder = [], None
    for line in shown.splitlines():
        first, *others = line[:24].split()
        if line.startswith("  "):
            named += [f"{folder}/{name}" for name in [first, *others]]
        elif first.startswith("src"):
            folder = first
            named += [first, *(name.rstrip("/") if name.endswith("/") else f"src/{name}" for name in others)]
        else:
            named += [name.split("/")[0] for name in [first, *others]]
    return named


def map_of_architecture(text):
    """A room of the diagram is a word that begins a cell and has its description behind it; its product is the box in whose columns it stands."""
    [shown] = [block for block in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S) if "src/store" in block]
    above, boxes, floor, _ = re.split(r"^.*\+--.*$", shown, flags=re.M)
    products = [(title.start(), title[0]) for title in re.finditer(r"src/\w+", above.splitlines()[-1])]
    named = ["src", *re.findall(r"src/\w+", above), *(f"src/{room}" for room in ROOM.findall(floor))]
    for room in (room for line in boxes.splitlines() for room in ROOM.finditer(line)):
        named.append([product for column, product in products if column <= room.start()][-1] + "/" + room[0])
    return named + [name.rstrip("/") for name in names(paragraph(text, "Beside `src/` lie ")) if name.endswith("/")]


ROOM = re.compile(r"(?<=[| ] )[a-z]+(?= {2,}[a-zA-Z])")
MAPS = {"README.md": map_of_readme, "ARCHITECTURE.md": map_of_architecture}


@pytest.mark.parametrize("page", MAPS)
def test_the_map_has_every_room(page):
    """Each folder of the checkout and of src stands in it once, and none that is not there."""
    same(MAPS[page](document(page)), folders(), f"map of {page}")


# Sources that name a client, and why.
OF_CLIENTS = {
    "python/mooncake/mooncake_connector_v1.py": "a connector is a class of vLLM's",
    "python/mooncake/vllm_v1_proxy_server.py": "the original's name of the proxy",
    "python/mooncake/mooncake_config.py": "keys that are other clients' are passed over",
    "src/store/service/config.c": "the same",
}


def test_no_source_is_specific_to_one_client():
    """What all clients call is the same for all. Only connectors to one, and the list of everybody's keys, name any."""
    found = {}
    for path in (*(SOURCE / "src").rglob("*.[ch]"), *(SOURCE / "bench" / "tool").glob("*.[ch]"), *(SOURCE / "include").rglob("*.h"), *(SOURCE / "python").rglob("*.py*")):
        clients = {name.lower() for name in re.findall(r"vllm|sglang|lmcache|fastdeploy", path.name + path.read_text(errors="replace"), re.I)}
        if clients and "__pycache__" not in path.parts:
            found[str(path.relative_to(SOURCE))] = clients
    assert set(found) == set(OF_CLIENTS)
    assert all(len(found[name]) > 2 for name, why in OF_CLIENTS.items() if why in ("the same", OF_CLIENTS["python/mooncake/mooncake_config.py"]))
