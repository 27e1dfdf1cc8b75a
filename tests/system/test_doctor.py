"""mooncake_doctor before real masters, metadata servers and engines: what it says, in text and JSON, and its exit code.

What it makes of a machine's files is test_doctor.c's."""
import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import keyed
import pytest

from cluster import BUILD, Master, hold_still, wait_until
from keyed import Key
from test_engine import Peer, with_original

COMMAND = BUILD / "mooncake_doctor"


def run(*arguments, **environment):
    values = {name: value for name, value in os.environ.items() if not name.startswith(("MC_", "MOONCAKE_"))}
    return subprocess.run([str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=60, env={**values, **environment})


class Report:
    """The facts of one run, by section and name; the text of a second run must not tell otherwise."""

    def __init__(self, *arguments, **environment):
        answer = run(*arguments, "--json", **environment)
        self.code, self.said = answer.returncode, json.loads(answer.stdout)
        assert self.code == self.said["code"] == (1 if self.said["broken"] else 0), answer.stderr
        assert self.said["broken"] == sum(fact["verdict"] == "broken" for fact in self.said["facts"])
        assert self.said["warnings"] == sum(fact["verdict"] == "warning" for fact in self.said["facts"])
        self.facts = {(fact["section"], fact["name"]): fact for fact in self.said["facts"]}

    def __call__(self, name, section=None):
        found = [fact for (where, one), fact in self.facts.items() if one == name and section in (None, where)]
        assert len(found) == 1, (name, sorted(self.facts))
        return found[0]

    def verdict(self, name, section=None):
        return self(name, section)["verdict"]


@pytest.fixture
def cluster():
    with Master(metadata=True) as master:
        master.flags_of_doctor = ["--master", master.address, "--admin", f"127.0.0.1:{master.metrics_port}",
                                  "--metadata", f"http://127.0.0.1:{master.metadata_port}/metadata"]
        yield master


# ---- by itself ----

def test_alone():
    report = Report()
    assert report.code == 0
    assert {section for section, _ in report.facts} == {"machine", "limits", "network", "rdma", "secrets", "cluster", "peer"}
    assert str(len(os.sched_getaffinity(0))) in report("processors")["value"]
    assert report("environment")["value"].startswith("no MC_")
    for fact in report.said["facts"]:
        assert fact["verdict"] in ("fine", "note", "warning") and fact["value"]
        assert fact["verdict"] != "warning" or fact["fix"], fact


def test_text():
    text = run().stdout
    lines = text.splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads[:-1] == ["machine", "limits", "network", "rdma", "secrets", "cluster", "peer"] and heads[-1].startswith("0 broken, ")
    facts = [line for line in lines if line[:8] in ("  ok    ", "  note  ", "  WARN  ", "  FAIL  ")]
    assert len(facts) > 15
    # One column in which every value begins, whatever the names' lengths.
    assert any(all(line[column - 2:column] == "  " and line[column] != " " for line in facts) for column in range(12, 60)), text


@pytest.mark.parametrize("arguments, words", [
    (["--no-such"], "no-such"), (["--protocol=ib"], "protocol"), (["--master"], "master"), (["--json", "--port=1"], "port"), (["peer", "another"], "another"),
])
def test_usage(arguments, words):
    answer = run(*arguments)
    assert answer.returncode == 2 and words in answer.stderr and answer.stdout == ""


def test_rdma_asked_for():
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        pytest.skip("this machine has RDMA devices")
    report = Report("--protocol=rdma")
    assert report.code == 1 and report.verdict("devices") == "broken" and "driver" in report("devices")["fix"]


def test_environment():
    report = Report(MC_FORCE_TCP="0", MOONCAKE_MASTER="m:1", MC_REDIS_PASSWORD="geheim")
    assert report.verdict("MC_FORCE_TCP") == "warning" and "unset" in report("MC_FORCE_TCP")["fix"]
    assert report("MOONCAKE_MASTER")["value"] == "m:1"
    assert "geheim" not in json.dumps(report.said) and "MC_REDIS_PASSWORD" in json.dumps(report.said)


# ---- disk ----

def test_disk(tmp_path):
    report = Report("--disk", tmp_path)
    assert report.code == 0 and report("path", "disk")["value"] == str(tmp_path) and list(tmp_path.iterdir()) == []
    assert " MB/s (" in report("write", "disk")["value"] and " MB/s (" in report("read", "disk")["value"]
    assert {"file system", "locks", "O_DIRECT", "io_uring", "free space"} <= {name for section, name in report.facts if section == "disk"}


def test_disk_that_is_not_there(tmp_path):
    report = Report("--disk", tmp_path / "missing")
    assert report.code == 1 and report.verdict("path", "disk") == "broken" and "mkdir" in report("path", "disk")["fix"]
    assert {name for section, name in report.facts if section == "disk"} == {"path"}


# ---- master and metadata ----

def test_cluster(cluster):
    report = Report(*cluster.flags_of_doctor)
    assert report.code == 0
    assert report.verdict("master") == "fine" and "leads" in report("master")["value"]
    assert report.verdict("admin port") == "fine"
    assert report.verdict("capacity") == "warning" and report("clients")["value"] == "0"
    assert report.verdict("metadata server") == "fine"
    assert report.verdict("one cluster") == "fine"


@contextlib.contextmanager
def admin(*segments, overview=None, late_s=0, **more):
    """An admin port that knows these segments: (name, address, status); overview: what it says of itself, so late; more: other members of the answer."""
    answers = {"/health": {"status": "ok"}, **({"/api/v1/overview": overview} if overview else {}),
               "/get_segments_detail": {"segments": [{"segment_name": name, "te_endpoint": address, "status": status, "size_human": "1 GiB", "objects": 3}
                                                     for name, address, status in segments], **more}}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answers[self.path]).encode() if self.path in answers else b""
            time.sleep(late_s if self.path == "/api/v1/overview" else 0)
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_segments_are_connected_to():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        there, nobody = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listener, closed))
        with admin(("well", there, "OK"), ("alone", nobody, "OK"), ("nameless", "no-such-host.invalid:1", "OK"), ("left", nobody, "DRAINED")) as address:
            report = Report("--admin", address)
    assert report.code == 1
    assert report("segment well")["verdict"] == "fine" and report("segment well")["value"] == f"OK, 1 GiB, at {there}, 3 objects"
    alone = report("segment alone")
    assert alone["verdict"] == "broken" and nobody in alone["value"] and "Connection refused" in alone["value"] and "local_hostname" in alone["fix"]
    nameless = report("segment nameless")
    assert nameless["verdict"] == "broken" and "not known here" in nameless["value"] and "getent" in nameless["fix"]
    assert report("segment left")["verdict"] == "warning"


