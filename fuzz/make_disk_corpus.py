#!/usr/bin/env python3
"""Writes the seed inputs of fuzz_disk: regions with groups, torn ones and a footer, a page of the journal, a superblock.
Usage: python3 fuzz/make_disk_corpus.py (from anywhere). Deterministic."""
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus" / "fuzz_disk"
PAGE = 4096
MAGIC = 0x4b5349444e4f4f4d
SUPER = 0x5250555344434e4d


def head(kind, sequence, at=0, span=0, region=0, count=0, size=0):
    """struct mc_disk_head; checksums are made by the target."""
    return struct.pack("<QII16sQQQQIIIIIIII", MAGIC, 1, kind, b"", sequence, 77, at, span, region, count, size, 0, 0, 0, 0, 0)


def record(generation, length, page, key):
    """An entry of a table. The target makes the hash of its key."""
    fixed = struct.pack("<QQQQQIIIIHBBB3x", generation, generation, 0, 0, 0, length, 0, page, generation % 64, len(key), 16, 0, 0)
    return fixed + key + b"\0" * (-len(key) % 8)


def piece(page, data):
    return struct.pack("<HH", page, len(data)) + data


def main():
    folder = CORPUS
    folder.mkdir(parents=True, exist_ok=True)
    table = record(5, 3000, 2, b"a key") + record(6, 70000, 3, b"another")
    groups = piece(0, head(1, 9)) + piece(1, head(2, 9, PAGE, 21 * PAGE, 0, 2, len(table)) + table) + \
        piece(22, head(2, 9, 22 * PAGE, 2 * PAGE, 0, 1, 72) + record(7, 10, 23, b"x"))
    (folder / "groups").write_bytes(b"\0" + groups)
    (folder / "torn").write_bytes(b"\0" + piece(0, head(1, 9)) + piece(40, head(2, 9, 40 * PAGE, 2 * PAGE, 0, 1, 72) + record(7, 10, 41, b"x")))
    (folder / "footer").write_bytes(b"\0" + piece(0, head(1, 9)) + piece(254, table) + piece(255, head(3, 9, count=2, size=len(table))))
    (folder / "long").write_bytes(b"\0" + piece(0, head(1, 9)) + piece(1, head(2, 9, PAGE, 3 * PAGE, 0, 99, 8000) + table))
    (folder / "journal").write_bytes(b"\1" + head(4, 3, 1, 0, 0, 2, 48) + struct.pack("<QQII", 5, 9, 0, 0) * 2)
    (folder / "superblock").write_bytes(b"\2" + struct.pack("<QII16sQQQ", SUPER, 1, 0, b"\x88" * 16, 4, 1 << 20, 0) + b"\0" * 72)


if __name__ == "__main__":
    main()
