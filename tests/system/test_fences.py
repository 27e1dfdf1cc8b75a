"""Each block of commands in the documents is run by a test, or stands here with the reason why not; a new one is missed by nobody. Of those that are not run
each command of ours is at least one that exists, with flags and words that it knows."""
import pathlib
import re
import shlex
import sys

from cluster import BUILD
from test_documents import SOURCE

sys.path.insert(0, str(SOURCE / "packaging"))

import manual  # noqa: E402

NO_CLUSTER = "no cluster, container engine or running systemd is here: tests/deploy plays the pods, units and images by what the manifests say"
A_PICTURE = "a picture, no commands"
ADDRESSES = "names addresses and devices of somebody's hosts; the command's own tests run it with others"

# (page, heading): for each block what runs it (a file that names the page) or why nothing does.
BLOCKS = {
    ("README.md", "Mooncake in C"): ["not run here: ./dev demo, which .ci/run and tests/wheel/newcomer.sh run"],
    ("README.md", "A put and a get"): ["tests/wheel/newcomer.py"] * 3,
    ("README.md", "Where things are"): [A_PICTURE],
    ("docs/bindings.md", "Where they are"): ["compiles a program of the reader's: tests/wheel and tests/bindings do it with theirs"],
    ("docs/commands.md", "mooncake_master"): [ADDRESSES],
    ("docs/commands.md", "Several masters"): [ADDRESSES],
    ("docs/commands.md", "By a Lease of Kubernetes"): [NO_CLUSTER],
    ("docs/commands.md", "mc_store_rest_server"): [ADDRESSES],
    ("docs/commands.md", "mooncake_client"): [ADDRESSES],
    ("docs/commands.md", "engine"): [ADDRESSES],
    ("docs/commands.md", "mooncake_doctor"): [ADDRESSES],
    ("docs/commands.md", "mooncake"): [ADDRESSES],
    ("docs/commands.md", "mooncake_disk"): [ADDRESSES],
    ("docs/commands.md", "mooncake_key"): [ADDRESSES],
    ("docs/commands.md", "transfer_engine_bench"): [ADDRESSES],
    ("docs/compatibility.md", "What a daemon says"): [ADDRESSES],
    ("docs/deploy.md", "The image"): [NO_CLUSTER],
    ("docs/deploy.md", "vLLM on two hosts, with disks and keys"): ["two hosts with disks of their own; tests/clients and ./dev bench engine-e2e run these servers on one"] * 4,
    ("docs/deploy.md", "Shared memory on one host"): ["PID is the reader's process"],
    ("docs/deploy.md", "Kubernetes"): [NO_CLUSTER] * 2,
    ("docs/deploy.md", "systemd and Debian"): [NO_CLUSTER] * 2,
    ("docs/deploy.md", "A laptop"): [NO_CLUSTER],
    ("docs/migration.md", "Install"): ["tests/system/test_migration.py"] * 2,
    ("docs/migration.md", "Switch a running cluster"): ["tests/system/test_migration.py"] * 4,
    ("docs/migration.md", "Go back"): ["tests/system/test_migration.py"],
    ("docs/migration.md", "What is better"): ["tests/system/test_migration.py"] * 2,
    ("docs/operations.md", "Ports"): ["tests/system/test_operations.py"],
    ("docs/operations.md", "Sizing"): ["tests/system/test_operations.py"],
    ("docs/operations.md", "Restart and upgrade"): ["tests/system/test_operations.py"] * 2,
    ("docs/operations.md", "Several masters"): ["tests/system/test_operations.py"],
    ("docs/operations.md", "Traces"): ["tests/system/test_traces.py"],
    ("docs/protocol.md", "A segment"): [A_PICTURE],
    ("docs/protocol.md", "A put"): [A_PICTURE],
    ("docs/protocol.md", "A get"): [A_PICTURE],
    ("docs/proxy.md", "mooncake_proxy"): [ADDRESSES],
    ("docs/python.md", "Tensors"): ["tests/system/torch_tensors.py"],
    ("docs/python.md", "BufferPool"): ["a piece of a program; the class has tests/system/test_buffer_pool.py"],
    ("docs/python.md", "Objects with a structure"): ["a piece of a program; the class has tests of its own"],
    ("docs/python.md", "Weights on other ranks"): ["tests/system/test_reshard_plans.py"],
    ("docs/python.md", "Services"): ["a piece of a program; the class has tests of its own"],
    ("docs/python.md", "Log lines"): ["a piece of a program; the function has tests of its own"],
    ("docs/security.md", "Keys in six commands"): ["tests/system/test_security_page.py"],
    ("docs/security.md", "Quotas"): ["a file of quotas; tests/system/test_tenants.py loads others"],
    ("docs/security.md", "TLS"): [ADDRESSES],
}
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]


def blocks(path):
    """[(heading, language, [line])] of a page."""
    found, heading, open_block = [], "", None
    for line in path.read_text().splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence and open_block is None:
            open_block = (heading, fence[1], [])
        elif fence:
            found.append(open_block)
            open_block = None
        elif open_block is not None:
            open_block[2].append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    assert open_block is None, path
    return found


def test_every_block_is_run_or_has_a_reason():
    found = {}
    for path in PAGES:
        for heading, _, _ in blocks(path):
            found.setdefault((str(path.relative_to(SOURCE)), heading), []).append(heading)
    assert {place: len(all_of_it) for place, all_of_it in found.items()} == {place: len(all_of_it) for place, all_of_it in BLOCKS.items()}
    for (page, _), all_of_it in BLOCKS.items():
        for said in all_of_it:
            if re.fullmatch(r"tests/\S+", said):
                assert pathlib.Path(page).name in (SOURCE / said).read_text(), f"{said} does not name {page}"


def commands_of(lines):
    """[words] of each command of ours in a block, without what comments, pipes and shells put around it."""
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    for line in text.splitlines():
        for part in re.split(r"\s(?:&&|\|\|?)\s|;\s", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # a part of a script
                continue
            words = [word for word in words if not re.match(r"[A-Z_]+=", word) and word not in ("sudo", "exec", "&", "timeout")]
            if words and pathlib.Path(words[0]).name in manual.COMMANDS:
                yield [pathlib.Path(words[0]).name, *words[1:]]


def test_what_is_not_run_is_known_to_its_command():
    known, looked_at = {}, 0
    for path in PAGES:
        for heading, _, lines in blocks(path):
            for name, *words in commands_of(lines):
                sub = [words[0]] if name == "mooncake_bench" and words and words[0] in manual.OF_BENCH else []
                if (name, *sub) not in known:
                    text = manual.everything(BUILD, [name, *sub])
                    _, sections = manual.parsed(text)
                    known[name, *sub] = {option.name for _, options in sections for option in options} | {"help", "helpfull", "version"}, text
                flags, text = known[name, *sub]
                for word in words:
                    flag = re.match(r"--(?:no-)?(?:no(?=enable|allow))?([\w-]+)", word)
                    if flag:
                        assert flag[1] in flags or flag[1].replace("-", "_") in flags, f"{path}, {heading}: {name} has no {word}"
                        looked_at += 1
                if name in ("mooncake", "mooncake_disk", "mooncake_key") and words and not words[0].startswith("-"):
                    assert re.search(rf"^  (?:{name} )?{words[0]}\b|\b{words[0]}\b", text, re.M), f"{path}, {heading}: {name} has no word {words[0]}"
                    looked_at += 1
    assert looked_at > 60, looked_at
