"""Several masters and a real etcd: who leads, who must be silent, and how long it takes."""
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

import secured
from cluster import MASTER, SANITIZED, Master, hold_still, wait_until
from etcd import Etcd
from python_cluster import joined
from store_process import StoreProcess
from wire import EXIST, EXIST_REPLY, HELLO, ROLE_CALL, Connection, Reader, data, frame, hello, record, records

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(TESTS / "lab"), str(TESTS / "faults")]

from harm import HeldThread  # noqa: E402

UNAVAILABLE = -1010
CLUSTER = "test"
VIEW = f"mooncake-store/{CLUSTER}/master_view"
DEPARTED = f"mooncake-store/{CLUSTER}/departed"
HORIZON = f"mooncake-store/{CLUSTER}/horizon"
SLOW = 4 if SANITIZED else 1


@pytest.fixture(scope="module")
def etcd():
    with Etcd() as running:
        yield running


class Masters:
    """Some masters of one cluster. Ends them all, whatever state a test has left them in."""

    def __init__(self, etcd, count, *flags):
        etcd.heal()
        self.etcd = etcd
        self.all = [Master("--enable_ha", f"--etcd_endpoints={etcd.endpoints}", f"--cluster_id={CLUSTER}", *flags) for _ in range(count)]

    def __enter__(self):
        for master in self.all:
            master.start()
        self.leader()
        return self

    def __exit__(self, *unused):
        for master in self.all:
            if master.process is not None:
                master.process.send_signal(signal.SIGCONT)
                assert master.stop() == 0, master.log()[-4000:]
            master.log_file.close()

    def leading(self, among=None):
        return [master for master in (among or self.all) if master.process is not None and serves(master)]

    def leader(self, among=None, timeout_s=20):
        return wait_until(lambda: self.leading(among), timeout_s, "a leader")[0]

    def others(self, one):
        return [master for master in self.all if master is not one]


def serves(master):
    answer = hello(master.port, 0.3 * SLOW)
    return answer is not None and answer[0] == 0


def epoch_of(master):
    """0 from one that does not answer, which may have just stepped down."""
    return (hello(master.port) or (1, 0))[1]


def health(master):
    status, body = master.get("/health")
    assert status == 200
    return json.loads(body)


def role(master):
    return master.get("/role")[1].decode()


def exists(connection):
    return connection.call(EXIST, EXIST_REPLY, record() + records([data(b"nothing")]))


def is_closed(connection, timeout_s):
    """Reads until the end; what comes before it is given back."""
    connection.socket.settimeout(timeout_s)
    got = b""
    try:
        while True:
            part = connection.socket.recv(65536)
            if not part:
                return True, got
            got += part
    except socket.timeout:
        return False, got
    except OSError:
        return True, got


def test_flags_that_do_not_fit_are_one_line():
    good = ["--rpc_address=127.0.0.1", "--etcd_endpoints=127.0.0.1:1"]
    for flags, named in ((good[1:], "--rpc_address"), (good[1:] + ["--rpc_address=::"], "--rpc_address"), (good[:1], "--etcd_endpoints"),
                         (good[:1] + ["--etcd_endpoints=;"], "etcd endpoint"), (good[:1] + ["--etcd_endpoints=ftp://a:1"], "ftp://a:1"),
                         (good[:1] + ["--etcd_endpoints=name:secret@a:1"], "MC_ETCD_CONF_FILE"),
                         (good + ["--ha_backend_type=redis"], "--ha_backend_type"), (good + ["--ha_lease_ttl=10"], "--ha_lease_ttl")):
        result = subprocess.run([str(MASTER), "--enable_ha", "--rpc_port=0", "--metrics_port=0", *flags], capture_output=True, text=True, timeout=20)
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and named in result.stderr and "secret" not in result.stderr, (flags, result)


def test_master_without_any_etcd_is_a_standby():
    with Master("--enable_ha", "--etcd_endpoints=127.0.0.1:1") as master:
        assert hello(master.port) == (UNAVAILABLE, 0, "")
        wait_until(lambda: health(master)["status"] == "busy", 5)
        assert json.loads(master.get("/leader")[1]) == {"present": False, "leader_address": "", "view_version": 0}


