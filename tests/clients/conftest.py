"""Fixtures of the lanes: the two sides, and a table of what each can do."""
import pytest

import sides
import table

TABLE = table.Table()


@pytest.fixture(scope="session")
def both():
    """{"ours": Side, "original": Side}"""
    return sides.sides()


@pytest.fixture(params=["ours", "original"])
def side(request, both):
    return both[request.param]


@pytest.fixture(scope="session", params=["without keys", "with keys"])
def ours(request, both):
    return both["ours"] if request.param == "without keys" else both["ours"].with_keys()


@pytest.fixture(scope="session")
def counts():
    """counts(part, {side: (cases that passed, all)}, reasons): a line of the table."""
    return TABLE.add_counts


@pytest.fixture(scope="module")
def compare(both):
    """compare(part, play, reasons): plays the scenario on both sides and compares step by step; and on ours with keys, which must change nothing.

    `play(cluster)` returns steps by name. Every step must work with ours. Where the original's result is another, `reasons` must say why, by the
    step's name; "*" stands for all steps. A reason for what does not differ is an error too, unless it begins with "sometimes": it would hide
    the day when something changes.
    """

    def run(part, play, reasons=None, flags=(), node_bytes=256 << 20):
        reasons = reasons or {}
        results = {}
        for name, side in both.items():
            with side.cluster(*flags, node_bytes=node_bytes) as cluster:
                results[name] = play(cluster)
        ours, original = results["ours"], results["original"]
        TABLE.add(part, ours, original, reasons)
        failed = {name: step for name, step in ours.items() if "error" in step}
        assert not failed, f"steps that fail with ours: {failed}"
        different = {name for name in ours if name not in original or original[name].get("result", "failed") != ours[name]["result"]}
        unexplained = {name: (ours[name], original.get(name)) for name in different if name not in reasons and "*" not in reasons}
        assert not unexplained, f"ours and the original differ: {unexplained}"
        stale = {name for name, why in reasons.items() if name != "*" and name not in different and not why.startswith("sometimes")}
        assert not stale, f"said to differ, but do not: {stale}"
        unsettled = {name for name, why in reasons.items() if why.startswith("sometimes")}
        with both["ours"].with_keys().cluster(*flags, node_bytes=node_bytes) as cluster:
            keyed = play(cluster)
        changed = {name: (step, keyed.get(name)) for name, step in ours.items()
                   if "error" in keyed.get(name, {"error": "absent"}) or (name not in unsettled and keyed[name]["result"] != step["result"])}
        TABLE.add_keys(part, len(ours) - len(changed), len(ours))
        assert not changed, f"keys change: {changed}"
        return {name: step["result"] for name, step in ours.items()}

    return run


def pytest_sessionfinish():
    if table.TABLE_PATH:
        TABLE.write(table.TABLE_PATH)
