"""Every public name of the original's wheel is here, with its arguments by name, order and need; what is not here stands in docs/compatibility.md."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

DOCUMENT = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text()
# What a side has, as JSON: {module: {name: {"kind": ..., "members": {member: arguments}}}}; arguments are what pybind's docstring says, or inspect.
SHOW = """
import inspect, json, sys, mooncake.engine, mooncake.store
def arguments(thing):
    doc = getattr(thing, "__doc__", None) or ""
    if "->" in doc.split("\\n")[0] or "Overloaded function." in doc:
        return {"doc": doc}
    try:
        return {"signature": [[one.name, one.default is one.empty, one.kind.name] for one in inspect.signature(thing).parameters.values() if one.name != "self"]}
    except (TypeError, ValueError):
        return {}
found = {}
for module in (mooncake.store, mooncake.engine):
    names = found[module.__name__] = {}
    for name in dir(module):
        if name.startswith("__"):
            continue
        thing = getattr(module, name)
        if isinstance(thing, type):
            names[name] = {"kind": "class", "members": {member: arguments(getattr(thing, member)) for member in dir(thing) if not member.startswith("__")}}
        else:
            names[name] = {"kind": "function" if callable(thing) else "value", "members": {"": arguments(thing)}}
print(json.dumps(found))
"""
OF_PYBIND = {"_pybind11_conduit_v1_", "name", "value"}  # the last two: of enums, where ours have them on each member
ITEMS = re.findall(r"^- .*(?:\n  .*)*", DOCUMENT, re.M)
ABSENT = re.findall(r"`(\w+)`", "".join(item for item in ITEMS if "`NotImplementedError`" in item))


@pytest.fixture(scope="module")
def found(both):
    def show(side):
        done = subprocess.run([sys.executable, "-B", "-c", SHOW], capture_output=True, text=True, timeout=100, env=side.env())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return {name: show(side) for name, side in both.items()}


def cut(text):
    """At the commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def documented(doc):
    """[(name, is it needed)] of pybind's docstring; the first overload of several. None: it says nothing."""
    line = next((line[3:] for line in doc.splitlines() if line.startswith("1. ")), doc.splitlines()[0])
    said = re.match(r"\w+\((.*)\) -> ", line)
    if said is None:
        return None
    given = [re.match(r"(\*{0,2}\w+)(: .*)?$", one.replace("->", "")) for one in cut(said.group(1).replace("->", ""))]
    return [(one.group(1), " = " not in (one.group(2) or "")) for one in given if one.group(1) != "self"]


def test_every_name_is_there(found):
    missing = []
    for module, names in found["original"].items():
        for name, what in names.items():
            mine = found["ours"][module].get(name)
            if mine is None or mine["kind"] != what["kind"]:
                missing.append(f"{module}.{name}")
            elif name not in ABSENT:
                missing += [f"{module}.{name}.{member}" for member in what["members"] if member not in mine["members"] and member not in OF_PYBIND]
    assert missing == []
    assert {"RpcInterface", "ReceivedTensor", "EngramStore"} <= set(ABSENT)


def test_arguments_are_the_originals(found):
    """By name where the original has names; by their number where it has none; what is needed there is enough here."""
    different, looked_at = {}, 0
    for module, names in found["original"].items():
        for name, what in names.items():
            for member, arguments in what["members"].items():
                wanted = documented(arguments["doc"]) if arguments.get("doc") else None
                mine = found["ours"][module][name]["members"].get(member, {}).get("signature")
                if wanted is None or what["kind"] == "value" or name in ABSENT or member in (*OF_PYBIND, *ABSENT):
                    continue
                looked_at += 1
                if mine is None:
                    different[f"{name}.{member}"] = "ours tells nothing"
                    continue
                plain = [(one if kind != "POSITIONAL_ONLY" else None, is_needed) for one, is_needed, kind in mine if not kind.startswith("VAR_")]
                theirs = [(one, is_needed) for one, is_needed in wanted if not one.startswith("*")]
                same = len(plain) >= len(theirs) and not any(is_needed for _, is_needed in plain[len(theirs):])
                for (ours, is_needed), (original, was_needed) in zip(plain, theirs):
                    unnamed = re.fullmatch(r"arg\d+", original)
                    same = same and (unnamed or ours == original) and is_needed <= was_needed
                if not same:
                    different[f"{name}.{member}"] = (mine, wanted)
    assert different == {}
    assert looked_at > 140


def test_every_module_of_the_package_is_there_or_in_the_table(both):
    theirs = {path.stem for path in (both["original"].path / "mooncake").glob("*.py")} - {"__init__"}
    ours = {path.stem for path in (both["ours"].path / "mooncake").glob("*.py")}
    unsaid = {name for name in theirs - ours if f"`mooncake.{name}`" not in DOCUMENT}
    assert not unsaid and len(theirs) > 10


@pytest.mark.parametrize("attribute", ["local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "device_name", "master_server_address"])
def test_config_has_the_fields_of_the_original(both, attribute, tmp_path):
    """And reads the same from the same file and environment."""
    script = "import json, sys; from mooncake.mooncake_config import MooncakeConfig as C\n" \
             "c = C.from_file(sys.argv[1]) if len(sys.argv) > 1 else C.load_from_env()\nprint(json.dumps(vars(c)))"
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1", "global_segment_size": "1.5gb"}))
    for arguments, variables in (([str(path)], {}), ([], {"MOONCAKE_MASTER": "m:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "50gb", "MOONCAKE_DEVICE": "d"})):
        said = {}
        for name, side in both.items():
            done = subprocess.run([sys.executable, "-B", "-c", script, *arguments], capture_output=True, text=True, timeout=100,
                                  env={**side.env(), **variables, "PATH": os.environ["PATH"]})
            assert done.returncode == 0, done.stderr
            said[name] = json.loads(done.stdout)
        assert said["ours"][attribute] == said["original"][attribute]
        assert set(said["original"]) <= set(said["ours"])
