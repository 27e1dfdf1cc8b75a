"""Stand-ins for inference engines, and the proxy before them, for the proxy's tests.

    engine = Engine(tokens=5, delay_s=0.01)          # answers as vLLM's OpenAI server does; remembers what it was asked
    with Proxy("--prefill", engine.address, "--decode", other.address) as proxy:
        proxy.post("/v1/completions", {...})         # (status, headers, body)

Real sockets, real threads; ports are chosen by the kernel. An engine can be killed and started again under its port.
"""
import contextlib
import http.client
import http.server
import json
import os
import pathlib
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from cluster import START_S, resident_bytes_of, samples_of, wait_until

PROXY = pathlib.Path(os.environ.get("MC_BUILD", ".")) / "mooncake_proxy"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused):
        pass

    def answer(self, status, value, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine = self.server.engine
        engine.asked.append(self.path)
        hang = engine.hangs.get(self.path)
        if hang is not None:
            engine.hung += 1
            hang.wait()
            self.close_connection = True
            return
        if self.path == "/health":
            time.sleep(engine.health_delay_s)
            self.answer(engine.health, b"")
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": engine.model, "object": "model"}]})
        elif self.path == "/query":
            self.answer(200, {str(rank): {"engine_id": name, "worker_addr": {"0": {"0": "tcp://127.0.0.1:1"}}} for rank, name in enumerate(engine.engine_ids)})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self):
        engine = self.server.engine
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        seen = {"path": self.path, "headers": dict(self.headers.items()), "raw": raw, "time": time.monotonic()}
        try:
            seen["body"] = json.loads(raw)
        except ValueError:
            seen["body"] = None
        with engine.lock:
            engine.requests.append(seen)
            engine.running += 1
            engine.most = max(engine.most, engine.running)
        try:
            if engine.hold is not None:
                self.wait_held(engine)
            if engine.behave is not None:
                engine.behave(self, seen)
            elif seen["body"].get("stream"):
                self.stream(engine, seen)
            else:
                reply = {"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": engine.name}], "engine": engine.name}
                if engine.kv_params is not None and seen["body"].get("kv_transfer_params", {}).get("do_remote_decode"):
                    reply["kv_transfer_params"] = engine.kv_params
                self.answer(200, reply)
        except (ConnectionError, TimeoutError):
            seen["left"] = time.monotonic()
            self.close_connection = True
        finally:
            with engine.lock:
                engine.running -= 1
                seen["done"] = True

    def wait_held(self, engine):
        """Until the test lets it go on; the client that leaves meanwhile is noticed."""
        while not engine.hold.is_set():
            self.look()
            engine.hold.wait(0.01)

    def look(self):
        waited = select.poll()  # select() knows no descriptor above 1023
        waited.register(self.connection, select.POLLIN)
        if not waited.poll(0):
            return
        try:
            if self.connection.recv(1, *([] if self.server.engine.tls else [socket.MSG_PEEK])) == b"":
                raise ConnectionResetError
        except ssl.SSLError as error:
            raise ConnectionResetError from error

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, engine, seen):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(engine.tokens):
            if i > 0 and engine.delay_s > 0:
                time.sleep(engine.delay_s)
            self.look()
            self.chunk(b"data: %s\n\n" % json.dumps({"i": i, "engine": engine.name, "pad": "x" * engine.pad}).encode())
            seen["sent"] = i + 1
            seen["last_sent"] = time.monotonic()
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        pass

    def process_request(self, request, client_address):
        self.engine.sockets.append(request)
        super().process_request(request, client_address)


class Engine:
    """behave(handler, seen): what it does instead of answering. hold: an Event that every answer waits for. hangs: Events by path, for which a
    GET waits, and then gets no answer. tls: the context of a server that speaks TLS."""

    def __init__(self, name="engine", model="m", tokens=5, delay_s=0.0, pad=0, engine_ids=("engine-0",), tls=None):
        self.tls = tls
        self.name, self.model, self.tokens, self.delay_s, self.pad, self.engine_ids = name, model, tokens, delay_s, pad, list(engine_ids)
        self.health, self.kv_params, self.behave, self.hold = 200, None, None, None
        self.hangs, self.hung, self.health_delay_s = {}, 0, 0
        self.requests, self.asked, self.sockets, self.running, self.most = [], [], [], 0, 0  # asked: paths of GETs
        self.lock = threading.Lock()
        self.host, self.port, self.server = "127.0.0.1", 0, None
        self.start()

    def start(self):
        self.server = Server((self.host, self.port), Handler)
        self.server.engine = self
        self.port = self.server.server_address[1]
        if self.tls:  # the handshake is that of the connection's own thread
            self.server.socket = self.tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self):
        """As the death of a process: nobody listens any more, and every connection is reset."""
        self.server.shutdown()
        self.server.server_close()
        for one in self.sockets:
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.sockets.clear()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"http{'s' if self.tls else ''}://{self.address}"

    def bodies(self):
        return [one["body"] for one in self.requests]


