"""A real etcd of three members on ports that the kernel chose, in a temporary directory.

    with Etcd() as etcd:
        etcd.endpoints           # "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
        etcd.kill(etcd.leader()) # kill -9 of a member; etcd.start(i) starts it again
        etcd.text("mooncake-store/test/master_view")
    with Proxy(etcd.ports[0]) as proxy:
        proxy.delay_s = 0.45     # that long answers take; proxy.is_mute = True: it takes requests and forgets them
    with Etcd(1, secure=Secure(ca, pair)) as etcd:   # TLS for its clients (certificates.py); wants_certificate: they must have one
        etcd.enable_logins({"mooncake": "password"}) # each may do anything to keys that begin with mooncake
"""
import base64
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request

from cluster import wait_until
from ports import free_ports

MEMBERS = 3
ROOT = "of root"


class Secure:
    """What an etcd with TLS has: the authority's certificate, its own pair."""

    def __init__(self, authority, pair, wants_certificate=False, client=None):
        self.flags = [f"--cert-file={pair.certificate}", f"--key-file={pair.key}"]
        self.flags += ["--client-cert-auth", f"--trusted-ca-file={authority}"] if wants_certificate else []
        self.context = ssl.create_default_context(cafile=authority)
        if client:
            self.context.load_cert_chain(client.certificate, client.key)


class Etcd:
    def __init__(self, count=MEMBERS, *flags, secure=None):
        self.secure, self.token = secure, None
        self.scheme = "https" if secure else "http"
        flags = (*flags, *secure.flags) if secure else flags
        self.folder = tempfile.TemporaryDirectory(prefix="mc-etcd-")
        ports = free_ports(2 * count)
        self.ports, self.peers, self.flags = ports[:count], ports[count:], flags
        self.processes = [None] * count
        self.endpoints = ",".join(("https://" if secure else "") + f"127.0.0.1:{port}" for port in self.ports)

    def start(self, member):
        assert self.processes[member] is None
        client, peer = f"{self.scheme}://127.0.0.1:{self.ports[member]}", f"http://127.0.0.1:{self.peers[member]}"
        members = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peers))
        folder = pathlib.Path(self.folder.name)
        with open(folder / f"m{member}.log", "ab") as log:
            self.processes[member] = subprocess.Popen(
                ["etcd", "--name", f"m{member}", "--data-dir", str(folder / f"m{member}"), "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", members, "--initial-cluster-state", "new", *self.flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine})

    def __enter__(self):
        for member in range(len(self.processes)):
            self.start(member)
        wait_until(lambda: self.leader() is not None, 30, "a leader of etcd")
        return self

    def __exit__(self, *unused):
        for member in range(len(self.processes)):
            self.kill(member)
        self.folder.cleanup()

    def running(self):
        return [member for member in range(len(self.processes)) if self.processes[member] is not None]

    def kill(self, member):
        process, self.processes[member] = self.processes[member], None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def heal(self):
        """Starts what is dead and waits until all is well."""
        for member in range(len(self.processes)):
            if self.processes[member] is None:
                self.start(member)
        wait_until(lambda: all(self._status(member) for member in range(len(self.processes))) and self.leader() is not None, 30, "etcd")

    def call(self, member, path, body):
        return self._post(member, path, body, {"Authorization": self.token} if self.token else {})

    def _post(self, member, path, body, headers, timeout_s=3):
        request = urllib.request.Request(f"{self.scheme}://127.0.0.1:{self.ports[member]}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=timeout_s, context=self.secure.context if self.secure else None) as reply:
            return json.load(reply)

    def enable_logins(self, users):
        """From then on nobody may do anything without one; self.call is root's."""
        everything = {"permType": "READWRITE", "key": base64.b64encode(b"mooncake").decode(), "range_end": base64.b64encode(b"mooncakf").decode()}
        self.ask("/v3/auth/role/add", name="root")
        self.ask("/v3/auth/role/add", name="ours")
        self.ask("/v3/auth/role/grant", name="ours", perm=everything)
        for user, password in {"root": ROOT, **users}.items():
            self.add_user(user, password, "root" if user == "root" else "ours")
        self.ask("/v3/auth/enable")
        self.log_in()

    def add_user(self, user, password, role):
        self.ask("/v3/auth/user/add", name=user, password=password)
        self.ask("/v3/auth/user/grant", user=user, role=role)

    def log_in(self):
        """Anew after a restart: etcd forgets its tokens."""
        self.token = None
        self.token = self._post(self.running()[0], "/v3/auth/authenticate", {"name": "root", "password": ROOT}, {}, 20)["token"]

    def _status(self, member):
        try:
            return self.call(member, "/v3/maintenance/status", {})
        except OSError:
            return None

    def leader(self):
        """Index of the member that leads, or None."""
        for member in self.running():
            status = self._status(member)
            if status and status.get("leader", "0") != "0" and status["leader"] == status["header"]["member_id"]:
                return member
        return None

    def text(self, key):
        """The value of a key, or None."""
        reply = self.call(self.running()[0], "/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
        return base64.b64decode(reply["kvs"][0]["value"]).decode() if reply.get("kvs") else None

    def ask(self, path, **body):
        """Any member. Bytes are sent as base64."""
        return self.call(self.running()[0], path, {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in body.items()})


class Proxy:
    """Between a master and one member of etcd."""

    def __init__(self, port):
        self.target, self.delay_s, self.is_mute, self.requests = port, 0, False, 0
        self.unknown, self.unknown_count = None, 0  # a path of which etcd is to know nothing, and how often it was asked for
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *unused):
        for one in [self.listener, *self.sockets]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def _accept(self):
        try:
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [client, server]
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._carry, args=(source, sink, is_answer), daemon=True).start()
        except OSError:
            pass

    def _carry(self, source, sink, is_answer):
        try:
            while part := source.recv(65536):
                if is_answer:
                    time.sleep(self.delay_s)
                else:
                    self.requests += part.count(b"POST ")
                    if self.unknown is not None:
                        self.unknown_count += part.count(self.unknown)
                        part = part.replace(self.unknown, self.unknown[:-1] + b"_")
                if not self.is_mute:
                    sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
