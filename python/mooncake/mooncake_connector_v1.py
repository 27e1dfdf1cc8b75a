"""MooncakeConnector for vLLM 0.10 to 0.12: the KV cache of a prompt goes from the prefill to the decode instance over mooncake.engine.

    vllm serve MODEL --port 8010 --kv-transfer-config \
        '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_connector_module_path":"mooncake.mooncake_connector_v1"}'
    vllm serve MODEL --port 8020 --kv-transfer-config \
        '{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer","kv_connector_module_path":"mooncake.mooncake_connector_v1"}'
    mooncake_proxy --mode sequential --prefill HOST:8010 --decode HOST:8020

vLLM 0.13 and later have a MooncakeConnector of their own; there kv_connector_module_path is left out.

How a request goes: prefill computes the prompt and answers with where it can be asked (host, port, its request id). Decode allocates
blocks and sends their addresses there, from each tensor-parallel rank to the same rank. Prefill's worker writes the blocks straight into
decode's memory and answers; then prefill frees its blocks and decode goes on. Each request is asked for alone, so that one which fails is
no other one's trouble. A transfer that fails is reported to the scheduler where vLLM can compute the blocks again; what did not arrive is
never used. vLLM before 0.11 cannot be told: there the blocks are asked for again for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, after which such a
request waits until its client leaves; mooncake_proxy does after --silence_timeout (20 minutes).

Who reaches prefill's port can have the blocks of a request whose id he knows written where he says, and the engine's log says so, unless both
sides have keys (MC_AUTH_FILE, MC_AUTH_TOKEN; docs/security.md): then each question is proved, and each answer.

Environment: VLLM_MOONCAKE_SIDE_CHANNEL_PORT (6557), VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT (120 s), VLLM_MOONCAKE_SENDER_WORKERS (10),
VLLM_MOONCAKE_PROTOCOL (rdma; tcp where that cannot be set up and nothing was asked for).
"""
import contextlib
import hashlib
import hmac
import os
import re
import threading
import time
from collections import OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import environ
from socket import create_connection, socketpair
from typing import Any, Optional

import msgspec
import zmq

import vllm

_version = re.match(r"(\d+)\.(\d+)", getattr(vllm, "__version__", ""))
if _version and (int(_version[1]), int(_version[2])) >= (0, 13):
    raise ImportError(f"vLLM {vllm.__version__} has a MooncakeConnector of its own: leave kv_connector_module_path out")
from vllm.attention.selector import get_attn_backend
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank, get_tp_group
from vllm.logger import init_logger
from vllm.v1.attention.backends.utils import get_kv_cache_layout
from vllm.v1.request import RequestStatus

try:
    from vllm.utils.network_utils import get_ip, make_zmq_path, make_zmq_socket
except ImportError:
    from vllm.utils import get_ip, make_zmq_path, make_zmq_socket
try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
except ImportError:  # before the hybrid allocator there is nothing to mark

    class SupportsHMA:
        pass


EngineId = str
ReqId = str

TRANS_DONE = b"trans_done"
TRANS_ERROR = b"trans_error"
VLLM_MOONCAKE_SIDE_CHANNEL_PORT = int(environ.get("VLLM_MOONCAKE_SIDE_CHANNEL_PORT", 6557))
VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT = int(environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 120))
VLLM_MOONCAKE_SENDER_WORKERS = int(environ.get("VLLM_MOONCAKE_SENDER_WORKERS", 10))
VLLM_MOONCAKE_PROTOCOL = environ.get("VLLM_MOONCAKE_PROTOCOL", "rdma")

PULL_PATIENCE_S = 10.0  # decode waits so long for prefill's answer before it looks whether prefill is there
PULL_TIMEOUT_S = 600.0  # after which it gives up whatever it finds
READY_TIMEOUT_S = 50.0  # how long prefill waits for a request that it has been asked for
PULL_AGAIN_S = 5.0  # where a failure cannot be reported
GIVEN_UP_MAX = 10000  # requests whose blocks were freed because nobody came: who comes later hears so at once
PULLS_MAX = 64  # threads: pulls at once from one prefill worker; answers at once on prefill
SOCKETS_MAX = 16384  # one for each pull; zmq itself would stop at 1023
QUESTION_MAX = 16 << 20  # bytes: it names three million blocks
ANSWER_MAX = 4096  # bytes
QUESTIONS_MAX = 256 << 20  # bytes of all that wait or are being answered; then who has most of them gives way
QUESTION_COSTS, REQUEST_COSTS = 1024, 512  # bytes, beside its own and for each request that it asks for: what Python has for them
REQUESTS_MAX = 4096  # that one question asks for
UNREAD_MAX = 2  # messages of one connection that zmq keeps; decode sends one, and waits
CALLS_MAX = 65536  # decode instances that are about to prove a question
COMPLAIN_EVERY_S = 1.0
FAILED_BLOCKS_ARE_HANDLED = hasattr(KVConnectorBase_V1, "get_block_ids_with_load_errors")

