"""Keys for tests: files of them, processes that have them, and the proof spoken by hand, a second writer of what src/store/wire/proof.h says."""
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import struct
import subprocess
import sys
import tempfile

import wire
from cluster import wait_until

HERE = pathlib.Path(__file__).resolve().parent
AUTH, CHALLENGE, PROOF = 4, 5, 6
NOT_PERMITTED = -1907


class Key:
    def __init__(self, name, rights="read,write,node,admin", tenant=""):
        self.name, self.rights, self.tenant = name, rights, tenant
        self.secret = secrets.token_bytes(32)

    @property
    def line(self):
        return f"{self.name} {self.secret.hex()} {self.rights} {self.tenant}\n"

    @property
    def token(self):
        return f"{self.name}:{self.secret.hex()}"


def write(folder, name, *keys):
    """A file of keys that only its owner can read; replaced whole, as an editor does."""
    path, new = folder / name, folder / (name + ".new")
    new.write_text("# keys of a test\n\n" + "".join(key.line for key in keys))
    new.chmod(0o600)
    new.rename(path)
    return str(path)


def environment(key=None, file=None):
    unset = {name: value for name, value in os.environ.items() if name not in ("MC_AUTH_FILE", "MC_AUTH_TOKEN")}
    return {**unset, **({"MC_AUTH_TOKEN": key.token} if key else {}), **({"MC_AUTH_FILE": str(file)} if file else {})}


class Client:
    """A process with a store; its calls are version_client.py's. code: what setup has returned."""

    def __init__(self, master, key=None, segment=0, file=None, before=(), **more):
        self.log = tempfile.NamedTemporaryFile(prefix="mc-keyed-", suffix=".log")
        self.process = subprocess.Popen([*before, sys.executable, "-B", HERE / "version_client.py", master.address, str(segment), ""], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, env={**environment(key, file), "MC_LOG_LEVEL": "INFO", **more})
        self.code = self._line()

    def _line(self):
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.said()}"
        return json.loads(line)

    def __getattr__(self, call):
        def ask(*arguments):
            self.process.stdin.write(json.dumps({call: arguments}).encode() + b"\n")
            self.process.stdin.flush()
            return self._line()
        return ask

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def tells(self, words):
        """Waits until its log has them: a call may have its answer before the line is written."""
        wait_until(lambda: words in self.said(), 20, f"'{words}' in the log")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.log.close()


def proof_of(who, secret, caller, server, name):
    parts = (f"mooncake {who} 1".encode(), caller, server, name)
    return hmac.new(secret, b"".join(struct.pack("<I", len(part)) + part for part in parts), hashlib.sha256).digest()


def auth(key, nonce):
    name = key if isinstance(key, bytes) else key.name.encode()
    return wire.frame(AUTH, 1, wire.record(wire.data(name) + wire.data(nonce)))


def proof(value):
    return wire.frame(PROOF, 2, wire.record(wire.data(value)))


def receive(connection):
    """(type, body) of the next frame; None: the connection was closed."""
    body = b""
    while len(body) < 16 or len(body) < 16 + struct.unpack_from("<I", body)[0]:
        part = connection.recv(1 if len(body) < 16 else 16 + struct.unpack_from("<I", body)[0] - len(body))
        if not part:
            return None
        body += part
    return struct.unpack_from("<IH", body)[1], body[16:]


def challenge_of(body):
    """(code, nonce, proof, text)"""
    record = wire.Reader(body).record()
    (code,), at, fields = struct.unpack_from("<i", record), 4, []
    while at < len(record):
        (size,) = struct.unpack_from("<H", record, at)
        fields.append(record[at + 2:at + 2 + size])
        at += 2 + size
    return code, *fields


# ---- between transfer engines: src/transfer/wire/preface.h ----

HANDSHAKE, DATA, HOST = "HDU"
PREFACE_MAX = 120


def preface_auth(port, key, nonce):
    return struct.pack("<8sQB7x32s64s", b"mc-auth1", 0, ord(port), nonce, key.name.encode())


def preface_proof(port, end, key, caller, server):
    return proof_of(f"engine {end} {port}", key.secret, caller, server, key.name.encode())


def preface_refusal(code=NOT_PERMITTED):
    return struct.pack("<8sii64x", b"mc-chal1", code, 0)


def read_all(connection):
    """Until it is closed."""
    body = b""
    while part := connection.recv(65536):
        body += part
    return body


def preface(connection, port, key):
    """Proves the key; (is it the true server's proof?, our own, which is not sent yet)."""
    nonce = secrets.token_bytes(32)
    connection.sendall(preface_auth(port, key, nonce))
    answer = b""
    while len(answer) < 80:
        part = connection.recv(80 - len(answer))
        assert part, answer
        answer += part
    magic, code, _zero, server, theirs = struct.unpack("<8sii32s32s", answer)
    assert magic == b"mc-chal1" and code == 0
    return theirs == preface_proof(port, "server", key, nonce, server), b"mc-prof1" + preface_proof(port, "caller", key, nonce, server)
