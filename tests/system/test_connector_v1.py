"""mooncake.mooncake_connector_v1 between two workers, with stand-ins for vLLM and for mooncake.engine; sockets, threads and bytes are real.

What of vLLM it imports is made here, as vLLM 0.11 has it. The engine of this test writes into the process's own memory.
"""
import ctypes
import hmac
import importlib
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import types

import pytest

from ports import free_port

SOURCE = pathlib.Path(os.environ.get("MC_SOURCE", pathlib.Path(__file__).parents[2])) / "python" / "mooncake" / "mooncake_connector_v1.py"
BLOCK, BLOCKS, LAYERS = 512, 32, 3


def test_without_vllm_it_raises_import_error_only():
    code = (f"import importlib.util, sys\nsys.modules['vllm'] = None\nspec = importlib.util.spec_from_file_location('c', {str(SOURCE)!r})\n"
            "try:\n    spec.loader.exec_module(importlib.util.module_from_spec(spec))\nexcept ImportError:\n    print('good')\n")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "good\n"


def test_a_vllm_that_has_its_own_is_told_so():
    code = (f"import importlib.util, sys, types\nsys.modules['vllm'] = types.SimpleNamespace(__version__='0.32.0')\n"
            "for name in ('zmq', 'msgspec'):\n    sys.modules[name] = types.ModuleType(name)\n"
            f"spec = importlib.util.spec_from_file_location('c', {str(SOURCE)!r})\n"
            "try:\n    spec.loader.exec_module(importlib.util.module_from_spec(spec))\nexcept ImportError as error:\n    print(error)\n")
    assert "of its own" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout


class Engine:
    """TransferEngine as the connector uses it: addresses are of this process."""
    fails = 0
    protocols = []
    key, keys = None, {}  # its own, and the secrets of all that it knows
    exposed = []

    def initialize(self, host, metadata, protocol, device):
        Engine.protocols.append(protocol)
        return 0 if protocol == "tcp" and metadata == "P2PHANDSHAKE" else -1

    def get_rpc_port(self):
        return 12345

    def batch_register_memory(self, addresses, lengths):
        return 0 if len(addresses) == len(lengths) else -1

    def batch_transfer_sync_write(self, session, sources, targets, lengths):
        assert session == "127.0.0.1:12345"
        if Engine.fails > 0:
            Engine.fails -= 1
            return -1
        for source, target, length in zip(sources, targets, lengths):
            ctypes.memmove(target, source, length)
        return 0


def prove(who, key, caller, server, name):
    """As mooncake.engine does: by a key that it knows."""
    assert len(caller) == len(server) == 32
    secret = Engine.keys.get(key)
    return secret and hmac.digest(secret, b"|".join((who.encode(), key.encode(), caller, server, name)), "sha256")


class Tensor:
    """Keys or values of one layer."""

    def __init__(self):
        self.memory = ctypes.create_string_buffer(BLOCK * BLOCKS)
        self.nbytes, self.shape = BLOCK * BLOCKS, (BLOCKS, BLOCK)

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def fill(self):
        self.memory.raw = random.randbytes(self.nbytes)

    def block(self, index):
        return self.memory.raw[index * BLOCK:(index + 1) * BLOCK]


def needed(name):
    """Of the engine's environment. `./dev test clients transcripts` has it: there a test that cannot run has failed."""
    environment = os.environ.get("MC_CLIENTS")
    if environment is None:
        return pytest.importorskip(name)
    folders = [str(folder) for folder in pathlib.Path(environment, "transcripts", "lib").glob("python3*/site-packages")]
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return importlib.import_module(name)