logger = init_logger(__name__)


class MooncakeAgentMetadata(msgspec.Struct, omit_defaults=True, dict=True):
    """What decode sends to prefill."""

    remote_hostname: str
    remote_port: int
    request_ids: list[ReqId]
    kv_caches_base_addr: list[int]
    block_ids: list[list[int]]


@dataclass
class RecvReqMeta:
    local_block_ids: list[int]
    remote_host: str
    remote_port: int
    remote_request_id: Optional[ReqId] = None


@dataclass
class SendBlockMeta:
    local_block_ids: list[int]
    ready: threading.Event = field(default_factory=threading.Event)
    expire_time: float = float("inf")


@dataclass(eq=False)
class Question:
    """Of a decode instance, until it is answered."""
    identity: bytes
    peer: str  # its address
    text: bytes
    request_ids: list[ReqId]
    end: float
    session: Optional["Session"] = None  # in which it was proved
    is_given: bool = False  # to the pool

    def cost(self) -> int:
        return len(self.text) + QUESTION_COSTS + len(self.request_ids) * REQUEST_COSTS


class Questions:
    """All that are not answered yet, by request id and by who asks. They belong to the listener."""

    def __init__(self):
        self.waiting: OrderedDict[Question, None] = OrderedDict()  # the oldest first; all wait equally long
        self._by_request: dict[ReqId, dict[Question, None]] = {}
        self._by_peer: dict[str, dict[Question, None]] = {}
        self._costs: dict[str, int] = {}
        self.cost = 0

    def add(self, one: Question) -> list[Question]:
        """Those that give way to it: none while there is room, else of whoever has most; perhaps itself."""
        self.waiting[one] = None
        for request_id in one.request_ids:
            self._by_request.setdefault(request_id, {})[one] = None
        self._by_peer.setdefault(one.peer, {})[one] = None
        self._costs[one.peer] = self._costs.get(one.peer, 0) + one.cost()
        self.cost += one.cost()
        gone = []
        while self.cost > QUESTIONS_MAX:
            greedy = sorted(self._costs, key=self._costs.get, reverse=True)
            last = next((other for peer in greedy for other in reversed(self._by_peer[peer]) if not other.is_given), one)
            self.remove(last)
            gone.append(last)
            if last is one:
                break
        return gone

    def asking_for(self, request_id: ReqId) -> list[Question]:
        return list(self._by_request.get(request_id, ()))

    def give(self, one: Question):
        """It waits no more; what it costs is known until it is removed."""
        one.is_given = True
        self.waiting.pop(one, None)
        for request_id in one.request_ids:
            askers = self._by_request.get(request_id)
            if askers is not None:
                askers.pop(one, None)
                if not askers:
                    del self._by_request[request_id]

    def __contains__(self, one: Question) -> bool:
        return one in self._by_peer.get(one.peer, ())

    def remove(self, one: Question):
        self.give(one)
        self._by_peer[one.peer].pop(one)
        self._costs[one.peer] -= one.cost()
        self.cost -= one.cost()
        if not self._by_peer[one.peer]:
            del self._by_peer[one.peer], self._costs[one.peer]


# ---- proofs: with keys, decode and prefill prove to each other that they know one secret, before decode says what it wants ----
#
#   decode -> prefill  HELLO, 32 random bytes, the id of decode's key
#   prefill -> decode  HELLO, 32 random bytes of its own, its proof; TRANS_ERROR: it knows no such key
#   decode -> prefill  ASK, the proof of the question, the question
#   prefill -> decode  the answer, its proof
#
# Each is by HMAC over the random bytes of both (mooncake.engine has the secrets), so none is of use a second time, or elsewhere. To who has no
# keys, and to the original, HELLO is a question that cannot be read: TRANS_ERROR. Without keys questions and answers are as the original's.

HELLO, ASK = b"mooncake_c hello 1\n", b"mooncake_c ask 1\n"
PROOF = 32  # bytes of a proof, and of what is drawn for one


@dataclass
class Session:
    """What both ends prove things about."""
    engine: Any  # mooncake.engine
    key: str
    caller: bytes
    server: bytes

    def proof(self, end: str, what: bytes = b"") -> Optional[bytes]:
        """None: there is no such key, or it may not read."""
        return self.engine._prove(f"mooncake connector {end} 1", self.key, self.caller, self.server, hashlib.sha256(what).digest())

    def is_proved(self, end: str, what: bytes, proof: bytes) -> bool:
        expected = self.proof(end, what)
        return expected is not None and hmac.compare_digest(expected, proof)