@pytest.mark.parametrize("apart_s, verdict", [(0, "fine"), (5, "warning"), (-5, "warning")])
def test_clocks(apart_s, verdict):
    with admin(overview={"time_ms": int((time.time() + apart_s) * 1000)}) as address:
        told = Report("--admin", address)("clocks")
    assert told["verdict"] == verdict and ("NTP" in told.get("fix", "")) == (verdict == "warning")
    if apart_s:
        found = re.match(rf"this machine's is ([\d.]+) s {'behind' if apart_s > 0 else 'ahead of'} the master's", told["value"])
        assert found and abs(float(found.group(1)) - 5) < 3, told


def test_an_answer_that_is_slow_is_no_clock_that_is_wrong():
    with admin(overview={"time_ms": int(time.time() * 1000)}, late_s=2.5) as address:
        told = Report("--admin", address)("clocks")
    found = re.match(r"this machine's is ([\d.]+) s ahead of the master's \(half of the round trip, (\d+) ms", told["value"])
    assert told["verdict"] == "fine" and float(found.group(1)) > 1 and int(found.group(2)) >= 1250, told


def test_builds_that_differ():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        segments = [{"segment_name": name, "te_endpoint": there, "status": "OK", "size_human": "1 GiB", "objects": 3, "build": build} for name, build in (("same", "0.4 (git a)"), ("other", "0.3 (git b)"))]
        standbys = [{"name": name, "address": f"{name}:1", "build": build} for name, build in (("s", "0.4 (git a)"), ("t", "0.3 (git b)"))]
        with admin(overview={"build": "0.4 (git a)", "standbys": standbys}, segments=segments) as address:
            report = Report("--admin", address)
    assert report.verdict("segment same") == "fine" and "build" not in report("segment same")["value"]
    for told in (report("segment other"), report("standby t:1")):
        assert told["verdict"] == "note" and told["value"].endswith("of build 0.3 (git b) (the master's is 0.4 (git a))") and "upgrade" in told["fix"]
    assert report.verdict("standby s:1") == "fine"


def test_what_is_not_tried_is_not_called_fine():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen(1024)
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        with admin(*((f"s{number}", there, "OK") for number in range(514))) as address:
            report = Report("--admin", address)
    assert report.verdict("segment s511") == "fine"
    for name in ("segment s512", "segment s513"):
        assert report(name)["verdict"] == "note" and report(name)["value"].endswith(", not tried") and "nc -z" in report(name)["fix"]


