"""A real redis-server on a port that was free a moment ago, with its data in a temporary directory.

    with Redis(password="secret") as redis:
        redis.address               # "127.0.0.1:1"
        redis.call("SET", "a", "b") # bytes, an int, None, or a RedisError
        redis.kill(); redis.start() # kill -9; what was written is still there
"""
import signal
import socket
import ssl
import subprocess
import tempfile

from cluster import wait_until
from ports import free_ports


class RedisError(Exception):
    pass


class Redis:
    def __init__(self, password=None, authority=None, pair=None):
        """authority, pair: certificates.py's; with them it speaks TLS alone, and asks callers for a certificate of that authority."""
        self.folder = tempfile.TemporaryDirectory(prefix="mc-redis-")
        self.password, self.flags, self.wrap = password, [], lambda raw: raw
        if pair:
            self.flags = ["--port", "0", "--tls-ca-cert-file", authority.certificate, "--tls-cert-file", pair.certificate, "--tls-key-file", pair.key]
            context = ssl.create_default_context(cafile=authority.certificate)
            context.load_cert_chain(pair.certificate, pair.key)
            self.wrap = lambda raw: context.wrap_socket(raw, server_hostname="127.0.0.1")
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        login = ["--requirepass", self.password] if self.password else []
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder.name, "--save", "", "--appendonly", "yes",
             "--appendfsync", "always", *login, *self._listens()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, 20, "redis-server")

    def _listens(self):
        return [*map(str, self.flags), *(["--tls-port", str(self.port)] if self.flags else [])]

    def _answers(self):
        assert self.process.poll() is None
        try:
            return self.call("PING") == b"PONG"
        except (OSError, RedisError):
            return False

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def call(self, *words, database=0):
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as raw, self.wrap(raw) as connection, connection.makefile("rb") as stream:
            if self.password:
                self._ask(connection, stream, "AUTH", self.password)
            if database:
                self._ask(connection, stream, "SELECT", str(database))
            return self._ask(connection, stream, *words)

    def _ask(self, connection, stream, *words):
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self._read(stream)

    def _read(self, stream):
        line = stream.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self._read(stream) for _ in range(int(rest))]
        if kind != b"$":
            return rest
        size = int(rest)
        return None if size < 0 else stream.read(size + 2)[:-2]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.kill()
        self.folder.cleanup()
