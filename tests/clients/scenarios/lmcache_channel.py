"""LMCache 0.5.6, transfer channel `mooncake_te`: one process reads from the registered memory of another.

argv: "serve" PORT, or "read" OWN_PORT PEER_PORT.
"""
import sys
import time

import torch
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.transfer_channel.impl.mooncake_te_impl import create_mooncake_te_transfer_channel_context
from steps import digest, fill, pattern, scenario, step

SIZE = 8 << 20
# (offset there, offset here, bytes): unaligned, large, and two that touch.
READS = [(0, 4096, 4096), (1 << 20, 1 << 20, 3 << 20), (12345, 100003, 54321), (5 << 20, 5 << 20, 4096), ((5 << 20) + 4096, (5 << 20) + 4096, 1)]


def main():
    what, port = sys.argv[1], int(sys.argv[2])
    memory = fill(torch.empty(SIZE, dtype=torch.uint8), 3) if what == "serve" else torch.zeros(SIZE, dtype=torch.uint8)
    url = f"127.0.0.1:{port}"
    context = create_mooncake_te_transfer_channel_context(L1MemoryDesc(memory.data_ptr(), SIZE, 4096), url, url)
    if what == "serve":
        step("serving")(lambda: True)
        sys.stdin.readline()
        context.close()
        return
    client = context.get_transfer_channel_client(f"127.0.0.1:{sys.argv[3]}")

    def read(pieces):
        task = client.submit_read(context.get_transfer_channel_address([(here, size) for _, here, size in pieces]),
                                  context.get_transfer_channel_address([(there, size) for there, _, size in pieces]))
        end = time.monotonic() + 30
        while time.monotonic() < end:
            state = client.query_read_status(task)
            if state.finished:
                return list(state.succeeded_mask)
        return "not done in 30 s"

    wanted = pattern(SIZE, 3)
    step("read one")(lambda: read(READS[:1]))
    step("bytes of one")(lambda: digest(memory[4096:8192]) == digest(wanted[:4096]))
    step("read many")(lambda: read(READS))
    step("bytes of many")(lambda: [digest(memory[here:here + size]) == digest(wanted[there:there + size]) for there, here, size in READS])
    # All that the status vouches for is there when it says so: the last piece of a large batch is looked at first.
    pieces = [(i << 12, i << 12, 4096) for i in range(SIZE >> 12)]
    memory.zero_()
    step("read all in pages")(lambda: all(read(pieces)))
    step("bytes of all")(lambda: digest(memory) == digest(wanted))
    step("close")(context.close)


if __name__ == "__main__":
    with scenario():
        main()
