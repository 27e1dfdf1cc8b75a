#!/usr/bin/env python3
"""Writes the seed inputs of fuzz_core: lives of a small cluster as the target's step bytes, drawn by fixed dice.
Usage: python3 fuzz/make_core_corpus.py (from anywhere). Deterministic."""
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus" / "fuzz_core"
OWNERS, CALLS = (1, 4), (2, 5, 6, 7)  # connections that the target's opening makes


def put(dice):
    items = b"".join(
        struct.pack("<HBB", dice.randrange(1, 400), dice.randrange(0, 9), dice.randrange(24, 90)) for _ in range(dice.randrange(1, 6))
    )
    count = len(items) // 4
    return bytes([4, dice.choice(CALLS), dice.choice((0, 0, 1, 2, 9, 5)), dice.choice((200, 200, 0, 1)), count]) + items


def inventory(dice, owner, shape):
    count = dice.randrange(1, 8)
    items = b"".join(
        bytes([dice.choice((0, 1, 2, 3, dice.randrange(256))), dice.randrange(256), dice.randrange(200), dice.randrange(256),
               dice.randrange(256), dice.randrange(24, 90)]) for _ in range(count)
    )
    return bytes([12, owner, dice.randrange(8), shape | count]) + items


def life(dice, steps):
    out = bytearray()
    for _ in range(steps):
        kind = dice.randrange(26)
        if kind < 6:
            out += put(dice)
        elif kind < 8:
            out += bytes([6, dice.choice(CALLS), 1])  # remember what was granted
        elif kind < 13:
            for _ in range(8):
                out += bytes([7, dice.choice(OWNERS), dice.randrange(64), dice.randrange(30)])
        elif kind < 15:
            out += bytes([6, dice.choice(OWNERS), dice.randrange(9)])  # obey
        elif kind == 15:
            out += bytes([8, dice.choice(CALLS), dice.randrange(64)])
        elif kind < 18:
            shape = dice.randrange(8) | dice.randrange(1, 6) << 4
            out += bytes([9, dice.choice(CALLS), shape] + [dice.randrange(24, 90) for _ in range(shape >> 4)])
        elif kind == 18:
            out += bytes([10, dice.choice(CALLS), dice.choice((0, 2, 3, 4, 6)), dice.randrange(2)])
            if out[-2] == 4:
                out += bytes([dice.randrange(24, 40)])
        elif kind == 19:
            out += bytes([11, dice.randrange(16), dice.randrange(60)])
        elif kind == 20:
            out += bytes([10, dice.choice((0, 3)), 5, dice.randrange(2), 24])
        elif kind == 22:  # contents of an earlier epoch, whole or with a lie in it
            owner = dice.choice(OWNERS)
            out += bytes([3, owner, 0x62 | dice.randrange(2) << 7 >> 1 | dice.randrange(2)]) + struct.pack("<HBH", 128, 10, 255) + bytes([6, owner, 1])
            for _ in range(dice.randrange(1, 4)):
                out += inventory(dice, owner, dice.choice((0, 0x20, 0xF0)))
            out += bytes([11, 15, 100, 6, owner, 1])
        elif kind == 23:
            out += inventory(dice, dice.choice(OWNERS), dice.choice((0, 0xF0)))
        elif kind == 24:
            out += bytes([14, dice.choice((*OWNERS, *CALLS)), dice.randrange(64)])
        elif dice.randrange(3) == 0:
            node = dice.randrange(2)
            out += bytes([1, OWNERS[node], 0, OWNERS[node], (2, 6)[node]])  # its owner connection breaks and comes back
            out += bytes([3, OWNERS[node], 0xE0 | node]) + struct.pack("<HBH", (64, 128)[node], 10, (64, 255)[node])
        else:
            at = dice.choice(CALLS)
            out += bytes([1, at, 0, at, {2: 0, 5: 4, 6: 8, 7: 8}[at]])
    return bytes(out)


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    for number in range(16):
        dice = random.Random(number)
        (CORPUS / f"life_{number:02d}").write_bytes(life(dice, 60 + 20 * number))


if __name__ == "__main__":
    main()
