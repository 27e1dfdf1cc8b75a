"""mooncake.engine between processes: over each path, against peers that die, stop or come back, and against the original."""
import ast
import ctypes
import json
import inspect
import mmap
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import parse_qs, urlparse

import pytest

from cluster import hold_still

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode  # noqa: E402
import mooncake.engine as module  # noqa: E402

SIZE = 48 << 20
PEER = pathlib.Path(__file__).with_name("engine_peer.py")
P2P = "P2PHANDSHAKE"
CACHE = pathlib.Path(os.environ.get("MC_SOURCE", ".")) / ".cache"


def find_original():
    """(python, folder to import from or "") of the original's wheel: named by hand, of the bench, or of the lane of clients. None: it is not here."""
    python = pathlib.Path(os.environ.get("MC_ORIGINAL_PYTHON", CACHE / "bench-original/bin/python"))
    folder = pathlib.Path(os.environ.get("MC_CLIENTS", CACHE / "clients")) / "original"
    return (str(python), "") if python.exists() else (sys.executable, str(folder)) if (folder / "mooncake/engine.so").exists() else None


ORIGINAL = find_original()
SANITIZED = bool(os.environ.get("MC_SANITIZER"))
SLOW = 5 if SANITIZED else 2  # how much longer things may take than on an idle machine