def test_one_leads_and_standbys_say_so(etcd):
    with Masters(etcd, 3) as masters:
        leader = masters.leader()
        epoch = epoch_of(leader)
        assert etcd.text(VIEW) == leader.address
        assert role(leader) == "leader" and health(leader)["service_ready"] is True
        assert health(leader)["view_version"] == epoch and leader.metrics()
        for standby in masters.others(leader):
            wait_until(lambda: hello(standby.port) == (UNAVAILABLE, 0, leader.address), 5, "the leader's address")
            assert role(standby) == "standby"
            seen = health(standby)
            assert seen["role"] == "standby" and seen["status"] == "ok" and seen["service_ready"] is False
            assert seen["leader_address"] == leader.address and seen["view_version"] == epoch
            assert json.loads(standby.get("/leader")[1]) == {"present": True, "leader_address": leader.address, "view_version": epoch}
            assert standby.get("/ha_status")[1] == b"standby"
            for path in ("/metrics", "/get_all_keys", "/get_all_segments", "/get_segments_detail", "/query_key?key=a", "/query_segment?segment=a"):
                assert standby.get(path)[0] == 503, path
            assert standby.get("/metrics/summary")[0] == 200
            # Anything but a hello, or garbage, only closes.
            for first in (frame(EXIST, 1, record() + records([data(b"k")])), b"\xff" * 64):
                with secured.connection("127.0.0.1", standby.port, 5) as stranger:
                    stranger.sendall(first)
                    try:
                        assert stranger.recv(100) == b""
                    except ConnectionResetError:
                        pass
        assert len(masters.leading()) == 1


def fail_over(masters, end, limit_s):
    """Ends the leader by end(leader); returns the new one, checks epochs and time."""
    leader = masters.leader()
    others = masters.others(leader)
    epoch = epoch_of(leader)
    start = time.monotonic()
    end(leader)
    successor = masters.leader(others, 60)
    took = time.monotonic() - start
    print(f"FAILOVER {end.__name__}: {took:.2f} s")
    assert took < limit_s * SLOW
    assert epoch_of(successor) > epoch
    wait_until(lambda: masters.etcd.text(VIEW) == successor.address, 10)
    return leader, successor


def test_a_killed_leader_is_followed(etcd):
    with Masters(etcd, 3) as masters:
        for _ in range(3):
            def kill(leader):
                leader.kill()
            leader, _successor = fail_over(masters, kill, 3)
            leader.start()
            wait_until(lambda: role(leader) == "standby", 5)


def test_a_clean_end_hands_over_at_once(etcd):
    with Masters(etcd, 2) as masters:
        def terminate(leader):
            assert leader.stop() == 0
        leader, _successor = fail_over(masters, terminate, 1)
        leader.start()


@secured.by_hand
def test_a_stopped_leader_is_silent_when_it_goes_on(etcd):
    with Masters(etcd, 2) as masters:
        leader = masters.leader()
        client = Connection(leader.port, ROLE_CALL, os.urandom(16))
        exists(client)
        def stop(one):
            hold_still(one.process.pid)
        leader, successor = fail_over(masters, stop, 3)
        # It lies in the socket of the stopped one, which must not answer it.
        client.send(EXIST, record() + records([data(b"nothing")]))
        late = socket.create_connection(("127.0.0.1", leader.port), timeout=5)
        late.sendall(frame(HELLO, 1, record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, os.urandom(16), 1, 0) + data(b"t") + data(b""))))
        leader.process.send_signal(signal.SIGCONT)
        closed, got = is_closed(client, 5 * SLOW)
        assert closed and got == b""
        # Who was in the backlog is closed or told that this is a standby, never served.
        late.settimeout(5 * SLOW)
        try:
            answer = late.recv(65536)
        except OSError:
            answer = b""
        assert answer == b"" or struct.unpack_from("<i", Reader(answer[16:]).record())[0] == UNAVAILABLE
        late.close()
        assert wait_until(lambda: hello(leader.port), 5)[0] == UNAVAILABLE
        wait_until(lambda: hello(leader.port) == (UNAVAILABLE, 0, successor.address), 5)
        assert serves(successor)


