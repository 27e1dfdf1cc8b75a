"""TLS of our own ports, over real processes: what a capture of the wire shows, who is let in, and what each side says; renewal under load."""
import http.client
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import types

import pytest

from certificates import Authority, Pair
from cluster import Master, says, wait_until
from etcd import Etcd
from keyed import Client
from store_process import StoreProcess

HERE = pathlib.Path(__file__).resolve().parent
REMOTE = [sys.executable, "-B", str(HERE / "no_unix.py")]  # of its machine it sees what another one would
VARIABLES = ("MC_TLS_CA_CERT", "MC_TLS_CERT", "MC_TLS_KEY", "MC_TLS_SERVER_NAME", "MC_TLS_CLIENT_CA_CERT")
HALF = 40  # handshakes that go no further
MIB = 1 << 20


class Files:
    """An authority, another one, and what they have signed."""

    def __init__(self, folder):
        here = ["DNS:localhost", "IP:127.0.0.1"]
        self.folder = folder
        self.ca, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.server, self.client = self.ca.sign("server", here), self.ca.sign("client", here)
        self.expired = self.ca.sign("expired", here, days=-1)
        self.named = self.ca.sign("named", ["DNS:pool.example.org"])
        self.stranger = self.other.sign("stranger", here)

    def of(self, pair=None, ca="ca", callers=None, name=None):
        """The environment of a process that shows `pair` and believes the authority `ca`."""
        values = {"MC_TLS_CA_CERT": ca and getattr(self, ca).certificate, "MC_TLS_CERT": pair and pair.certificate,
                  "MC_TLS_KEY": pair and pair.key, "MC_TLS_CLIENT_CA_CERT": callers and getattr(self, callers).certificate,
                  "MC_TLS_SERVER_NAME": name}
        return {key: str(value) if value else "" for key, value in values.items()}


PLAIN = {name: "" for name in VARIABLES}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


def pool(master_environment, node_environment):
    """A master and a node that reach each other by TCP alone."""
    master = Master(environment=master_environment)
    return master, lambda: StoreProcess(master.address, before=REMOTE, **node_environment)


def remote(master, environment, **more):
    return Client(master, before=REMOTE, **environment, **more)


def data_port(node):
    """Of a store node, as its process listens."""
    lines = pathlib.Path(f"/proc/{node.process.pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {re.sub(r"\D", "", link) for link in links(node.process.pid) if link.startswith("socket:")}
    return next(int(line.split()[1].split(":")[1], 16) for line in lines if line.split()[3] == "0A" and line.split()[9] in inodes)


def links(pid):
    for one in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{one}")
        except OSError:  # closed meanwhile
            pass


class Capture:
    """What goes over the loopback, as whoever has the wire sees it."""

    def __enter__(self):
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        except PermissionError:
            pytest.skip("only root may capture packets")
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 * MIB)  # SO_RCVBUFFORCE
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.packets, self.ends = [], None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while True:
            try:
                self.packets.append(self.socket.recv(1 << 17))
            except TimeoutError:
                pass
            if self.ends and time.monotonic() > self.ends:
                return

    def __exit__(self, *unused):
        self.ends = time.monotonic() + 1  # what is queued is still read
        self.thread.join()
        self.socket.close()

    def shows(self, what):
        return any(what in packet for packet in self.packets)


@pytest.mark.parametrize("is_on", [False, True])
def test_a_capture_shows_no_key_and_no_value(files, is_on):
    """Without TLS it shows both, or the capture would prove nothing."""
    own = files.of(files.server) if is_on else PLAIN
    master, node = pool(own, own)
    with Capture() as capture, master, node(), remote(master, files.of() if is_on else PLAIN) as client:
        assert client.code == 0
        sizes = (1, 100, 4096, 16384, 70000, 3 * MIB + 17)
        assert [client.put(f"a-secret-key-{size}", "a-secret-value", size) for size in sizes] == [0] * len(sizes)
        assert [client.same(f"a-secret-key-{size}", "a-secret-value", size) for size in sizes] == [True] * len(sizes)
        assert client.ranges("a-secret-key-70000", "a-secret-value", 70000)
        assert client.exist(["a-secret-key-1", "not-there"]) == [1, 0] and client.remove("a-secret-key-1") == 0
    assert len(capture.packets) > 100
    assert capture.shows(b"a-secret-key") is not is_on
    assert capture.shows(b"a-secret-value") is not is_on