class Peer:
    def __init__(self, metadata=P2P, name="127.0.0.1", original=False, log=subprocess.DEVNULL, **environment):
        values = {**os.environ, "MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "WARNING", **environment}
        if original:
            values.update(MC_PYTHONPATH=ORIGINAL[1], MC_FORCE_TCP="1")
            values.pop("PYTHONPATH", None)
            values.pop("LD_PRELOAD", None)
        program = ORIGINAL[0] if original else sys.executable
        self.process = subprocess.Popen([program, str(PEER), name, metadata, str(SIZE)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, text=True, env=values)
        code, port, self.address = map(int, self.process.stdout.readline().split())
        assert code == 0
        self.port = port
        self.target = f"{name}:{port}" if metadata == P2P else name

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


class Near:
    """The engine of this process, with memory."""

    def __init__(self, metadata=P2P, name="127.0.0.1"):
        self.engine = TransferEngine()
        assert self.engine.initialize(name, metadata, "tcp", "") == 0
        self.memory = mmap.mmap(-1, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert self.engine.register_memory(self.address, SIZE) == 0


def set_path(monkeypatch, path):
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    if path == "tcp":
        monkeypatch.setenv("MC_FORCE_TCP", "1")
    if path == "no_host":
        monkeypatch.setenv("MC_SAME_HOST", "0")


def exchange(near, peer):
    """Bytes there and back, compared with what lies in the peer's memory."""
    draw = random.Random(7)
    engine, memory, address = near.engine, near.memory, near.address
    for size in (1, 4096, 65537, (5 << 20) + 3):
        data = draw.randbytes(size)
        memory[:size] = data
        assert engine.transfer_sync_write(peer.target, address, peer.address + 9, size) == 0
        assert int(peer.ask("crc", 9, size)) == zlib.crc32(data)
        memory[:size] = bytes(size)
        assert engine.transfer_sync_read(peer.target, address, peer.address + 9, size) == 0
        assert memory[:size] == data
    count, data = 300, draw.randbytes(300 * 4096)
    memory[:len(data)] = data
    order = list(range(count))
    draw.shuffle(order)
    near_at, far_at = [address + i * 4096 for i in order], [peer.address + i * 8192 for i in order]
    assert engine.batch_transfer_sync_write(peer.target, near_at, far_at, [4096] * count) == 0
    memory[:len(data)] = bytes(len(data))
    assert engine.batch_transfer_sync_read(peer.target, near_at, far_at, [4096] * count) == 0
    assert memory[:len(data)] == data
    batch = engine.batch_transfer_async_write(peer.target, near_at, far_at, [4096] * count)
    assert 0 < batch < 2**63
    assert finish(engine, batch) == 1
    assert engine.transfer_check_status(batch) == -1  # it has ended
    for bad in (5, peer.address - 1, peer.address + SIZE - 3, 2**64 - 2):
        assert engine.transfer_sync_write(peer.target, address, bad, 4) == -1
        assert engine.transfer_sync_read(peer.target, address, bad, 4) == -1
    assert engine.send_probe(peer.target) == 0
    assert engine.get_first_buffer_address(peer.target) == peer.address


def finish(engine, batch, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        code = engine.transfer_check_status(batch)
        if code != 0:
            return code
        time.sleep(0.001)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("path", ["host", "tcp", "no_host"])
def test_exchange(monkeypatch, path):
    set_path(monkeypatch, path)
    with Peer() as peer:
        exchange(Near(), peer)


def test_ipv6(monkeypatch):
    set_path(monkeypatch, "tcp")
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "::1")
    with Peer(MC_TCP_BIND_ADDRESS="::1") as peer:
        peer.target = f"[::1]:{peer.port}"
        exchange(Near(name="::1"), peer)


def test_notes(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    with Peer() as peer:
        note = TransferNotify("layer", "7")
        assert near.engine.transfer_sync(peer.target, near.address, peer.address, 10, TransferOpcode.Write, note) == 0
        assert near.engine.batch_transfer_sync(peer.target, [near.address], [peer.address], [10], TransferOpcode.READ, notify=note) == 0
        assert peer.ask("notes") == "[('layer', '7'), ('layer', '7')]"
        assert near.engine.get_notifies() == []


NOTES_OF_BYTES = """
import ctypes, os, pathlib, sys
class Note(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("msg", ctypes.c_char_p)]
library = ctypes.CDLL(str(pathlib.Path(os.environ["MC_BUILD"], "libmooncake.so")))
library.createTransferEngine.restype = ctypes.c_void_p
library.createTransferEngine.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
library.openSegment.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
library.openSegment.restype = ctypes.c_uint64
library.genNotifyInEngine.argtypes = [ctypes.c_void_p, ctypes.c_uint64, Note]
library.destroyTransferEngine.argtypes = [ctypes.c_void_p]
engine = library.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", 0, 0)
target = library.openSegment(engine, sys.argv[1].encode())
print([library.genNotifyInEngine(engine, target, Note(name, msg)) for name, msg in ((b"a", b"1"), (b"b\\xff", b"\\xc3"), (b"c", b"\\xc3\\xa9"))])
library.destroyTransferEngine(engine)
"""


def test_a_note_that_is_no_text_loses_no_other(monkeypatch):
    """Programs in C send any bytes; Python's come as names of files do."""
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", P2P, "tcp", "") == 0
    result = subprocess.run([sys.executable, "-c", NOTES_OF_BYTES, f"127.0.0.1:{engine.get_rpc_port()}"], stdout=subprocess.PIPE, text=True, timeout=60)
    assert result.stdout == "[0, 0, 0]\n"
    notes = [(note.name, note.msg) for note in engine.get_notifies()]
    assert [tuple(os.fsencode(text) for text in note) for note in notes] == [(b"a", b"1"), (b"b\xff", b"\xc3"), (b"c", "é".encode())]
    assert notes[0] == ("a", "1") and notes[2] == ("c", "é") and engine.get_notifies() == []


# ---- peers that die, stop, come back ----


@pytest.mark.parametrize("path", ["host", "tcp"])
def test_peer_killed_in_the_middle(monkeypatch, path):
    set_path(monkeypatch, path)
    near, peer = Near(), Peer()
    timer = threading.Timer(0.3, peer.kill)
    timer.start()
    start = time.monotonic()
    while near.engine.transfer_sync_write(peer.target, near.address, peer.address, SIZE) == 0:
        assert time.monotonic() - start < 20 * SLOW
    timer.join()
    failed = time.monotonic()
    assert failed - start < 5 * SLOW
    assert near.engine.transfer_sync_read(peer.target, near.address, peer.address, 10) == -1
    assert near.engine.batch_transfer_async_read(peer.target, [near.address], [peer.address], [10]) >= 0
    assert near.engine.send_probe(peer.target) == -102
    assert time.monotonic() - failed < 3 * SLOW
    with Peer() as other:
        assert near.engine.transfer_sync_write(other.target, near.address, other.address, SIZE) == 0


def test_initiator_killed_in_the_middle(monkeypatch):
    """Its copies end with it; memory can be taken back."""
    for path in ("host", "tcp"):
        set_path(monkeypatch, path)
        near, peer = Near(), Peer()
        assert peer.ask("loop", f"127.0.0.1:{near.engine.get_rpc_port()}", near.address, SIZE) == "ok"
        time.sleep(0.3)
        peer.kill()
        start = time.monotonic()
        assert near.engine.unregister_memory(near.address) == 0
        assert time.monotonic() - start < 3 * SLOW


def test_stopped_initiator_holds_unregister_at_most(monkeypatch):
    """While a stopped process of this machine may be copying, the memory is not given back; when it goes on, it is."""
    set_path(monkeypatch, "host")
    near, peer = Near(), Peer()
    assert peer.ask("loop", f"127.0.0.1:{near.engine.get_rpc_port()}", near.address, SIZE) == "ok"
    time.sleep(0.3)
    hold_still(peer.process.pid)
    start = time.monotonic()
    code = near.engine.unregister_memory(near.address)
    assert code in (0, -4)  # stopped between two copies, or in one
    assert time.monotonic() - start < 15 * SLOW
    peer.process.send_signal(signal.SIGCONT)
    if code == -4:
        assert near.engine.unregister_memory(near.address) == 0
    near.memory[:] = bytes(SIZE)
    time.sleep(0.2)
    assert near.memory[:] == bytes(SIZE)  # nothing came after
    peer.kill()


def test_stopped_peer_over_tcp(monkeypatch):
    set_path(monkeypatch, "tcp")
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    near = Near()
    with Peer() as stopped, Peer() as other:
        assert near.engine.transfer_sync_write(stopped.target, near.address, stopped.address, 10) == 0
        hold_still(stopped.process.pid)
        batches = [near.engine.batch_transfer_async_read(stopped.target, [near.address], [stopped.address], [SIZE // 2]) for _ in range(12)]
        assert all(batch > 0 for batch in batches)
        start = time.monotonic()
        slowest = 0
        while time.monotonic() - start < 2:
            began = time.monotonic()
            assert near.engine.transfer_sync_write(other.target, near.address + SIZE // 2, other.address, 65536) == 0
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1 * SLOW
        assert [finish(near.engine, batch, 20) for batch in batches] == [-2] * 12
        assert time.monotonic() - start < 9 * SLOW
        near.memory[:SIZE // 2] = bytes(SIZE // 2)
        stopped.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        assert near.memory[:SIZE // 2] == bytes(SIZE // 2)  # nothing came after the end
        assert near.engine.transfer_sync_write(stopped.target, near.address, stopped.address, 10) == 0  # it is well again


def test_stopped_peer_of_this_machine_is_no_matter(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    with Peer() as peer:
        assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, SIZE) == 0
        peer.process.send_signal(signal.SIGSTOP)
        assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, SIZE) == 0


@pytest.mark.parametrize("path", ["host", "tcp"])
def test_status_is_of_the_whole_batch(monkeypatch, path):
    """1 only when the last byte of the last item is there, and never when one of them failed."""
    set_path(monkeypatch, path)
    near, half = Near(), SIZE // 2
    with Peer() as peer:
        assert peer.ask("fill", 0, half, 9) == "ok"
        wanted = bytes([9]) * half
        for _ in range(5):
            near.memory[:half] = bytes(half)
            batch = near.engine.batch_transfer_async_read(peer.target, [near.address, near.address + 64], [peer.address, peer.address + 64], [64, half - 64])
            assert finish(near.engine, batch) == 1 and near.memory[:half] == wanted
        for bad in range(3):
            addresses = [peer.address, peer.address + 64, peer.address + 128]
            addresses[bad] = 4096
            batch = near.engine.batch_transfer_async_read(peer.target, [near.address] * 3, addresses, [64] * 3)
            assert finish(near.engine, batch) == -1
            assert near.engine.transfer_check_status(batch) == -1  # stale
            assert near.engine.get_batch_transfer_status([batch]) == -1


# ---- metadata servers ----


class Metadata(BaseHTTPRequestHandler):
    """As the original's: a differing PUT of an rpc_meta key is refused."""

    protocol_version = "HTTP/1.1"
    table, puts = {}, []

    def key(self):
        return parse_qs(urlparse(self.path).query)["key"][0]

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        value = self.table.get(self.key())
        self.answer(404, b"metadata not found") if value is None else self.answer(200, value)

    def do_PUT(self):
        value = self.rfile.read(int(self.headers["Content-Length"]))
        if "rpc_meta" in self.key() and self.key() in self.table:
            return self.answer(400, b"Duplicate rpc_meta key not allowed")
        self.table[self.key()] = value
        self.puts.append(self.key())
        return self.answer(200, b"metadata updated")

    def do_DELETE(self):
        self.answer(200 if self.table.pop(self.key(), None) is not None else 404)

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    Metadata.table, Metadata.puts = {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metadata"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["host", "tcp"])
def test_metadata_server(monkeypatch, metadata, path):
    set_path(monkeypatch, path)
    near = Near(metadata, "near")
    with Peer(metadata, "far") as peer:
        exchange(near, peer)
        assert sorted(Metadata.table) == ["mooncake/ram/far", "mooncake/ram/near", "mooncake/rpc_meta/far", "mooncake/rpc_meta/near"]
    assert sorted(Metadata.table) == ["mooncake/ram/near", "mooncake/rpc_meta/near"]  # it has taken its name back
    assert near.engine.send_probe("far") != 0
    assert near.engine.send_probe("nobody") != 0
    assert near.engine.transfer_sync_write("nobody", near.address, 4096, 1) == -1
    assert near.engine.batch_transfer_async_write("nobody", [near.address], [4096], [1]) == 0
    assert near.engine.get_first_buffer_address("nobody") == 0


def test_registrations_share_a_document(monkeypatch, metadata):
    """The first one waits for the server, as peers of the original ask for its address and keep the answer; of the others it is told at most every 20 ms."""
    set_path(monkeypatch, "tcp")
    engine = TransferEngine()
    assert engine.initialize("near", metadata, "tcp", "") == 0

    def listed():
        return [buffer["addr"] for buffer in json.loads(Metadata.table["mooncake/ram/near"])["buffers"]]

    def wait_for(addresses):
        end = time.monotonic() + 20
        while listed() != addresses and time.monotonic() < end:
            time.sleep(0.01)
        assert listed() == addresses

    addresses = [(1 << 40) + 8192 * item for item in range(1000)]
    assert engine.register_memory(addresses[0], 4096) == 0
    assert listed() == addresses[:1]
    for change in (engine.register_memory, engine.unregister_memory):
        before, start = Metadata.puts.count("mooncake/ram/near"), time.monotonic()
        for address in addresses[1:]:
            assert (change(address, 4096) if change == engine.register_memory else change(address)) == 0
        puts = Metadata.puts.count("mooncake/ram/near") - before
        assert puts <= 3 + (time.monotonic() - start) / 0.02
        wait_for(addresses if change == engine.register_memory else addresses[:1])
    assert engine.batch_register_memory(addresses[1:], [4096] * 999) == 0
    wait_for(addresses)
    assert engine.unregister_memory(addresses[0]) == 0
    wait_for(addresses[1:])


def test_same_name_again(monkeypatch, metadata):
    """Killed, so that its entries stay; the next one of that name replaces them at once and is found by who knew the first."""
    set_path(monkeypatch, "tcp")
    near, first = Near(metadata, "near"), Peer(metadata, "far")
    assert near.engine.transfer_sync_write("far", near.address, first.address, 100) == 0
    first.kill()
    assert near.engine.transfer_sync_write("far", near.address, first.address, 100) == -1
    start = time.monotonic()
    with Peer(metadata, "far") as second:
        assert near.engine.transfer_sync_write("far", near.address, second.address, 100) == 0
        assert time.monotonic() - start < 5 * SLOW
        assert near.engine.send_probe("far") == 0


def test_cluster_id(monkeypatch, metadata):
    set_path(monkeypatch, "tcp")
    monkeypatch.setenv("MC_METADATA_CLUSTER_ID", "blue")
    near = Near(metadata, "near")
    assert sorted(Metadata.table) == ["mooncake/blue/ram/near", "mooncake/blue/rpc_meta/near"]
    del near


@pytest.mark.parametrize("server", ["etcd://127.0.0.1:1", "redis://127.0.0.1:1", "127.0.0.1:1", "", "http://127.0.0.1:1/metadata"])
def test_metadata_that_is_not_there(server):
    assert TransferEngine().initialize("127.0.0.1", server, "tcp", "") == -1


# ---- the Python surface ----


def test_arguments(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    engine, address, me = near.engine, near.address, f"127.0.0.1:{near.engine.get_rpc_port()}"
    assert engine.register_memory(address + 5, 1) == -7
    assert engine.register_memory(address + SIZE, 0) == -1
    assert engine.unregister_memory(address + 5) == -3
    assert engine.batch_register_memory([1 << 40, address], [10, 10]) == -7
    assert engine.batch_unregister_memory([1 << 40]) == -3  # all or none
    assert engine.batch_register_memory([1 << 40], []) == -1
    assert engine.batch_transfer_sync_write(me, [], [], []) == 0
    assert engine.batch_transfer_sync_write(me, [address], [address], []) == -1
    assert engine.batch_transfer_async_write(me, [address], [address], []) == 0
    assert engine.transfer_sync_write(me, address, address, 0) == 0
    assert engine.transfer_sync_write(me, address, address + 10, 10, "tcp") == 0
    assert engine.transfer_sync_write(target_hostname=me, buffer=address, peer_buffer_address=address, length=1) == 0
    for call in (lambda: engine.register_memory("x", 1), lambda: engine.register_memory(1.5, 1), lambda: engine.register_memory(-1, 1),
                 lambda: engine.register_memory(2**64, 1), lambda: engine.batch_transfer_sync_write(me, 5, [], []),
                 lambda: engine.batch_transfer_sync_write(me, ["a"], [1], [1]), lambda: engine.transfer_sync_write(5, 1, 1, 1),
                 lambda: engine.transfer_sync(me, 1, 1, 1, 7), lambda: engine.transfer_sync(me, 1, 1, 1, TransferOpcode.Read, "note"),
                 lambda: engine.transfer_sync(me, 1, 1, 1, TransferOpcode.Read, mock.MagicMock(spec=TransferNotify)), engine.send_probe, lambda: engine.send_probe(1),
                 lambda: engine.initialize("a"), lambda: engine.transfer_sync_write(me, 1, 1, 1, nonsense=1)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="buffers"):
        engine.batch_transfer_sync_read(me, [None], [1], [1])
    assert engine.initialize("127.0.0.1", P2P, "tcp", "") == -1  # twice
    assert near.engine.send_probe("127.0.0.1:1") == -102 and near.engine.send_probe(peer_server_name=me) == 0


def test_any_protocol_is_taken_but_one():
    """As by the original's wheel, in which only the one called xgmi fails. What there is not is said once."""
    program = "import sys; from mooncake.engine import TransferEngine; print(TransferEngine().initialize('127.0.0.1', 'P2PHANDSHAKE', sys.argv[1], ''))"
    for protocol, code, said in (("RDMA", 0, None), ("Tcp", 0, None), ("efa", 0, "taken for tcp"), ("nvlink", 0, "taken for tcp"), ("xgmi", -1, "expected")):
        done = subprocess.run([sys.executable, "-c", program, protocol], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
        assert done.stdout == f"{code}\n", (protocol, done.stderr)
        lines = [line for line in done.stderr.splitlines() if f"'{protocol}'" in line]
        assert len(lines) == (said is not None) and all(said in line for line in lines), done.stderr


def test_every_method_is_documented_and_stubbed():
    stub = ast.parse((pathlib.Path(os.environ["MC_PYTHONPATH"]) / "mooncake" / "engine.pyi").read_text()).body
    classes = {node.name: node for node in stub if isinstance(node, ast.ClassDef)}
    for name, stubbed in classes.items():
        real = getattr(module, name)
        if not issubclass(real, int):
            names = {node.name for node in stubbed.body if isinstance(node, ast.FunctionDef)} | {node.target.id for node in stubbed.body if isinstance(node, ast.AnnAssign)}
            public = {each for each in dir(real) if not each.startswith("_")}
            assert public == {each for each in names if not each.startswith("_")}, name
            assert all(getattr(real, each).__doc__ for each in public - {"TransferOpcode"}), name
    for node in classes["TransferEngine"].body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.args.vararg is None:
            said = [one.arg for one in (*node.args.posonlyargs, *node.args.args)][1:]
            assert [name for name in inspect.signature(getattr(TransferEngine, node.name)).parameters if name != "self"] == said, node.name
    others = {node.name for node in stub if isinstance(node, ast.FunctionDef)} | {node.target.id for node in stub if isinstance(node, ast.AnnAssign)}
    assert {each for each in others if not each.startswith("_")} | set(classes) == {each for each in dir(module) if not each.startswith("_")}


def test_bytes_in_and_out(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    engine, address = near.engine, near.address
    assert engine.write_bytes_to_buffer(address, "hello", 5) == 0
    assert engine.write_bytes_to_buffer(address + 5, b"\0\xff", 2) == 0
    assert engine.read_bytes_from_buffer(address, 7) == b"hello\0\xff"
    assert engine.write_bytes_to_buffer(address, b"ab", 3) == -1  # would read behind the source
    assert engine.write_bytes_to_buffer(address + SIZE - 1, b"ab", 2) == -1
    assert engine.write_bytes_to_buffer(4096, b"ab", 2) == -1
    for at, size in ((address + SIZE - 1, 2), (4096, 1), (address, 2**63)):
        with pytest.raises(ValueError):
            engine.read_bytes_from_buffer(at, size)
    buffer = engine.allocate_managed_buffer(100000)
    assert buffer > 0 and engine.read_bytes_from_buffer(buffer, 100000) == bytes(100000)
    assert engine.free_managed_buffer(buffer, 100000) == 0
    assert engine.free_managed_buffer(buffer, 100000) < 0
    with pytest.raises(ValueError):
        engine.read_bytes_from_buffer(buffer, 1)


def test_bytes_of_memory_that_is_given_back_meanwhile():
    """A copy keeps it until it has ended, or there is none."""
    program = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from mooncake.engine import TransferEngine
engine, size, givers, fine = TransferEngine(), 8 << 20, 6, []
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
current = [engine.allocate_managed_buffer(size) for _ in range(givers)]
end, read, done = time.monotonic() + 10, 0, []
def give_back(number):
    try:
        while time.monotonic() < end:
            assert engine.free_managed_buffer(current[number], size) == 0
            current[number] = engine.allocate_managed_buffer(size)
        fine.append(number)
    finally:
        done.append(number)
for number in range(givers):
    threading.Thread(target=give_back, args=(number,)).start()
while len(done) < givers:
    for address in current:
        try:
            read += len(engine.read_bytes_from_buffer(address, size)) == size
        except ValueError:
            pass
        engine.write_bytes_to_buffer(address, b"7" * 4096, 4096)
assert read > 0 and len(fine) == givers
"""
    assert subprocess.run([sys.executable, "-c", program, os.environ["MC_PYTHONPATH"]], stderr=subprocess.DEVNULL, timeout=90).returncode == 0


def test_show_links(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    name = f"127.0.0.1:{near.engine.get_rpc_port()}"
    assert "RDMA devices:" in near.engine.show_links() and "peers:\n  none" in near.engine.show_links()
    with Peer() as peer:
        assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, 10) == 0
        found = json.loads(near.engine.show_links(json=True))
        assert found["name"] == name and found["rpc_port"] == near.engine.get_rpc_port() and found["paths"]["host"] == {"bytes": 10, "items": 1}
        assert [(one["name"], one["path"]) for one in found["peers"]] == [(peer.target, "host")]
        assert found["topology"] == json.loads(near.engine.get_local_topology())
        assert all({"device", "numa", "gid", "gid_index", "port", "speed_gbps", "source"} <= nic.keys() for nic in found["local_nics"])
        assert f"  {peer.target} at 127.0.0.1:" in near.engine.show_links(False) and "path host" in near.engine.show_links(False)


def test_what_is_not_there():
    for flag in ("CUDA", "EFA", "HIP", "INTRA_NVLINK", "MNNVL", "MUSA"):
        assert getattr(module, f"SUPPORT_{flag}") is False
    assert (TransferOpcode.Read, TransferOpcode.WRITE) == (0, 1) and module.Read is TransferOpcode.Read
    assert TransferEngine.TransferOpcode is TransferOpcode
    engine = TransferEngine()
    assert engine.warmup_efa_segment("x") == 0
    for call in (engine.transfer_write_on_cuda, module.create_rpc_client, module.create_rpc_server, module.RpcInterface,
                 module.CoroRPCInterface, module.ReceivedData, module.ReceivedTensor):
        with pytest.raises(NotImplementedError):
            call("x")
    # Not initialised: the codes, no crash.
    assert engine.get_rpc_port() == 0
    assert engine.register_memory(4096, 1) == -1
    assert engine.transfer_sync_write("127.0.0.1:1", 4096, 4096, 1) == -1
    assert engine.transfer_check_status(1) == -1
    assert engine.get_notifies() == []
    assert engine.show_links() == engine.show_links(json=True) == ""
    assert engine.get_nic_load_stats() == []
    assert engine.enable_graceful_shutdown() == -1
    assert engine.allocate_managed_buffer(10) == 0
    assert engine.get_local_topology().startswith("{")


def test_store_takes_the_engine(monkeypatch):
    import cluster
    from mooncake.store import MooncakeDistributedStore

    set_path(monkeypatch, "host")
    near = Near()
    with cluster.Master() as master:
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", P2P, 16 << 20, 1 << 20, "tcp", "", master.address, near.engine.get_engine()) == 0
        assert store.close() == 0


def test_threads_and_fork(monkeypatch):
    set_path(monkeypatch, "host")
    near = Near()
    with Peer() as peer:
        failures = []

        def work(number):
            size = SIZE // 8
            for _ in range(20):
                if near.engine.transfer_sync_write(peer.target, near.address + number * size, peer.address + number * size, size) != 0:
                    failures.append(number)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if child == 0:
            os._exit(0 if near.engine.transfer_sync_write(peer.target, near.address, peer.address, 1) == -1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        for thread in threads:
            thread.join()
        assert failures == []


# ---- hostile peers, in the documents' own words ----


def frame(kind, body):
    return struct.pack("<QB", len(body) + 1, kind) + body


def test_hostile_document(monkeypatch):
    """A peer whose handshake answers with nonsense: the code, and nothing else happens."""
    set_path(monkeypatch, "tcp")
    near = Near()
    answers = [b"", b"\0" * 8, frame(1, b"{}"), frame(1, b"[]"), frame(1, b'{"name":1,"protocol":"tcp"}'), frame(9, b"{}"),
               frame(1, b'{"name":"a","protocol":"tcp","tcp_data_port":70000}'), struct.pack("<Q", 2**63) + b"\1{",
               frame(1, b'{"name":"a","protocol":"rdma","tcp_data_port":1}'), frame(1, b'{"name":"a","protocol":"tcp"}'),
               frame(1, b'{"name":"a","protocol":"tcp","tcp_data_port":1,"tcp_data_host":"no such host"}')]
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"

        def serve():
            for answer in answers:
                connection, _ = server.accept()
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in answers:
            assert near.engine.get_first_buffer_address(target) == 0
        thread.join()


# ---- the original ----

with_original = pytest.mark.skipif(ORIGINAL is None or SANITIZED, reason="the original's wheel is not here; ./dev test clients and ./dev bench install it, "
                                   "or set MC_ORIGINAL_PYTHON")


@with_original
@pytest.mark.parametrize("version", ["1", "2"])
def test_we_call_the_original(monkeypatch, version):
    set_path(monkeypatch, "tcp")
    if version == "1":
        monkeypatch.setenv("MC_TCP_PROTO", "1")
    near = Near()
    with Peer(original=True) as peer:
        exchange(near, peer)


@with_original
@pytest.mark.parametrize("environment", [{}, {"MC_TCP_PROTO": "1"}, {"MC_TCP_ENABLE_CONNECTION_POOL": "1"}])
def test_the_original_calls_us(monkeypatch, environment):
    set_path(monkeypatch, "tcp")
    near = Near()
    target = f"127.0.0.1:{near.engine.get_rpc_port()}"
    with Peer(original=True, **environment) as peer:
        for size in (1, 65537, 5 << 20):
            assert peer.ask("fill", 0, size, size % 251) == "ok"
            assert peer.ask("write", target, near.address, size) == "0"
            end = time.monotonic() + (20 if "MC_TCP_PROTO" in environment else 0)  # its writes are not confirmed there
            while near.memory[:size] != bytes([size % 251]) * size and time.monotonic() < end:
                time.sleep(0.01)
            assert near.memory[:size] == bytes([size % 251]) * size
            near.memory[:size] = random.Random(size).randbytes(size)
            assert peer.ask("read", target, near.address, size) == "0"
            assert int(peer.ask("crc", 0, size)) == zlib.crc32(near.memory[:size])
        if not environment:
            assert peer.ask("write", target, 4096, 10) == "-1"


@with_original
def test_original_and_ours_on_one_metadata_server(monkeypatch, metadata):
    set_path(monkeypatch, "tcp")
    near = Near(metadata, "near")
    with Peer(metadata, "far", original=True) as peer:
        exchange(near, peer)
        assert peer.ask("write", "near", near.address, 1 << 20) == "0"
