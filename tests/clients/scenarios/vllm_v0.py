"""vLLM V0's MooncakeStore as a transcript: what it calls, in its order, with tensors as safetensors bytes. argv: "produce" or "consume", JSON file.

The file has no sizes: the connector's own defaults, 3.2 GiB of segment and 1 GiB of buffer for each process, must cost nothing until they are used.
"""
import hashlib
import json
import sys
import time

import numpy
import safetensors.numpy
from mooncake.store import MooncakeDistributedStore
from steps import digest, pattern, scenario, step

LAYERS, TOKENS, HEADS, SIZE = 2, 48, 2, 64
PROMPTS = 3


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def key_prefix(prompt):
    tokens = numpy.arange(prompt * 1000, prompt * 1000 + TOKENS, dtype=numpy.int64)
    return int(hashlib.sha256(tokens.tobytes()).hexdigest()[:16], 16)


def tensors(prompt):
    count = 2 * LAYERS * TOKENS * HEADS * SIZE
    keys_and_values = numpy.frombuffer(pattern(count * 2, prompt), dtype=numpy.float16).reshape(2, LAYERS, TOKENS, HEADS, SIZE)
    hidden = numpy.frombuffer(pattern(TOKENS * 128 * 2, prompt + 50), dtype=numpy.float16).reshape(TOKENS, 128)
    return {f"{key_prefix(prompt)}_0": keys_and_values, f"{key_prefix(prompt)}_hidden_0": hidden}


def as_bytes(tensor):
    return safetensors.numpy.save({"tensor": tensor, "device_id": numpy.array([-1], dtype=numpy.int32)})


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        config = json.load(file)
    store = MooncakeDistributedStore()
    start = time.monotonic()
    step("setup, seven positional")(lambda: store.setup(
        config["local_hostname"], config["metadata_server"], config.get("global_segment_size", 3355443200),
        config.get("local_buffer_size", 1073741824), config.get("protocol", "tcp"), config.get("device_name", ""),
        config["master_server_address"]))
    step("setup returns at once")(lambda: time.monotonic() - start < 3)
    step("put again and again until there is room")(lambda: first_put(store))
    if sys.argv[1] == "produce":
        step("put safetensors")(lambda: [store.put(key, as_bytes(tensor)) for i in range(PROMPTS) for key, tensor in tensors(i).items()])
        step("put once more")(lambda: [store.put(key, as_bytes(tensor)) for key, tensor in tensors(0).items()])
    step("get")(lambda: got(store))
    step("get what nobody put")(lambda: [repr(store.get("1234567_0")), bool(store.get("1234567_hidden_0"))])
    step("no memory beyond what is used")(lambda: resident_bytes() < 2 << 30)
    step("end")(lambda: True)
    sys.stdin.readline()


def first_put(store):
    end = time.monotonic() + 30
    while (code := store.put(f"warm up of {sys.argv[1]}", b"x" * 4096)) != 0 and time.monotonic() < end:
        time.sleep(0.05)
    return code


def got(store):
    results = []
    for prompt in range(PROMPTS):
        for key, want in tensors(prompt).items():
            data = store.get(key)
            if not data:
                results.append(None)
                continue
            tensor = safetensors.numpy.load(data)["tensor"]
            results.append([type(data).__name__, list(tensor.shape), bool((tensor.view(numpy.uint16) == want.view(numpy.uint16)).all()), digest(tensor)])
    return results


if __name__ == "__main__":
    with scenario():
        main()
