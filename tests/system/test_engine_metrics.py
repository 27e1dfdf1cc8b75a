"""What an engine says of itself: by peer and path, in Prometheus text and as a line of the log."""
import contextlib
import os
import re
import subprocess
import sys
import time
import zlib

import pytest

from cluster import wait_until
from test_documents import document, metrics_of, names, same, section
from test_engine import Near, Peer, set_path

from mooncake.engine import TransferEngine
import mooncake.engine as module


def samples(text):
    """{name{labels}: number}; every line must be one that Prometheus takes."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .+", line), line
            continue
        match = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} ([0-9.e+-]+)', line)
        assert match, line
        key = match.group(1), frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2)))
        assert key not in found, line
        found[key] = float(match.group(3))
    return found


def value(found, name, **labels):
    hits = [number for (one, has), number in found.items() if one == name and set(labels.items()) <= has]
    return sum(hits)


def test_documented():
    with Peer() as peer:
        near = Near()
        assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, 10) == 0
        text = near.engine.get_metrics()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    table = metrics_of(section(document("docs/metrics.md"), "The transfer engine"))
    same([name for cells in table for name in names(cells[0])], kinds, "metrics of the engine")
    for cells in table:
        assert len(cells) == 4 and cells[2] and cells[3], cells
        assert kinds[names(cells[0])[0]] == cells[1], cells


def test_by_peer_and_path(monkeypatch):
    near = Near()
    with Peer() as one, Peer() as two:
        monkeypatch.setenv("MC_FORCE_TCP", "1")
        by_tcp = Near()
        assert near.engine.transfer_sync_write(one.target, near.address, one.address, 1000) == 0
        assert near.engine.transfer_sync_read(two.target, near.address, two.address, 70000) == 0
        assert near.engine.batch_transfer_sync_read(two.target, [near.address, near.address], [two.address, two.address], [1, 2]) == 0
        assert by_tcp.engine.transfer_sync_write(one.target, by_tcp.address, one.address, 5) == 0
        assert near.engine.transfer_sync_write(one.target, near.address, one.address - 4096, 8) < 0
        found = samples(near.engine.get_metrics())
        every = samples(module.metrics())
    assert value(found, "mooncake_transfer_bytes_total", peer=one.target, path="host", direction="write") == 1000
    assert value(found, "mooncake_transfer_bytes_total", peer=two.target, path="host", direction="read") == 70003
    assert value(found, "mooncake_transfer_items_total", peer=two.target) == 3
    assert value(found, "mooncake_transfer_errors_total", peer=one.target) == 1 and value(found, "mooncake_transfer_errors_total") == 1
    assert value(found, "mooncake_transfer_seconds_count", peer=two.target, path="host") == 2
    assert value(found, "mooncake_transfer_seconds_bucket", peer=two.target, le="+Inf") == 2
    assert 0 < value(found, "mooncake_transfer_seconds_sum", peer=two.target) < 60
    buckets = [(float(dict(has)["le"]), number) for (name, has), number in found.items()
               if name == "mooncake_transfer_seconds_bucket" and ("peer", two.target) in has]
    counts = [number for _, number in sorted(buckets)]
    assert counts == sorted(counts) and counts[-1] == 2
    assert value(found, "mooncake_transfer_registered_ranges") == 1 and value(found, "mooncake_transfer_peers") == 2
    assert value(every, "mooncake_transfer_bytes_total", peer=one.target, path="tcp", direction="write") == 5
    assert value(every, "mooncake_transfer_bytes_total", peer=one.target, path="host", direction="write") == 1000


@pytest.mark.parametrize("path", ["host", "tcp"])
@pytest.mark.parametrize("mode", ["on", "sampled", "off"])
def test_checksums(monkeypatch, mode, path):
    """Every transfer, one in so many of each size, or none is compared; and all arrive."""
    set_path(monkeypatch, path)
    monkeypatch.setenv("MC_TE_CHECKSUM", mode)
    monkeypatch.setenv("MC_TE_CHECKSUM_EVERY", "4")
    near = Near()
    with Peer() as peer:
        for size in (100, 100000, 10000000):
            for byte in range(8):
                near.memory[:size] = bytes([byte]) * size
                assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, size) == 0
                assert int(peer.ask("crc", 0, size)) == zlib.crc32(near.memory[:size])
        found = samples(near.engine.get_metrics())
    assert value(found, "mooncake_transfer_checked_total", peer=peer.target, path=path) == {"on": 24, "sampled": 6, "off": 0}[mode]
    assert value(found, "mooncake_transfer_mismatches_total") == 0


def test_who_cannot_be_reached():
    near = Near()
    assert near.engine.transfer_sync_write("127.0.0.1:1", near.address, 4096, 8) < 0
    found = samples(near.engine.get_metrics())
    assert value(found, "mooncake_transfer_errors_total", peer="127.0.0.1:1", path="none", error="SOCKET") == 1


def test_served():
    """What a peer writes here over tcp, and what it asks for in vain."""
    near = Near()
    target = f"127.0.0.1:{near.engine.get_rpc_port()}"
    with Peer(MC_FORCE_TCP="1") as peer:
        assert peer.ask("write", target, near.address, 12345) == "0"
        assert int(peer.ask("write", target, near.address - 4096, 8)) < 0
    wait_until(lambda: value(samples(near.engine.get_metrics()), "mooncake_transfer_served_bytes_total") == 12345)
    found = samples(near.engine.get_metrics())
    assert value(found, "mooncake_transfer_served_bytes_total") == 12345 and value(found, "mooncake_transfer_refused_total") >= 1


def test_before_initialize():
    assert TransferEngine().get_metrics() == ""


def test_many_peers_are_bounded():
    """A thousand names that lead nowhere: the text stays small, the sum is whole."""
    near = Near()
    for number in range(600):
        assert near.engine.transfer_sync_write(f"127.0.0.1:0{number}x", near.address, 4096, 8) < 0
    found = samples(near.engine.get_metrics())
    peers = {dict(has)["peer"] for (name, has) in found if name == "mooncake_transfer_errors_total"}
    assert len(peers) <= 257 and "other" in peers
    assert value(found, "mooncake_transfer_errors_total") == 600


LINE = r"Transfer Engine Metrics: \S+ \| last \d\.\d s \| write (\d+\.\d\d) MB/s, read \d+\.\d\d MB/s \| (\d+) batches, \d+ failed \| p50 <= \d+ us, p99 <= \d+ us"
PROGRAM = """
import ctypes, sys, time
from mooncake.engine import TransferEngine
one, two = TransferEngine(), TransferEngine()
memory = ctypes.create_string_buffer(1 << 20)
for engine in (one, two):
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
assert two.register_memory(ctypes.addressof(memory), len(memory)) == 0
for _ in range(3):
    assert one.transfer_sync_write(f"127.0.0.1:{two.get_rpc_port()}", ctypes.addressof(memory), ctypes.addressof(memory), 1 << 20) == 0
print("done", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def program(value):
    """It has made its three calls, and goes on until it is told."""
    values = {**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], "MC_TE_METRIC": value, "MC_TE_METRIC_INTERVAL_SECONDS": "1", "MC_LOG_LEVEL": "INFO"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=values)
    try:
        assert process.stdout.readline() == "done\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_line_in_the_log():
    with program("1") as process:
        batches, said = 0, ""
        while batches < 3:
            line = process.stderr.readline()
            assert line, said
            said += line
            batches += sum(int(count) for _, count in re.findall(LINE, line))
        _, rest = process.communicate("\n", timeout=30)
        assert process.returncode == 0, said + rest
        assert sum(int(count) for _, count in re.findall(LINE, said + rest)) == 3
    with program("0") as process:
        time.sleep(1.5)
        _, said = process.communicate("\n", timeout=30)
        assert process.returncode == 0 and "Transfer Engine Metrics" not in said, said
