"""SGLang 0.5.23, MooncakeTransferEngine, as prefill and decode use it. argv: "decode", or "prefill" SESSION ADDRESS.

The decode side registers its KV memory and says its session and the address; the prefill side writes pages into it.
"""
import os
import sys

os.environ.update(MOONCAKE_PROTOCOL="tcp")

import cpu_torchvision  # noqa: E402, F401
import torch  # noqa: E402
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine  # noqa: E402
from steps import digest, fill, pattern, say, scenario, step  # noqa: E402

LAYERS, PAGES, PAGE = 4, 64, 4096


def decode():
    engine = MooncakeTransferEngine("127.0.0.1")
    memory = torch.zeros(LAYERS, PAGES, PAGE, dtype=torch.uint8)
    step("decode: register")(lambda: engine.batch_register([memory[i].data_ptr() for i in range(LAYERS)], [PAGES * PAGE] * LAYERS))
    # Not a step: two runs never have the same.
    say(step="decode: where", result=True, session=engine.get_session_id(), address=memory.data_ptr())
    for line in sys.stdin:
        word = line.strip()
        if word == "end":
            return
        if word == "bytes":
            step("bytes")(lambda: [digest(memory) == digest(pattern(memory.numel(), 11)), digest(memory)])
        if word == "deregister":
            step("deregister")(lambda: engine.batch_deregister([memory[i].data_ptr() for i in range(LAYERS)]))


def prefill(session, address):
    engine = MooncakeTransferEngine("127.0.0.1")
    memory = fill(torch.zeros(LAYERS, PAGES, PAGE, dtype=torch.uint8), 11)
    step("prefill: register")(lambda: engine.register(memory.data_ptr(), memory.numel()))
    step("prefill: register twice")(lambda: refused(lambda: engine.register(memory.data_ptr(), memory.numel())))
    step("prefill: probe")(lambda: engine.send_probe(session))
    step("prefill: probe of nobody")(lambda: engine.send_probe("127.0.0.1:1") != 0)
    half = LAYERS * PAGES // 2
    step("prefill: write one")(lambda: engine.transfer_sync(session, memory.data_ptr(), address, PAGE))
    step("prefill: write batch")(lambda: engine.batch_transfer_sync(
        session, [memory.data_ptr() + i * PAGE for i in range(half)], [address + i * PAGE for i in range(half)], [PAGE] * half))

    def many():
        """As the queues of MooncakeKVManager: several threads to one session."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(engine.batch_transfer_sync, session, [memory.data_ptr() + i * PAGE], [address + i * PAGE], [PAGE])
                    for i in range(half, 2 * half)]
            return sorted({job.result() for job in jobs})

    step("prefill: write by eight threads")(many)
    step("prefill: write nothing")(lambda: engine.batch_transfer_sync(session, [], [], []))
    step("prefill: write to nobody")(lambda: engine.transfer_sync("127.0.0.1:1", memory.data_ptr(), address, PAGE) < 0)
    step("prefill: write beyond")(lambda: engine.transfer_sync(session, memory.data_ptr(), address + (1 << 40), PAGE) < 0)
    step("prefill: deregister")(lambda: [engine.deregister(memory.data_ptr()), refused(lambda: engine.deregister(memory.data_ptr()))])


def refused(call):
    try:
        call()
    except RuntimeError as error:
        return "failed" in str(error)
    return False


if __name__ == "__main__":
    with scenario():
        decode() if sys.argv[1] == "decode" else prefill(sys.argv[2], int(sys.argv[3]))