def test_keys(tmp_path):
    assert "none" in Report()("key", "secrets")["value"]
    key = Key("reader", "read", "team")
    file = keyed.write(tmp_path, "keys", key)
    told = Report(f"--auth_file={file}")("key", "secrets")
    assert told["verdict"] == "fine" and told["value"] == f"reader, rights read, tenant team, the first of {file} (mode 600)"
    os.chmod(file, 0o644)
    told = Report(MC_AUTH_FILE=str(file))("key", "secrets")
    assert told["verdict"] == "warning" and told["fix"].endswith(f"chmod 600 {file}") and "(mode 644)" in told["value"]
    told = Report(**{name: value for name, value in keyed.environment(key).items() if name == "MC_AUTH_TOKEN"})
    assert told("key", "secrets")["value"].startswith("reader, of MC_AUTH_TOKEN") and keyed.environment(key)["MC_AUTH_TOKEN"].split(":")[1] not in json.dumps(told.said)


@pytest.mark.parametrize("days, verdict", [(400, "fine"), (10, "warning")])
def test_certificate(tmp_path, days, verdict):
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=own", "-days", str(days), "-keyout", key, "-out", own], check=True, capture_output=True, timeout=60)
    report = Report(MC_TLS_CERT=str(own), MC_TLS_KEY=str(key))
    told = report("certificate", "secrets")
    assert told["verdict"] == verdict and re.match(rf"{own}, and its key fits \({key}\); expires on \d{{4}}-\d\d-\d\d, ({days - 1}|{days}) days$", told["value"]), told
    assert report("TLS", "secrets")["value"].startswith("on; ")
    assert Report()("TLS", "secrets")["value"].startswith("off: ")


def test_a_master_without_tls_is_told_with_what_to_do(cluster, tmp_path):
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=own", "-keyout", key, "-out", own], check=True, capture_output=True, timeout=60)
    told = Report("--master", cluster.address, MC_TLS_CA_CERT=str(own))("master")
    assert told["verdict"] == "broken" and f"openssl s_client -connect {cluster.address}" in told["fix"] and "MC_TLS_CLIENT_CA_CERT" in told["fix"]


def test_disks_of_the_cluster():
    def disk(name, health):
        return {"segment_name": name, "directory": f"/{name}/mooncake-c.0", "status": "OK", "health": health, "objects": 3}
    disks = [disk(f"of-{health}", health) for health in ("ok", "slow", "read_only", "absent")]
    with admin(disks=disks, disks_off=[{"node": "n", "disks": 2}]) as address:
        report = Report("--admin", address)
    assert report.code == 0
    assert report("disk of of-ok")["verdict"] == "fine" and report("disk of of-ok")["value"] == "ok, OK, /of-ok/mooncake-c.0, 3 objects"
    for health, words in (("slow", "does not answer"), ("read_only", "writing failed"), ("absent", "its node is gone")):
        told = report(f"disk of of-{health}")
        assert told["verdict"] == "warning" and words in told["fix"]
    assert report("disks of n")["verdict"] == "warning" and report("disks of n")["value"] == "2 cannot be used"


def test_nothing_is_left_behind(cluster):
    """Neither a member at the master nor a key at the metadata server."""
    before = cluster.metrics()
    with Peer(f"http://127.0.0.1:{cluster.metadata_port}/metadata", "node-a") as peer:
        assert Report("node-a", *cluster.flags_of_doctor).code == 0
        assert peer.ask("crc", 0, 10)
    assert cluster.metrics()["master_active_clients"] == before["master_active_clients"] == 0


def test_another_metadata_server(cluster):
    """The master serves metadata itself, and engines are told another server: they will not all meet."""
    with Master(metadata=True) as other:
        flags = [*cluster.flags_of_doctor[:-1], f"http://127.0.0.1:{other.metadata_port}/metadata"]
        report = Report(*flags)
        assert report.code == 0 and report.verdict("one cluster") == "warning" and "one URL" in report("one cluster")["fix"]
        mixed = Report("--master", cluster.address, "--admin", f"127.0.0.1:{other.metrics_port}")
        assert mixed.code == 1 and mixed.verdict("admin port") == "broken" and "different clusters" in mixed("admin port")["fix"]


def test_nobody_there():
    report = Report("127.0.0.1:1", "--master=127.0.0.1:1", "--metadata=http://127.0.0.1:1/metadata")
    assert report.code == 1
    for name in ("master", "metadata server"):
        assert report.verdict(name) == "broken" and report(name)["error"] == "Connection refused" and "listens" in report(name)["fix"]
    assert report.verdict("peer") == "broken"