def test_mutual(files):
    """Who shows no certificate, or one of another authority, comes in nowhere; both logs say why."""
    both = files.of(files.server, callers="ca")
    master, node = pool(both, both)
    with master, node() as store:
        with remote(master, files.of(files.client)) as client:
            assert client.code == 0 and client.put("k", "v", MIB) == 0 and client.same("k", "v", MIB) is True
        for pair, said in ((None, "shows no certificate"), (files.stranger, "signed by nobody"), (files.expired, "has expired")):
            with remote(master, {**files.of(pair), "MC_RPC_TIMEOUT_MS": "1500"}) as client:
                assert client.code != 0
                wait_until(lambda: said in master.log(), what=said)
                client.tells("set MC_TLS_CERT and MC_TLS_KEY to one that it trusts")
        # The node's own port, for one whom no master has let in.
        for pair in (None, files.stranger):
            assert not speaks(data_port(store), files, pair)
        assert speaks(data_port(store), files, files.client)
        says(store, "shows no certificate")


def speaks(port, files, pair=None, most=ssl.TLSVersion.TLSv1_3):
    """Does that port go on with one who shows `pair`, by another implementation?"""
    context = ssl.create_default_context(cafile=files.ca.certificate)
    context.maximum_version = most
    if pair:
        context.load_cert_chain(pair.certificate, pair.key)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as stream:
            stream.settimeout(1)
            stream.recv(1)  # a refusal comes with the first read
            return False
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("shown, believed, words, at_master", [
    ("server", "other", "set MC_TLS_CA_CERT to the certificate of the authority that signed it", "refuses the certificate of this side"),
    ("expired", "ca", "has expired: renew it there", "here MC_TLS_CERT is to be one that is valid"),
    ("named", "ca", "is not for '127.0.0.1'", "for the name or address by which it is called"),
])
def test_a_master_that_is_not_who_it_should_be(files, shown, believed, words, at_master):
    with Master(environment=files.of(getattr(files, shown))) as master, \
            remote(master, {**files.of(ca=believed), "MC_RPC_TIMEOUT_MS": "1500"}) as client:
        assert client.code != 0
        client.tells(words)
        says(master, at_master)


def test_a_name_may_be_given(files):
    named = files.of(files.named, name="pool.example.org")
    master, node = pool(named, named)
    with master, node(), remote(master, files.of(name="pool.example.org")) as client:
        assert client.code == 0 and client.put("k", "v", 5000) == 0 and client.same("k", "v", 5000) is True


def test_one_side_alone_has_tls(files):
    short = {"MC_RPC_TIMEOUT_MS": "1500"}
    with Master(environment=files.of(files.server)) as master, remote(master, {**PLAIN, **short}) as client:
        assert client.code != 0
        client.tells("speaks TLS and nothing else: set MC_TLS_CA_CERT here")
        says(master, "speaks no TLS, and this port nothing else: turn TLS on there (MC_TLS_CA_CERT)")
    with Master(environment=PLAIN) as master, remote(master, {**files.of(), **short}) as client:
        assert client.code != 0
        client.tells("is TLS turned on at that port?")
        says(master, "speaks TLS, and this port does not: set MC_TLS_CERT and MC_TLS_KEY here")


def test_who_lends_memory_needs_a_certificate(files):
    with Master(environment=files.of(files.server)) as master:
        with remote(master, files.of(), segment=16 * MIB) as client:
            assert client.code == -600
            client.tells("who serves TLS needs a certificate and its key: set MC_TLS_CERT and MC_TLS_KEY")
        with remote(master, files.of()) as client:
            assert client.code == 0


def test_a_downgrade_is_refused(files):
    own = files.of(files.server)
    master, node = pool(own, own)
    with master, node() as store:
        for port in (master.port, data_port(store)):
            assert speaks(port, files)
            assert not speaks(port, files, most=ssl.TLSVersion.TLSv1_2)
        for log in (master.log, store.log):  # the peer learns it before the line is written
            wait_until(lambda log=log: "has no TLS 1.3: upgrade it" in log(), 20, "the word")


def test_the_machine_s_own_ways_have_none(files):
    """A neighbour speaks by unix sockets and shared memory, and needs no TLS for that; only what is asked by TCP."""
    own = files.of(files.server)
    with Master(environment=own) as master, StoreProcess(master.address, **own), Client(master, **files.of()) as client:
        assert client.code == 0 and client.put("k", "v", MIB) == 0 and client.same("k", "v", MIB) is True


