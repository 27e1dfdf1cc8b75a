"""A stand-in for the API server of Kubernetes: Leases over HTTPS, with tokens, as a pod sees it. No part of ours decides here what is right.

    with ApiServer(folder, ca) as api:
        api.environment        # for a process that is to think it runs in a pod
        api.leases["ns/name"]  # the object as it stands
        api.pods["ns/name"]    # the labels of a pod, which is there when the test has put it there
        api.history            # of every write that was carried out: (time, "ns/name", object)
        api.fail = 503         # every request; api.is_mute = True: requests are taken and never answered; api.late_s = 0.5
        api.rotate()           # another token; the one before is refused from then on
        api.stop(); api.start()  # on the same port
"""
import copy
import http.server
import json
import pathlib
import re
import secrets
import socket
import socketserver
import ssl
import threading
import time

from ports import free_ports

PATH = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([a-z0-9.-]+)/leases(?:/([a-z0-9.-]+))?$")
POD = re.compile(r"/api/v1/namespaces/([a-z0-9.-]+)/pods/([a-z0-9.-]+)$")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def get_request(self):
        connection, address = super().get_request()
        connection.settimeout(60)
        self.connections.append(connection.dup())
        return self.api.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, *unused):
        pass  # a client that has gone, or does not believe the certificate