def test_a_wrong_port(cluster):
    """The port of metrics in the place of the master's, the master's in the place of metadata."""
    report = Report("--master", f"127.0.0.1:{cluster.metrics_port}", "--metadata", f"http://{cluster.address}/metadata")
    assert report.code == 1
    assert report.verdict("master") == "broken" and "rpc_port" in report("master")["fix"]
    assert report.verdict("metadata server") == "broken"


def test_a_wrong_path(cluster):
    report = Report("--metadata", f"http://127.0.0.1:{cluster.metadata_port}/wrong")
    assert report.verdict("metadata server") == "broken" and "/metadata" in report("metadata server")["fix"]


@pytest.mark.parametrize("address", ["", ":", "host:port:more", "127.0.0.1:0", "127.0.0.1:99999", "[::1", "etcd://", "x" * 5000])
def test_hostile_addresses(address):
    answer = run("--master", address or "-", "--metadata", f"http://{address}/metadata", "--json")
    assert answer.returncode in (1, 2), answer.stderr
    if answer.returncode == 1:
        json.loads(answer.stdout)


def test_a_stopped_master(cluster):
    hold_still(cluster.process.pid)
    try:
        report = Report("--master", cluster.address)
    finally:
        cluster.process.send_signal(signal.SIGCONT)
    assert report.code == 1 and report.verdict("master") == "broken" and "stopped" in report("master")["fix"]


@contextlib.contextmanager
def answering(data):
    """A server that answers whatever is said with these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):  # who asked may have hung up
                        connection.recv(65536)
                        connection.sendall(data)
            finally:
                os._exit(1)  # else this copy of pytest would go on with the tests
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{]}}}", b"\x10\0\0\0\2\0\0\0" + bytes(24), b"A" * 100000])
def test_hostile_answers(data):
    with answering(data) as address:
        answer = run(address, "--master", address, "--admin", address, "--metadata", f"http://{address}/metadata", "--json")
        assert answer.returncode == 1, answer.stderr
        json.loads(answer.stdout)


class Pretender:
    """Answers handshakes as an engine would that has this document."""

    def __init__(self, text):
        self.text, self.server = text, socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                head = connection.recv(9, socket.MSG_WAITALL)
                if len(head) == 9:
                    connection.recv(struct.unpack("<Q", head[:8])[0] - 1, socket.MSG_WAITALL)
                    answer = b'{"status":"success"}' if head[8] == 3 else self.text.encode()
                    connection.sendall(struct.pack("<QB", len(answer) + 1, head[8]) + answer)


def test_a_peer_of_rdma_alone():
    """The original with RDMA tells its devices and no port of tcp: nothing reaches it from here, and that is said."""
    pretender = Pretender(json.dumps({"name": "n", "protocol": "rdma", "devices": [{"name": "mlx5_0", "lid": 0, "gid": "00:" * 10 + "ff:ff:0a:00:00:09"}],
                                      "buffers": [{"name": "cpu:0", "addr": 4096, "length": 4096, "rkey": [1], "lkey": [1]}], "priority_matrix": {}}))
    report = Report(pretender.address)
    assert report.code == 1 and report("path in use")["value"] == "none" and "no tcp" in report("path tcp")["value"]
    assert "1, but none here" in report("devices there")["value"] or report.facts[("peer", "mlx5_0")]


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"name": 7}', '{"name":"n","protocol":"tcp","tcp_data_port":1,"buffers":[{}]}', '{"name":"n","protocol":"tcp"}',
                                  '{"name":"n","protocol":"tcp","tcp_data_port":1,"tcp_data_host":"0.0.0.0","devices":{}}'])
def test_hostile_documents(text):
    report = Report(Pretender(text).address)
    assert report.code == 1


# ---- a peer ----

def test_peer():
    with Peer() as peer:
        report = Report(peer.target)
        assert report.code == 0
        assert report("engine")["value"] == "of this build, on this machine" and report("registered memory")["value"] == "1 ranges"
        for path in ("path host", "path tcp"):
            assert report.verdict(path) == "fine" and "GB/s" in report(path)["value"], report(path)
        assert report("path in use")["value"].startswith("host")
        for words in (["--peer", peer.target, "--json"], ["--json", peer.target], [peer.target, "--json"], ["--json", "--protocol", "tcp", peer.target]):
            assert "path in use" in run(*words).stdout, words


def test_peer_is_not_written_to():
    with Peer() as peer:
        peer.ask("fill", 0, 1 << 20, 77)
        before = peer.ask("crc", 0, 48 << 20)
        assert Report(peer.target).code == 0
        assert peer.ask("crc", 0, 48 << 20) == before


def test_peer_by_name(cluster):
    url = f"http://127.0.0.1:{cluster.metadata_port}/metadata"
    with Peer(url, "node-a") as peer:
        assert Report("node-a", *cluster.flags_of_doctor)("path in use")["value"].startswith("host")
        absent = Report("node-b", "--metadata", url)
        assert absent.code == 1 and "MC_METADATA_CLUSTER_ID" in absent("peer")["fix"]
        other = Report("node-a", "--metadata", url, MC_METADATA_CLUSTER_ID="another")
        assert other.code == 1 and "another/" in other("keys")["value"]
        peer.kill()
        dead = Report("node-a", "--metadata", url)
        assert dead.code == 1 and dead("peer")["error"] == "Connection refused" and "left its name" in dead("peer")["fix"]


def test_peer_that_forbids_reaching_in():
    with Peer(MC_SAME_HOST="0") as peer:
        report = Report(peer.target)
        assert report.code == 0 and report.verdict("path host") == "warning" and "MC_SAME_HOST" in report("path host")["fix"]
        assert report.verdict("path tcp") == "fine" and report("path in use")["value"] == "tcp"


def test_peer_of_another_user():
    """Seen from a user who may not reach into it: why, and that tcp is used."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    with Peer() as peer:
        answer = subprocess.run([str(COMMAND), peer.target, "--json"], capture_output=True, text=True, timeout=60, cwd="/", user=65534, group=65534,
                                extra_groups=[])
    if answer.returncode == 126 or not answer.stdout:
        pytest.skip("the build folder cannot be read by others")
    facts = {fact["name"]: fact for fact in json.loads(answer.stdout)["facts"]}
    assert answer.returncode == 0 and facts["path host"]["verdict"] == "warning" and "user" in facts["path host"]["fix"]
    assert facts["path in use"]["value"] == "tcp"


