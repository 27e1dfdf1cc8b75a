"""What one client process did, as it did it: fixed records in a mapped file, so that nothing of it is lost when the process is killed with -9.

    history = Writer(path)
    record = history.invoke(PUT, key, value)     # before the call: from here on the operation counts, whatever becomes of the process
    history.done(record, code)                   # after it; a record without an end is a call that never returned

A record is valid once its time of invocation is there, which is written last; it has ended once its time of return is there, written last as
well. Times are CLOCK_MONOTONIC, nanoseconds, which all processes of a machine share.
"""
import mmap
import os
import struct
import time
from collections import namedtuple

PUT, GET, REMOVE, EXIST, UPSERT = 1, 2, 3, 4, 5
NAMES = {PUT: "put", GET: "get", REMOVE: "remove", EXIST: "exist", UPSERT: "upsert"}
BY_EXPRESSION = 1  # the value of a removal that was one of many of one call: that may take a minute longer than others
WRONG_BYTES = -9999  # the code of a get whose bytes are no whole value of that key: judged by the process that read them
A_DISK = "a disk"  # a place of a value, beside the names of segments
WITNESS = 1 << 24  # the first of the keys that nobody but the witness writes (keep.py)

# invoked, returned, value, code, noise (how long the process waited for a processor meanwhile, ns; 0 = not measured), key, operation
RECORD = struct.Struct("<QQQqQII")
SIZE = RECORD.size
END = struct.Struct("<QqQ")  # value, code, noise
GROW = 1 << 20

Operation = namedtuple("Operation", "invoked returned value code noise key operation client")


class Writer:
    """Appends records to one file. One thread."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.map = None
        self.at = self.size = 0
        self._grow()

    def _grow(self):
        self.size += GROW
        os.ftruncate(self.file, self.size)
        # The old map stays valid for records that are still open in it: both show the same pages.
        self.map = mmap.mmap(self.file, self.size)

    def invoke(self, operation, key, value=0):
        if self.at + SIZE > self.size:
            self._grow()
        at = self.at
        RECORD.pack_into(self.map, at, 0, 0, value, 0, 0, key, operation)
        self.at = at + SIZE
        struct.pack_into("<Q", self.map, at, time.monotonic_ns())
        return at

    def done(self, at, code, value, noise=0, now=None):
        now = now or time.monotonic_ns()
        END.pack_into(self.map, at + 16, value, code, noise)
        struct.pack_into("<Q", self.map, at + 8, now)
        return now - struct.unpack_from("<Q", self.map, at)[0]


def records(path, client=0, keys=None):
    """The valid records of a file (of these keys), in the order of their invocation. `returned` is None for a call that never did."""
    with open(path, "rb") as file:
        data = file.read()
    for invoked, returned, value, code, noise, key, operation in RECORD.iter_unpack(data[:len(data) // SIZE * SIZE]):
        if invoked == 0:
            if operation == 0:
                break
            continue
        if keys is None or key in keys:
            yield Operation(invoked, returned or None, value, code, noise, key, operation, client)


def read(path, client=0):
    return list(records(path, client))
