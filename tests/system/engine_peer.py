"""An engine that is a process of its own: it registers memory and does what its standard input says, one word a line.

    engine_peer.py HOST METADATA SIZE [NAME]
says "CODE PORT ADDRESS", then answers: crc OFFSET SIZE; fill OFFSET SIZE BYTE; read|write TARGET ADDRESS SIZE; first TARGET; allocate SIZE; free ADDRESS SIZE; vanish SIZE; zero ADDRESS SIZE; crc_at ADDRESS SIZE;
bytes TEXT; notes; graceful; unregister.
ENGINE_PROTOCOL and ENGINE_DEVICES: instead of tcp. ENGINE_NO_REACH: it may not reach into other processes' memory. MC_PYTHONPATH is where the package lies; without it the one that is installed is taken (the original, in its environment).
"""
import ctypes
import mmap
import os
import sys
import zlib

if os.environ.get("MC_PYTHONPATH"):
    sys.path.insert(0, os.environ["MC_PYTHONPATH"])

import fake_device  # noqa: E402
import forbidden  # noqa: E402
from mooncake.engine import TransferEngine  # noqa: E402

if os.environ.get("ENGINE_NO_REACH"):
    forbidden.forbid_reaching()
libc, vanished = ctypes.CDLL(None), []
engine = TransferEngine()
host, metadata, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
code = engine.initialize(host, metadata, os.environ.get("ENGINE_PROTOCOL", "tcp"), os.environ.get("ENGINE_DEVICES", ""))
if os.environ.get("MC_CUDA_LIBRARY"):  # a device's memory: `address` is where nobody may look, `memory` where the test does
    address, memory = fake_device.allocate(size)
else:
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if code == 0:
    code = engine.register_memory(address, size)
print(code, engine.get_rpc_port(), address, flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "crc":
        print(zlib.crc32(memory[int(words[1]):int(words[1]) + int(words[2])]), flush=True)
    elif words[0] == "fill":
        memory[int(words[1]):int(words[1]) + int(words[2])] = bytes([int(words[3])]) * int(words[2])
        print("ok", flush=True)
    elif words[0] in ("read", "write"):
        call = engine.transfer_sync_read if words[0] == "read" else engine.transfer_sync_write
        print(call(words[1], address, int(words[2]), int(words[3])), flush=True)
    elif words[0] == "allocate":
        print(engine.allocate_managed_buffer(int(words[1])), flush=True)
    elif words[0] == "free":
        print(engine.free_managed_buffer(int(words[1]), int(words[2])), flush=True)
    elif words[0] == "vanish":  # memory that nobody may look at any more, as if it had been given back without a word
        lost = mmap.mmap(-1, int(words[1]))
        where = ctypes.addressof(ctypes.c_char.from_buffer(lost))
        assert engine.register_memory(where, int(words[1])) == 0
        assert libc.mprotect(ctypes.c_void_p(where), ctypes.c_size_t(int(words[1])), 0) == 0
        vanished.append(lost)
        print(where, flush=True)
    elif words[0] == "zero":
        ctypes.memset(int(words[1]), 0, int(words[2]))
        print("ok", flush=True)
    elif words[0] == "crc_at":
        print(zlib.crc32(ctypes.string_at(int(words[1]), int(words[2]))), flush=True)
    elif words[0] == "first":
        print(engine.get_first_buffer_address(words[1]), flush=True)
    elif words[0] == "loop":  # writes until it is killed
        print("ok", flush=True)
        while True:
            engine.transfer_sync_write(words[1], address, int(words[2]), int(words[3]))
    elif words[0] == "notes":
        print([(note.name, note.msg) for note in engine.get_notifies()], flush=True)
    elif words[0] == "graceful":
        print(engine.enable_graceful_shutdown(), flush=True)
    elif words[0] == "bytes":
        code = engine.write_bytes_to_buffer(address, words[1].encode(), len(words[1]))
        print(code, engine.read_bytes_from_buffer(address, len(words[1])).decode(), bytes(memory[:len(words[1])]).decode(), flush=True)
    elif words[0] == "unregister":
        print(engine.unregister_memory(address), flush=True)
