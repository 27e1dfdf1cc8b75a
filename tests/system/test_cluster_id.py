"""Two clusters that meet by mistake: nobody's values are read, replaced or lost, and everybody is told what to do."""
import os
import signal
import socket
import struct
import time

import pytest

import cluster
from etcd import Etcd
from python_cluster import joined, wait_until, with_fields
from store_process import StoreProcess
from test_recovery import all_there, fill
from wire import HELLO, HELLO_REPLY, ROLE_CALL, Connection, Reader, data, frame, record

A, B = "aa" * 16, "bb" * 16
OTHER_CLUSTER = -1906
SEGMENT, SEGMENT_REPLY, ROLE_DATA = 30, 31, 3
ONE = {"MC_SCRUB_MB_PER_S": "0"}


def master_of(uuid, *flags):
    return cluster.Master(f"--cluster_uuid={uuid}", *flags)


def own_values(client, count=10):
    """Values of our own under the keys that fill() uses."""
    for number in range(count):
        wait_until(lambda number=number: client.put(f"key-{number}", b"own-%d" % number, with_fields(replica_num=1)) == 0)


def own_are_there(client, count=10):
    return all(client.get(f"key-{number}") == b"own-%d" % number for number in range(count))


def refused(address, folder):
    """What a node says that is started where it is not wanted; its process has ended."""
    node = StoreProcess(address, data_dir=folder)
    with pytest.raises(AssertionError):
        node.start()
    node.process.communicate(timeout=60)
    assert node.process.returncode == 1
    return node.log()


def leave_contents_of_a(folder):
    """A node of cluster A with ten values ends, its memory stays in the folder."""
    with master_of(A) as master, StoreProcess(master.address, data_dir=folder, **ONE):
        client = joined(master, 0)
        wait_until(lambda: client.put("warm up", bytes(1 << 20)) == 0)
        fill(client, 10)
        client.close()


def are_intact_at_a(folder):
    with master_of(A) as master, StoreProcess(master.address, data_dir=folder, **ONE):
        client = joined(master, 0)
        wait_until(lambda: all_there(client, range(10)), 20)
        client.close()


def test_a_node_of_another_cluster(folder):
    leave_contents_of_a(folder)
    with master_of(B) as master, StoreProcess(master.address):
        client = joined(master, 0)
        own_values(client)
        said = refused(master.address, folder)
        assert "OTHER_CLUSTER" in said
        for words in (said, master.log()):
            assert A in words and B in words and "MC_FOREIGN_CONTENTS=drop" in words
        time.sleep(1.5)
        assert own_are_there(client)
        assert client.get("key-5") == b"own-5"
        assert master.metrics()["mooncake_foreign_refused_total"] >= 1
        assert master.metrics()["mooncake_segments"] == 1
        client.close()
    are_intact_at_a(folder)


def test_its_contents_are_given_up_when_somebody_says_so(folder):
    leave_contents_of_a(folder)
    with master_of(B) as master, StoreProcess(master.address):
        client = joined(master, 0)
        own_values(client)
        with StoreProcess(master.address, data_dir=folder, MC_FOREIGN_CONTENTS="drop"):
            wait_until(lambda: master.metrics()["mooncake_segments"] == 2)
            assert own_are_there(client)
        with StoreProcess(master.address, data_dir=folder):  # it belongs here now
            wait_until(lambda: master.metrics()["mooncake_segments"] == 2)
        client.close()


def test_another_cluster_at_the_masters_address():
    """A node that runs keeps what it holds while another cluster's master stands where its own did, and goes back to that."""
    with master_of(A) as ours, master_of(B) as other, StoreProcess(ours.address) as node:
        client = joined(ours, 0)
        wait_until(lambda: client.put("warm up", bytes(1 << 20)) == 0)
        fill(client, 10)
        client.close()
        ours.kill()
        other.stop()
        other.port = ours.port
        other.start()
        wait_until(lambda: "is refused: it belongs to cluster " + A in other.log(), 30)
        wait_until(lambda: other.metrics()["mooncake_foreign_refused_total"] >= 3, 30)
        assert other.metrics()["mooncake_segments"] == 0 and "begins again" not in other.log()
        assert "MC_FOREIGN_CONTENTS=drop" in node.log()
        other.kill()
        ours.start()
        client = joined(ours, 0)
        wait_until(lambda: all_there(client, range(10)), 30)
        client.close()
        other.port = 0
        other.start()


