"""etcd with TLS and logins: elections, metadata, and what is said when one of the two sides is wrong."""
import os
import subprocess
import time

import pytest

from certificates import Authority, Front
from cluster import MASTER, SANITIZED, Master, wait_until
from etcd import Etcd, Secure
from python_cluster import MooncakeDistributedStore
from store_process import StoreProcess
from test_engine import Near, Peer, set_path
from test_ha import epoch_of, role, serves
from mooncake.engine import TransferEngine

SLOW = 4 if SANITIZED else 1
PASSWORD = "s3cret\\of \"ours\""
VARIABLES = ("CA_CERT", "CERT", "KEY", "SERVER_NAME")


class World:
    """An authority, and an etcd that it vouches for, which knows the user mooncake."""

    def __init__(self, folder):
        self.folder = folder
        self.ca, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.good = self.ca.sign("etcd", ["IP:127.0.0.1", "DNS:localhost"])
        self.client = self.ca.sign("client")

    def login(self, user="mooncake", password=PASSWORD):
        path = self.folder / f"login-{user}-{len(password)}"
        path.write_text(f"# of the tests\n username = {user}\r\npassword={password}\n")
        return str(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("secure"))


@pytest.fixture(scope="module")
def secure(world):
    with Etcd(secure=Secure(world.ca.certificate, world.good)) as etcd:
        etcd.enable_logins({"mooncake": PASSWORD})
        yield etcd


def set_tls(monkeypatch, **values):
    for name in VARIABLES:
        monkeypatch.delenv(f"MC_ETCD_TLS_{name}", raising=False)
    monkeypatch.delenv("MC_ETCD_CONF_FILE", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(f"MC_ETCD_{name}", str(value))


def master_of(etcd, *flags):
    return Master("--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--cluster_id=test", *flags)


def ended(master):
    """Whatever a test has left it in; its whole log has no secret."""
    log = open(master.log_file.name, errors="replace").read()
    if master.process is not None:
        assert master.stop() == 0, log[-4000:]
    assert PASSWORD not in log and "s3cret" not in log, log
    master.log_file.close()


def leader_of(masters):
    return wait_until(lambda: [one for one in masters if one.process is not None and serves(one)], 30 * SLOW, "a leader")[0]


def test_election_and_clients(monkeypatch, world, secure):
    """Three masters and a client, all by TLS with a login; the leader is killed, etcd's members are restarted and know no token any more."""
    set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, CONF_FILE=world.login())
    masters = [master_of(secure).start() for _ in range(3)]
    address = f"etcd://{secure.endpoints}/test"
    node = StoreProcess(address).start()
    store = MooncakeDistributedStore()
    try:
        leader = leader_of(masters)
        assert secure.text("mooncake-store/test/master_view") == leader.address
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address) == 0
        wait_until(lambda: store.put("key", b"value") == 0, 30 * SLOW, "a put")
        epoch = epoch_of(leader)
        leader.kill()
        after = leader_of([one for one in masters if one is not leader])
        assert epoch_of(after) > epoch
        wait_until(lambda: store.get("key") == b"value", 30 * SLOW, "the value under the next leader")
        for member in secure.running():
            secure.kill(member)
        for member in range(len(secure.processes)):
            secure.start(member)
        wait_until(lambda: secure.leader() is not None or secure._status(0) is None and relogin(secure), 30 * SLOW, "etcd")
        last = leader_of([one for one in masters if one is not leader])
        assert epoch_of(last) >= epoch_of(after)
        wait_until(lambda: store.get("key") == b"value", 30 * SLOW, "the value after etcd's restart")
    finally:
        store.close()
        node.stop()
        for master in masters:
            ended(master)


def relogin(etcd):
    try:
        etcd.log_in()
    except OSError:
        pass
    return False


def test_a_login_that_is_revoked_ends_a_leadership_and_one_that_is_given_back_lets_it_begin(monkeypatch, world, secure):
    set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, CONF_FILE=world.login())
    relogin(secure)
    master = master_of(secure).start()
    try:
        leader_of([master])
        epoch = epoch_of(master)
        secure.ask("/v3/auth/user/delete", name="mooncake")
        wait_until(lambda: not serves(master), 20 * SLOW, "the end of the leadership")
        wait_until(lambda: "etcd refuses the user mooncake" in master.log(), 20 * SLOW, "a line about the login")
        secure.add_user("mooncake", PASSWORD, "ours")
        leader_of([master])
        assert epoch_of(master) > epoch
    finally:
        ended(master)