@pytest.fixture
def connector(monkeypatch):
    zmq = needed("zmq")
    needed("msgspec")

    class Base:
        def __init__(self, vllm_config, role, *more):
            self._connector_metadata = None

        def get_block_ids_with_load_errors(self):
            return set()

    def make_zmq_socket(context, path, socket_type, bind=None, linger=None):
        sock = context.socket(socket_type)
        if linger is not None:
            sock.setsockopt(zmq.LINGER, linger)
        if bind:
            sock.bind(path)
        else:
            sock.connect(path)
        return sock

    def module(name, **members):
        made = types.ModuleType(name)
        made.__dict__.update(members)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
    role = types.SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
    logger = types.SimpleNamespace(**{name: print for name in ("debug", "info", "warning", "error")})
    for name in ("vllm.attention", "vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
                 "vllm.distributed.kv_transfer.kv_connector.v1", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm.utils"):
        module(name)
    module("vllm", __version__="0.11.0")
    module("vllm.attention.selector", get_attn_backend=lambda *a, **k: types.SimpleNamespace(get_name=lambda: "TORCH_SDPA"))
    module("vllm.v1.attention.backends.utils", get_kv_cache_layout=lambda: "NHD")
    module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorBase_V1=Base, KVConnectorMetadata=object, KVConnectorRole=role)
    module("vllm.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 0, get_tp_group=lambda: None)
    module("vllm.logger", init_logger=lambda name: logger)
    module("vllm.v1.request", RequestStatus=types.SimpleNamespace(FINISHED_LENGTH_CAPPED="length", FINISHED_ABORTED="aborted"))
    module("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", make_zmq_path=lambda scheme, host, port: f"{scheme}://{host}:{port}",
           make_zmq_socket=make_zmq_socket)
    module("mooncake")
    module("mooncake.engine", TransferEngine=Engine, _own_key=lambda: Engine.key, _prove=prove, _exposed=lambda *port: Engine.exposed.append(port))
    monkeypatch.setenv("VLLM_MOONCAKE_SIDE_CHANNEL_PORT", str(free_port()))
    monkeypatch.delenv("VLLM_MOONCAKE_PROTOCOL", raising=False)
    spec = importlib.util.spec_from_file_location("mooncake_connector_v1", SOURCE)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.PULL_PATIENCE_S = 0.2
    Engine.fails, Engine.protocols, Engine.key, Engine.keys, Engine.exposed = 0, [], None, {}, []
    yield made


class Side:
    """Scheduler and worker of one instance."""

    def __init__(self, module, role):
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(engine_id="e", kv_role=role), cache_config=types.SimpleNamespace(block_size=16, cache_dtype="auto"),
            parallel_config=types.SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1),
            model_config=types.SimpleNamespace(use_mla=False, dtype="bf16", get_head_size=lambda: 64))
        self.scheduler = module.MooncakeConnector(config, "scheduler")
        self.worker = module.MooncakeConnector(config, "worker")
        self.caches = {f"layer{i}": (Tensor(), Tensor()) for i in range(LAYERS)}
        self.worker.register_kv_caches(self.caches)
        self.came = [set(), set()]  # of each kind, what steps have said and nobody has waited for yet

    def step(self, finished=()):
        self.worker._connector_metadata = self.scheduler.build_connector_meta(None)
        self.worker.start_load_kv(None)
        got = self.worker.get_finished(set(finished))
        for came, new in zip(self.came, got):
            came.update(new or ())
        return got

    def wait(self, which, timeout_s=10):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.step()
            if self.came[which]:
                got, self.came[which] = self.came[which], set()
                return got
            time.sleep(0.01)
        raise AssertionError("nothing was finished in time")

    def tensors(self):
        return [one for layer in self.caches.values() for one in layer]


class Request:
    def __init__(self, name, tokens, params):
        self.request_id, self.prompt_token_ids, self.kv_transfer_params, self.status = name, list(range(tokens)), params, "length"


class Blocks:
    def __init__(self, ids):
        self.ids = ids

    def get_unhashed_block_ids(self):
        return self.ids


@pytest.fixture
def sides(connector):
    made = [Side(connector, "kv_producer"), Side(connector, "kv_consumer")]
    yield made
    for one in made:
        one.worker.shutdown()
        one.worker.shutdown()


def prefill(side, name, blocks):
    request = Request(name, len(blocks) * 16, {"do_remote_decode": True, "do_remote_prefill": False})
    assert side.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    side.scheduler.update_state_after_alloc(request, Blocks(blocks), 0)
    side.step()
    delayed, params = side.scheduler.request_finished(request, blocks)
    assert delayed and params["do_remote_prefill"] and params["remote_request_id"] == name
    return params


def decode(side, name, blocks, params, tokens=None, computed=0):
    request = Request(name, tokens or len(blocks) * 16, dict(params))
    count, beside = side.scheduler.get_num_new_matched_tokens(request, computed)
    side.scheduler.update_state_after_alloc(request, Blocks(blocks), count)
    return count, beside


