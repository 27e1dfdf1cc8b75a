"""How far a master is with taking in what nodes hold: in its answers, for people, and in its log."""
import json
import os
import struct
import subprocess
import time

import pytest

from cluster import BUILD, Master, wait_until
from test_console import PLAIN, STAYS
from wire import MOUNT, MOUNT_REPLY, ROLE_OWNER, Connection, data, hello, record, records

INVENTORY, INVENTORY_ACK = 70, 71
SHIFT = 28  # MC_EPOCH_SHIFT
MIB = 1 << 20


class Returning:
    """A store node that comes with what a master before has placed; it tells that piece by piece."""

    def __init__(self, port, name, slot_top):
        self.epoch, self.at, self.sequence = hello(port)[1] - 1000, 0, 0
        self.owner = Connection(port, ROLE_OWNER, os.urandom(16))
        mount = os.urandom(16) + struct.pack("<QQIQQ16s", 64 * MIB, 64 * MIB, 16384, 1, self.epoch, b"h" * 16) + data(name) + data(b"127.0.0.1:9") + data(b"")
        mount += struct.pack("<II", 100, slot_top)
        code, self.segment, _epoch, inventory = struct.unpack_from("<iIQB", self.owner.call(MOUNT, MOUNT_REPLY, record(mount)).record())
        assert (code, inventory) == (0, 1)

    def tell(self, count, last=False):
        """In frames of 100 at most."""
        while count > 100:
            self.tell(100)
            count -= 100
        items = [struct.pack("<IBBBQQQ16s", slot, 1, 0, 0, (self.epoch << SHIFT) + slot + 1, slot * 4096, 100, bytes(16)) + data(b"%d/%d" % (self.segment, slot)) + bytes(24)
                 for slot in range(self.at, self.at + count)]
        self.at += count
        self.owner.send(INVENTORY, record(struct.pack("<IIB", self.segment, self.sequence, last)) + records(items))
        code = struct.unpack_from("<IIi", self.owner.receive(INVENTORY_ACK).record())[2]
        assert code == 0
        self.sequence += 1


def recovery(master):
    status, body = master.get("/api/v1/overview")
    assert status == 200
    return json.loads(body)["data"]["recovery"]


def status(master):
    return subprocess.run([BUILD / "mooncake", f"--admin=127.0.0.1:{master.metrics_port}", "status"], capture_output=True, text=True, timeout=60, env=PLAIN).stdout


def test_how_far_it_is():
    with Master(STAYS) as master:
        idle = recovery(master)
        assert idle["segments"] == idle["objects_told"] == idle["since_ms"] == 0 and idle["list"] == [] and 0 < idle["open_ms"] <= 60_000 and "taken in" not in status(master)
        first, second = Returning(master.port, b"node-a:1", 400), Returning(master.port, b"<b>\x1b[31m:1", 200)
        first.tell(100)
        second.tell(50)
        at = recovery(master)
        assert (at["segments"], at["segments_done"], at["objects_told"], at["objects_at_most"], at["objects_are_known"]) == (2, 0, 150, 600, True)
        assert {(one["name"], one["objects_told"], one["objects_at_most"], one["stage"]) for one in at["list"]} == {("node-a:1", 100, 400, "told"), ("<b>\x1b[31m:1", 50, 200, "told")}
        text = wait_until(lambda: [line for line in status(master).splitlines() if line.startswith("taken in  ") and "awaited" in line], 10, "that they are awaited")[0]
        assert "[######                  ]  25 %" in text and "0 of 2 segments, 150 of at most 600 objects" in text and "left" in text and "the owners of 2 are awaited" in text
        assert recovery(master)["left_ms"] > 0
        wait_until(lambda: "recovery: 2 segments are being taken in, 0 are back; 150 of at most 600 objects" in master.log(), 20, "a line of the log")
        second.tell(50, last=True)  # fewer than were announced: the numbers of slots had holes
        wait_until(lambda: recovery(master)["segments_done"] == 1, 10)
        at = recovery(master)
        assert (at["segments"], at["objects_told"], at["objects_at_most"]) == (1, 200, 500)
        first.tell(300, last=True)
        wait_until(lambda: recovery(master)["segments"] == 0, 10)
        assert "recovery: the contents of 2 segments are taken in, 500 objects in " in master.log() and "taken in  " not in status(master)
        assert master.metrics()["master_key_count"] == 500
        first.owner.close()
        second.owner.close()


def test_a_node_that_holds_nothing():
    """It says so, unlike a disk, which does not say how many come."""
    with Master(STAYS) as master:
        first, empty = Returning(master.port, b"node-a:1", 400), Returning(master.port, b"node-b:1", 0)
        first.tell(100)
        at = recovery(master)
        assert (at["segments"], at["objects_told"], at["objects_at_most"], at["objects_are_known"]) == (2, 100, 400, True)
        first.owner.close()
        empty.owner.close()


def test_the_last_one_does_not_come_to_its_end():
    """What was begun in the log has an end there, whoever it was that died."""
    with Master("--client_ttl=8s") as master:
        first = Returning(master.port, b"node-a:1", 400)
        first.tell(100)
        wait_until(lambda: "recovery: 1 segments are being taken in" in master.log(), 20, "a line of the log")
        first.owner.close()
        wait_until(lambda: "recovery: the contents of 0 segments are taken in, 0 objects in " in master.log(), 30, "the last line")
        assert recovery(master)["segments"] == 0 and master.log().count("recovery: the contents") == 1


def test_a_quick_one_says_nothing_of_it():
    with Master(STAYS) as master:
        node = Returning(master.port, b"node-a:1", 10)
        node.tell(10, last=True)
        wait_until(lambda: recovery(master)["segments"] == 0, 10)
        assert "recovery:" not in master.log()
        node.owner.close()