class ApiServer:
    def __init__(self, folder, ca, alternatives=("IP:127.0.0.1", "DNS:kubernetes.default.svc")):
        self.folder = pathlib.Path(folder) / f"account-{secrets.token_hex(4)}"
        self.folder.mkdir()
        self.port = free_ports(1)[0]
        pair = ca.sign(f"api-{self.port}", alternatives)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pair.certificate, pair.key)
        (self.folder / "ca.crt").write_bytes(pathlib.Path(ca.certificate).read_bytes())
        self.lock = threading.RLock()
        self.leases, self.history, self.version = {}, [], 0
        self.pods, self.patches = {}, []  # of every one that was carried out: ("ns/name", the label that it left)
        self.tokens, self.accounts = set(), {}
        self.verbs = {"get", "create", "update", "patch"}  # the last of pods, the others of leases
        self.fail, self.is_mute, self.late_s, self.requests, self.lost_answers = None, False, 0, 0, 0
        self.cut_off = set()  # accounts whose packets are lost
        self.hidden = set()  # Leases that a role with resourceNames does not name
        self.failing, self.asked = {}, []  # Leases that are answered by such a status; what was asked about which: ("ns/name", status)
        self.server = None
        self.environment = self.account("all")

    def account(self, name):
        """The environment of a pod with a token of its own, by which it can be cut off."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "ca.crt").write_bytes((self.folder / "ca.crt").read_bytes())
        self.accounts[name] = folder
        self._new_token(name)
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port), "MC_K8S_SERVICE_ACCOUNT_DIR": str(folder)}

    def _new_token(self, name):
        token = f"{name}.{secrets.token_urlsafe(600)}"
        self.tokens.add(token)
        new = self.accounts[name] / "token.new"
        new.write_text(token)
        new.rename(self.accounts[name] / "token")

    def rotate(self):
        with self.lock:
            self.tokens.clear()
            for name in self.accounts:
                self._new_token(name)

    def secrets(self):
        return [(folder / "token").read_text() for folder in self.accounts.values()]

    # -- life --

    def start(self):
        self.server = Server(("127.0.0.1", self.port), self._handler())
        self.server.api, self.server.connections = self, []
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for connection in self.server.connections:  # it ends as a process does
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        self.server = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.is_mute = False
        if self.server:
            self.stop()

    # -- answers --

    def answer(self, method, path, body, account, kind="application/json"):
        """(status, object). None: no answer at all."""
        with self.lock:
            self.requests += 1
            if account is not None and account in self.cut_off:
                return None
            if self.is_mute:
                return None
            if self.fail:
                return self.fail, status_of(self.fail, "trouble")
            if account is None:
                return 401, status_of(401, "Unauthorized")
            if POD.match(path):
                return self._label(method, "/".join(POD.match(path).groups()), body, kind)
            found = PATH.match(path)
            if not found:
                return 404, status_of(404, "no such path")
            name = found[2] or (body or {}).get("metadata", {}).get("name")
            if VERBS.get(method) not in self.verbs or f"{found[1]}/{name}" in self.hidden:
                return 403, status_of(403, "leases.coordination.k8s.io is forbidden")
            failure = self.failing.get(f"{found[1]}/{name}")
            result = (failure, status_of(failure, "trouble")) if failure else self._change(method, *found.groups(), body)
            self.asked.append((f"{found[1]}/{name}", result[0]))
            if self.lost_answers > 0 and method != "GET":
                self.lost_answers -= 1
                return None
            return result

    def _label(self, method, pod, body, kind):
        """A merge patch (RFC 7396) of a pod's labels."""
        if method != "PATCH" or "patch" not in self.verbs:
            return 403, status_of(403, "pods is forbidden")
        if kind != "application/merge-patch+json":
            return 415, status_of(415, "the body of the request was in an unknown format")
        if pod not in self.pods:
            return 404, status_of(404, "pods not found")
        assert list(body) == ["metadata"] and list(body["metadata"]) == ["labels"], body
        merged = {**self.pods[pod], **body["metadata"]["labels"]}
        self.pods[pod] = {name: value for name, value in merged.items() if value is not None}
        self.patches.append((pod, self.pods[pod].get("mooncake.io/store-role")))
        return 200, {"kind": "Pod", "apiVersion": "v1", "metadata": {"labels": self.pods[pod]}}

    def _change(self, method, space, name, body):
        if method == "POST" and name is None:
            name = body["metadata"]["name"]
        key = f"{space}/{name}"
        stands = self.leases.get(key)
        if method == "GET":
            return (200, stands) if stands else (404, status_of(404, "not found"))
        problem = problem_of(body, space, name)
        if problem:
            return 422, status_of(422, problem)
        if method == "POST":
            if stands:
                return 409, status_of(409, "already exists")
            if "resourceVersion" in body["metadata"]:
                return 422, status_of(422, "resourceVersion should not be set on objects to be created")
            body["metadata"].update(uid=secrets.token_hex(16), creationTimestamp="2026-01-01T00:00:00Z")
        else:
            if not stands:
                return 404, status_of(404, "not found")
            if body["metadata"].get("resourceVersion") != stands["metadata"]["resourceVersion"]:
                return 409, status_of(409, "the object has been modified")
            if body["metadata"].get("uid") not in (None, stands["metadata"]["uid"]):
                return 409, status_of(409, "another object")
            body["metadata"].update(uid=stands["metadata"]["uid"])
        return (201 if method == "POST" else 200), self.write(key, body)

    def write(self, key, body):
        """Also by hand: as kubectl would."""
        with self.lock:
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            body["metadata"]["managedFields"] = [{"manager": "somebody", "operation": "Update"}]
            self.leases[key] = copy.deepcopy(body)
            self.history.append((time.monotonic(), key, self.leases[key]))
            return self.leases[key]

    def edit(self, key, change):
        with self.lock:
            body = copy.deepcopy(self.leases[key])
            change(body)
            self.write(key, body)

    def _handler(api):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *unused):
                pass

            def serve(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                account = token.split(".")[0] if token in api.tokens else None
                time.sleep(api.late_s)
                result = api.answer(self.command, self.path, body, account, self.headers.get("Content-Type"))
                if result is None:
                    self.close_connection = True
                    while not api.server or api.is_mute or account in api.cut_off:
                        time.sleep(0.05)
                        if not api.server:
                            break
                    time.sleep(1)  # a packet that is lost says nothing either
                    return
                text = json.dumps(result[1]).encode()
                self.send_response(result[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve
        return Handler


def status_of(code, message):
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def problem_of(body, space, name):
    """What the real one would refuse."""
    spec = body.get("spec", {})
    if body.get("apiVersion") != "coordination.k8s.io/v1" or body.get("kind") != "Lease":
        return "no Lease"
    if body["metadata"].get("name") != name or body["metadata"].get("namespace") != space:
        return "of another name"
    if not isinstance(spec.get("leaseDurationSeconds"), int) or spec["leaseDurationSeconds"] <= 0:
        return "leaseDurationSeconds must be greater than 0"
    if not isinstance(spec.get("leaseTransitions"), int) or spec["leaseTransitions"] < 0:
        return "leaseTransitions must be at least 0"
    if not all(TIME.match(spec.get(which, "")) for which in ("acquireTime", "renewTime")):
        return "no time of microseconds"
    if not all(isinstance(value, str) for value in body["metadata"].get("annotations", {}).values()):
        return "annotations are texts"
    return None