class MooncakeConnectorMetadata(KVConnectorMetadata):
    """From the scheduler to the workers, each step."""

    def __init__(self):
        self.reqs_to_recv: dict[ReqId, RecvReqMeta] = {}
        self.reqs_to_send: dict[ReqId, list[int]] = {}

    def add_new_req(self, request_id: ReqId, local_block_ids: list[int], kv_transfer_params: dict[str, Any], load_remote_cache: bool = True):
        if not load_remote_cache:
            self.reqs_to_send[request_id] = local_block_ids
            return
        self.reqs_to_recv[request_id] = RecvReqMeta(local_block_ids, kv_transfer_params["remote_host"], kv_transfer_params["remote_port"],
                                                    kv_transfer_params.get("remote_request_id"))


class MooncakeConnector(KVConnectorBase_V1, SupportsHMA):
    """What vLLM makes: one in the scheduler's process, one in each worker's."""

    def __init__(self, vllm_config, role, *more):
        super().__init__(vllm_config, role, *more)
        transfer = vllm_config.kv_transfer_config
        if transfer is None or transfer.engine_id is None:
            raise ValueError("MooncakeConnector needs a kv_transfer_config with an engine id")
        self.engine_id: EngineId = transfer.engine_id
        self.connector_scheduler: Optional[MooncakeConnectorScheduler] = None
        self.connector_worker: Optional[MooncakeConnectorWorker] = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = MooncakeConnectorScheduler(vllm_config, self.engine_id)
        elif role == KVConnectorRole.WORKER:
            self.connector_worker = MooncakeConnectorWorker(vllm_config, self.engine_id)

    # -- scheduler --

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.connector_scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.connector_scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self.connector_scheduler.build_connector_meta(scheduler_output)

    def request_finished(self, request, block_ids):
        return self.connector_scheduler.request_finished(request, block_ids)

    def request_finished_all_groups(self, request, block_ids):
        """One list of blocks for each group of layers. Their order is known to both sides only when there is one group."""
        if len(block_ids) == 1:
            return self.request_finished(request, block_ids[0])
        logger.warning("request %s has %d groups of blocks; its KV cache is not transferred", request.request_id, len(block_ids))
        return False, None

    # -- worker --

    def register_kv_caches(self, kv_caches):
        self.connector_worker.register_kv_caches(kv_caches)

    def get_finished(self, finished_req_ids):
        return self.connector_worker.get_finished(finished_req_ids)

    def get_block_ids_with_load_errors(self):
        return self.connector_worker.take_failed_blocks()

    def start_load_kv(self, forward_context, **kwargs):
        self.connector_worker.start_load_kv(self._connector_metadata)

    def wait_for_layer_load(self, layer_name):
        """Requests wait in the scheduler until all of their blocks are there."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """Decode asks for blocks; nothing is saved layer by layer."""

    def wait_for_save(self):
        """As above."""

    def shutdown(self):
        if self.connector_worker is not None:
            self.connector_worker.shutdown()


class MooncakeConnectorScheduler:
    """Decides which requests take their prompt from elsewhere, and how long the blocks of the others are kept."""

    def __init__(self, vllm_config, engine_id: str):
        self.vllm_config = vllm_config
        self.engine_id: EngineId = engine_id
        self.kv_role = vllm_config.kv_transfer_config.kv_role
        self.side_channel_host = get_ip()
        self.side_channel_port = get_mooncake_side_channel_port(vllm_config)
        self._reqs_need_recv: dict[ReqId, tuple[Any, list[int]]] = {}
        self._reqs_need_send: dict[ReqId, list[int]] = {}

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        """(tokens that come from prefill, whether they come beside the steps)."""
        params = request.kv_transfer_params
        missing = 0
        if params and params.get("do_remote_prefill"):
            missing = len(request.prompt_token_ids) - num_computed_tokens
        return (missing, True) if missing > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens: int):
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_prefill"):
            params["do_remote_prefill"] = False  # once for each request
            if self.kv_role == "kv_producer":
                logger.warning("request %s asks a kv_producer to load; it computes the prompt", request.request_id)
            elif "remote_host" in params and "remote_port" in params:
                # Without tokens to load the question frees prefill's blocks all the same.
                self._reqs_need_recv[request.request_id] = (request, blocks.get_unhashed_block_ids() if num_external_tokens > 0 else [])
            else:
                logger.warning("request %s has no remote_host and remote_port; nothing is loaded: %s", request.request_id, params)
        elif params.get("do_remote_decode"):
            # The worker learns early that decode may ask; the blocks follow when the request is finished.
            self._reqs_need_send[request.request_id] = []

    def build_connector_meta(self, scheduler_output):
        meta = MooncakeConnectorMetadata()
        if self.kv_role != "kv_producer":
            for request_id, (request, block_ids) in self._reqs_need_recv.items():
                meta.add_new_req(request_id, block_ids, request.kv_transfer_params)
            self._reqs_need_recv.clear()
        if self.kv_role != "kv_consumer":
            for request_id, block_ids in self._reqs_need_send.items():
                meta.add_new_req(request_id, block_ids, {}, load_remote_cache=False)
            self._reqs_need_send.clear()
        return meta

    def request_finished(self, request, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        """(whether the blocks are kept until the worker says that they were sent, what the proxy gives to decode)."""
        params = request.kv_transfer_params
        if not params:
            return False, None
        if params.get("do_remote_prefill"):
            # Aborted before it had blocks: prefill still has to learn that nobody will come.
            params["do_remote_prefill"] = False
            if self.kv_role != "kv_producer" and "remote_host" in params and "remote_port" in params:
                self._reqs_need_recv[request.request_id] = (request, [])
            return False, None
        if self.kv_role == "kv_consumer" or not params.get("do_remote_decode") or request.status != RequestStatus.FINISHED_LENGTH_CAPPED:
            return False, None
        if block_ids:
            self._reqs_need_send[request.request_id] = block_ids
        return bool(block_ids), {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": self.side_channel_host,
                                 "remote_port": self.side_channel_port, "remote_request_id": request.request_id}


class MooncakeConnectorWorker:
    """Moves the blocks. All that several threads touch is under `_lock`; sockets belong to one thread each."""

    def __init__(self, vllm_config, engine_id: str):
        try:
            import mooncake.engine as native
        except ImportError as error:
            raise ImportError("mooncake.engine is missing: install mooncake-transfer-engine") from error
        self.vllm_config = vllm_config
        self.engine_id: EngineId = engine_id
        self.kv_role = vllm_config.kv_transfer_config.kv_role
        self.hostname = get_ip()
        self._native = native
        self.engine = self._make_engine(native.TransferEngine)
        self.rpc_port = self.engine.get_rpc_port()
        self.side_channel_port = get_mooncake_side_channel_port(vllm_config)
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_group = get_tp_group()
        self.num_sender_workers = VLLM_MOONCAKE_SENDER_WORKERS
        self.num_blocks = self.block_len = 0
        self.kv_caches_base_addr: list[int] = []
        self.device_kv_caches: dict[str, Any] = {}
        self.split_k_and_v = self._splits_k_and_v(vllm_config)
        self.kv_cache_layout = get_kv_cache_layout()

        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.reqs_need_send: dict[ReqId, SendBlockMeta] = {}
        self.finished_sending_reqs: set[ReqId] = set()
        self.finished_recving_reqs: set[ReqId] = set()
        self._failed_blocks: set[int] = set()
        self._given_up: dict[ReqId, None] = {}  # the oldest first
        self._stopped = False

        self._pulls: dict[str, deque] = {}  # by path: what waits there for a thread
        self._pullers: dict[str, int] = {}  # by path: threads

        self._zmq = zmq.Context()
        self._zmq.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(MooncakeAgentMetadata)
        self._questions = Questions()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # by who has said hello; the listener's, too
        self._computed: deque = deque()  # requests that questions may wait for, and that there is something new of
        self._answers: deque = deque()
        self._complained, self._unsaid = 0.0, 0
        self._wake, self._woken = socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._transfers = threading.Semaphore(self.num_sender_workers)
        self._pool = ThreadPoolExecutor(PULLS_MAX, "vllm-mooncake")  # serves decode
        self._listener: Optional[threading.Thread] = None

    def _make_engine(self, kind):
        protocols = [VLLM_MOONCAKE_PROTOCOL] + (["tcp"] if "VLLM_MOONCAKE_PROTOCOL" not in environ else [])
        for protocol in protocols:
            engine = kind()
            if engine.initialize(self.hostname, "P2PHANDSHAKE", protocol, "") == 0:
                logger.info("mooncake.engine at %s over %s", self.hostname, protocol)
                return engine
        raise RuntimeError(f"mooncake.engine cannot be initialized over {' or '.join(protocols)}")

    def _splits_k_and_v(self, vllm_config) -> bool:
        """Are keys and values the two halves of a layer's tensor? Else blocks are its first dimension."""
        model, cache = vllm_config.model_config, vllm_config.cache_config
        self.use_mla, self.block_size = model.use_mla, cache.block_size
        self.model_config, self.cache_config = model, cache
        self.backend_name = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype, cache.block_size, use_mla=model.use_mla).get_name()
        self._use_flashinfer = self.backend_name.startswith("FLASHINFER")
        self._use_pallas_v1 = self.backend_name.startswith("PALLAS")
        return not (self.use_mla or self._use_flashinfer or self._use_pallas_v1)

    def __del__(self):
        if hasattr(self, "_pool"):  # else it was never finished
            self.shutdown()

    def shutdown(self):
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
        self._nudge()
        if self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join(timeout=5)
        self._pool.shutdown(wait=False)
        # Sockets belong to the threads that wait on them. This wakes those threads, and waits until they have closed theirs.
        self._zmq.term()
        self._wake.close()
        self._woken.close()

    def register_kv_caches(self, kv_caches):
        base, size = [], None
        for layer in kv_caches.values():
            for cache in layer if self.split_k_and_v else [layer]:
                if cache.data_ptr() in base:
                    continue  # layers may share one
                if size is None:
                    size, self.num_blocks = cache.nbytes, cache.shape[0]
                if cache.nbytes != size:
                    raise ValueError("all layers of the KV cache must have the same size")
                base.append(cache.data_ptr())
        if not base or self.num_blocks == 0 or size % self.num_blocks != 0:
            raise ValueError("the KV cache is no whole number of blocks")
        if self.engine.batch_register_memory(base, [size] * len(base)) != 0:
            raise RuntimeError("the KV cache cannot be registered with mooncake.engine")
        self.kv_caches_base_addr, self.device_kv_caches = base, kv_caches
        self.block_len = size // self.num_blocks
        logger.debug("%d blocks of %d bytes in %d tensors", self.num_blocks, self.block_len, len(base))
        if self.kv_role == "kv_consumer":
            return
        ready = threading.Event()
        problem: list[BaseException] = []
        self._listener = threading.Thread(target=self._listen, args=(ready, problem), name="vllm-mooncake-listener", daemon=True)
        self._listener.start()
        ready.wait()
        if problem:
            raise RuntimeError(f"port {self.side_channel_port + self.tp_rank} cannot be listened to: {problem[0]}") from problem[0]

    # -- prefill --

    def _nudge(self):
        """Wakes the listener. When there is no room for one more byte it has not woken up from those before."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def _socket(self, kind, path: str, most: int):
        """One that keeps and takes only so much. (vLLM's make_zmq_socket binds and connects before a limit could be set, and sets the others to none.)"""
        sock = self._zmq.socket(kind)
        try:
            for option, value in ((zmq.MAXMSGSIZE, most), (zmq.RCVHWM, UNREAD_MAX), (zmq.LINGER, 0), (zmq.IPV6, int("[" in path))):
                sock.setsockopt(option, value)
            (sock.bind if kind == zmq.ROUTER else sock.connect)(path)
        except zmq.ZMQError:
            sock.close(linger=0)
            raise
        return sock

    def _listen(self, ready, problem):
        """Takes questions and sends answers; the work between them is the pool's, once there is something to send."""
        port = self.side_channel_port + self.tp_rank
        try:
            sock = self._socket(zmq.ROUTER, make_zmq_path("tcp", self.hostname, port), QUESTION_MAX)
            self._native._exposed(self.hostname, port)
        except zmq.ZMQError as error:
            problem.append(error)
            return
        finally:
            ready.set()
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._woken.fileno(), zmq.POLLIN)
        try:
            while not self._stopped:
                events = dict(poller.poll(self._until_next_end_ms()))
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                while self._answers:
                    self._send_answer(sock, *self._answers.popleft())
                if sock in events:
                    frames = sock.recv_multipart(copy=False)
                    if len(frames) == 3 and len(frames[1]) == 0:
                        answer = self._take(frames[0].bytes, peer_of(frames[2]), frames[2].bytes)
                        if answer:
                            sock.send_multipart((frames[0].bytes, b"", answer))
                self._hand_over()
        except (zmq.ContextTerminated, zmq.ZMQError, RuntimeError) as error:
            if not self._stopped:
                logger.error("the listener for decode instances has ended: %s", error)
        finally:
            sock.close(linger=0)

    def _complain(self, text, *more):
        """Of what anybody may cause as often as he likes."""
        now = time.monotonic()
        if now - self._complained < COMPLAIN_EVERY_S:
            self._unsaid += 1
            return
        logger.error(text + " (and %d like it before)", *more, self._unsaid)
        self._complained, self._unsaid = now, 0

    def _take(self, identity, peer, text) -> bytes:
        """What is answered at once, or nothing."""
        session = self._sessions.pop(identity, None)
        if self._native._own_key() is not None:
            if text.startswith(HELLO):
                return self._take_hello(identity, peer, text[len(HELLO):])
            proof, text = text[len(ASK):len(ASK) + PROOF], text[len(ASK) + PROOF:] if text.startswith(ASK) else b""
            if session is None or not session.is_proved("ask", text, proof):
                self._complain("a question of %s is not proved by a key of ours, so nothing is sent: has decode the same MC_AUTH_FILE or MC_AUTH_TOKEN?", peer)
                return TRANS_ERROR
        else:
            session = None
        try:
            asked = self._decoder.decode(text).request_ids
            if not 0 < len(asked) <= REQUESTS_MAX:
                raise ValueError(f"it asks for {len(asked)} requests")
        except Exception as error:  # whatever it is, decode must hear of it
            self._complain("a question of %s cannot be read: %s", peer, error)
            return TRANS_ERROR
        one = Question(identity, peer, text, asked, time.monotonic() + READY_TIMEOUT_S, session)
        for other in self._questions.add(one):
            self._complain("more questions wait than there is room for, so one of %s, which asks most, is refused", other.peer)
            self._answers.append((other, TRANS_ERROR))
            self._nudge()
        if not one.is_given:
            with self._lock:
                is_due = self._can_answer(asked)
            if is_due:
                self._give(one)
        return b""

    def _take_hello(self, identity, peer, text) -> bytes:
        session = Session(self._native, text[PROOF:].decode("ascii", "replace"), text[:PROOF], os.urandom(PROOF))
        proof = session.proof("server") if len(session.caller) == PROOF else None
        if proof is None:
            self._complain("the key of %s is none of ours, or may not read", peer)
            return TRANS_ERROR
        self._sessions[identity] = session
        if len(self._sessions) > CALLS_MAX:
            self._sessions.popitem(last=False)
        return HELLO + session.server + proof

    def _until_next_end_ms(self) -> Optional[int]:
        if not self._questions.waiting:
            return None
        return max(0, int((next(iter(self._questions.waiting)).end - time.monotonic()) * 1000) + 1)

    def _hand_over(self):
        """Gives the pool those questions that can be answered by now. Until then they hold no thread."""
        while self._computed:
            for one in self._questions.asking_for(self._computed.popleft()):
                with self._lock:
                    is_due = self._can_answer(one.request_ids)
                if is_due:
                    self._give(one)
        now = time.monotonic()
        while self._questions.waiting and next(iter(self._questions.waiting)).end <= now:
            self._give(next(iter(self._questions.waiting)))

    def _give(self, one: Question):
        self._questions.give(one)
        self._pool.submit(self._serve, one)

    def _can_answer(self, request_ids) -> bool:
        """Whether all of them are computed, or one never will be. `_lock` is held."""
        return any(one in self._given_up for one in request_ids) or self._are_ready(request_ids)

    def _are_ready(self, request_ids) -> bool:
        return all(one in self.reqs_need_send and self.reqs_need_send[one].ready.is_set() for one in request_ids)

    def _send_answer(self, sock, one: Question, answer: bytes):
        if one in self._questions:
            self._questions.remove(one)
        proof = one.session.proof("answer", answer) if one.session is not None else b""
        sock.send_multipart((one.identity, b"", answer + (proof or b"")))

    def _serve(self, one: Question):
        answer = TRANS_ERROR
        try:
            self.send_kv_to_decode(self._decoder.decode(one.text))
            answer = TRANS_DONE
        except Exception as error:  # whatever it is, decode must hear of it
            self._complain("blocks could not be sent to %s: %s", one.peer, error)
        self._answers.append((one, answer))
        self._nudge()

    def _claim(self, request_ids) -> list[SendBlockMeta]:
        """From now on they do not expire."""
        with self._lock:
            gone = [one for one in request_ids if one in self._given_up]
            if gone:
                raise RuntimeError(f"nobody came for the requests {shown(gone)} in time; their blocks are freed")
            if self._stopped or not self._are_ready(request_ids):
                raise RuntimeError(f"not all of the requests {shown(request_ids)} have blocks here")
            claimed = [self.reqs_need_send[one] for one in request_ids]
            for one in claimed:
                one.expire_time = float("inf")
            return claimed

    def send_kv_to_decode(self, meta: MooncakeAgentMetadata):
        claimed = self._claim(meta.request_ids)
        try:
            transfer = self._build_transfer_params(list(zip(meta.request_ids, claimed)), meta)
            if transfer[0]:
                with self._transfers:
                    code = self._send_blocks(f"{meta.remote_hostname}:{meta.remote_port}", *transfer)
                if code != 0:
                    raise RuntimeError(f"batch_transfer_sync_write to {meta.remote_hostname}:{meta.remote_port} answered {code}")
        except Exception:
            with self._lock:  # decode may ask again
                for one in claimed:
                    one.expire_time = time.monotonic() + VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
            raise
        with self._lock:
            for one in meta.request_ids:
                if self.reqs_need_send.pop(one, None) is not None:
                    self.finished_sending_reqs.add(one)

    def _build_transfer_params(self, send_reqs, agent_meta) -> tuple[list[int], list[int], list[int]]:
        if len(send_reqs) != len(agent_meta.block_ids) or len(agent_meta.kv_caches_base_addr) != len(self.kv_caches_base_addr):
            raise ValueError("decode has another number of layers, or named other requests than blocks")
        sources, targets, lengths = [], [], []
        for (request_id, meta), remote in zip(send_reqs, agent_meta.block_ids):
            if not remote:
                continue
            if len(remote) > len(meta.local_block_ids):
                raise ValueError(f"decode wants {len(remote)} blocks of {request_id}, which has {len(meta.local_block_ids)}")
            # What decode has by itself are the first ones.
            groups = group_concurrent_contiguous(meta.local_block_ids[-len(remote):], remote)
            for local_base, remote_base in zip(self.kv_caches_base_addr, agent_meta.kv_caches_base_addr):
                for from_blocks, to_blocks in zip(*groups):
                    sources.append(local_base + from_blocks[0] * self.block_len)
                    targets.append(remote_base + to_blocks[0] * self.block_len)
                    lengths.append(self.block_len * len(from_blocks))
        return sources, targets, lengths

    def _send_blocks(self, remote_session: str, src_ptrs, dst_ptrs, lengths) -> int:
        start = time.perf_counter()
        code = self.engine.batch_transfer_sync_write(remote_session, src_ptrs, dst_ptrs, lengths)
        logger.debug("%d bytes to %s in %.3f s: %d", sum(lengths), remote_session, time.perf_counter() - start, code)
        return code

    # -- decode --

    def _ask(self, path: str, question: bytes) -> bytes:
        """The answer, or nothing when there will be none."""
        sock = self._socket(zmq.REQ, path, ANSWER_MAX)
        key, end = self._native._own_key(), time.monotonic() + PULL_TIMEOUT_S
        try:
            if key is None:
                return self._exchange(sock, path, question, end)
            session = Session(self._native, key, os.urandom(PROOF), b"")
            hello = self._exchange(sock, path, HELLO + session.caller + key.encode(), end)
            session.server = hello[len(HELLO):len(HELLO) + PROOF]
            if hello and (len(hello) != len(HELLO) + 2 * PROOF or not session.is_proved("server", b"", hello[-PROOF:])):
                logger.error("prefill at %s does not know our key, so it is told nothing: it needs the same MC_AUTH_FILE or MC_AUTH_TOKEN", path)
                return TRANS_ERROR
            answer = self._exchange(sock, path, ASK + (session.proof("ask", question) or b"") + question, end) if hello else b""
            return answer[:-PROOF] if answer and session.is_proved("answer", answer[:-PROOF], answer[-PROOF:]) else TRANS_ERROR if answer else b""
        finally:
            sock.close(linger=0)

    def _exchange(self, sock, path: str, message: bytes, end: float) -> bytes:
        """What is answered, or nothing. As long as prefill may still write into our blocks they are not given up: silence is waited out while
        its port is open."""
        sock.send(message, zmq.NOBLOCK)
        while time.monotonic() < end and not self._stopped:
            if sock.poll(PULL_PATIENCE_S * 1000):
                return sock.recv()
            if not is_open(path):
                break
        return b""

    def receive_kv(self, path: str, req_blocks: list[tuple[str, str, list[int]]]):
        local_ids, remote_ids, block_ids = map(list, zip(*req_blocks))
        question = self._encoder.encode(MooncakeAgentMetadata(self.hostname, self.rpc_port, remote_ids, self.kv_caches_base_addr, block_ids))
        answer = b""
        end = time.monotonic() + (0 if FAILED_BLOCKS_ARE_HANDLED else VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)
        while True:
            try:
                answer = self._ask(path, question)
            except zmq.ZMQError as error:
                if not self._stopped:
                    logger.error("%s cannot be asked for %s: %s", path, remote_ids, error)
            if answer == TRANS_DONE or time.monotonic() >= end or self._wait_stopped(PULL_AGAIN_S):
                break
        if answer == TRANS_DONE:
            with self._lock:
                self.finished_recving_reqs.update(local_ids)
            return
        logger.error("the blocks of %s did not come from %s; the prefill instance's log says why", remote_ids, path)
        if not FAILED_BLOCKS_ARE_HANDLED:
            logger.error("this vLLM cannot be told so: the requests %s wait until their clients leave; vLLM 0.11 computes the blocks", local_ids)
        else:
            with self._lock:
                self._failed_blocks.update(block for blocks in block_ids for block in blocks)
                self.finished_recving_reqs.update(local_ids)

    def _pull(self, path: str, one: tuple[str, str, list[int]]):
        """Each prefill worker has a queue and threads of its own: one that is silent keeps nobody waiting for the others."""
        with self._lock:
            self._pulls.setdefault(path, deque()).append(one)
            if self._pullers.get(path, 0) >= PULLS_MAX:
                return
            self._pullers[path] = self._pullers.get(path, 0) + 1
        threading.Thread(target=self._run_pulls, args=(path,), name="vllm-mooncake-pull", daemon=True).start()

    def _run_pulls(self, path: str):
        while True:
            with self._lock:
                if self._stopped or not self._pulls[path]:
                    self._pullers[path] -= 1
                    if self._pullers[path] == 0:
                        del self._pullers[path], self._pulls[path]
                    return
                one = self._pulls[path].popleft()
            try:
                self.receive_kv(path, [one])
            except Exception as error:  # the thread is for others, too
                logger.error("%s from %s: %s", one[0], path, error)

    def _wait_stopped(self, seconds) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: self._stopped, seconds)

    def group_kv_pull(self, metadata: MooncakeConnectorMetadata):
        pulls = defaultdict(list)
        for request_id, meta in metadata.reqs_to_recv.items():
            path = make_zmq_path("tcp", meta.remote_host, meta.remote_port + self.tp_rank)
            pulls[path].append((request_id, meta.remote_request_id or request_id, meta.local_block_ids))
        return pulls

    # -- each step --

    def record_send_reqs(self, metadata: MooncakeConnectorMetadata):
        with self._lock:
            for request_id, block_ids in metadata.reqs_to_send.items():
                self._given_up.pop(request_id, None)
                meta = self.reqs_need_send.setdefault(request_id, SendBlockMeta([]))
                if block_ids:
                    meta.local_block_ids = block_ids
                    meta.expire_time = time.monotonic() + VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
                    meta.ready.set()
                    self._computed.append(request_id)
        if metadata.reqs_to_send:
            self._nudge()

    def start_load_kv(self, metadata: MooncakeConnectorMetadata):
        if self.kv_role != "kv_producer":
            for path, req_blocks in self.group_kv_pull(metadata).items():
                for one in req_blocks:
                    self._pull(path, one)
        if self.kv_role != "kv_consumer":
            self.record_send_reqs(metadata)

    def get_finished(self, finished_req_ids=()) -> tuple[Optional[set[str]], Optional[set[str]]]:
        """(requests whose blocks are sent or given up, requests whose blocks are there)."""
        now = time.monotonic()
        with self._lock:
            for one in finished_req_ids or ():
                # Ended without blocks to send, so nothing will come of it.
                if one in self.reqs_need_send and not self.reqs_need_send[one].ready.is_set():
                    del self.reqs_need_send[one]
            expired = [one for one, meta in self.reqs_need_send.items() if meta.expire_time < now]
            for one in expired:
                logger.warning("nobody came for request %s within %d s; its blocks are freed", one, VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)
                del self.reqs_need_send[one]
                self._given_up[one] = None
                self._computed.append(one)
            while len(self._given_up) > GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
            sent, self.finished_sending_reqs = self.finished_sending_reqs | set(expired), set()
            received, self.finished_recving_reqs = self.finished_recving_reqs, set()
        if expired:
            self._nudge()
        return sent or None, received or None

    def take_failed_blocks(self) -> set[int]:
        with self._lock:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed


