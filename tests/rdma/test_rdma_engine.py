"""mooncake.engine with protocol rdma between two processes, each with devices of its own: this one rxe0 and rxe1, the peer rxe2 and rxe3.

Every byte is compared. Which device moved them is said by the cables, not by the engine.
"""
import ctypes
import json
import mmap
import random
import threading
import time
import zlib

import pytest

import cables
from test_engine import P2P, SIZE, Peer, exchange
from mooncake.engine import TransferEngine

pytestmark = pytest.mark.skipif(cables.COUNT < 4, reason="two devices for each side")
MINE, THEIRS = (0, 1), (2, 3)
SETUPS = ("oob", "cm")
LARGE = 16 << 20
# A pair that failed is tried again after a second or two, not half a minute.
SETTINGS = {"MC_SAME_HOST": "0", "MC_SAME_PROCESS": "0", "MC_RDMA_RAIL_PAUSE_SECONDS": "2", "MC_TCP_BIND_ADDRESS": "127.0.0.1"}


def named(numbers):
    return ",".join(f"rxe{number}" for number in numbers)


class Near:
    """The engine of this process, with memory."""

    def __init__(self, devices=MINE, location="*", metadata=P2P, name="127.0.0.1"):
        self.engine = TransferEngine()
        assert self.engine.initialize(name, metadata, "rdma", named(devices)) == 0
        self.memory = mmap.mmap(-1, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert self.engine.register_memory(self.address, SIZE, location) == 0


def far(devices=THEIRS, **more):
    return Peer(ENGINE_PROTOCOL="rdma", ENGINE_DEVICES=named(devices), **more)


@pytest.fixture(params=SETUPS)
def setup(request, monkeypatch):
    for name, value in {**SETTINGS, "MC_RDMA_SETUP": request.param}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    return request.param


@pytest.fixture
def out_of_band(monkeypatch):
    for name, value in {**SETTINGS, "MC_RDMA_SETUP": "oob"}.items():
        monkeypatch.setenv(name, value)


class Carried:
    """What crossed the cables since it was made."""

    def __init__(self):
        self.before = cables.carried_by_all()

    def by(self, number):
        return cables.carried(number) - self.before[number]


def there_and_back(near, peer, size, seed, at=0):
    """Writes drawn bytes into the peer, looks at them there, reads them back to another place, compares."""
    data = random.Random(seed).randbytes(size)
    near.memory[:size] = data
    assert near.engine.transfer_sync_write(peer.target, near.address, peer.address + at, size) == 0
    assert int(peer.ask("crc", at, size)) == zlib.crc32(data)
    assert near.engine.transfer_sync_read(peer.target, near.address + size, peer.address + at, size) == 0
    assert near.memory[size:2 * size] == data


def test_exchange(setup):
    """All that the other paths are asked: sizes from 1 byte, batches of 300, addresses that are not registered."""
    with far() as peer:
        carried = Carried()
        exchange(Near(), peer)
        assert sum(map(carried.by, MINE)) > 2 * (5 << 20)


def test_sizes(out_of_band):
    """At an odd place, with guards on both sides of it."""
    with far() as peer:
        near = Near()
        for size in (1, 63, 64, 65, 4095, 4097, 65535, 65536, 65537, 1 << 20, (3 << 20) + 1):
            assert peer.ask("fill", 0, size + 200, 0xA5) == "ok"
            near.memory[2 * size:2 * size + 64] = bytes(64)
            there_and_back(near, peer, size, size, at=101)
            for at, length in ((0, 101), (101 + size, 99)):
                assert int(peer.ask("crc", at, length)) == zlib.crc32(b"\xa5" * length), size
            assert near.memory[2 * size:2 * size + 64] == bytes(64), size


def test_spread(setup):
    """One large transfer goes over both devices."""
    with far() as peer:
        near = Near()
        there_and_back(near, peer, 4096, 1)  # the link is there
        carried = Carried()
        there_and_back(near, peer, LARGE, 2)
        total = sum(map(carried.by, MINE))
        assert total > 2 * LARGE
        for number in (*MINE, *THEIRS):
            assert carried.by(number) > total // 5, [carried.by(each) for each in range(cables.COUNT)]


def test_one_device(out_of_band):
    """device_name is obeyed: nothing crosses the other cables."""
    with far(THEIRS[:1]) as peer:
        carried = Carried()
        there_and_back(Near(MINE[:1]), peer, 1 << 20, 3)
        assert carried.by(MINE[0]) > 2 << 20 and carried.by(THEIRS[0]) > 2 << 20
        assert carried.by(MINE[1]) < 65536 and carried.by(THEIRS[1]) < 65536


class Rounds:
    """Transfers there and back in a thread, one after the other, until it is told to end; each is compared."""

    def __init__(self, near, peer, size):
        self.near, self.peer, self.size = near, peer, size
        self.done, self.error, self.ends = 0, None, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.ends:
                there_and_back(self.near, self.peer, self.size, self.done)
                self.done += 1
        except BaseException as error:
            self.error = error

    def wait(self, condition, seconds):
        until = time.monotonic() + seconds
        while not condition():
            assert self.error is None, self.error
            assert time.monotonic() < until, f"not within {seconds} s; {self.done} rounds"
            time.sleep(0.002)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join(60)
        assert not self.thread.is_alive(), "a transfer does not end"
        assert self.error is None, self.error


@pytest.mark.parametrize("pulled", [MINE[1], THEIRS[0]])
def test_cable_pulled(setup, pulled):
    """Pulled while its bytes are under way: no transfer fails, the other device carries all. Plugged: every device of both sides carries again."""
    other = {0: 1, 1: 0, 2: 3, 3: 2}[pulled]
    with far() as peer, Rounds(Near(), peer, LARGE // 2) as rounds:
        rounds.wait(lambda: rounds.done >= 1, 60)
        carried = Carried()
        rounds.wait(lambda: carried.by(pulled) > 1 << 20, 30)
        cables.pull(pulled)
        rounds.wait(lambda: not cables.is_active(pulled), 10)
        done, without = rounds.done, Carried()
        rounds.wait(lambda: rounds.done >= done + 3, 90)
        assert without.by(other) > 2 * LARGE // 2
        assert without.by(pulled) < 65536
        cables.plug(pulled)
        again = Carried()
        rounds.wait(lambda: all(again.by(number) > 1 << 20 for number in (*MINE, *THEIRS)), 60)
        done = rounds.done
        rounds.wait(lambda: rounds.done >= done + 1, 60)


def test_near_device(out_of_band, tmp_path, monkeypatch):
    """A priority matrix and a location: what is near carries all; the other when that is pulled; what is near again when it is plugged."""
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps({"cpu:0": [["rxe1"], ["rxe0"]], "cuda:1": [["rxe0"], ["rxe1"]]}))
    monkeypatch.setenv("MC_CUSTOM_TOPO_JSON", str(file))
    for location, close, distant in (("cpu:0", 1, 0), ("cuda:1", 0, 1)):
        with far(MC_CUSTOM_TOPO_JSON="") as peer:
            near = Near(location=location)
            there_and_back(near, peer, 4096, 9)
            carried = Carried()
            there_and_back(near, peer, LARGE // 2, 10)
            assert carried.by(close) > LARGE and carried.by(distant) < 65536
            cables.pull(close)
            there_and_back(near, peer, 1 << 20, 11)
            carried = Carried()
            there_and_back(near, peer, LARGE // 2, 12)
            assert carried.by(distant) > LARGE and carried.by(close) < 65536
            cables.plug(close)
            cables.wait_active(close)
            until = time.monotonic() + 60
            while True:
                carried = Carried()
                there_and_back(near, peer, 1 << 20, 13)
                if carried.by(close) > 2 << 20 and carried.by(distant) < 65536:
                    break
                assert time.monotonic() < until, [carried.by(number) for number in range(cables.COUNT)]
                time.sleep(0.05)


def test_all_cables_pulled(out_of_band):
    """No device is left: transfers go on by tcp. Plugged: by RDMA again."""
    with far() as peer, Rounds(Near(), peer, LARGE // 4) as rounds:
        rounds.wait(lambda: rounds.done >= 1, 60)
        for number in MINE:
            cables.pull(number)
        done, without = rounds.done, Carried()
        rounds.wait(lambda: rounds.done >= done + 3, 90)
        assert sum(map(without.by, MINE)) < 1 << 20
        for number in MINE:
            cables.plug(number)
        again = Carried()
        rounds.wait(lambda: sum(map(again.by, MINE)) > 1 << 20, 60)


def test_peer_killed(out_of_band):
    """In mid-transfer: the transfer fails, long before its deadline of half a minute; a new peer is served."""
    near = Near()
    with far() as peer:
        there_and_back(near, peer, 65536, 4)
        carried, codes = Carried(), []
        target, address = peer.target, peer.address

        def write_on():
            while not codes:
                code = near.engine.transfer_sync_write(target, near.address, address, LARGE)
                if code != 0:
                    codes.append(code)

        thread = threading.Thread(target=write_on)
        thread.start()
        until = time.monotonic() + 30
        while carried.by(MINE[0]) < 1 << 20 and time.monotonic() < until:
            time.sleep(0.002)
        peer.kill()
        thread.join(25)
        assert not thread.is_alive() and codes == [-1]
    with far() as peer:
        there_and_back(near, peer, 1 << 20, 5)


def test_memory_taken_back(out_of_band):
    """After the peer has unregistered nothing reaches its memory, whatever path is tried; other memory is not touched by that."""
    near = Near()
    with far() as peer:
        there_and_back(near, peer, 1 << 20, 6)
        assert peer.ask("fill", 0, 4096, 7) == "ok"
        assert peer.ask("unregister") == "0"
        for _ in range(3):
            near.memory[:4096] = bytes(4096)
            assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, 4096) == -1
            assert near.engine.transfer_sync_read(peer.target, near.address, peer.address, 4096) == -1
        assert int(peer.ask("crc", 0, 4096)) == zlib.crc32(b"\7" * 4096)
    with far() as peer:
        there_and_back(near, peer, 1 << 20, 7)


def test_peer_without_rdma(out_of_band):
    """A peer that speaks tcp only is reached by tcp, and reaches us."""
    with Peer(ENGINE_PROTOCOL="tcp", MC_RDMA_WITH_TCP="no") as peer:
        carried = Carried()
        there_and_back(Near(), peer, 1 << 20, 8)
        assert sum(map(carried.by, MINE)) < 65536
