"""Traps of mooncake.engine: the status of a batch, codes, types."""
import ctypes
import os
import time

from mooncake.engine import TransferEngine
from steps import pattern, scenario, step

SIZE = 4 << 20


def made(protocol="tcp"):
    engine = TransferEngine()
    return engine, engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "")


def wait(engine, batch):
    """Status 0 until it is another, and how that was."""
    end = time.monotonic() + 30
    while (status := engine.transfer_check_status(batch)) == 0 and time.monotonic() < end:
        pass
    return status


def main():
    (here, one), (there, two) = made(), made()
    step("initialize")(lambda: [one, two, type(here.get_rpc_port()).__name__, here.get_rpc_port() != there.get_rpc_port()])
    peer = f"127.0.0.1:{there.get_rpc_port()}"
    source = ctypes.create_string_buffer(pattern(SIZE, 5), SIZE)
    target = ctypes.create_string_buffer(SIZE)
    at, far = ctypes.addressof(target), ctypes.addressof(source)
    step("register")(lambda: [here.register_memory(at, SIZE), there.register_memory(far, SIZE), here.register_memory(at, SIZE), here.register_memory(at + 10, 10),
                              here.register_memory(at, 0)])

    def whole_batch():
        """The first entry is small, the last large: done may be said only when all is here."""
        outcomes = set()
        for _ in range(20):
            ctypes.memset(at, 0, SIZE)
            batch = here.batch_transfer_async_read(peer, [at, at + 64], [far, far + 64], [64, SIZE - 64])
            outcomes.add((0 < batch < 1 << 63, wait(here, batch), target.raw == source.raw))
        return sorted(outcomes)

    step("07 status of the whole batch")(whole_batch)
    step("one bad entry fails the batch")(lambda: wait_or_refused(here, peer, at, far))
    step("nobody there")(lambda: [here.transfer_sync_write("127.0.0.1:1", at, far, 64) < 0, here.send_probe("127.0.0.1:1") != 0])
    step("probe")(lambda: here.send_probe(peer))
    step("write")(lambda: [there.transfer_sync_write(f"127.0.0.1:{here.get_rpc_port()}", far, at, SIZE), target.raw == source.raw])
    step("nothing at all")(lambda: here.batch_transfer_sync_write(peer, [], [], []))
    step("lengths differ")(lambda: here.batch_transfer_sync_write(peer, [at], [far, far], [1]))
    step("outside what is registered")(lambda: here.transfer_sync_read(peer, at, far + SIZE + (1 << 30), 64) < 0)
    step("unregister")(lambda: [here.unregister_memory(at), here.unregister_memory(at)])
    step("batch register")(lambda: [here.batch_register_memory([at, at + (1 << 20)], [1 << 20, 1 << 20]), here.batch_unregister_memory([at, at + (1 << 20)])])

    def forced():
        os.environ["MC_FORCE_TCP"] = "1"
        return made("rdma")[1]

    step("11 rdma by tcp")(forced)


def wait_or_refused(engine, peer, at, far):
    batch = engine.batch_transfer_async_read(peer, [at, at + 64], [far, far + SIZE + (1 << 30)], [64, 64])
    return batch in (0, 2**64 - 1) or wait(engine, batch) in (-1, -2)


if __name__ == "__main__":
    with scenario():
        main()
