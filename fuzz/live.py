#!/usr/bin/env python3
"""A protocol fuzzer of live processes: master, store node, store service, metadata server, transfer engine and proxy are told, on each port and socket,
valid messages with wrong fields, in the wrong order, cut, repeated and interleaved (hostile.py), while honest clients put, get and transfer, and check
every byte. A second master, node, engine and proxy take TLS alone: they are told what is no handshake, or half of one, and, by TLS, the same words.

live.py [--minutes N | --seconds N] [--seed N] [--mode MODE]...

Modes: open (no keys), stranger (keys; the hostile party has none), reader (one that may read), holder (one that may everything). In open and holder it may
also remove what others have put, mount segments that take puts and swallow them, and drain the others: an honest call may then fail, but must end, and no
byte may be wrong; and when it is over a new store node is enough for honest calls to work. In the other two honest calls may not fail for long.
KV events are published by ZMQ in open alone: where there are keys, there is no such port.

A finding ends the run, exit code 1: a process that has died, a wrong byte, a call that failed, memory beyond the bound. The last words said are then in the
folder that it names. The same seed says the same words as long as the servers answer the same; what is drawn for a handshake of TLS differs.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/system")]
os.environ.setdefault("MC_SANITIZER", "address")  # or not: starts are waited for as long
import keyed  # noqa: E402
import wire  # noqa: E402
from certificates import Authority  # noqa: E402
from cluster import BUILD, Master, resident_bytes_of, wait_until  # noqa: E402
from hostile import NUMBER, Words  # noqa: E402
from keyed import Key  # noqa: E402
from proxy_engines import Engine as Instance, Proxy  # noqa: E402
from service_process import CLIENT, Service  # noqa: E402

MODES = {"open": None, "stranger": None, "reader": "read", "holder": "read,write,node,admin"}
SEGMENT = 64 << 20
MEMORY_MAX = 384 << 20  # above what a process had when it was ready, with all that a sanitizer keeps
LENT_MAX = 64 * (17 << 20)  # what a service lends besides where it is asked to, and the tables of it
LENT_DESCRIPTORS_MAX = 64 * 16
CONNECTIONS = 20
DESCRIPTORS_MAX = 8  # more than before that honest clients may need
CALL_SECONDS_MAX = 60
ENGINE_BYTES = 1 << 20
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:abort_on_error=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
OBJECTS = {f"key-{number}": size for number, size in enumerate((1, 100, 4096, 65536, 65537, 300000, 1 << 20, 8192))}
ADMIN = [("GET", path) for path in ("/", "/metrics", "/metrics/summary", "/health", "/role", "/ha_status", "/leader", "/query_key?key=KEY", "/batch_query_keys?keys=KEY,KEY",
                                    "/get_all_keys", "/get_all_segments", "/get_segments_detail", "/query_segment?segment=KEY", "/api/v1/drain_jobs/query?job_id=N",
                                    "/api/v1/segments/status?segment=N", "/api/v1/tenant_quotas", "/kv_events/status",
                                    "/api/v1/kv_events?after=N&limit=7", "/api/v1/kv_events/snapshot?limit=3")] + \
        [("POST", "/api/v1/drain_jobs"), ("POST", "/api/v1/drain_jobs/cancel?job_id=N"), ("PUT", "/api/v1/tenant_quotas"), ("DELETE", "/api/v1/tenant_quotas?tenant_id=KEY")]
METADATA = [(method, path) for method in ("GET", "PUT", "DELETE") for path in ("/metadata?key=KEY", "/metadata?key=mooncake/ram/N", "/metadata", "/health", "/metrics")]
SERVICE = [("PUT", "/api/put"), ("GET", "/api/get/KEY"), ("GET", "/api/exist/KEY"), ("DELETE", "/api/remove/nobodys-N"), ("POST", "/api/mount"), ("POST", "/api/unmount"),
           ("POST", "/api/mount_shm"), ("POST", "/api/unmount_shm"), ("POST", "/api/unmount_local_disk"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/metrics/summary")]
PROXY = [("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/generate"), ("GET", "/status"), ("GET", "/health"), ("GET", "/healthcheck"),
         ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/version")]
CHANGES = [("POST", "/instances/add"), ("POST", "/instances/remove")]


class Finding(Exception):
    pass


# ---- processes ----

class Cluster:
    """All processes of one run, named; `held` is what the honest have, `key` what the hostile party has."""

    def __init__(self, mode, folder):
        self.mode, self.folder = mode, folder
        self.held = None if mode == "open" else Key("honest")
        right = MODES[mode]
        self.key = Key("hostile", right) if right else None
        self.file = None if mode == "open" else keyed.write(folder, "keys", *[key for key in (self.held, self.key) if key])
        self.auth = [] if mode == "open" else [f"--auth_file={self.file}"]
        self.strict = mode in ("stranger", "reader")
        self.children, self.logs, self.processes = [], {}, {}
        self.instance = Instance("d")
        os.environ.update(SANITIZERS, MC_AUTH_TOKEN="", MC_AUTH_FILE=self.file or "")

    def spawn(self, name, words, says, **environment):
        """A command, started; what the first line that matches says."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen([str(BUILD / words[0]), *map(str, words[1:])], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **environment})
        self.add(name, process, log)
        return wait_until(lambda: re.search(says, log.read_text(errors="replace")) or self.look(), 60, f"{says} of {name}").group(1)

    def add(self, name, process, log):
        self.processes[name], self.logs[name] = process, pathlib.Path(log)

    def start_master(self, name, *flags, **environment):
        master = Master(*self.auth, "--default_kv_lease_ttl=1s", *flags, metadata=True, environment=environment)
        self.children.append(master.__enter__())
        self.add(name, master.process, master.log_file.name)
        return master

    def start_engine(self, name, **environment):
        return self.spawn(name, ["transfer_engine_bench", "--mode=target", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1", "--protocol=tcp",
                                 f"--buffer_size={ENGINE_BYTES}", *self.auth], r"target (\S+)", **environment)

    def start_proxy(self, name, **environment):
        proxy = Proxy("--decode", self.instance.address, "--client_timeout=300s", "--drain_timeout=5s", *self.auth, environment=environment)
        self.children.append(proxy.start())
        self.add(name, proxy.process, proxy.log_file.name)
        return proxy

    def start_node(self, name, master, **environment):
        node = Service("--host=127.0.0.1", f"--master_server_address={master.address}", f"--global_segment_size={SEGMENT}", "--enable_http_server=true", "--http_port=0",
                       command=CLIENT, MOONCAKE_MASTER=master.address, **environment)
        self.add(name, node.spawn().process, node.log_file.name)
        self.children.append(node)
        return node.wait(r"Client HTTP server started on port (\d+)")

    def start_secured(self):
        authority = Authority(self.folder, "ca")
        pair = authority.sign("all", ["DNS:localhost", "IP:127.0.0.1"])
        self.tls = {"MC_TLS_CA_CERT": str(authority.certificate), "MC_TLS_CERT": str(pair.certificate), "MC_TLS_KEY": str(pair.key)}
        self.secured_master = self.start_master("master by TLS", **self.tls)
        self.secured_node = self.start_node("node by TLS", self.secured_master, **self.tls, MC_FORCE_TCP="1")
        self.secured_engine = self.start_engine("engine by TLS", **self.tls)
        self.secured_proxy = self.start_proxy("proxy by TLS", **self.tls)

    def context(self, **more):
        made = ssl.create_default_context(cafile=self.tls["MC_TLS_CA_CERT"])
        for name, value in more.items():
            setattr(made, name, value)
        return made

    def start(self):
        self.master = self.start_master("master", "--enable_kv_events=true", "--kv_events_bind_endpoint=tcp://127.0.0.1:0",
                                        "--kv_events_replay_endpoint=tcp://127.0.0.1:0")
        self.events_port = self.mode == "open" and self.says(self.master, r"KV events are published on tcp://127.0.0.1:(\d+)")
        self.replay_port = self.mode == "open" and self.says(self.master, r"KV events of the past are told on tcp://127.0.0.1:(\d+)")
        self.start_secured()
        self.node = self.start_node("node", self.master)
        self.dummy_port = self.says(self.node, r"setup_dummy is answered on port (\d+)")
        self.service = Service("--max-wait-time=60", MOONCAKE_MASTER=self.master.address)
        self.add("service", self.service.spawn().process, self.service.log_file.name)
        self.children.append(self.service)
        self.service.wait()
        self.metadata_port = int(self.spawn("metadata", ["mooncake_http_metadata_server", "--port=0", "--host=127.0.0.1", *self.auth], r"started on \S*?(\d+)\n"))
        self.engine = self.start_engine("engine")
        self.proxy = self.start_proxy("proxy")
        self.resident = {name: resident_bytes_of(process.pid) for name, process in self.processes.items()}
        return self

    @staticmethod
    def says(process, pattern):
        return wait_until(lambda: re.search(pattern, process.log()), 60, pattern).group(1)

    def look(self):
        """Are all there, and none larger than it may be?"""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Finding(f"{name} has ended with {process.returncode}: {self.logs[name].read_text(errors='replace')[-6000:]}")
            grown = resident_bytes_of(process.pid) - getattr(self, "resident", {}).get(name, 1 << 40)
            if grown > MEMORY_MAX + (LENT_MAX if name == "service" and not self.strict else 0):
                raise Finding(f"{name} has grown by {grown >> 20} MiB")

    def descriptors(self):
        return {name: len(os.listdir(f"/proc/{process.pid}/fd")) for name, process in self.processes.items()}

    def let_go(self):
        """Who has closed its connections is forgotten."""
        def more():
            return {name: count - self.had[name] for name, count in self.descriptors().items()}

        def kept():
            grown = more()
            # What a stranger has made the service lend stays lent, and each of it has connections of its own to the master.
            lent = {} if self.strict else {"service": LENT_DESCRIPTORS_MAX, "master": min(max(grown["service"], 0), LENT_DESCRIPTORS_MAX)}
            return {name: count for name, count in grown.items() if count > DESCRIPTORS_MAX + lent.get(name, 0)}
        try:
            wait_until(lambda: not kept(), 90, "the end of all connections")
            self.more = more()
        except AssertionError as error:
            raise Finding(f"{error}: more descriptors than before: {kept()}") from None

    def grown(self):
        return {name: (resident_bytes_of(process.pid) - self.resident[name]) >> 20 for name, process in self.processes.items()}

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise Finding("a process does not end when it is told to") from None
        for name, log in self.logs.items():
            text = log.read_text(errors="replace")
            if "runtime error:" in text or "AddressSanitizer" in text:
                raise Finding(f"{name}: {text[-6000:]}")
        self.instance.kill()
        for one in self.children:
            one.process = None