def begin_half(port):
    """A handshake of which only the first half of the first message comes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        stream.do_handshake()
    hello = outgoing.read()
    raw = socket.create_connection(("127.0.0.1", port), timeout=20)
    raw.sendall(hello[:len(hello) // 2])
    return raw


def test_half_a_handshake_holds_up_nobody(files):
    own = files.of(files.server)
    master, node = pool(own, own)
    with master, node() as store:
        halves = [begin_half(port) for port in (master.port, data_port(store)) for _ in range(HALF)]
        with remote(master, files.of()) as client:
            assert client.code == 0 and client.put("k", "v", MIB) == 0 and client.same("k", "v", MIB) is True
        for one in halves:
            one.close()


def replace(pair, live):
    """As whoever renews certificates does: each file whole, and one after the other."""
    for source, target in zip(pair, live):
        shutil.copy(source, f"{target}.new")
        os.replace(f"{target}.new", target)


def shown_at(port, files):
    """What openssl's own client says of the certificate there."""
    return subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-cert", files.client.certificate, "-key", files.client.key],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout


def test_renewal_under_load_loses_nothing(files, tmp_path):
    """New clients come all the while, and one stays; in the end the new certificate is shown."""
    live = type(files.server)(tmp_path / "live.pem", tmp_path / "live.key")
    replace(files.server, live)
    renewed = files.ca.sign("renewed", ["DNS:localhost", "IP:127.0.0.1"])
    own = files.of(live, callers="ca")
    master, node = pool(own, own)
    with master, node() as store, remote(master, files.of(files.client)) as staying:
        assert staying.code == 0
        for turn in range(4):
            replace(renewed if turn % 2 == 0 else files.server, live)
            with remote(master, files.of(files.client)) as client:
                assert client.code == 0
                for number in range(30):
                    name = f"{turn}-{number}"
                    assert client.put(name, name, 30000) == 0 and staying.same(name, name, 30000) is True
                    if number == 15:
                        replace(files.server if turn % 2 == 0 else renewed, live)
        for port in (master.port, data_port(store)):
            wait_until(lambda port=port: "CN = renewed" in shown_at(port, files), 20, "the new certificate")
        (tmp_path / "live.pem").write_text("spoiled\n")
        with remote(master, files.of(files.client)) as client:
            assert client.code == 0 and client.same("0-0", "0-0", 30000) is True
        says(master, "what was read there before is used")


def hang(path):
    """A pipe in its place: whoever opens it waits."""
    os.mkfifo(f"{path}.pipe")
    os.rename(f"{path}.pipe", path)


def reader_of(path):
    """Who waits there goes on when this is closed. None: nobody waits yet."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_a_file_system_that_hangs_holds_up_nobody(files, tmp_path):
    """New clients, the first one who asks by HTTP, and a node's port go on with the certificates that were read before; then renewal does."""
    lives = [Pair(tmp_path / f"{name}.pem", tmp_path / f"{name}.key") for name in ("master", "node")]
    renewed = files.ca.sign("renewed", ["DNS:localhost", "IP:127.0.0.1"])
    for live in lives:
        replace(files.server, live)
    master, node = pool(*(files.of(live) for live in lives))
    with master, node() as store, remote(master, files.of()) as staying:
        assert staying.code == 0
        for live in lives:
            hang(live.certificate)
        pipes = []
        for number in range(3):
            with remote(master, {**files.of(), "MC_RPC_TIMEOUT_MS": "5000"}) as client:
                assert client.code == 0 and client.put(f"k{number}", "v", MIB) == 0 and client.same(f"k{number}", "v", MIB) is True
            assert staying.same(f"k{number}", "v", MIB) is True
            assert speaks(data_port(store), files) and handshakes_of(master, files)[0] > 0
            pipes = pipes or [wait_until(lambda live=live: reader_of(live.certificate), 20, "a reader") for live in lives]
        for live, pipe in zip(lives, pipes):
            replace(renewed, live)
            os.close(pipe)
        for port in (master.port, data_port(store)):
            wait_until(lambda port=port: "CN = renewed" in shown_at(port, files), 20, "the new certificate")


def handshakes_of(master, files):
    """(whole ones, those by a ticket) of a master, since it was started."""
    context = ssl.create_default_context(cafile=files.ca.certificate)
    context.load_cert_chain(files.client.certificate, files.client.key)
    connection = http.client.HTTPSConnection("127.0.0.1", master.metrics_port, timeout=30, context=context)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    every, resumed = (int(re.search(rf"^mooncake_tls_{name}_total (\d+)$", text, re.M)[1]) for name in ("handshakes", "resumed"))
    return every - resumed, resumed