def test_a_leader_whose_loop_stands_still_is_followed(etcd):
    """That thread alone: the one that renews the leadership goes on, and must not do so for ever. Nor may a standby in that state lead."""
    with Masters(etcd, 3) as masters:
        held = []

        def hold(leader):
            held.append(HeldThread(leader.process.pid, task=leader.process.pid))
        try:
            leader, successor = fail_over(masters, hold, 4)
            (third,) = (master for master in masters.all if master not in (leader, successor))
            hold(third)
            time.sleep(6 * SLOW)
            successor.kill()
            time.sleep(5 * SLOW)
            assert masters.etcd.text(VIEW) in ("", None, successor.address)
        finally:
            for one in held:
                one.release()
        wait_until(lambda: role(leader) == "leader" or role(third) == "leader", 10)
        successor.start()


def test_owners_leave_a_leader_whose_loop_stands_still(etcd):
    """Soon enough for the next to know that nobody can have given them up, though this leader has given up somebody before."""
    with Masters(etcd, 2, "--client_ttl=3s") as masters, StoreProcess(f"etcd://{etcd.endpoints}/{CLUSTER}") as node:
        leader = masters.leader()
        with StoreProcess(f"etcd://{etcd.endpoints}/{CLUSTER}") as other:
            wait_until(lambda: len(segments(leader)) == 2, 10)
            other.kill()
            wait_until(lambda: len(segments(leader)) == 1, 15)
        held = HeldThread(leader.process.pid, task=leader.process.pid)
        try:
            successor = masters.leader(masters.others(leader), 10)
            wait_until(lambda: segments(successor), 10)
            assert "does not want the contents" not in node.log()
        finally:
            held.release()


def test_a_loop_that_stands_still_for_a_moment_changes_nothing(etcd):
    with Masters(etcd, 2) as masters:
        leader = masters.leader()
        epoch = epoch_of(leader)
        held = HeldThread(leader.process.pid, task=leader.process.pid)
        time.sleep(1.2)  # a long turn
        held.release()
        assert epoch_of(leader) == epoch and serves(leader)


def test_a_short_stop_changes_nothing(etcd):
    with Masters(etcd, 2) as masters:
        leader = masters.leader()
        client = Connection(leader.port, ROLE_CALL, os.urandom(16))
        epoch = epoch_of(leader)
        leader.process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        leader.process.send_signal(signal.SIGCONT)
        exists(client)
        assert epoch_of(leader) == epoch


def segments(master):
    status, body = master.get("/get_all_segments")
    return body.decode().split() if status == 200 else []


def test_owners_leave_a_stopped_leader(etcd):
    """Which breaks no connection. Nobody was given up, so the note stays as it is, and the next leader takes up all."""
    with Masters(etcd, 2) as masters, StoreProcess(f"etcd://{etcd.endpoints}/{CLUSTER}") as node:
        leader = masters.leader()
        wait_until(lambda: segments(leader), 10)
        note = etcd.text(DEPARTED)
        def stop(one):
            hold_still(one.process.pid)
        _leader, successor = fail_over(masters, stop, 3)
        start = time.monotonic()
        wait_until(lambda: segments(successor), 10)
        assert time.monotonic() - start < 3 * SLOW
        assert "does not want the contents" not in node.log()
        assert etcd.text(DEPARTED) == note


def test_a_departure_is_noted(etcd):
    start = time.monotonic()
    with Masters(etcd, 2) as masters, StoreProcess(f"etcd://{etcd.endpoints}/{CLUSTER}") as node:
        leader = masters.leader()
        epoch = epoch_of(leader)
        wait_until(lambda: segments(leader), 10)
        assert int(etcd.text(DEPARTED)) < epoch
        node.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(2)
            assert int(etcd.text(DEPARTED)) < epoch
            wait_until(lambda: etcd.text(HORIZON).startswith(f"{epoch:013} "), 15, "the horizon")
            wait_until(lambda: etcd.text(DEPARTED) == str(epoch), 10, "the note")
            horizon = etcd.text(HORIZON)
            assert 1 < int(horizon.split()[1]) < 1000 * (time.monotonic() - start) - 3000
            used = leader.cpu_seconds()
            time.sleep(1)
            assert leader.cpu_seconds() - used < 0.5 * SLOW  # it has heard of that, and rests
        finally:
            node.process.send_signal(signal.SIGCONT)
        def terminate(one):
            assert one.stop() == 0
        leader, successor = fail_over(masters, terminate, 1)
        leader.start()
        assert etcd.text(DEPARTED) == str(epoch)  # the next claim has brought it along
        assert etcd.text(HORIZON) == horizon[:27]  # that of a leader before this one, which came of age, is of no use
        wait_until(lambda: segments(successor), 10)