def shown(request_ids) -> str:
    """Some of them, for a line of the log: who asks may name as many, and as long ones, as he likes."""
    rest = len(request_ids) - 4
    return ", ".join(one[:80] for one in request_ids[:4]) + (f" and {rest} more" if rest > 0 else "")


def peer_of(frame) -> str:
    """The address that a message came from."""
    try:
        return frame.get("Peer-Address")
    except zmq.ZMQError:
        return ""


def is_open(path: str) -> bool:
    """Does anybody listen at tcp://host:port?"""
    host, port = path[len("tcp://"):].rsplit(":", 1)
    try:
        create_connection((host.strip("[]"), int(port)), timeout=5).close()
        return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # unreachable for now is not gone


@contextlib.contextmanager
def zmq_ctx(socket_type: Any, addr: str):
    """A ROUTER that listens or a REQ that connects, with a context of its own."""
    if socket_type not in (zmq.ROUTER, zmq.REQ):
        raise ValueError(f"Unexpected socket type: {socket_type}")
    context = zmq.Context()
    try:
        yield make_zmq_socket(context, addr, socket_type, bind=socket_type == zmq.ROUTER)
    finally:
        context.destroy(linger=0)


def group_concurrent_contiguous(src_indices: list[int], dst_indices: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Cuts both lists wherever one of them does not go on with the next number."""
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    for source, target in zip(src_indices, dst_indices):
        if sources and source == sources[-1][-1] + 1 and target == targets[-1][-1] + 1:
            sources[-1].append(source)
            targets[-1].append(target)
        else:
            sources.append([source])
            targets.append([target])
    return sources, targets


def get_mooncake_side_channel_port(vllm_config) -> int:
    parallel = vllm_config.parallel_config
    return VLLM_MOONCAKE_SIDE_CHANNEL_PORT + parallel.data_parallel_rank * parallel.tensor_parallel_size
