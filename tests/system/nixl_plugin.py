"""NIXL's Mooncake plugin (ai-dynamo/nixl, src/plugins/mooncake) call by call, over libmooncake.so: which functions it calls, in which order, and what it makes
of their answers. What it takes for a success is one for its users.

    nixl_plugin.py target ADDRESS FILE                          memory that is FILE; says its name and where the memory lies; ends with its standard input
    nixl_plugin.py initiator ADDRESS FILE NAME PLACE read|write keeps requests under way to that target, whose FILE it looks at

What the initiator is told, one word a line: `fault` (what is posted from here on is counted apart, and is SLOTS requests), `end`. It says `moving` when some
requests have ended well, and after `fault` what came of all of them, in one line of JSON; then it begins anew, up to `end`.
"""
import collections
import ctypes
import json
import mmap
import os
import pathlib
import random
import select
import sys
import time

SLOTS, PARTS, PART = 8, 4, 96 << 10  # requests under way, descriptors of each, bytes of each
SIZE = SLOTS * PARTS * PART
MOVING = 4 * SLOTS
INVALID_BATCH, REQUESTS_MAX = 2**64 - 1, 1024
OPCODES = {"read": 0, "write": 1}
WAITING, PENDING, FAILED = 0, 1, 6
IN_PROG, SUCCESS, ERR_BACKEND = "in progress", "success", "error"


