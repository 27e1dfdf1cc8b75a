"""One of four store nodes dies or stops under load (bench/kill.py measures; these are the bounds that must always hold)."""
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))

import cluster  # noqa: E402
import kill  # noqa: E402

# A get of what lies at the dead node ends: another replica, or a miss. One that is only silent may have lost a packet: it gets more time.
KILLED_MS, STOPPED_MS = 200.0, 1000.0


@pytest.mark.parametrize("paths", ["shm,tcp", "tcp"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_node_stalls_nobody(monkeypatch, paths, replicas, number):
    monkeypatch.setenv("MC_PATHS", paths)
    figures = kill.measure(number, replicas, before_s=0.5, after_s=2.5)
    print(figures)
    # What the machine itself costs whoever only wants to go on; under a sanitizer everything is slower.
    noise_ms = figures["a sleeper waited ms"] * 2 + (1000 if cluster.SANITIZED else 20)
    assert figures["wrong bytes"] == 0
    assert figures["victim's keys: slowest get ms"] < (STOPPED_MS if number == signal.SIGSTOP and replicas == 1 else KILLED_MS) + noise_ms
    # Somebody who has met nothing himself is not sent there: a hit elsewhere (or in memory that a stopped one still has), or a miss, at once.
    assert figures["another client, from 200 ms on: gets"] > 10
    assert figures["another client, from 200 ms on: slowest get ms"] < 20 + noise_ms
    assert figures["another client, from 200 ms on: failed gets"] == 0
    assert figures["others: failed gets"] == 0
    before, later = figures["others: p99 before ms"], figures["others: p99 later ms"]
    assert later < max(2 * before, before + 5) + noise_ms
    assert figures["puts failed 1 s after"] == 0
    if number == signal.SIGKILL or paths == "tcp":
        assert figures["offered 1 s after"] == 0
    if replicas == 2:
        assert figures["victim's keys: misses after"] == 0
        assert figures["another client, from 200 ms on: misses"] == 0