def test_blocks_arrive_where_decode_wants_them(sides):
    left, right = sides
    assert Engine.protocols == ["rdma", "tcp"] * 2, "rdma was not asked for, so tcp will do"
    for tensor in left.tensors() + right.tensors():
        tensor.fill()
    before = [tensor.memory.raw for tensor in right.tensors()]
    source, target = [4, 5, 6, 9, 2], [20, 21, 7, 8, 30]
    params = prefill(left, "a-1", source)
    assert decode(right, "a-2", target, params) == (80, True)
    right.step()
    left.step(["a-1"])
    assert right.wait(1) == {"a-2"} and left.wait(0) == {"a-1"}
    for mine, theirs, old in zip(left.tensors(), right.tensors(), before):
        for one, other in zip(source, target):
            assert mine.block(one) == theirs.block(other)
        untouched = set(range(BLOCKS)) - set(target)
        assert all(theirs.block(i) == old[i * BLOCK:(i + 1) * BLOCK] for i in untouched)
    assert right.worker.get_block_ids_with_load_errors() == set()


def test_a_prefix_that_decode_has_is_not_sent(sides):
    left, right = sides
    for tensor in left.tensors():
        tensor.fill()
    params = prefill(left, "p", [1, 2, 3, 4])
    assert decode(right, "d", [10, 11], params, tokens=64, computed=32) == (32, True)
    assert right.step() == (None, None)
    left.step()
    assert right.wait(1) == {"d"} and left.wait(0) == {"p"}
    assert all(mine.block(3) == theirs.block(10) and mine.block(4) == theirs.block(11) for mine, theirs in zip(left.tensors(), right.tensors()))
    params = prefill(left, "q", [5])
    assert decode(right, "e", [], params, tokens=16, computed=16) == (0, False)
    right.step()
    left.step()
    assert left.wait(0) == {"q"}, "a prefix that is there whole still frees prefill's blocks"


def test_failures_are_told_and_never_used(sides, connector):
    left, right = sides
    Engine.fails = 1
    params = prefill(left, "p", [1, 2])
    decode(right, "d", [3, 4], params)
    right.step()
    left.step()
    assert right.wait(1) == {"d"} and right.worker.get_block_ids_with_load_errors() == {3, 4} and right.worker.get_block_ids_with_load_errors() == set()
    decode(right, "again", [5, 6], params)
    right.step()
    assert right.wait(1) == {"again"} and left.wait(0) == {"p"} and not right.worker.get_block_ids_with_load_errors()
    connector.READY_TIMEOUT_S = 0.2
    decode(right, "x", [7], {**params, "remote_request_id": "unknown"})
    right.step()
    assert right.wait(1) == {"x"} and right.worker.get_block_ids_with_load_errors() == {7}
    params = prefill(left, "more", [1])
    decode(right, "y", [8, 9], params, tokens=32)
    right.step()
    left.step()
    assert right.wait(1) == {"y"} and right.worker.get_block_ids_with_load_errors() == {8, 9}