def test_what_is_wrong_is_said_and_nobody_leads(monkeypatch, world, secure):
    """Each with an etcd that is well but for one thing."""
    good = {"TLS_CA_CERT": world.ca.certificate, "CONF_FILE": world.login()}
    rows = [({**good, "TLS_CA_CERT": world.other.certificate}, "set MC_ETCD_TLS_CA_CERT to the certificate of the authority that signed it"),
            ({**good, "TLS_SERVER_NAME": "elsewhere"}, "is not for 'elsewhere'"),
            ({"TLS_CA_CERT": world.ca.certificate}, "etcd wants a login: let MC_ETCD_CONF_FILE name a file"),
            ({**good, "CONF_FILE": world.login(password="s3cret")}, "etcd refuses the user mooncake: the password"),
            ({**good, "CONF_FILE": world.login(user="stranger")}, "etcd refuses the user stranger")]
    for variables, words in rows:
        set_tls(monkeypatch, **variables)
        master = master_of(secure).start()
        try:
            wait_until(lambda: words in master.log(), 30 * SLOW, words)
            assert role(master) == "standby" and not serves(master)
        finally:
            ended(master)


def test_a_user_without_the_right_is_told_which(monkeypatch, world, secure):
    relogin(secure)
    secure.ask("/v3/auth/role/add", name="nothing")
    secure.add_user("poor", PASSWORD, "nothing")
    set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, CONF_FILE=world.login("poor"))
    master = master_of(secure).start()
    try:
        wait_until(lambda: "etcdctl role grant-permission" in master.log(), 20 * SLOW, "a line about rights")
        assert not serves(master)
    finally:
        ended(master)


@pytest.mark.parametrize("kind, words", [("expired", "has expired: renew it there"), ("name", "is not for '127.0.0.1'"), ("plain", "is TLS turned on at that port?"),
                                         ("tls", "if it speaks TLS only, write https://"), ("mutual", "set MC_ETCD_TLS_CERT and MC_ETCD_TLS_KEY")])
def test_etcds_that_are_wrong(monkeypatch, world, kind, words):
    """The certificate of one has expired or is for another name; one speaks no TLS, or nothing else, or wants a certificate."""
    def etcd_with(pair, **more):
        context = Secure(world.ca.certificate, pair, **more)
        if kind in ("expired", "name"):  # this test itself must reach it
            context.context.check_hostname = False
            context.context.verify_mode = 0
        return Etcd(1, secure=context)
    set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate)
    etcd = {"expired": lambda: etcd_with(world.ca.sign("expired", ["IP:127.0.0.1"], days=-1)),
            "name": lambda: etcd_with(world.ca.sign("named", ["DNS:etcd.example.org"])),
            "plain": lambda: Etcd(1),
            "tls": lambda: etcd_with(world.good),
            "mutual": lambda: etcd_with(world.good, wants_certificate=True, client=world.client)}[kind]()
    with etcd:
        address = f"127.0.0.1:{etcd.ports[0]}"
        etcd.endpoints = ("http://" if kind == "tls" else "https://") + address
        master = master_of(etcd).start()
        try:
            wait_until(lambda: words in master.log(), 30 * SLOW, words)
            assert not serves(master)
        finally:
            ended(master)
        if kind == "mutual":
            set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, TLS_CERT=world.client.certificate, TLS_KEY=world.client.key)
        elif kind == "name":
            set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, TLS_SERVER_NAME="etcd.example.org")
        else:
            return
        etcd.endpoints = address  # without a scheme: MC_ETCD_TLS_CA_CERT says that it is TLS
        master = master_of(etcd).start()
        try:
            leader_of([master])
        finally:
            ended(master)


def test_a_certificate_that_is_renewed_is_used_without_a_restart(monkeypatch, world):
    """The authority that is believed changes in its file while a master seeks an etcd that the new one vouches for."""
    believed = world.folder / "believed.pem"
    believed.write_bytes(world.other.certificate.read_bytes())
    set_tls(monkeypatch, TLS_CA_CERT=believed)
    with Etcd(1, secure=Secure(world.ca.certificate, world.good)) as etcd:
        master = master_of(etcd).start()
        try:
            wait_until(lambda: "signed by nobody whom" in master.log(), 30 * SLOW, "a refusal")
            fresh = world.folder / "fresh.pem"
            fresh.write_bytes(world.ca.certificate.read_bytes())
            os.rename(fresh, believed)
            leader_of([master])
        finally:
            ended(master)


def refused(environment, *flags):
    result = subprocess.run([str(MASTER), "--enable_ha", "--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0", *flags],
                            capture_output=True, text=True, timeout=60, env={**os.environ, **{name: str(value) for name, value in environment.items()}})
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "s3cret" not in result.stderr + result.stdout, result
    return result.stderr