# ---- the hostile party ----

class Door:
    """A port or socket: what opens it, and what is said there."""

    def __init__(self, name, opens, says, prove=None):
        self.name, self.opens, self.says, self.prove = name, opens, says, prove


class Hostile(threading.Thread):
    def __init__(self, cluster, seed):
        super().__init__(daemon=True)
        self.cluster, self.rng = cluster, random.Random(seed)
        self.words = Words(self.rng, [key.encode() for key in OBJECTS] + [b"nobodys-1"])
        self.over, self.failed = threading.Event(), None
        self.said, self.last = collections.Counter(), collections.deque(maxlen=400)
        self.connections = []
        self.doors = self.make_doors()

    # -- doors --

    def tcp(self, port):
        return lambda: socket.create_connection(("127.0.0.1", int(port)), timeout=5)

    @staticmethod
    def unix(name):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect("\0" + name[1:] if name[:1] == "@" else name)
        return connection

    def make_doors(self):
        cluster = self.cluster
        changes = CHANGES if not cluster.strict else []
        doors = [Door(f"master, role {role}", self.tcp(cluster.master.port), lambda role=role: self.words.of_role(role), lambda one, role=role: self.greet_master(one, role))
                 for role in (0, 0, 1, 2, 3)]
        doors += [Door(f"http {name}", self.tcp(port), lambda paths=paths: self.words.request(paths, cluster.key)) for name, port, paths in (
            ("admin", cluster.master.metrics_port, ADMIN), ("metadata of the master", cluster.master.metadata_port, METADATA), ("node", cluster.node.port, SERVICE),
            ("service", cluster.service.port, SERVICE), ("metadata", cluster.metadata_port, METADATA), ("proxy", cluster.proxy.port, PROXY + changes))]
        doors += [Door("master, unix", lambda: self.unix(self.master_name()), lambda: self.words.of_role(0), lambda one: self.greet_master(one, 0)),
                  Door("data", lambda: self.to_segment("tcp_address"), lambda: self.words.of_role(3), self.greet_owner),
                  Door("data, unix", lambda: self.to_segment("unix_path"), lambda: self.words.of_role(3), self.greet_owner),
                  Door("engine, handshake", self.tcp(cluster.engine.rsplit(":", 1)[1]), self.words.handshake, lambda one: self.preface(one, keyed.HANDSHAKE)),
                  Door("engine, data", lambda: self.tcp(self.document()["tcp_data_port"])(), lambda: self.words.transfer(True), lambda one: self.preface(one, keyed.DATA)),
                  Door("engine, host", lambda: self.unix(self.unix_name()), lambda: self.rng.randbytes(24), lambda one: self.preface(one, keyed.HOST)),
                  Door("setup_dummy", self.tcp(cluster.dummy_port), lambda: self.words.of_role(0))]
        if cluster.events_port:
            for name, port in (("KV events", cluster.events_port), ("KV events of the past", cluster.replay_port)):
                doors.append(Door(name, self.tcp(port), self.words.zmtp, lambda one: one.sendall(self.words.zmtp_greeting())))
        return doors + self.make_secured_doors()

    def make_secured_doors(self):
        """Of each port that takes TLS alone two: before a handshake, and by TLS, and then as without."""
        cluster = self.cluster
        master, engine = cluster.secured_master, cluster.secured_engine.rsplit(":", 1)[1]
        self.contexts = [cluster.context()] * 8 + [cluster.context(maximum_version=ssl.TLSVersion.TLSv1_2)]  # the last is refused
        doors = [Door(f"master, role {role}", self.tcp(master.port), lambda role=role: self.words.of_role(role), lambda one, role=role: self.greet_master(one, role))
                 for role in (0, 2)]
        doors += [Door(f"http {name}", self.tcp(port), lambda paths=paths: self.words.request(paths, cluster.key)) for name, port, paths in (
            ("admin", master.metrics_port, ADMIN), ("metadata of the master", master.metadata_port, METADATA), ("node", cluster.secured_node.port, SERVICE),
            ("proxy", cluster.secured_proxy.port, PROXY))]
        doors += [Door("data", lambda: self.to_segment("tcp_address", self.words.secured), lambda: self.words.of_role(3), self.greet_owner),
                  Door("engine, handshake", self.tcp(engine), self.words.handshake, lambda one: self.preface(one, keyed.HANDSHAKE))]
        before = [Door(f"{one.name} before TLS", one.opens, lambda one=one: self.words.before_tls(one.says())) for one in doors]
        return before + [Door(f"{one.name} by TLS", lambda one=one: self.shake(one.opens()), one.says, one.prove) for one in doors]

    def shake(self, plain):
        try:
            return self.rng.choice(self.contexts).wrap_socket(plain, server_hostname="localhost")
        except (OSError, ValueError):
            plain.close()
            raise

    def master_name(self):
        for node in self.words.learnt["node"]:
            low, high = struct.unpack("<QQ", node)
            return f"@mooncake-master-{high:016x}{low:016x}"
        raise OSError("not known yet")

    def to_segment(self, field, known=None):
        known = self.words.segments if known is None else known
        if not known:
            raise OSError("not known yet")
        self.segment = self.rng.choice(known)
        address = self.segment[field].decode("latin1")
        if field == "unix_path":
            return self.unix(address)
        host, _, port = address.rpartition(":")
        if host != "127.0.0.1" or not port.isdigit() or int(port) > 65535:  # one that it has mounted itself
            raise OSError("nowhere")
        return self.tcp(port)()

    def document(self):
        """Of the engine; asked for as an honest engine does."""
        if not self.words.documents:
            with self.tcp(self.cluster.engine.rsplit(":", 1)[1])() as one:
                self.preface(one, keyed.HANDSHAKE, harm=False)
                one.sendall(struct.pack("<QB", 3, 1) + b"{}")
                length, = struct.unpack("<Q", one.recv(8, socket.MSG_WAITALL).ljust(8, b"\0"))
                self.words.documents.append(one.recv(min(length, 1 << 16), socket.MSG_WAITALL)[1:])
        try:
            return json.loads(self.words.documents[0])
        except ValueError:
            self.words.documents.clear()
            raise OSError("no document") from None

    def unix_name(self):
        names = re.findall(rb'"(@mooncake-transfer-[0-9a-f]+)"', self.document() and self.words.documents[0])
        if not names:
            raise OSError("none")
        return names[0].decode()

    # -- proofs and greetings: right, or nearly --

    def proof(self, one, name, secret):
        nonce = secrets.token_bytes(32)
        one.sendall(keyed.auth(name, nonce))
        kind, body = keyed.receive(one) or (0, b"")
        if kind != keyed.CHALLENGE:
            return
        code, server = keyed.challenge_of(body)[:2]
        if code == 0:
            right = keyed.proof_of("caller", secret, nonce, server, name)
            one.sendall(keyed.proof(right if self.rng.random() > 0.05 else self.rng.randbytes(self.rng.choice((0, 31, 32, 33)))))

    def greet_master(self, one, role):
        if self.cluster.key and self.rng.random() > 0.05:
            self.proof(one, self.cluster.key.name.encode(), self.cluster.key.secret)
        elif self.cluster.mode != "open" and self.rng.random() < 0.7:
            one.sendall(self.words.message(self.rng.choice(("AUTH", "PROOF", "CHALLENGE"))))
        one.sendall(self.words.hello(role))
        if role == 0 and self.rng.random() < 0.3:
            one.sendall(self.words.message("SEGMENTS", changes=bytes(8)))

    def greet_owner(self, one):
        if self.segment["ticket"] and self.rng.random() > 0.05:
            self.proof(one, self.segment["ticket"], self.segment["ticket_secret"])
        one.sendall(self.words.hello(3, self.segment["nonce"]))

    def preface(self, one, port, harm=True):
        if self.cluster.mode == "open":
            return
        key = self.cluster.key or Key("stranger")
        if harm and self.rng.random() < 0.2:
            one.sendall(self.rng.randbytes(self.rng.choice((1, 39, 40, 119, 120, 500))))
            return
        try:
            known, right = keyed.preface(one, port, key)
            one.sendall(right if not harm or self.rng.random() > 0.05 else self.rng.randbytes(40))
        except (AssertionError, struct.error):
            raise OSError("refused") from None

    # -- saying --

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except Exception as error:  # ours: said at the end, so that it is not taken for silence
            self.failed = error
        for _door, one in self.connections:
            one.close()

    def step(self):
        rng = self.rng
        if not self.connections or (len(self.connections) < CONNECTIONS and rng.random() < 0.3):
            self.open_one()
            return
        at = rng.randrange(len(self.connections))
        door, one = self.connections[at]
        try:
            for _ in range(rng.choice((1, 1, 1, 2, 5))):
                self.say(door, one, door.says())
            self.hear(one)
            if rng.random() > 0.2:
                return
            if rng.random() < 0.4:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif rng.random() < 0.3:
                one.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.connections.pop(at)[1].close()

    def open_one(self):
        door = self.rng.choice(self.doors)
        try:
            one = door.opens()
        except OSError:
            return
        try:
            if door.prove is not None and self.rng.random() > 0.05:
                door.prove(one)
            one.setblocking(False)  # what it does not take at once is not said
            self.connections.append((door, one))
        except (OSError, ValueError, struct.error):
            one.close()

    def say(self, door, one, words):
        self.last.append((door.name, words[:4096]))
        self.said[door.name] += 1
        one.sendall(words)

    def hear(self, one):
        """What has come; whole frames are learnt from."""
        try:
            data = one.recv(1 << 16)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        if not data:
            raise OSError("it has closed")
        while len(data) >= 16:
            length, kind = struct.unpack_from("<IH", data)
            if length > len(data) - 16 or kind not in NUMBER.values():
                return
            self.words.learn(data[:16 + length], isinstance(one, ssl.SSLSocket))
            data = data[16 + length:]