def test_nobody_listens(sides):
    right = sides[1]
    decode(right, "d", [1], {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": free_port()})
    right.step()
    assert right.wait(1) == {"d"} and right.worker.get_block_ids_with_load_errors() == {1}


def test_garbage_from_the_network_is_answered_with_an_error(sides, connector):
    import msgspec
    import zmq
    left = sides[0]
    params = prefill(left, "p", [1])
    context = zmq.Context()
    good = {"remote_hostname": "h", "remote_port": 1, "request_ids": ["p"], "kv_caches_base_addr": [0] * LAYERS * 2, "block_ids": [[1]]}
    left.step()
    for question in (b"", b"\xff" * 100, msgspec.msgpack.encode([]), msgspec.msgpack.encode({**good, "kv_caches_base_addr": [1]}),
                     msgspec.msgpack.encode({**good, "block_ids": []}), msgspec.msgpack.encode({**good, "block_ids": [[1, 2, 3]]})):
        sock = context.socket(zmq.REQ)
        sock.setsockopt(zmq.RCVTIMEO, 10000)
        sock.connect(f"tcp://127.0.0.1:{params['remote_port']}")
        sock.send(question)
        assert sock.recv() == connector.TRANS_ERROR
        sock.close(linger=0)
    context.destroy(linger=0)


def test_requests_that_end_otherwise_keep_nothing(sides, connector, monkeypatch):
    left, right = sides
    request = Request("a", 16, {"do_remote_decode": True})
    left.scheduler.update_state_after_alloc(request, Blocks([1]), 0)
    left.step()
    request.status = "aborted"
    assert left.scheduler.request_finished(request, [1]) == (False, None)
    assert left.step(["a"]) == (None, None) and not left.worker.connector_worker.reqs_need_send
    assert left.scheduler.request_finished(Request("b", 16, None), [1]) == (False, None)
    assert left.scheduler.request_finished(Request("c", 16, {"do_remote_decode": True}), []) [0] is False
    assert left.scheduler.request_finished_all_groups(Request("d", 16, {"do_remote_decode": True}), ([1], [2])) == (False, None)
    monkeypatch.setattr(connector, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 0)
    prefill(left, "late", [1])
    assert left.wait(0) == {"late"}, "its blocks are freed when nobody comes"
    params = prefill(left, "gone", [2])
    aborted = Request("never", 16, params)
    right.scheduler.request_finished(aborted, [])
    assert aborted.kv_transfer_params["do_remote_prefill"] is False


def test_a_request_that_fails_is_no_other_ones_trouble(sides, connector, monkeypatch):
    """Three requests of one step to the same prefill instance, one of which has expired there."""
    left, right = sides
    for tensor in left.tensors():
        tensor.fill()
    monkeypatch.setattr(connector, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 0)
    late = prefill(left, "late", [1])
    assert left.wait(0) == {"late"}
    monkeypatch.setattr(connector, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 120)
    params = [prefill(left, "a", [2]), late, prefill(left, "b", [3])]
    for name, block, one in zip(("da", "dlate", "db"), (10, 11, 12), params):
        decode(right, name, [block], one)
    left.step()
    got, end = set(), time.monotonic() + 5  # far below READY_TIMEOUT_S: prefill knows that it has given it up
    while len(got) < 3 and time.monotonic() < end:
        got |= right.step()[1] or set()
        time.sleep(0.01)
    assert got == {"da", "dlate", "db"}
    assert right.worker.get_block_ids_with_load_errors() == {11}
    assert all(mine.block(2) == theirs.block(10) and mine.block(3) == theirs.block(12) for mine, theirs in zip(left.tensors(), right.tensors()))


@pytest.fixture
def context(sides):
    """Sockets of the test's own, which end before the sides do."""
    import zmq
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def silent_prefills(context, kind, count):
    """They take connections and questions, and never answer, as a process that was stopped: (sockets, what decode is told of each)."""
    made = [context.socket(kind) for _ in range(count)]
    return made, [{"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": one.bind_to_random_port("tcp://127.0.0.1")} for one in made]


def test_a_silent_prefill_keeps_no_others_waiting(sides, connector, context):
    """As many pulls from each as have threads, and more; then one from a prefill that answers."""
    import zmq
    left, right = sides
    for tensor in left.tensors():
        tensor.fill()
    silent, params = silent_prefills(context, zmq.ROUTER, 2)
    for i in range(connector.PULLS_MAX + 6):
        for number, one in enumerate(params):
            decode(right, f"s{number}-{i}", [0], one)
    right.step()
    decode(right, "d", [5], prefill(left, "p", [4]))
    left.step()
    assert right.wait(1, 5) == {"d"} and not any(one.closed for one in silent)
    assert all(mine.block(4) == theirs.block(5) for mine, theirs in zip(left.tensors(), right.tensors()))
    pullers = right.worker.connector_worker._pullers
    assert sorted(pullers.values())[-2:] == [connector.PULLS_MAX] * 2, "and no more threads than that"


def test_questions_that_must_wait_keep_no_others_waiting(sides, connector, context):
    """What prefill has not computed holds none of its threads; it is answered when it is there, or in time."""
    import msgspec
    import zmq
    left, right = sides
    connector.READY_TIMEOUT_S = 6
    start = time.monotonic()
    params = prefill(left, "p", [4])
    left.step()
    asking = [context.socket(zmq.REQ) for _ in range(connector.PULLS_MAX + 6)]
    for i, one in enumerate(asking):
        one.connect(f"tcp://127.0.0.1:{params['remote_port']}")
        one.send(msgspec.msgpack.encode({"remote_hostname": "127.0.0.1", "remote_port": 12345, "request_ids": [f"unknown{i}"],
                                         "kv_caches_base_addr": [0] * LAYERS * 2, "block_ids": [[]]}))
    time.sleep(0.5)
    decode(right, "d", [5], params)
    assert right.wait(1, 3) == {"d"} and left.wait(0) == {"p"}
    prefill(left, "unknown0", [6])
    left.step()
    assert asking[0].poll(2000) and asking[0].recv() == connector.TRANS_DONE
    assert time.monotonic() - start < connector.READY_TIMEOUT_S
    for one in asking[1:]:
        assert one.poll(10000) and one.recv() == connector.TRANS_ERROR
    assert time.monotonic() - start > connector.READY_TIMEOUT_S


def question(name, **more):
    import msgspec
    return msgspec.msgpack.encode({"remote_hostname": "127.0.0.1", "remote_port": 12345, "request_ids": [name],
                                   "kv_caches_base_addr": [0] * LAYERS * 2, "block_ids": [[]], **more})


def ask(context, params, text, source="127.0.0.1"):
    import zmq
    sock = context.socket(zmq.DEALER)
    sock.connect(f"tcp://{source}:0;127.0.0.1:{params['remote_port']}")
    for one in text if isinstance(text, list) else [text]:
        sock.send_multipart([b"", one])
    return sock


def answer(sock, timeout_ms=5000):
    assert sock.poll(timeout_ms)
    return sock.recv_multipart()[1]


def test_a_message_without_end_is_not_taken(connector, monkeypatch):
    import zmq
    monkeypatch.setattr(connector, "QUESTION_MAX", 65536, raising=False)
    left, context = Side(connector, "kv_producer"), zmq.Context()
    try:
        params = prefill(left, "p", [4])
        left.step()
        large = ask(context, params, bytes(1 << 20))
        assert not large.poll(500), "it is not even answered: its connection ends"
        assert answer(ask(context, params, question("p", block_ids=[[]]))) == connector.TRANS_DONE
    finally:
        context.destroy(linger=0)
        left.worker.shutdown()


def test_who_asks_most_gives_way(sides, connector, context, monkeypatch):
    """What waits is bounded, and a crowd of questions from one address keeps none from another out."""
    left = sides[0]
    monkeypatch.setattr(connector, "QUESTIONS_MAX", 64 << 10, raising=False)
    params = prefill(left, "first", [1])
    early = ask(context, params, question("early"), "127.0.0.3")
    crowd = ask(context, params, [question(f"unknown{i}") for i in range(200)], "127.0.0.2")
    refused = 0
    while crowd.poll(1000):
        assert crowd.recv_multipart()[1] == connector.TRANS_ERROR
        refused += 1
    assert 160 <= refused < 170, "an entry has a kilobyte and a half beside its own bytes"
    late = ask(context, params, question("late"), "127.0.0.3")
    assert not late.poll(200) and not early.poll(0)
    assert left.worker.connector_worker._questions.cost <= connector.QUESTIONS_MAX
    for name in ("early", "late"):
        prefill(left, name, [2])
        left.step()
    assert answer(early) == connector.TRANS_DONE and answer(late) == connector.TRANS_DONE


def test_what_a_question_costs(connector, monkeypatch):
    """Python has several hundred bytes for each request that it names, however short that is."""
    monkeypatch.setattr(connector, "QUESTIONS_MAX", 10 << 20)
    known, mib = connector.Questions(), 1 << 20

    def one(peer, count):
        return connector.Question(b"", peer, b"x" * 100, [f"{peer}{i}" for i in range(count)], 0)
    assert 2 * mib < one("a", 4096).cost() < 2.2 * mib
    for greedy in [one("greedy", 4096) for _ in range(3)]:
        assert known.add(greedy) == []
        known.give(greedy)
    waiting = one("second", 4096)
    assert known.add(waiting) == []
    gone = [each for _ in range(40) for each in known.add(one("third", 100))]
    assert gone == [waiting], "what the pool has cannot give way; of what waits the address that has most loses its youngest"


def test_a_question_for_nothing_is_refused(sides, connector, context, caplog):
    params = prefill(sides[0], "p", [1])
    empty = connector.msgspec.msgpack.Encoder().encode({**connector.msgspec.msgpack.Decoder().decode(question("x")), "request_ids": []})
    assert answer(ask(context, params, empty)) == connector.TRANS_ERROR
    assert connector.shown([f"{i}" * 100 for i in range(9)]).endswith(" and 5 more") and len(connector.shown(["x" * 1000] * 9)) < 400


def test_a_question_is_looked_at_when_its_request_is_computed(sides, connector, context, monkeypatch):
    left = sides[0]
    looks, look = [], connector.MooncakeConnectorWorker._can_answer
    monkeypatch.setattr(connector.MooncakeConnectorWorker, "_can_answer", lambda self, ids: looks.append(1) or look(self, ids))
    params = prefill(left, "p", [1])
    left.step()
    waiting = ask(context, params, [question(f"unknown{i}") for i in range(500)])
    assert not waiting.poll(300)
    assert answer(ask(context, params, question("p"))) == connector.TRANS_DONE
    assert len(looks) <= 510, "not at each for each message"
    prefill(left, "unknown7", [2])
    left.step()
    assert answer(waiting) == connector.TRANS_DONE
    assert len(looks) <= 520


def test_the_port_is_said_to_be_exposed(sides):
    worker = sides[0].worker.connector_worker
    assert Engine.exposed == [("127.0.0.1", worker.side_channel_port)], "of prefill; decode has none"


@pytest.fixture
def keys(sides):
    Engine.keys["engines"] = b"a secret"
    Engine.key = "engines"


def test_with_keys_blocks_arrive(sides, keys):
    left, right = sides
    for tensor in left.tensors():
        tensor.fill()
    decode(right, "d", [5], prefill(left, "p", [4]))
    right.step()
    left.step()
    assert right.wait(1) == {"d"} and left.wait(0) == {"p"} and right.worker.get_block_ids_with_load_errors() == set()
    assert all(mine.block(4) == theirs.block(5) for mine, theirs in zip(left.tensors(), right.tensors()))


def test_with_keys_a_stranger_is_refused(sides, keys, connector, context):
    """Who shows no key, one that is not known, another secret, or a proof of another time or of another question."""
    left = sides[0]
    params = prefill(left, "p", [4])
    left.step()
    text = question("p")
    assert answer(ask(context, params, text)) == connector.TRANS_ERROR
    assert answer(ask(context, params, connector.ASK + bytes(32) + text)) == connector.TRANS_ERROR
    assert answer(ask(context, params, connector.HELLO + bytes(32) + b"nobody")) == connector.TRANS_ERROR
    assert answer(ask(context, params, connector.HELLO + b"short")) == connector.TRANS_ERROR

    def session(secret):
        sock = ask(context, params, connector.HELLO + b"c" * 32 + b"engines")
        hello = answer(sock)
        server, proof = hello[-64:-32], hello[-32:]
        made = connector.Session(types.SimpleNamespace(_prove=prove), "engines", b"c" * 32, server)
        assert hello.startswith(connector.HELLO) and proof == made.proof("server")
        before, Engine.keys["engines"] = Engine.keys["engines"], secret
        proof, Engine.keys["engines"] = made.proof("ask", text), before
        return sock, proof

    def asked(sock, message):
        sock.send_multipart([b"", message])
        return answer(sock)
    sock, proof = session(b"another secret")
    assert asked(sock, connector.ASK + proof + text) == connector.TRANS_ERROR
    sock, proof = session(b"a secret")
    assert asked(sock, connector.ASK + proof + question("p", remote_hostname="10.0.0.1")) == connector.TRANS_ERROR
    assert asked(sock, connector.ASK + proof + text) == connector.TRANS_ERROR, "a session is of one question"
    other, _proof = session(b"a secret")
    assert asked(other, connector.ASK + proof + text) == connector.TRANS_ERROR, "nor is a proof of another session"
    assert not left.came[0]
    sock, proof = session(b"a secret")
    done = asked(sock, connector.ASK + proof + text)
    assert done[:-32] == connector.TRANS_DONE and len(done) == len(connector.TRANS_DONE) + 32
    assert left.wait(0) == {"p"}


def test_a_prefill_that_does_not_know_the_key_is_told_nothing(sides, keys, connector, context):
    import zmq
    right = sides[1]
    false, params = silent_prefills(context, zmq.ROUTER, 1)
    for said in (connector.HELLO + bytes(64), connector.TRANS_ERROR, b""):
        decode(right, "d", [1], params[0])
        right.step()
        frames = false[0].recv_multipart()
        assert frames[2].startswith(connector.HELLO) and frames[2].endswith(b"engines")
        false[0].send_multipart([frames[0], b"", said])
        assert right.wait(1) == {"d"} and right.worker.get_block_ids_with_load_errors() == {1}
        assert not false[0].poll(100)


def test_an_answer_that_is_not_proved_is_none(sides, keys, connector, context):
    import zmq
    right = sides[1]
    false, params = silent_prefills(context, zmq.ROUTER, 1)
    decode(right, "d", [1], params[0])
    right.step()
    frames = false[0].recv_multipart()
    made = connector.Session(types.SimpleNamespace(_prove=prove), "engines", frames[2][len(connector.HELLO):][:32], b"s" * 32)
    false[0].send_multipart([frames[0], b"", connector.HELLO + made.server + made.proof("server")])
    frames = false[0].recv_multipart()
    assert made.is_proved("ask", frames[2][len(connector.ASK) + 32:], frames[2][len(connector.ASK):][:32])
    false[0].send_multipart([frames[0], b"", connector.TRANS_DONE + bytes(32)])
    assert right.wait(1) == {"d"} and right.worker.get_block_ids_with_load_errors() == {1}


def test_where_failures_cannot_be_told_blocks_are_asked_for_again(sides, connector, monkeypatch):
    left, right = sides
    monkeypatch.setattr(connector, "FAILED_BLOCKS_ARE_HANDLED", False)
    monkeypatch.setattr(connector, "PULL_AGAIN_S", 0.05, raising=False)
    Engine.fails = 2
    params = prefill(left, "p", [1])
    decode(right, "d", [3], params)
    right.step()
    left.step()
    assert right.wait(1) == {"d"} and all(mine.block(1) == theirs.block(3) for mine, theirs in zip(left.tensors(), right.tensors()))
    monkeypatch.setattr(connector, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 0.2)
    said = []
    monkeypatch.setattr(connector.logger, "error", lambda text, *more: said.append(text % more))
    decode(right, "lost", [4], {**params, "remote_port": free_port()})
    right.step()
    end = time.monotonic() + 10
    while not any("lost" in one and "0.11" in one for one in said) and time.monotonic() < end:
        assert right.step()[1] is None, "what did not come is never used"
        time.sleep(0.01)
    assert any("lost" in one and "0.11" in one for one in said)


def test_shutdown_while_threads_poll(sides, connector, monkeypatch):
    """zmq's sockets are no thing for two threads: each is closed by the one that uses it, and soon."""
    import zmq
    right = sides[1]
    wrong = []

    class Watched(zmq.Socket):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            self.__dict__["owner"] = threading.get_ident()

        def close(self, linger=None):
            if not self.closed and self.__dict__.get("owner") != threading.get_ident():
                wrong.append(threading.current_thread().name)
            super().close(linger)
    monkeypatch.setattr(connector.zmq.Context, "_socket_class", Watched)
    connector.PULL_PATIENCE_S = 30
    context = zmq.Context()
    silent = [context.socket(zmq.ROUTER) for _ in range(4)]
    for i, one in enumerate(silent):
        port = one.bind_to_random_port("tcp://127.0.0.1")
        decode(right, f"d{i}", [i], {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": port})
    right.step()
    for one in silent:
        assert one.poll(10000)
    start = time.monotonic()
    right.worker.shutdown()
    assert time.monotonic() - start < 5 and wrong == []
    for one in silent:
        one.close(linger=0)
    context.term()


def test_cutting_into_runs(connector):
    cut = connector.group_concurrent_contiguous
    assert cut([], []) == ([], [])
    assert cut([1, 2, 3, 7, 8], [4, 5, 9, 10, 11]) == ([[1, 2], [3], [7, 8]], [[4, 5], [9], [10, 11]])
    assert cut([3], [0]) == ([[3]], [[0]])