def test_a_master_that_cannot_have_tls_does_not_start(world, tmp_path):
    """One line each: which file, which setting, which package. A password in an address is not shown."""
    plain, secure = "--etcd_endpoints=127.0.0.1:1", "--etcd_endpoints=https://127.0.0.1:1"
    bad = tmp_path / "bad"
    bad.write_text("username=a\nsecret s3cret\n")
    half = tmp_path / "half"
    half.write_text("username=a\n")
    hidden = tmp_path / "libraries"
    hidden.mkdir()
    for name in ("libssl.so.3", "libssl.so.1.1"):
        (hidden / name).write_text("no library")
    for environment, flag, words in (
            ({"MC_ETCD_TLS_CA_CERT": "/nowhere"}, secure, "MC_ETCD_TLS_CA_CERT=/nowhere: no certificate of an authority in PEM can be read there: No such file"),
            ({"MC_ETCD_TLS_CA_CERT": "/nowhere"}, plain, "MC_ETCD_TLS_CA_CERT=/nowhere"),
            ({"MC_ETCD_TLS_CA_CERT": world.ca.key}, secure, "no certificate of an authority"),
            ({"MC_ETCD_TLS_CERT": world.client.certificate, "MC_ETCD_TLS_KEY": world.good.key}, secure, "MC_ETCD_TLS_KEY="),
            ({"MC_ETCD_CONF_FILE": "/nowhere"}, plain, "MC_ETCD_CONF_FILE=/nowhere cannot be opened"),
            ({"MC_ETCD_CONF_FILE": bad}, plain, "line 2: name=value is expected"),
            ({"MC_ETCD_CONF_FILE": half}, plain, "the lines username=... and password=... are expected"),
            ({}, "--etcd_endpoints=https://us:s3cret@127.0.0.1:1", "let MC_ETCD_CONF_FILE name a file"),
            ({"LD_LIBRARY_PATH": hidden}, secure, "install the package libssl3")):
        assert words in refused(environment, flag), (words, refused(environment, flag))


def test_metadata_by_tls_and_login(monkeypatch, world, secure, capfd):
    set_path(monkeypatch, "tcp")
    set_tls(monkeypatch, TLS_CA_CERT=world.ca.certificate, CONF_FILE=world.login())
    relogin(secure)
    url = "etcd://" + secure.endpoints.replace(",", ";")
    near = Near(url, "near")
    with Peer(url, "far") as peer:
        assert near.engine.transfer_sync_write("far", near.address, peer.address, 100) == 0
    assert secure.text("mooncake/rpc_meta/near") is not None
    for variables in ({"TLS_CA_CERT": world.other.certificate, "CONF_FILE": world.login()},
                      {"TLS_CA_CERT": world.ca.certificate, "CONF_FILE": world.login(password="s3cret")}):
        set_tls(monkeypatch, **variables)
        assert TransferEngine().initialize("other", url, "tcp", "") == -1
    assert TransferEngine().initialize("other", "etcd://us:s3cret@127.0.0.1:1", "tcp", "") == -1
    assert "s3cret" not in "".join(capfd.readouterr())
    del near


def test_https_metadata_that_is_wrong(monkeypatch, world, capfd):
    """Each is -1 and a line that says what to change; with the right authority it is 0."""
    set_path(monkeypatch, "tcp")
    with Master(metadata=True) as master:
        for pair, authority, words in (
                (world.good, world.ca.certificate, None),
                (world.good, world.other.certificate, "set MC_METADATA_TLS_CA_CERT to the certificate of the authority"),
                (world.ca.sign("old", ["IP:127.0.0.1"], days=-1), world.ca.certificate, "has expired: renew it there"),
                (world.ca.sign("elsewhere", ["DNS:elsewhere"]), world.ca.certificate, "is not for '127.0.0.1'"),
                (None, world.ca.certificate, "TLS"),
                (world.good, world.folder / "nowhere", "no certificate of an authority in PEM can be read there")):
            monkeypatch.setenv("MC_METADATA_TLS_CA_CERT", str(authority))
            time.sleep(1.1)  # the log has at most a line a second of a kind
            with Front(pair or world.good, master.metadata_port) as front:
                engine = TransferEngine()
                port = front.port if pair else master.metadata_port
                code = engine.initialize("near", f"https://127.0.0.1:{port}/metadata", "tcp", "")
                said = "".join(capfd.readouterr())
                assert (code, words is None or words in said) == (0 if words is None else -1, True), (words, said)
                del engine
        capfd.readouterr()
        with Front(world.good, master.metadata_port) as front:
            assert TransferEngine().initialize("near", f"http://127.0.0.1:{front.port}/metadata", "tcp", "") == -1