# ---- the honest ----

class Near:
    """An engine of its own process, that writes into the target and reads it again."""

    def __init__(self, cluster):
        self.cluster, self.log = cluster, (cluster.folder / "near.log").open("wb")
        self.process = subprocess.Popen([sys.executable, "-B", HERE.parent / "tests/system/engine_peer.py", "127.0.0.1", "P2PHANDSHAKE", str(ENGINE_BYTES)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env={**keyed.environment(cluster.held), "MC_LOG_LEVEL": "WARNING"})
        assert int(self.process.stdout.readline().split()[0]) == 0
        self.target = int(self.ask("first", cluster.engine))

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def turn(self, byte):
        size, right = ENGINE_BYTES, zlib.crc32(bytes([byte]) * ENGINE_BYTES)
        self.ask("fill", 0, size, byte)
        codes = [int(self.ask("write", self.cluster.engine, self.target, size))]
        self.ask("fill", 0, size, byte ^ 1)
        codes.append(int(self.ask("read", self.cluster.engine, self.target, size)))
        found = int(self.ask("crc", 0, size))
        if self.cluster.strict and (codes != [0, 0] or found != right):
            raise Finding(f"engine: write and read {codes}, bytes {'right' if found == right else 'wrong'}: {(self.cluster.folder / 'near.log').read_text()[-3000:]}")

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()


class Honest:
    """A client of its own process, and an engine."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.near = Near(cluster)
        self.client = keyed.Client(cluster.master, cluster.held, MC_LOG_LEVEL="WARNING", MC_RPC_TIMEOUT_MS=str(CALL_SECONDS_MAX * 500))
        assert self.client.code == 0, self.client.said()
        self.secured = keyed.Client(cluster.secured_master, cluster.held, MC_LOG_LEVEL="WARNING", MC_RPC_TIMEOUT_MS=str(CALL_SECONDS_MAX * 500), MC_FORCE_TCP="1",
                                    MC_TLS_CA_CERT=cluster.tls["MC_TLS_CA_CERT"])
        assert self.secured.code == 0, self.secured.said()
        self.calls, self.misses, self.failures, self.round = 0, 0, 0, 0

    def timed(self, call, *words, client=None):
        start = time.monotonic()
        result = getattr(client or self.client, call)(*words)
        self.calls += 1
        if time.monotonic() - start > CALL_SECONDS_MAX:
            raise Finding(f"{call} of {words} has taken {time.monotonic() - start:.1f} s")
        return result

    def put_and_get(self, client, key, size):
        put, same = self.timed("put", key, key, size, client=client), self.timed("same", key, key, size, client=client)  # the bytes are a function of the name
        if same is False:
            raise Finding(f"{key}: a wrong byte")
        return put, same

    def store_turn(self, client, key, size):
        put, same = self.put_and_get(client, key, size)
        self.misses += same is None
        self.failures += put != 0
        # A node that a busy machine has kept still for seconds is given up, and comes again: once more, then.
        end = time.monotonic() + CALL_SECONDS_MAX
        while self.cluster.strict and (put != 0 or same is not True):
            if time.monotonic() > end:
                raise Finding(f"{key}: put {put}, get {same}: {client.said()[-3000:]}")
            time.sleep(0.5)
            put, same = self.put_and_get(client, key, size)
        if self.timed("ranges", key, key, size, client=client) is False:
            raise Finding(f"{key}: a wrong byte in a range")

    def well_by_tls(self):
        connection = http.client.HTTPSConnection("127.0.0.1", self.cluster.secured_master.metrics_port, timeout=20, context=self.cluster.context())
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def turn(self, rng):
        key = rng.choice(list(OBJECTS))
        self.store_turn(self.client, key, OBJECTS[key])
        if self.cluster.strict and self.cluster.proxy.post("/v1/completions", {"model": "m", "prompt": "p"}, self.bearer())[0] != 200:
            raise Finding(f"the proxy does not answer: {self.cluster.proxy.log()[-3000:]}")
        if self.round % 4 == 0:
            self.near.turn(self.round % 256)
            self.store_turn(self.secured, key, OBJECTS[key])
            if not self.well_by_tls():
                raise Finding("the master is not well by TLS")
        if self.cluster.master.get("/health")[0] != 200:
            raise Finding("the master is not well")
        self.round += 1

    def bearer(self):
        return {"Authorization": f"Bearer {self.cluster.held.token}"} if self.cluster.held else {}

    def recover(self):
        """When it is over: with a new store node honest calls work."""
        with keyed.Client(self.cluster.master, self.cluster.held, segment=SEGMENT, MC_LOG_LEVEL="WARNING") as node:
            def works():
                return node.code == 0 and self.timed("put", "after", "after", 5000) == 0 and self.timed("same", "after", "after", 5000) is True
            try:
                wait_until(works, 90, "an honest put and get")
            except AssertionError as error:
                raise Finding(f"{error}: {self.client.said()[-3000:]} {self.cluster.master.log()[-3000:]}") from None


def run(mode, seconds, seed, folder):
    cluster = Cluster(mode, folder)
    hostile = None
    rng = random.Random(seed)
    try:
        cluster.start()
        honest = Honest(cluster)
        for client in (honest.client, honest.secured):
            wait_until(lambda client=client: honest.timed("put", "ready", "ready", 10, client=client) == 0, 60, "room")
        honest.turn(rng)
        cluster.had = cluster.descriptors()
        hostile = Hostile(cluster, seed)
        hostile.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            honest.turn(rng)
            cluster.look()
            if hostile.failed is not None:
                raise hostile.failed
        hostile.over.set()
        hostile.join()
        cluster.look()
        cluster.let_go()
        honest.recover()
        print(f"  {mode}: {sum(hostile.said.values())} messages, {honest.calls} honest calls, {honest.failures} puts refused, {honest.misses} misses, "
              f"grown by MiB {cluster.grown()}, descriptors {cluster.more}", flush=True)
        print("    " + ", ".join(f"{name} {count}" for name, count in sorted(hostile.said.items())), flush=True)
        honest.client.__exit__()
        honest.secured.__exit__()
        honest.near.stop()
    except Finding as finding:
        print(f"FINDING (mode {mode}, seed {seed}): {finding}", flush=True)
        if hostile is not None:
            with open(folder / "last", "w", encoding="utf-8") as file:
                file.writelines(f"{name} {words.hex()}\n" for name, words in hostile.last)
        raise
    finally:
        if hostile is not None:
            hostile.over.set()
            hostile.join()
        cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--mode", action="append", choices=list(MODES))
    given = parser.parse_args()
    modes = given.mode or list(MODES)
    seconds = (given.minutes * 60 or given.seconds) / len(modes)
    print(f"seed {given.seed}, {seconds:.0f} s of each: {', '.join(modes)}", flush=True)
    for mode in modes:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"mc-live-{mode}-"))
        try:
            run(mode, seconds, given.seed, folder)
        except Finding as finding:
            print(f"{finding}\nthe logs and the last words said lie in {folder}", flush=True)
            sys.exit(1)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    print("nothing was found")


if __name__ == "__main__":
    main()
