"""mooncake.engine with protocol rdma and a metadata server: a peer killed in a write and back elsewhere under its name, the server killed while both live on."""
import threading
import time
import zlib

import pytest

import cables
from test_engine_metadata import HttpServer
from test_rdma_engine import LARGE, MINE, THEIRS, Carried, Near, far, out_of_band, there_and_back  # noqa: F401
from cluster import wait_until
from mooncake.engine import TransferNotify, TransferOpcode

pytestmark = pytest.mark.skipif(cables.COUNT < 4, reason="two devices for each side")
BACK_S = 2.0  # after it is there again it is reached within this
GUARD = 0x5A


@pytest.fixture
def server():
    with HttpServer() as running:
        yield running


def test_killed_in_a_write_and_back_elsewhere(out_of_band, server):  # noqa: F811
    """By another device, with other ports and other queue pairs: reached under its name at once, and nothing of what was meant for the old process lands in the new one."""
    near = Near(metadata=server.url, name="near")
    for turn in range(3):
        here, there = THEIRS[turn % 2:turn % 2 + 1], THEIRS[1 - turn % 2:2 - turn % 2]
        with far(here, metadata=server.url, name="far") as first:
            there_and_back(near, first, 65536, 20 + turn)
            near.memory[:LARGE] = b"\1" * LARGE
            carried, codes = Carried(), []

            def write_on():
                while not codes:
                    code = near.engine.transfer_sync_write("far", near.address, first.address, LARGE)
                    if code != 0:
                        codes.append(code)

            thread = threading.Thread(target=write_on)
            thread.start()
            wait_until(lambda: carried.by(here[0]) > 1 << 20, 30, "bytes of the write")
            first.kill()
            with far(there, metadata=server.url, name="far") as second:
                came = time.monotonic()
                assert second.ask("fill", 0, LARGE, GUARD) == "ok"
                thread.join(25)
                assert not thread.is_alive() and codes == [-1]
                joined = time.monotonic()
                while near.engine.transfer_sync_write("far", near.address, second.address + LARGE, 4096) != 0:
                    assert time.monotonic() - joined < BACK_S
                assert joined - came < BACK_S, "and the caller learns of it as soon"
                time.sleep(1)
                assert int(second.ask("crc", 0, LARGE)) == zlib.crc32(bytes([GUARD]) * LARGE), "something late has landed"
                wait_until(lambda: is_carried(near, second, there[0]), 20, "RDMA by the other device")


def is_carried(near, peer, number):
    carried = Carried()
    there_and_back(near, peer, 1 << 20, 30, at=LARGE)
    return carried.by(number) > 2 << 20


def test_the_metadata_server_is_killed(out_of_band, server):  # noqa: F811
    """After the first transfer: transfers and notes go on by RDMA, also by a link that has to be made again."""
    near, note = Near(metadata=server.url, name="near"), TransferNotify("layer", "7")
    with far(metadata=server.url, name="far") as peer:
        there_and_back(near, peer, 1 << 20, 40)
        server.kill()

        def write():
            return near.engine.transfer_sync("far", near.address, peer.address, 1 << 20, TransferOpcode.Write, note)

        carried = Carried()
        assert [write() for _ in range(3)] == [0] * 3
        assert sum(map(carried.by, MINE)) > 3 << 20
        for number in MINE:
            cables.pull(number)
        assert write() == 0, "by tcp"
        for number in MINE:
            cables.plug(number)
        cables.wait_active(*MINE)
        wait_until(lambda: is_carried_by_any(near, peer), 60, "RDMA again")
        assert write() == 0
        assert peer.ask("notes") == str([("layer", "7")] * 5)


def is_carried_by_any(near, peer):
    carried = Carried()
    there_and_back(near, peer, 1 << 20, 41)
    return sum(map(carried.by, MINE)) > 2 << 20
