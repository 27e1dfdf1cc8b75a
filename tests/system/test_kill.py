"""One of four store nodes dies or stops under load (bench/kill.py measures; these are the bounds that must always hold)."""
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import cluster  # noqa: E402
import kill  # noqa: E402


@pytest.mark.parametrize("paths", ["shm,tcp", "tcp"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_node_stalls_nobody(monkeypatch, paths, replicas, number):
    monkeypatch.setenv("MC_PATHS", paths)
    figures = kill.measure(number, replicas, before_s=0.5, after_s=2.5)
    print(figures)
    limit = 5000 if cluster.SANITIZED else 1000
    assert figures["wrong bytes"] == 0
    assert figures["victim's keys: slowest get ms"] < limit
    assert figures["others: failed gets"] == 0
    assert figures["puts failed 1 s after"] == 0
    if number == signal.SIGKILL:
        assert figures["offered 1 s after"] == 0
    if replicas == 2:
        assert figures["victim's keys: misses after"] == 0
