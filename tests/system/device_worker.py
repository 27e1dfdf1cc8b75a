"""A process that puts from and gets into a device's memory: device_worker.py MASTER SEGMENT. Says "ok" when every byte was right."""
import os
import random
import sys

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

import fake_device  # noqa: E402
from mooncake.store import MooncakeDistributedStore  # noqa: E402

MIB = 1 << 20
draw = random.Random(3)


def expect(found, wanted):
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}"[:300])


def singles(store, base, memory):
    for size in (1, 4096, 65537, MIB + 1, 9 * MIB + 5):
        data, key = draw.randbytes(size), f"single {size}"
        memory[3:3 + size] = data
        expect(store.put_from(key, base + 3, size), 0)
        expect(bytes(store.get(key)) == data, True)
        memory[:size + 8] = bytes(size + 8)
        expect(store.get_into(key, base + 5, size), size)
        expect(memory[5:5 + size] == data and memory[:5] == bytes(5), True)
        expect(store.put("host " + key, data), 0)
        expect(store.get_into("host " + key, base, size), size)
        expect(memory[:size] == data, True)
        memory[:size] = data[::-1]
        expect(store.upsert_from(key, base, size), 0)
        expect(bytes(store.get(key)) == data[::-1], True)


def batches(store, base, memory):
    size, keys = 40000, [f"batch {i}" for i in range(60)]
    data = draw.randbytes(size * len(keys))
    places = [base + i * size for i in range(len(keys))]
    memory[:len(data)] = data
    expect(store.batch_put_from(keys, places, [size] * len(keys)), [0] * len(keys))
    memory[:len(data)] = bytes(len(data))
    expect(store.batch_get_into(keys, places, [size] * len(keys)), [size] * len(keys))
    expect(memory[:len(data)] == data, True)
    # Parts that lie apart, in the device's and in the host's memory.
    host = bytearray(draw.randbytes(1000))
    parts = [[base + 7, base + 100000, address(host)], [base + 200000, base + 300001, base + 400002]]
    lengths = [[500, 70000, 1000], [1, 50000, 65536]]
    wanted = [b"".join(memory[at - base:at - base + length] if at != address(host) else host for at, length in zip(*one))
              for one in zip(parts, lengths)]
    expect(store.batch_put_from_multi_buffers(["parts 0", "parts 1"], parts, lengths), [0, 0])
    expect([bytes(store.get(key)) for key in ("parts 0", "parts 1")] == wanted, True)
    held = bytes(host)
    host[:] = bytes(1000)
    memory[:500000] = bytes(500000)
    expect(store.batch_get_into_multi_buffers(["parts 0", "parts 1"], parts, lengths), [sum(one) for one in lengths])
    expect(host == held and memory[100000:170000] == wanted[0][500:70500] and memory[400002:465538] == wanted[1][50001:], True)


def ranges(store, base, memory):
    size = 6 * MIB
    data = draw.randbytes(size)
    expect(store.put("ranged", data), 0)
    memory[:size] = bytes(size)
    expect(store.get_into_ranges([base], [["ranged"]], [[[1, 3 * MIB]]], [[[70001, 65536]]], [[[1000, MIB]]]), [[[1000, MIB]]])
    expect(memory[1:1001] == data[70001:71001] and memory[3 * MIB:4 * MIB] == data[65536:65536 + MIB], True)
    expect(memory[1001:3 * MIB] == bytes(3 * MIB - 1001), True)
    expect(store.batch_get_session_start(["ranged"]), [0])
    expect(store.batch_get_into_multi_buffer_ranges(["ranged"], [[base, base + 2 * MIB]], [[5 * MIB // 3, 100]], [[5, MIB]]),
           [5 * MIB // 3 + 100])
    expect(memory[:5 * MIB // 3] == data[5:5 + 5 * MIB // 3] and memory[2 * MIB:2 * MIB + 100] == data[MIB:MIB + 100], True)
    store.batch_get_session_end(["ranged"])
    memory[:size] = data
    expect(store.batch_put_session_start(["pieces"], [size]), [0])
    expect(store.batch_put_from_multi_buffer_ranges(["pieces"], [[base + MIB, base]], [[size - MIB, MIB]], [[MIB, 0]]), [size])
    expect(store.batch_put_session_end(["pieces"]), [0])
    expect(bytes(store.get("pieces")) == data, True)


def freed(store, base, memory):
    address_of, _ = fake_device.allocate(5000)
    expect(store.register_buffer(address_of, 5000), 0)
    expect(store.put_from("freed", address_of, 5000), 0)
    fake_device.library().fake_cuda_free(address_of)
    expect(store.get_into("freed", address_of, 5000) < 0, True)
    expect(store.put_from("never", address_of, 5000) < 0, True)
    expect(store.is_exist("never"), 0)
    expect(store.unregister_buffer(address_of), 0)
    expect(store.get_into("freed", base, 5000), 5000)


def address(buffer):
    return fake_device.ctypes.addressof(fake_device.ctypes.c_char.from_buffer(buffer))


def main():
    store = MooncakeDistributedStore()
    expect(store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 * MIB, "tcp", "", sys.argv[1]), 0)
    expect(store.put("before", b"there is no driver yet"), 0)
    base, memory = fake_device.allocate(12 * MIB)
    expect(store.register_buffer(base, len(memory)), 0)
    singles(store, base, memory)
    batches(store, base, memory)
    ranges(store, base, memory)
    freed(store, base, memory)
    expect((fake_device.number(fake_device.PENDING), fake_device.number(fake_device.MISTAKES)), (0, 0))
    expect(fake_device.number(fake_device.COPIES) > 100, True)
    expect(store.unregister_buffer(base), 0)
    expect(store.close(), 0)
    print("ok", flush=True)


main()