def test_who_comes_back_is_resumed(files, tmp_path):
    """To a master that was killed and started again; not after its certificate has changed, and after that again."""
    live = Pair(tmp_path / "live.pem", tmp_path / "live.key")
    replace(files.server, live)
    master, node = pool(files.of(live, callers="ca"), files.of(files.server))
    with master, node(), remote(master, files.of(files.client)) as client:
        def comes_back():
            master.kill()
            master.start()
            wait_until(lambda: client.put("k", "v", 1000) == 0, 60, "room")
            return handshakes_of(master, files)
        assert client.put("k", "v", 1000) == 0 and handshakes_of(master, files)[0] >= 2
        whole, resumed = comes_back()
        assert resumed >= 2 and resumed > whole, (whole, resumed)
        replace(files.client, live)
        whole, _ = comes_back()
        assert whole >= 2
        whole, resumed = comes_back()
        assert resumed >= 2 and resumed > whole, (whole, resumed)


def test_a_ticket_is_for_no_early_data(files):
    """By openssl's own client: it is given tickets of TLS 1.3, resumes by one, and may send nothing before that is done."""
    ticket = files.folder / "ticket"
    with Master(environment=files.of(files.server)) as master:
        def ask(*more, until):
            command = ["openssl", "s_client", "-connect", f"127.0.0.1:{master.port}", "-CAfile", files.ca.certificate, "-verify_return_error", *more]
            for turn in range(8):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                time.sleep(0.1 * 2 ** turn)  # until it has looked at what comes behind the handshake, it may not leave
                said = process.communicate("Q\n")[0]
                if until in said:
                    return said
            raise AssertionError(said)
        said = ask("-sess_out", ticket, until="Max Early Data: ")
        assert "New, TLSv1.3" in said and set(re.findall(r"Max Early Data: (\d+)", said)) == {"0"}, said
        whole, _ = handshakes_of(master, files)
        said = ask("-sess_in", ticket, until="Reused, TLSv1.3")
        assert "Early data was not sent" in said, said
        assert handshakes_of(master, files) == (whole, 1)


def test_a_killed_leader_is_followed(files):
    """Nodes and clients find the next one by its address, which its certificate must hold."""
    own = files.of(files.server, callers="ca")
    with Etcd() as etcd:
        flags = ["--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--cluster_id=tls"]
        pool_address = f"etcd://{etcd.endpoints}/tls"
        masters = [Master(*flags, environment=own).start() for _ in range(2)]
        leader = wait_until(lambda: next((one for one in masters if etcd.text("mooncake-store/tls/master_view") == one.address), None), 30, "a leader")
        follower, = (one for one in masters if one is not leader)
        elected = types.SimpleNamespace(address=pool_address)
        with StoreProcess(pool_address, before=REMOTE, **own), remote(elected, files.of(files.client)) as client:
            assert client.code == 0 and client.put("before", "b", MIB) == 0
            leader.kill()
            leader.log_file.close()
            wait_until(lambda: client.put("after", "a", MIB) == 0, 60, "a put at the next leader")
            wait_until(lambda: client.same("before", "b", MIB) is True, 60, "what was put before")
            assert client.same("after", "a", MIB) is True
        assert follower.stop() == 0
        follower.log_file.close()


class Late:
    """In front of a master, which is so slow that each connection waits before its handshake."""

    def __init__(self, master, wait_s):
        self.master, self.wait_s = master.address.rsplit(":", 1), wait_s
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        time.sleep(self.wait_s)
        far = socket.create_connection((self.master[0], int(self.master[1])))
        threading.Thread(target=self._copy, args=(far, connection), daemon=True).start()
        self._copy(connection, far)

    def _copy(self, source, sink):
        try:
            while part := source.recv(65536):
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.listener.close()


def test_a_slow_handshake_ends_some_time(files):
    """A try that was too short for it is followed by a longer one, of callers and of who lends memory."""
    own = {**files.of(files.server), "MC_RPC_TIMEOUT_MS": "20000"}
    with Master(environment=own) as master, Late(master, 2.5) as late:
        with StoreProcess(late.address, before=REMOTE, **own), remote(late, own) as client:
            assert client.code == 0, client.said()
            wait_until(lambda: client.put("k", "v", MIB) == 0, 30, "a put")
            assert client.same("k", "v", MIB) is True