def test_a_directory_that_is_away(etcd):
    """For longer than a node may be silent, under a leader that has given up another node: who was there to its end is taken back. A standby
    has not seen its last renewals: when it does, that leader seems to have lived until then."""
    address = f"etcd://{etcd.endpoints}/{CLUSTER}"
    values = {f"key-{number}": f"value-{number}".encode() * 100 for number in range(5)}
    with Masters(etcd, 2) as masters, StoreProcess(address), closing(joined(SimpleNamespace(address=address), 0)) as client:
        leader = masters.leader()
        epoch = epoch_of(leader)
        for key, value in values.items():
            wait_until(lambda key=key, value=value: client.put(key, value) == 0, 10 * SLOW, "a put")
        with StoreProcess(address) as other:
            wait_until(lambda: len(segments(leader)) == 2, 10 * SLOW, "the other node")
            other.kill()
        wait_until(lambda: etcd.text(DEPARTED) == str(epoch), 20 * SLOW, "the note")
        standby = masters.others(leader)[0]
        hold_still(standby.pid)
        time.sleep(1.5)
        members = etcd.running()
        for member in members:
            hold_still(etcd.processes[member].pid)
        standby.process.send_signal(signal.SIGCONT)
        try:
            time.sleep(3.5)
            leader.kill()  # which knows when it ended
        finally:
            for member in members:
                etcd.processes[member].send_signal(signal.SIGCONT)
        later = masters.leader()
        assert epoch_of(later) > epoch
        for key, value in values.items():
            wait_until(lambda key=key, value=value: client.get(key) == value, 10 * SLOW, f"{key}: {later.log()[-3000:]}")


def test_a_copy_of_etcd_under_the_same_claim(etcd):
    """What the leader has said since is gone from there: nobody believes what it says of earlier leaders."""
    with Masters(etcd, 2) as masters, StoreProcess(f"etcd://{etcd.endpoints}/{CLUSTER}") as node:
        leader = masters.leader()
        standby = masters.others(leader)[0]
        epoch = epoch_of(leader)
        wait_until(lambda: segments(leader), 10)
        before = etcd.text(HORIZON)
        node.kill()
        wait_until(lambda: etcd.text(DEPARTED) == str(epoch), 20 * SLOW, "the note")
        time.sleep(1)  # the standby looks
        assert etcd.text(HORIZON) > before
        etcd.ask("/v3/kv/put", key=HORIZON.encode(), value=before.encode())
        wait_until(lambda: f"says less of the leader of epoch {epoch} than it did" in standby.log(), 10 * SLOW, "the line")
        leader.kill()
        assert epoch_of(masters.leader()) > epoch


def test_etcds_leader_dies_alone(etcd):
    """Its successor is elected within one or two seconds: the leader may survive that, and if not it leads again or another does."""
    with Masters(etcd, 3) as masters:
        epoch = epoch_of(masters.leader())
        start = time.monotonic()
        etcd.kill(etcd.leader())
        wait_until(lambda: etcd.leader() is not None, 20, "another leader of etcd")
        time.sleep(0.5)
        # Who leads at one look may have ended at the next, and says 0.
        after = wait_until(lambda: epoch_of(masters.leader()), 6 * SLOW, "a leader that answers")
        print(f"ETCD LEADER DIED: {'survived' if after == epoch else 'new epoch'}, {time.monotonic() - start:.2f} s")
        assert after >= epoch
        assert time.monotonic() - start < 6 * SLOW


def test_a_member_of_etcd_that_hangs_is_left(etcd):
    """One that takes requests and never answers, each in turn: the others serve on, and etcd's leader is followed within etcd."""
    with Masters(etcd, 2) as masters:
        epoch = epoch_of(masters.leader())
        followers = [member for member in etcd.running() if member != etcd.leader()]
        for member in followers:
            process = etcd.processes[member]
            process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(2.5)
                assert epoch_of(masters.leader()) == epoch
            finally:
                process.send_signal(signal.SIGCONT)
            time.sleep(0.5)
        process = etcd.processes[etcd.leader()]
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(4)
            start = time.monotonic()
            assert epoch_of(masters.leader()) >= epoch
            assert time.monotonic() - start < 2 * SLOW
        finally:
            process.send_signal(signal.SIGCONT)