@pytest.mark.parametrize("size", [0, 16 << 20], ids=["client", "empty node"])
def test_another_cluster_at_an_address_of_before(tmp_path, size):
    """The name is not there for a while, and somebody else has its address meanwhile: not before the name says so is that the master."""
    etc = tmp_path / "etc"
    etc.mkdir()
    name = "127.0.0.1 the-master.test\n"
    (etc / "hosts").write_text(name)
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    before = ["unshare", "--mount", *user, "--", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(etc)]
    with master_of(A) as ours, master_of(B) as other:
        port = ours.address.rsplit(":", 1)[1]
        with StoreProcess(f"the-master.test:{port}", size=size, before=before) as node:
            beats = ours.metrics()["master_ping_requests_total"]
            wait_until(lambda: ours.metrics()["master_ping_requests_total"] >= beats + 2)  # and the answer has told it which cluster that is
            (etc / "hosts").write_text("")
            ours.kill()
            other.stop()
            other.port = ours.port
            other.start()
            wait_until(lambda: "is known when its name is looked up anew" in node.log(), 30)
            end = time.monotonic() + 8  # longer than between two tries
            while time.monotonic() < end:
                assert "goes there" not in node.log() and other.metrics()["mooncake_segments"] == 0
                time.sleep(0.2)
            (etc / "hosts").write_text(name)
            wait_until(lambda: "it goes there" in node.log(), 60)
            wait_until(lambda: other.metrics()["mooncake_segments"] == (size > 0), 60)
        other.port = 0


def test_a_stray_node_that_comes_first(folder):
    """The master is started without its note, and the first to come is a node of another cluster."""
    leave_contents_of_a(folder)
    with cluster.Master() as fresh, master_of(B, "--state_dir=none") as master:
        with StoreProcess(master.address) as one, StoreProcess(master.address) as two, StoreProcess(fresh.address):
            client = joined(master, 0)
            wait_until(lambda: client.put("warm up", bytes(1 << 20), with_fields(replica_num=2)) == 0)
            for name in ("one", "two"):  # in both nodes
                wait_until(lambda name=name: client.put(name, name.encode(), with_fields(replica_num=2)) == 0
                           and len(client.get_replica_desc(name)) == 2 or client.remove(name, True) != 0)
            for node in (one, two):
                cluster.hold_still(node.process.pid)
            client.close()
            master.kill()
            master.flags = ["--state_dir=none"]
            master.start()
            with StoreProcess(master.address, data_dir=folder, **ONE) as stray:
                for node in (one, two):
                    node.process.send_signal(signal.SIGCONT)
                wait_until(lambda: "nothing is offered" in master.log(), 20)
                assert master.metrics()["mooncake_clusters_torn"] == 1
                client = joined(master, 0)
                assert client.get("key-1") == b""
                wait_until(lambda: f"this is cluster {B}, by the contents" in master.log(), 90)
                wait_until(lambda: client.get("one") == b"one" and client.get("two") == b"two", 30)
                wait_until(lambda: A in stray.log() and "refuses" in stray.log(), 30)
                assert client.get("key-1") == b""
                client.close()
            are_intact_at_a(folder)
            # Meanwhile another master has found out that its cluster is new; the next one of its machine knows that.
            wait_until(lambda: "made by this master" in fresh.log(), 90)
            name = fresh.log().split("this is cluster ")[1][:32]
            fresh.kill()
            fresh.start()
            wait_until(lambda: f"this is cluster {name}, by the note" in fresh.log())


def data_hello(address, nonce, uuid):
    """The code with which a store node answers."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        said = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_DATA, 0, os.urandom(16), 1, nonce) + data(b"t") + data(b"")
        said += struct.pack("<QI", 0, 0) + data(b"") + bytes(16) + bytes.fromhex(uuid)[::-1] + b"\0"
        connection.sendall(frame(HELLO, 7, record(said)))
        body = b""
        while len(body) < 16 or len(body) < 16 + struct.unpack_from("<I", body)[0]:
            part = connection.recv(65536)
            assert part
            body += part
    assert struct.unpack_from("<IHHQ", body)[1] == HELLO_REPLY
    return struct.unpack_from("<i", Reader(body[16:]).record())[0]


def test_a_client_of_another_cluster_at_a_node():
    with master_of(B) as master, StoreProcess(master.address):
        caller = Connection(master.port, ROLE_CALL, os.urandom(16))
        reply = caller.call(SEGMENT, SEGMENT_REPLY, record(struct.pack("<I", 1))).record()
        head = "<iI16sQ16sQIQ16s"
        code, *_rest, nonce, _host = struct.unpack_from(head, reply)
        assert code == 0
        at = struct.calcsize(head)
        for _ in range(2):  # name, then address
            (size,) = struct.unpack_from("<H", reply, at)
            address, at = reply[at + 2:at + 2 + size].decode(), at + 2 + size
        assert data_hello(address, nonce, A) == OTHER_CLUSTER
        assert data_hello(address, nonce, B) == 0
        assert data_hello(address, nonce, "00" * 16) == 0  # of a release that does not say it
        caller.close()


def test_an_election_remembers(folder):
    leave_contents_of_a(folder)
    with Etcd() as etcd:
        flags = ["--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--cluster_id=test"]
        with master_of(B, *flags) as first:
            wait_until(lambda: etcd.text("mooncake-store/test/cluster") == B, 30)
            assert f"this is cluster {B}" in first.log()
        with cluster.Master(*flags) as second:
            wait_until(lambda: f"this is cluster {B}, by what stands beside the election" in second.log(), 30)
            assert "OTHER_CLUSTER" in refused(second.address, folder)
    are_intact_at_a(folder)
