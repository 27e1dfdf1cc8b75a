"""mooncake.reshard beside the original's: the same manifests byte for byte, the same plans, the same errors; each reads what the other wrote."""
import inspect
import json
import subprocess
import sys

import pytest

import sides

COUNT = 240


def said_by(side, *words, stdin=""):
    done = subprocess.run([sys.executable, "-B", str(sides.SCENARIOS / "reshard.py"), *words], capture_output=True, text=True, timeout=600, env=side.env(),
                          input=stdin)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def told(both):
    return {name: said_by(side, "0", str(COUNT)) for name, side in both.items()}


def test_both_make_the_same(told):
    for ours, original in zip(told["ours"], told["original"]):
        assert {**ours, "pickles": None} == {**original, "pickles": None}
    plans = [plan for one in told["ours"] for plan in one["plans"].values()]
    errors = [one for case in told["ours"] for one in case["errors"] if one] + [plan for plan in plans if isinstance(plan, str)]
    assert len(told["ours"]) == len(told["original"]) == COUNT
    assert len(plans) - len([plan for plan in plans if isinstance(plan, str)]) > 200 and len(set(errors)) > 20


@pytest.mark.parametrize("writer, reader", [("ours", "original"), ("original", "ours")])
def test_each_reads_what_the_other_wrote(told, both, writer, reader):
    """Placements and manifests as JSON, plans as pickles."""
    found = said_by(both[reader], "read", stdin="".join(json.dumps(one) + "\n" for one in told[writer]))
    assert len(found) == COUNT
    for written, back in zip(told[writer], found):
        assert [back.get("source"), back.get("stored")] == [written.get("source"), written.get("stored")]
        assert back["plans"] == [plan for plan in written["plans"].values() if isinstance(plan, dict)]


SURFACE = """
import importlib, inspect, json
found = {}
for module in ("", ".contracts", ".geometry", ".weight", ".weight.manifest", ".weight.planner"):
    one = importlib.import_module("mooncake.reshard" + module)
    for name in one.__all__:
        thing = getattr(one, name)
        members = {"": thing, **({key: getattr(thing, key) for key in dir(thing) if not key.startswith("_")} if isinstance(thing, type) else {})}
        for key, member in members.items():
            try:
                arguments = [[each.name, each.default is each.empty, each.kind.name] for each in inspect.signature(member).parameters.values()]
            except (TypeError, ValueError):
                arguments = None
            found[f"mooncake.reshard{module} {name} {key}"] = arguments
print(json.dumps(found))
"""


def test_every_name_has_the_originals_arguments(both):
    """Where the original's must be named, ours may be."""
    found = {name: json.loads(subprocess.run([sys.executable, "-B", "-c", SURFACE], capture_output=True, text=True, timeout=100, env=side.env(),
                                             check=True).stdout) for name, side in both.items()}
    named = [inspect.Parameter.KEYWORD_ONLY.name, inspect.Parameter.POSITIONAL_OR_KEYWORD.name]
    for name, wanted in found["original"].items():
        assert name in found["ours"], name
        got = found["ours"][name]
        if wanted is not None:
            assert [one[:2] for one in got] == [one[:2] for one in wanted], name
            assert all(mine[2] == theirs[2] or [theirs[2], mine[2]] == named for mine, theirs in zip(got, wanted)), name
    assert len(found["original"]) > 150
