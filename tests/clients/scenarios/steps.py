"""What scenarios share: one JSON line for each step, known bytes, the cluster's address.

    @step("put")
    def _(): return codes(store.batch_put_from(...))

A step that raises is printed with its error, and the scenario goes on: which steps a side can do is what a scenario finds out.
"""
import contextlib
import hashlib
import json
import os
import sys
import time

MASTER = os.environ.get("MC_TEST_MASTER", "")
METADATA = os.environ.get("LANE_METADATA", "P2PHANDSHAKE")
SIDE = os.environ.get("MC_SIDE", "")
# Clients print to stdout too; the steps go to a descriptor of their own that nobody else writes.
OUTPUT = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def say(**line):
    OUTPUT.write(json.dumps(line) + "\n")
    OUTPUT.flush()


def step(name):
    """Runs the function now; what it returns is the step's result."""

    def run(function):
        start = time.monotonic()
        try:
            result = {"result": function()}
        except Exception as error:  # every failure of a client is a result
            import traceback

            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        say(step=name, seconds=round(time.monotonic() - start, 4), **result)
        return result.get("result")

    return run


def led(make, act):
    """Has what make() returns act as each line of the input says, until "end"."""
    holder = []
    step("set up")(lambda: holder.append(make()))
    (lane,) = holder
    for line in sys.stdin:
        word = line.strip()
        if word == "end":
            return
        step(word)(lambda: act(lane, word.split()))


def loop_beside():
    """An event loop on a thread of its own."""
    import asyncio
    import threading

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def digest(*parts):
    """Of bytes, buffers and CPU tensors: a short hash of all bytes."""
    total = hashlib.sha256()
    for part in parts:
        if hasattr(part, "untyped_storage"):  # a tensor; numpy has no bfloat16, so by bytes
            import torch

            part = part.detach().contiguous().view(-1).view(torch.uint8).numpy()
        total.update(memoryview(part).cast("B"))
    return total.hexdigest()[:16]


def pattern(size, seed=1):
    """Bytes that differ by place and seed, so that no two pages of a test are alike."""
    block = hashlib.sha256(f"{seed}".encode()).digest()
    return b"".join(hashlib.sha256(block + i.to_bytes(4, "little")).digest() for i in range((size + 31) // 32))[:size]


def fill(tensor, seed):
    """Known bytes into a CPU tensor, whatever its type."""
    import torch

    flat = tensor.view(-1).view(torch.uint8)
    flat.copy_(torch.frombuffer(bytearray(pattern(flat.numel(), seed)), dtype=torch.uint8))
    return tensor


def wait_for(condition, seconds=10.0):
    """Polls; True when it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def scenario():
    """Ends the process hard: clients leave threads and destructors behind that are not the scenario's matter."""
    code = 0
    try:
        yield
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    OUTPUT.flush()
    sys.stderr.flush()
    os._exit(code)