def unshared(flags, *arguments):
    """The command in namespaces of its own."""
    return subprocess.run(["unshare", *flags, "--", str(COMMAND), *map(str, arguments), "--json"], capture_output=True, text=True, timeout=60)


def test_peer_in_another_pid_namespace():
    with Peer() as peer:
        answer = unshared(["--pid", "--fork", "--mount-proc"], peer.target)
    if not answer.stdout:
        pytest.skip(f"no namespaces here: {answer.stderr}")
    facts = {fact["name"]: fact for fact in json.loads(answer.stdout)["facts"]}
    assert facts["path host"]["verdict"] == "warning" and "pid namespace" in facts["path host"]["fix"], facts["path host"]
    assert facts["path tcp"]["verdict"] == "fine" and facts["path in use"]["value"] == "tcp"


def test_peer_stopped():
    with Peer() as peer:
        hold_still(peer.process.pid)
        report = Report(peer.target, MC_HANDSHAKE_CONNECT_TIMEOUT="1")
        assert report.code == 1 and report.verdict("peer") == "broken" and "stopped" in report("peer")["fix"]


def test_peer_without_memory():
    with Peer() as peer:
        peer.ask("unregister")
        report = Report(peer.target)
        assert report.code == 0 and report.verdict("registered memory") == "note"
        assert "without registered memory" in report("path tcp")["value"] and report.verdict("path in use") == "note"


def test_no_engine_there(cluster):
    report = Report(f"127.0.0.1:{cluster.metrics_port}")
    assert report.code == 1 and report.verdict("peer") == "broken" and "port of handshakes" in report("peer")["fix"]


@with_original
def test_the_original():
    with Peer(original=True) as peer:
        report = Report(peer.target)
        assert report.code == 0 and "original" in report("engine")["value"]
        assert "not an engine of this build" in report("path host")["value"] and report.verdict("path tcp") == "fine"
        assert report("path in use")["value"] == "tcp"


def test_peer_killed_in_between():
    """It dies while it is looked at: the command ends and says something is broken, or was done before."""
    with Peer() as peer:
        process = subprocess.Popen([str(COMMAND), peer.target, "--json"], stdout=subprocess.PIPE, text=True)
        wait_until(lambda: process.poll() is not None or os.path.exists(f"/proc/{process.pid}"))
        peer.kill()
        text, _ = process.communicate(timeout=60)
        assert process.returncode in (0, 1) and json.loads(text)["code"] == process.returncode
