"""The store on the laboratory's hosts, by `./dev lab` itself."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import laboratory  # noqa: F401  sets the paths
from harm import Harm, Trouble

HERE = pathlib.Path(__file__).resolve().parent
LONG = bool(os.environ.get("MC_TEST_ALL"))
PATIENT = ("--patience", 5)  # tests do not time: `./dev lab`, and the long tests, hold the limits as they are


def lab(*words, check=0):
    done = subprocess.run([sys.executable, "-B", HERE / "run.py", *map(str, words)], capture_output=True, text=True, timeout=1500)
    assert done.returncode == check, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def descendants(process):
    """Of this process; those that are gone meanwhile are left out."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                    children.setdefault(int(stat.read().rpartition(")")[2].split()[1]), []).append(int(entry))
            except OSError:
                continue
    found, new = set(), {process}
    while new:
        new = {child for parent in new for child in children.get(parent, [])}
        found |= new
    return found


def started(*words):
    """A laboratory that runs, and all its processes."""
    process = subprocess.Popen([sys.executable, "-B", HERE / "run.py", "--nodes", "2", "--clients", "2", "--loss", "0", "--minutes", "5", *words],
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "keys exist" in line:
            break
    below = descendants(process.pid)
    assert len(below) > 10
    return process, below


def assert_gone(processes):
    end = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{process}") for process in processes):
        assert time.monotonic() < end, "processes of the laboratory are left"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_nothing_is_left(number):
    process, below = started()
    process.send_signal(number)
    process.stdout.read()
    assert process.wait(30) == (130 if number == signal.SIGTERM else -number)
    assert_gone(below)


def test_lost_packets_are_normal():
    lab("--nodes", 3, "--clients", 3, "--loss", "1%", "--minutes", 0.15, "--seed", 1)


def test_clients_in_trouble_are_alone_with_it():
    lab("--nodes", 6, "--clients", 3, "--loss", 0, "--minutes", 0.3, "--trouble", "descriptors", "--trouble", "deaf", "--trouble", "silent", *PATIENT)


def test_a_node_that_fails_costs_its_own_keys_alone():
    lab("--nodes", 4, "--clients", 3, "--loss", 0, "--minutes", 0.2, "--fault", "kill", "--fault", "thread", "--every", 1, "--lasts", 3, *PATIENT)


@pytest.mark.parametrize("how, said", [("missing", "-704:"), ("bytes", "wrong bytes:")])
def test_what_is_wrong_is_seen(how, said):
    output = lab("--nodes", 2, "--clients", 2, "--loss", 0, "--minutes", 0.05, "--sizes", "4K", "--keys", 3, "--calls", 100, "--spoil", how, check=1)
    assert "gets of existing keys failed" in output and said in output, output


@pytest.mark.skipif(not LONG, reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("size", ["4K", "1M"])
@pytest.mark.parametrize("loss", ["0.1%", "1%", "3%"])
def test_ten_minutes_of_loss(size, loss):
    lab("--loss", loss, "--sizes", size, "--minutes", 10)


@pytest.mark.skipif(not LONG, reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
def test_every_trouble():
    lab("--loss", "0.1%", "--minutes", 5, *(word for kind in Trouble.KINDS for word in ("--trouble", kind)))


@pytest.mark.skipif(not LONG, reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
def test_every_fault():
    lab("--loss", "1%", "--minutes", 5, *(word for kind in Harm.KINDS for word in ("--fault", kind)))


@pytest.mark.skipif(not LONG, reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
def test_faults_of_all_processes():
    done = subprocess.run([sys.executable, "-B", HERE.parent / "faults/run.py", "--lab", "--loss", "0.1%", "--minutes", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.skipif(not LONG, reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
def test_an_hour_of_requests():
    lab("--load", "replay", "--loss", "0.1%", "--minutes", 3)


@pytest.fixture
def children(tmp_path):
    """start(host, name, *words), whose log is of that name; said(name, text), in that log."""
    started = []

    def start(host, name, *words, **more):
        with open(tmp_path / name, "wb") as log:
            started.append(host.popen(words, stdout=log, stderr=log, **{"stdin": subprocess.DEVNULL, **more}))

    def said(name, text):
        return text in (tmp_path / name).read_text(errors="replace")
    yield start, said
    for child in started:
        child.kill()
        child.wait()


def test_an_address_that_others_cannot_reach_is_named(make_lab, children, tmp_path):
    """A node beside its master, at the loopback address; then a client on another host."""
    lab = make_lab()
    near, far = lab.host("near"), lab.host("far")
    build = laboratory.harness.BUILD
    start, said = children
    start(near, "master", build / "mooncake_master", "--rpc_address=0.0.0.0")
    laboratory.wait_for(lambda: said("master", "Master service started"), 30, "a master")
    start(near, "node", build / "mooncake_bench", "node", "--master", "127.0.0.1:50051", "--host", "127.0.0.1", "--segment", "16MiB")
    laboratory.wait_for(lambda: said("node", "node ready"), 30, "a node")
    start(far, "client", sys.executable, "-B", HERE / "load.py", "client", "--master", "near:50051", "--host", "far", stdin=subprocess.PIPE)
    laboratory.wait_for(lambda: said("client", "ready"), 30, "a client")
    laboratory.wait_for(lambda: said("master", "which only its own host reaches, and a client is on another"), 10, "the master's warning")
    laboratory.wait_for(lambda: said("node", "local_hostname must be a name or address of this host"), 10, "the node's warning")
    assert "(127.0.0.1:" in (tmp_path / "master").read_text()


STRANGER = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("far", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
assert store.put("key", b"value" * 1000) == 0
assert store.get("key") == b"value" * 1000
store.close()
"""


@pytest.mark.parametrize("names", ["well", "silent"])
def test_a_name_that_is_loopback_at_home_is_reached(make_lab, children, names):
    """As Debian enters it. And no name server is needed for listening, where there is no such entry."""
    lab = make_lab()
    master, near, far = lab.host("master"), lab.host("near"), lab.host("far")
    build = laboratory.harness.BUILD
    start, said = children
    if names == "well":
        (near.folder / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 near\n", encoding="ascii")
    lab.resolver.mode(near, names)
    address = f"{master.address}:50051"
    start(master, "master", build / "mooncake_master", "--rpc_address=0.0.0.0")
    laboratory.wait_for(lambda: said("master", "Master service started"), 30, "a master")
    start(near, "node", build / "mooncake_bench", "node", "--master", address, "--host", "near", "--segment", "16MiB")
    laboratory.wait_for(lambda: said("node", "node ready"), 30, "a node")
    far.run([sys.executable, "-B", "-c", STRANGER, address])
    assert not said("master", "SUSPECT") and not said("master", "suspect")