def test_leader_and_etcds_leader_die_together(etcd):
    with Masters(etcd, 3) as masters:
        def kill_both(leader):
            member = etcd.leader()
            leader.kill()
            etcd.kill(member)
        fail_over(masters, kill_both, 10)


def test_without_etcd_nobody_serves_and_with_it_again(etcd):
    with Masters(etcd, 2) as masters:
        leader = masters.leader()
        epoch = epoch_of(leader)
        client = Connection(leader.port, ROLE_CALL, os.urandom(16))
        exists(client)
        start = time.monotonic()
        for member in etcd.running():
            etcd.kill(member)
        closed, got = is_closed(client, 10 * SLOW)
        took = time.monotonic() - start
        print(f"ALL ETCD DOWN: leader silent after {took:.2f} s")
        assert closed and got == b"" and took < 2.5 * SLOW
        for master in masters.all:
            wait_until(lambda: (hello(master.port) or (0,))[0] == UNAVAILABLE, 5)
            assert health(master)["role"] == "standby"
        start = time.monotonic()
        etcd.heal()
        leader = masters.leader()
        print(f"ALL ETCD BACK: served {time.monotonic() - start:.2f} s after its start")
        assert epoch_of(leader) > epoch


def test_epochs_rise_over_all_lives(etcd):
    last = 0
    for _ in range(3):
        with Masters(etcd, 1) as masters:
            epoch = epoch_of(masters.all[0])
            assert epoch > last
            last = epoch


def say_hello(connecting, wait):
    """Says it for those that have connected since. Returns how many that were."""
    ready = connecting.select(wait)
    for key, _ in ready:
        connecting.unregister(key.fileobj)
        key.fileobj.sendall(frame(HELLO, 1, record(struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, os.urandom(16), 1, 0) + data(b"t") + data(b""))))
    return len(ready)


@secured.by_hand
@pytest.mark.timeout(240)
def test_thousands_come_at_once(etcd):
    """5,000 clients at a leader that has just begun, while members that are there go on with heartbeats."""
    import resource
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip("the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Masters(etcd, 1) as masters:
        leader = masters.all[0]
        early = Connection(leader.port, ROLE_CALL, os.urandom(16))
        longest, is_done = [0.0], threading.Event()

        def keep_asking():
            while not is_done.is_set():
                start = time.monotonic()
                exists(early)
                longest[0] = max(longest[0], time.monotonic() - start)
                time.sleep(0.02)
        other = threading.Thread(target=keep_asking)
        other.start()
        start = time.monotonic()
        clients = []
        try:
            hellos = selectors.DefaultSelector()
            for _ in range(count):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", leader.port))
                hellos.register(client, selectors.EVENT_WRITE)
                clients.append(client)
                say_hello(hellos, 0)  # as clients do: whoever connects and says nothing is one of 4,096 at most
            connected = time.monotonic() - start
            while hellos.get_map():
                assert say_hello(hellos, 20), "a client is not connected after 20 s"
            for client in clients:
                client.settimeout(20)
                reply = client.recv(4096)
                assert reply and struct.unpack_from("<i", Reader(reply[16:]).record())[0] == 0
            took = time.monotonic() - start
            is_done.set()
            other.join()
            print(f"5000 CLIENTS: connects begun after {connected:.2f} s, all served after {took:.2f} s, others waited at most {longest[0] * 1000:.0f} ms")
            assert took < 5 * SLOW and longest[0] < 1 * SLOW
        finally:
            is_done.set()
            for client in clients:
                client.close()
            early.close()


@pytest.mark.parametrize("with_election", (False, True))
def test_a_node_that_has_met_a_later_master_gets_a_later_one(etcd, with_election):
    masters = Masters(etcd, 1) if with_election else Master()
    with masters:
        master = masters.all[0] if with_election else masters
        before = Connection(master.port, ROLE_CALL, os.urandom(16))
        seen = epoch_of(master) + 100000
        late = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, os.urandom(16), 1, 0) + data(b"t") + data(b"") + struct.pack("<QI", seen, 10)
        for words in (1, 2):  # one is nobody's word
            with secured.connection("127.0.0.1", master.port, 5) as stranger:
                stranger.sendall(frame(HELLO, 1, record(late)))
                assert stranger.recv(1) == b""
            assert is_closed(before, 0.3 if words == 1 else 5)[0] == (words == 2)
        wait_until(lambda: (hello(master.port) or (1,))[0] == 0, 10)
        assert epoch_of(master) > seen