class Request(ctypes.Structure):
    _fields_ = [("opcode", ctypes.c_int), ("source", ctypes.c_void_p), ("target_id", ctypes.c_int32), ("target_offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class Status(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("transferred_bytes", ctypes.c_uint64)]


class Note(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("msg", ctypes.c_char_p)]


def load():
    library = ctypes.CDLL(str(pathlib.Path(os.environ["MC_BUILD"]) / "libmooncake.so"))
    engine, batch = ctypes.c_void_p, ctypes.c_uint64
    library.createTransferEngine.restype = engine
    library.createTransferEngine.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
    library.getLocalIpAndPort.argtypes = [engine, ctypes.c_char_p, ctypes.c_size_t]
    library.openSegment.argtypes, library.openSegment.restype = [engine, ctypes.c_char_p], ctypes.c_int32
    library.registerLocalMemory.argtypes = [engine, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int]
    library.allocateBatchID.argtypes, library.allocateBatchID.restype = [engine, ctypes.c_size_t], batch
    library.submitTransfer.argtypes = [engine, batch, ctypes.POINTER(Request), ctypes.c_size_t]
    library.submitTransferWithNotify.argtypes = [engine, batch, ctypes.POINTER(Request), ctypes.c_size_t, Note]
    library.getTransferStatus.argtypes = [engine, batch, ctypes.c_size_t, ctypes.POINTER(Status)]
    library.freeBatchID.argtypes = [engine, batch]
    library.destroyTransferEngine.argtypes = [engine]
    return library


class Handle:
    """nixlMooncakeBackendReqH"""

    def __init__(self):
        self.batch_id, self.request_count = INVALID_BATCH, 0


class Plugin:
    """nixlMooncakeEngine"""

    def __init__(self, address, memory, size):
        self.library = load()
        self.engine = self.library.createTransferEngine(b"P2PHANDSHAKE", address.encode(), b"", 0, 1)
        assert self.engine and self.library.registerLocalMemory(self.engine, memory, size, b"*", 1) == 0

    def connection_info(self):
        text = ctypes.create_string_buffer(64)
        self.library.getLocalIpAndPort(self.engine, text, 64)
        return text.value.decode()

    def load_remote(self, info):
        self.segment_id = self.library.openSegment(self.engine, info.encode())
        assert self.segment_id >= 0

    def post(self, handle, operation, local, remote, length, note=None):
        if handle.batch_id == INVALID_BATCH:
            handle.batch_id = self.library.allocateBatchID(self.engine, REQUESTS_MAX)
            if handle.batch_id == INVALID_BATCH:
                return ERR_BACKEND
            handle.request_count = 0
        count = len(local)
        requests = (Request * count)(*[Request(OPCODES[operation], local[i], self.segment_id, remote[i], length) for i in range(count)])
        if note is not None:
            code = self.library.submitTransferWithNotify(self.engine, handle.batch_id, requests, count, Note(b"agent", note))
        else:
            code = self.library.submitTransfer(self.engine, handle.batch_id, requests, count)
        if code != 0:
            return ERR_BACKEND
        handle.request_count += count
        return IN_PROG

    def check(self, handle):
        if handle.batch_id == INVALID_BATCH:
            return SUCCESS
        has_failed = False
        for index in range(handle.request_count):
            status = Status()
            code = self.library.getTransferStatus(self.engine, handle.batch_id, index, ctypes.byref(status))
            if code != 0 or status.status == FAILED:
                has_failed = True
            elif status.status in (PENDING, WAITING):
                return IN_PROG
        if not has_failed:
            self.library.freeBatchID(self.engine, handle.batch_id)
            handle.batch_id, handle.request_count = INVALID_BATCH, 0
        return ERR_BACKEND if has_failed else SUCCESS

    def release(self, handle):
        return self.library.freeBatchID(self.engine, handle.batch_id) if handle.batch_id != INVALID_BATCH else 0


def memory_of(path):
    """(map, address) of SIZE bytes of that file, or of nobody else's."""
    file = open(path, "r+b") if path else None
    memory = mmap.mmap(file.fileno() if file else -1, SIZE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def target(address, path):
    _, place = memory_of(path)
    plugin = Plugin(address, place, SIZE)
    print(plugin.connection_info(), place, flush=True)
    sys.stdin.read()


class Slot:
    def __init__(self, number):
        self.number, self.handle, self.is_busy = number, Handle(), False
        self.begin, self.end = number * PARTS * PART, (number + 1) * PARTS * PART


class Initiator:
    def __init__(self, address, path, name, place, operation):
        self.far, _ = memory_of(path)
        self.near, self.near_place = memory_of("")
        self.plugin = Plugin(address, self.near_place, SIZE)
        self.plugin.load_remote(name)
        self.far_place, self.operation, self.turn = int(place), operation, 0
        self.slots = [Slot(number) for number in range(SLOTS)]

    def post(self, slot, is_after):
        self.turn += 1
        slot.expected = random.Random(f"{self.operation} {self.turn}").randbytes(PARTS * PART)
        source, other = (self.near, self.far) if self.operation == "write" else (self.far, self.near)
        other[slot.begin:slot.end] = bytes(PARTS * PART)  # so what is there already is not taken for what was moved
        source[slot.begin:slot.end] = slot.expected
        offsets = [slot.begin + part * PART for part in range(PARTS)]
        slot.is_busy, slot.is_after, slot.begun = True, is_after, time.monotonic()
        posted = self.plugin.post(slot.handle, self.operation, [self.near_place + at for at in offsets], [self.far_place + at for at in offsets], PART,
                                  b"done" if self.turn % 2 else None)
        if posted != IN_PROG:
            self.ended(slot, posted)

    def ended(self, slot, result):
        other = self.far if self.operation == "write" else self.near
        slot.is_busy, slot.result = False, result
        self.seen["after" if slot.is_after else "before", result] += 1
        self.slowest = max(self.slowest, time.monotonic() - slot.begun)
        if result == SUCCESS:
            self.wrong += other[slot.begin:slot.end] != slot.expected
            return
        slot.left = other[slot.begin:slot.end]
        self.kept += self.plugin.release(slot.handle) != 0
        slot.handle = Handle()

    def look(self):
        for slot in self.slots:
            result = self.plugin.check(slot.handle) if slot.is_busy else IN_PROG
            if result != IN_PROG:
                self.ended(slot, result)

    def look_again(self):
        """What has ended well stays; and what has failed touches the memory of this side no more."""
        time.sleep(0.3)
        other = self.far if self.operation == "write" else self.near
        for slot in self.slots:
            if slot.result == SUCCESS or self.operation == "read":
                self.wrong += other[slot.begin:slot.end] != (slot.expected if slot.result == SUCCESS else slot.left)

    def one_trial(self):
        """False: there shall be no other."""
        self.seen, self.slowest, self.wrong, self.kept, has_said = collections.Counter(), 0.0, 0, 0, False
        while not select.select([sys.stdin], [], [], 0)[0]:
            for slot in self.slots:
                if not slot.is_busy:
                    self.post(slot, False)
            self.look()
            if self.seen["before", SUCCESS] >= MOVING and not has_said:
                print("moving", flush=True)
                has_said = True
        if sys.stdin.readline().strip() != "fault":
            return False
        self.slowest, owed = 0.0, list(self.slots)
        while owed or any(slot.is_busy for slot in self.slots):
            for slot in [slot for slot in owed if not slot.is_busy]:
                owed.remove(slot)
                self.post(slot, True)
            self.look()
            time.sleep(0.001)
        self.look_again()
        print(json.dumps({"before": {result: self.seen["before", result] for result in (SUCCESS, ERR_BACKEND)},
                          "after": {result: self.seen["after", result] for result in (SUCCESS, ERR_BACKEND)},
                          "slowest_s": self.slowest, "wrong": self.wrong, "kept": self.kept}), flush=True)
        return True


def main():
    role, *words = sys.argv[1:]
    if role == "target":
        target(*words)
        return
    initiator = Initiator(*words)
    while initiator.one_trial():
        pass
    initiator.plugin.library.destroyTransferEngine(initiator.plugin.engine)


if __name__ == "__main__":
    main()