class EngineProcess:
    """An engine in a process of its own, that can be stopped."""

    def __init__(self, name, tokens=5, delay_s=0.0):
        self.process = subprocess.Popen([sys.executable, "-B", __file__, name, str(tokens), str(delay_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name, self.address = name, self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class RawServer:
    """Accepts, reads the request's head, sends given bytes, and closes (or waits until the other side does)."""

    def __init__(self, answer, keeps_open=False):
        self.answer, self.keeps_open = answer, keeps_open
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    head += piece
                if b"GET /health" in head:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    return
                connection.sendall(self.answer)
                while self.keeps_open and connection.recv(65536):
                    pass
            except OSError:
                pass

    def close(self):
        self.listener.close()


class Proxy:
    def __init__(self, *arguments, environment=None, program=(str(PROXY),)):
        self.program = list(program)
        self.arguments = [str(one) for one in arguments]
        self.environment = {**{k: v for k, v in os.environ.items() if k not in ("ADMIN_API_KEY", "OPENAI_API_KEY")}, **(environment or {})}
        self.log_file = tempfile.NamedTemporaryFile(prefix="mc-proxy-", suffix=".log")
        self.process = None

    def start(self):
        with open(self.log_file.name, "ab") as log:
            self.process = subprocess.Popen([*self.program, "--port=0", "--host=127.0.0.1", "--health_interval=100ms"] + self.arguments,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=self.environment)

        def look():
            found = re.search(r"Proxy started on port (\d+)", self.log())
            assert found or self.process.poll() is None, f"mooncake_proxy has ended: {self.log()}"
            return found
        with self.or_end():
            self.port = int(wait_until(look, START_S, "the proxy's port").group(1))
        return self

    def ready(self):
        with self.or_end():
            wait_until(lambda: self.get("/health")[0] == 200, START_S, "a healthy proxy")
        return self

    @contextlib.contextmanager
    def or_end(self):
        """Around what waits for its start: if that fails it does not stay, and its log is shown. No __exit__ would end it."""
        try:
            yield
        except BaseException:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            print(self.log()[-4000:])
            raise

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(errors="replace")

    def stop(self, timeout_s=60):
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self):
        return self.start().ready()

    def __exit__(self, *unused):
        if self.process is not None:
            code = self.stop()
            assert code == 0, f"exit code {code}: {self.log()[-6000:]}"
        assert "ERROR: AddressSanitizer" not in self.log() and "runtime error" not in self.log(), self.log()[-6000:]
        self.log_file.close()

    # -- requests --

    def connect(self, timeout_s=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def request(self, method, path, body=None, headers=None):
        connection = self.connect()
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            connection.request(method, path, body=body, headers={"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def get(self, path):
        status, _, body = self.request("GET", path)
        return status, body

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def complete(self, **more):
        return self.post("/v1/completions", {"model": "m", "prompt": "San Francisco is a", "max_tokens": 20, **more})

    def raw(self, data, timeout_s=20, ends=False):
        """Sends bytes, and returns all that comes until the proxy closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            try:
                connection.sendall(data)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass
            got = b""
            try:
                while piece := connection.recv(65536):
                    got += piece
            except ConnectionResetError:
                pass
            return got

    def open(self, data, receive_buffer=None):
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(data)
        return connection

    def stream(self, document, **more):
        """A completion that is read as it comes: (connection, reply)."""
        connection = self.connect(**more)
        connection.request("POST", "/v1/completions", json.dumps(document), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def status(self):
        status, body = self.get("/status")
        assert status == 200
        return json.loads(body)

    def metrics(self):
        status, body = self.get("/metrics")
        assert status == 200
        return samples_of(body)

    def resident_bytes(self):
        return resident_bytes_of(self.process.pid)


def post_bytes(path, body, version="1.1", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/%s\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n" % (
        path.encode(), version.encode(), len(data), headers.encode()) + data


if __name__ == "__main__":
    print(Engine(sys.argv[1], tokens=int(sys.argv[2]), delay_s=float(sys.argv[3])).address, flush=True)
    sys.stdin.read()
