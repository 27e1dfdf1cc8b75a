"""What a peer may do at most that only reaches a port: docs/limits.md."""
import contextlib
import os
import re
import resource
import selectors
import socket
import struct
import threading
import time

import pytest

import cluster
import wire
from cluster import says, wait_until
from idle_peers import ROLE_DATA, hello, raise_limit, segments
from service_process import REST, Service
from store_process import StoreProcess
from test_engine import Near, Peer

BUSY, PING, ROLE_HEARTBEAT = -1900, 67, 1


def answer(connection):
    """The code of a HELLO_REPLY; None: closed without one."""
    body = b""
    try:
        while len(body) < 16 or len(body) < 16 + struct.unpack_from("<I", body)[0]:
            part = connection.recv(65536)
            if not part:
                return None
            body += part
    except ConnectionError:
        return None
    return struct.unpack_from("<i", body, 18)[0]


def connect(address, source=""):
    connection = socket.create_connection(address, timeout=20, source_address=(source, 0) if source else None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def greet(address, role, nonce=0, source=""):
    """(connection, code)"""
    connection = connect(address, source)
    connection.sendall(hello(role, os.urandom(16), nonce))
    return connection, answer(connection)


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def is_over(connection):
    """Closed by the other side, by now."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(20)


@pytest.mark.parametrize("which", ["master", "node"])
def test_a_long_first_frame_is_not_waited_for(which):
    """As nobody is known yet, nothing is kept of it; the hello's own time would end it after ten seconds, or five."""
    with cluster.Master() as master, StoreProcess(master.address):
        wait_until(lambda: segments(master.port))
        address = ("127.0.0.1", master.port) if which == "master" else segments(master.port)[0][1]
        long = connect(address)
        long.settimeout(4)
        long.sendall(struct.pack("<IHHQ", 1025, wire.HELLO, 0, 1))
        assert is_closed(long)
        longest = connect(address)
        longest.sendall(struct.pack("<IHHQ", 1024, wire.HELLO, 0, 1) + b"x")  # this one is
        longest.settimeout(1)
        with pytest.raises(socket.timeout):
            longest.recv(1)
        long.close()
        longest.close()


@pytest.mark.timeout(240)
def test_halves_of_frames_are_bounded_together():
    """A gigabyte of them: beyond it whose frame began first goes, and who asks is answered all the time."""
    size, part = (4 << 20) - 64, bytes(1 << 20)
    with cluster.Master() as master:
        address, halves = ("127.0.0.1", master.port), []
        honest, code = greet(address, wire.ROLE_CALL)
        assert code == 0
        try:
            for number in range(300):
                half, code = greet(address, wire.ROLE_CALL)
                assert code == 0
                halves.append(half)
                half.sendall(struct.pack("<IHHQ", size, wire.REMOVE, 0, 1) + b"".join((part, part, part, part[:900 << 10])))
                if number % 50 == 0:
                    assert greet(address, wire.ROLE_CALL)[1] == 0
            wait_until(lambda: is_over(halves[0]), 20)
            assert sum(is_over(half) for half in halves) >= 25
            assert not is_over(halves[-1]) and not is_over(honest)
            assert master.resident_bytes() < 1400 << 20
            says(master, "MiB of frames that are not whole wait here")
        finally:
            for half in [honest, *halves]:
                half.close()


def test_an_address_has_its_share_of_a_masters_places():
    with cluster.Master("--max_connections_per_address=20") as master:
        address = ("127.0.0.1", master.port)
        mine = [greet(address, wire.ROLE_CALL, source="127.0.0.1") for _ in range(20)]
        assert {code for _, code in mine} == {0}
        more, code = greet(address, ROLE_HEARTBEAT, source="127.0.0.1")
        other, others_code = greet(address, wire.ROLE_CALL, source="127.0.0.2")
        assert code is None and others_code == 0
        says(master, "its address has 20 already")
        mine.pop()[0].close()
        wait_until(lambda: greet(address, wire.ROLE_CALL, source="127.0.0.1")[1] == 0)
        for one in (more, other, *(one for one, _ in mine)):
            one.close()


def test_silent_connections_make_room_among_themselves():
    """Half as many as it has descriptors wait at a master; one more is taken, and the oldest goes."""
    if raise_limit() < 2000:
        pytest.skip("too few descriptors here")
    with cluster.Master() as master:
        address = ("127.0.0.1", master.port)
        resource.prlimit(master.pid, resource.RLIMIT_NOFILE, (2000, 2000))
        first = connect(address)
        silent = [connect(address) for _ in range(999)]
        honest, code = greet(address, wire.ROLE_CALL)  # by its turn all before it are accepted
        assert code == 0
        first.settimeout(5)
        assert is_closed(first)
        honest.sendall(wire.frame(PING, 2, wire.record()))
        assert honest.recv(16)
        for one in (first, honest, *silent):
            one.close()


def test_the_last_places_are_for_heartbeats():
    """Callers that never rest have all of them: another one comes later, a node's heartbeat comes in."""
    with cluster.Master() as master:
        address = ("127.0.0.1", master.port)
        resource.prlimit(master.pid, resource.RLIMIT_NOFILE, (120, 120))
        callers, code = [], 0
        while code == 0 and len(callers) < 120:
            for one in callers:
                one.sendall(wire.frame(PING, 2, wire.record()))
            one, code = greet(address, wire.ROLE_CALL)
            callers.append(one)
        assert code == BUSY and len(callers) > 50
        heartbeat, code = greet(address, ROLE_HEARTBEAT)
        assert code == 0
        for one in (heartbeat, *callers):
            one.close()


def half_a_request(port, length=1000):
    """A connection whose request's body never comes."""
    connection = connect(("127.0.0.1", port))
    connection.sendall(b"PUT /api/put HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{" % length)
    return connection


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def test_a_service_has_no_thread_for_what_is_no_request_yet():
    """Silent ones, heads and bodies that do not come to their end: more of them than there are threads, and all is answered."""
    if raise_limit() < 3000:
        pytest.skip("too few descriptors here")
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        assert service.call("GET", "/api/exist/key")[0] == 200
        before = threads(service.process.pid)
        slow = [half_a_request(service.port) for _ in range(400)] + [connect(("127.0.0.1", service.port)) for _ in range(400)]
        for one in slow[400:600]:
            one.sendall(b"GET /health HTTP/1.1\r\n")
        for path in ("/health", "/metrics", "/metrics/summary", "/api/exist/key"):
            assert service.call("GET", path)[0] == 200
        assert threads(service.process.pid) <= before + 3
        slow[0].sendall(b" " * 997 + b"]}")  # who goes on is answered
        assert slow[0].recv(12) == b"HTTP/1.1 400"
        slow[450].sendall(b"\r\n")
        assert slow[450].recv(12) == b"HTTP/1.1 200"
        for one in slow:
            one.close()


def test_bodies_that_do_not_come_lose_their_threads():
    """Each has one, as it fits into no buffer, and there is none for others; after a second of silence it is theirs."""
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        slow = [half_a_request(service.port, 1 << 20) for _ in range(256)]
        wait_until(lambda: threads(service.process.pid) > 256)
        for path in ("/health", "/metrics", "/metrics/summary"):
            assert service.call("GET", path)[0] == 200
        assert service.call("GET", "/api/exist/key")[0] == 200
        assert 1 <= sum(ended(one) for one in slow) < 128
        for one in slow:
            one.close()


PUT = b"PUT /api/put HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BUDGET = 512 << 20  # MC_WEB_BUDGET_BYTES


def all_of_the_budget(port, sources=("",)):
    """Connections with the heads of values that would fill it, the last but for a little."""
    crowd = []
    for number, length in enumerate((*[100 << 20] * 5, (12 << 20) - 1000)):
        crowd.append(connect(("127.0.0.1", port), sources[number % len(sources)]))
        crowd[-1].sendall(PUT % length + b"{" * 20000)
    return crowd


@contextlib.contextmanager
def dripping(connections, part, pause_s=0.5):
    """They go on sending so much, as far as it is taken, until the end."""
    is_done = threading.Event()

    def drip():
        while not is_done.wait(pause_s):
            for one in connections:
                with contextlib.suppress(OSError):
                    os.write(one.fileno(), part)  # which never waits, as a send with a timeout does
    sender = threading.Thread(target=drip)
    sender.start()
    try:
        yield
    finally:
        is_done.set()
        sender.join()
        for one in connections:
            one.close()


def test_values_that_do_not_come_leave_the_budget_to_others():
    """What is announced counts as if it were there: who says no more of it has it only while nobody else wants it."""
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        service.put("before", "x")
        slow = all_of_the_budget(service.port)
        time.sleep(1)  # until all heads are read
        assert service.call("PUT", "/api/put", {"key": "long", "value": "x" * 200000}, timeout_s=20)[0] == 200
        assert service.call("GET", "/health")[0] == 200
        assert 1 <= sum(ended(one) for one in slow) < 3
        for one in slow:
            one.close()


@pytest.mark.parametrize("addresses", [1, 5])
def test_an_address_leaves_part_of_the_budget_to_others(addresses):
    """One that goes on as fast as its threads stay its own, and whose further requests wait for what it gives back."""
    sources = [f"127.0.0.{2 + number}" for number in range(addresses)]
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        service.put("before", "x")
        crowd = all_of_the_budget(service.port, sources)
        for number in range(20):
            crowd.append(connect(("127.0.0.1", service.port), sources[number % addresses]))
            crowd[-1].sendall(PUT % (20 << 20))
        with dripping(crowd, b"{" * 32768):
            time.sleep(1)
            for number in range(3):
                value = {"key": f"long{number}", "value": "x" * 2000000}
                assert service.call("PUT", "/api/put", value, timeout_s=20)[0] == 200
                assert service.call("GET", "/health")[0] == 200


def test_an_address_leaves_threads_to_others():
    """Bodies that come just fast enough have all threads, and more wait for one, all of one address; of another is asked."""
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        crowd = []
        for _ in range(400):
            crowd.append(connect(("127.0.0.1", service.port), "127.0.0.2"))
            crowd[-1].sendall(PUT % (1 << 20) + b"{" * 20000)
        with dripping(crowd, b"{" * 20000):
            wait_until(lambda: threads(service.process.pid) > 256)
            waits = []
            for _ in range(20):
                begun = time.monotonic()
                assert service.call("GET", "/api/exist/key", timeout_s=20)[0] == 200
                waits.append(time.monotonic() - begun)
                assert service.call("GET", "/health")[0] == 200
            assert sum(wait > 0.19 for wait in waits) < 10, waits  # the first; then threads are kept for others
            assert sum(ended(one) for one in crowd[:256]) < 20


def test_who_was_refused_has_no_thread_any_more():
    """What is no request, or too long, is answered; then it goes on, and nobody waits for its end with a thread."""
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        before, refused = threads(service.process.pid), []
        for number in range(300):
            refused.append(connect(("127.0.0.1", service.port)))
            refused[-1].sendall((PUT % (200 << 20) if number % 2 else b"GET\r\n\r\n") + b"{" * 100)
        with dripping(refused, b"{" * 20000, 0.2):
            for number, one in enumerate(refused):
                assert one.recv(12) == (b"HTTP/1.1 413" if number % 2 else b"HTTP/1.1 400")
            time.sleep(1)
            assert service.call("GET", "/api/exist/key")[0] == 200
            # Idle ones end after ten seconds, those that wait for the peer would be as many as there are.
            assert threads(service.process.pid) < before + 150
            refused[0].settimeout(10)
            with contextlib.suppress(ConnectionError):
                while refused[0].recv(1000):  # until it has sent for long enough
                    pass


def test_answers_that_nobody_takes_leave_health_its_threads():
    """More of them than there are threads for what is short; each asks for more than sockets hold of answers."""
    question = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with cluster.Master() as master, Service(MOONCAKE_MASTER=master.address) as service:
        crowd = [socket.socket() for _ in range(48)]
        for one in crowd:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", service.port))
        sent, end = [0] * len(crowd), time.monotonic() + 3
        while time.monotonic() < end:
            for number, one in enumerate(crowd):
                with contextlib.suppress(OSError):
                    sent[number] += one.send((question * 2000)[sent[number] % len(question):], socket.MSG_DONTWAIT)
            time.sleep(0.05)
        for _ in range(5):
            assert service.call("GET", "/health", timeout_s=20)[0] == 200
        for one in crowd:
            one.close()


def test_a_service_keeps_as_many_as_it_has_places():
    """Half as many as it has descriptors; for one more the oldest silent one goes, and of one address three quarters."""
    few = ["prlimit", "--nofile=400:400", *REST]
    with cluster.Master() as master, Service(command=few, MOONCAKE_MASTER=master.address) as service:
        first = [connect(("127.0.0.1", service.port), "127.0.0.2") for _ in range(150)]
        assert service.call("GET", "/api/exist/key")[0] == 200
        more = connect(("127.0.0.1", service.port), "127.0.0.2")
        first[0].settimeout(10)
        assert is_closed(first[0]) and not is_over(first[-1]) and not is_over(more)
        others = [connect(("127.0.0.1", service.port), "127.0.0.3") for _ in range(120)]
        assert service.call("GET", "/health")[0] == 200
        wait_until(lambda: sum(ended(one) for one in first) >= 50)
        assert not is_over(others[-1])
        for one in (*first, *others, more):
            one.close()


def test_a_master_says_how_it_is_among_slow_requests():
    """More of them than it has places, half as many as its descriptors: those that were silent longest go."""
    few = ["prlimit", "--nofile=1000:1000"]
    with cluster.Master(metadata=True, before=few) as master:
        for port in (master.metrics_port, master.metadata_port):
            slow = [half_a_request(port) for _ in range(560)]
            assert cluster.request(port, "GET", "/health")[0] == 200
            wait_until(lambda: sum(ended(one) for one in slow) >= 180)  # one address has 375
            assert not ended(slow[-1])
            for one in slow:
                one.close()
        assert master.get("/metrics")[0] == 200


STRANGERS = (b"", b"GET /metadata?key=a HT", b"PUT /metadata?key=b HTTP/1.1\r\nContent-Length: 500\r\n\r\nhalf", b"X" * 5000)


def test_a_master_has_places_for_thousands_of_strangers():
    """Silent ones, and halves of a head and of a body: all stay, and who asks is answered among them."""
    if raise_limit() < 10000:
        pytest.skip("too few descriptors here")
    with cluster.Master(metadata=True) as master:
        before, strangers = master.resident_bytes(), []
        try:
            for number in range(3000):
                strangers.append(connect(("127.0.0.1", (master.metrics_port, master.metadata_port)[number % 2])))
                strangers[-1].sendall(STRANGERS[number // 2 % 4])
                if number % 200 == 199:
                    for port in (master.metrics_port, master.metadata_port):
                        assert cluster.request(port, "GET", "/health")[0] == 200
                    assert master.get("/metrics/summary")[0] == 200
                    assert cluster.request(master.metadata_port, "PUT", f"/metadata?key={number}", body=b"x")[0] == 200
            assert not any(ended(one) for one in strangers)
            assert cluster.SANITIZED or master.resident_bytes() < before + (64 << 20)  # MC_WEB_HELD_BYTES
        finally:
            for one in strangers:
                one.close()


def test_what_is_no_request_is_refused_at_once():
    """TLS for a port that has none, say: its first bytes, which no line ends, are not waited for."""
    with cluster.Master(metadata=True) as master, Service(MOONCAKE_MASTER=master.address) as service:
        for port in (master.metrics_port, master.metadata_port, service.port):
            for first in (b"\x16\x03\x01\x02\x00\x01", b"\r\n\x00", b"\xff", b"A\0\0\0", b"GETGETGETGETGETGETGET"):
                with contextlib.closing(connect(("127.0.0.1", port))) as one:
                    one.settimeout(40)  # half a head is given 60 s
                    one.sendall(first)
                    assert one.recv(100).startswith(b"HTTP/1.1 400 "), first


def come_again(addresses, count, is_done, opened):
    """Keeps so many connections of strangers, and opens another for each that is ended."""
    selector, number = selectors.DefaultSelector(), 0
    while not is_done.is_set():
        for _ in range(count - len(selector.get_map())):
            one = socket.socket()
            one.bind((f"127.0.0.{2 + number % 8}", 0))
            one.connect(addresses[number % len(addresses)])
            with contextlib.suppress(ConnectionError):
                one.sendall(STRANGERS[number // 2 % 4])
            selector.register(one, selectors.EVENT_READ)
            number += 1
        for key, _ in selector.select(0.01):
            selector.unregister(key.fileobj)
            key.fileobj.close()
        opened[0] = number
    for key in list(selector.get_map().values()):
        key.fileobj.close()


def test_strangers_that_come_again_hold_up_nobody_at_a_master():
    """More of them than there are places, and each that is ended is back at once."""
    few, is_done, opened = ["prlimit", "--nofile=600:600"], threading.Event(), [0]
    with cluster.Master(metadata=True, before=few) as master:
        home = [("127.0.0.1", master.metrics_port), ("127.0.0.1", master.metadata_port)]
        before = master.resident_bytes()
        strangers = threading.Thread(target=come_again, args=(home, 600, is_done, opened))
        strangers.start()
        try:
            wait_until(lambda: opened[0] >= 600, 60)
            begun = opened[0]
            wait_until(lambda: opened[0] > begun + 1000, 60, "strangers that come again")
            for number in range(100):
                assert cluster.request(home[number % 2][1], "GET", "/health", timeout_s=20)[0] == 200
                assert cluster.request(master.metadata_port, "PUT", f"/metadata?key={number}", body=bytes(20000), timeout_s=20)[0] == 200
                assert master.get("/metrics/summary")[0] == 200
            assert len(os.listdir(f"/proc/{master.pid}/fd")) < 300 + 60
            assert cluster.SANITIZED or master.resident_bytes() < before + (64 << 20)
        finally:
            is_done.set()
            strangers.join()


def test_bodies_that_do_not_come_to_a_metadata_server_lose_their_threads():
    """As at a store service. Who stores another value, or asks how it is, is answered."""
    with cluster.Master(metadata=True) as master:
        slow = [connect(("127.0.0.1", master.metadata_port)) for _ in range(256)]
        for one in slow:
            one.sendall(b"PUT /metadata?key=slow HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx")
        wait_until(lambda: threads(master.pid) > 256)
        for port in (master.metrics_port, master.metadata_port):
            assert cluster.request(port, "GET", "/health")[0] == 200
        assert cluster.request(master.metadata_port, "PUT", "/metadata?key=a", body=bytes(100000))[0] == 200
        assert master.get("/metrics")[0] == 200
        assert 1 <= sum(ended(one) for one in slow) < 128
        for one in slow:
            one.close()


def ended(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_who_comes_after_one_that_left_is_heard():
    """The kernel gives the number of a connection that has ended to the next one."""
    with cluster.Master(metadata=True) as master:
        for _ in range(30):
            for headers, body in (({"Content-Length": str(1 << 40)}, b""), ({}, bytes((1 << 20) + 1))):
                began = time.monotonic()
                assert cluster.request(master.metadata_port, "PUT", "/metadata?key=k", body=body, headers=headers)[0] == 413
                assert time.monotonic() - began < 5, "it was accepted, and nobody read it"


def test_silent_connections_leave_a_master_its_last_descriptors():
    with cluster.Master() as master:
        resource.prlimit(master.pid, resource.RLIMIT_NOFILE, (120, 120))
        silent = [connect(("127.0.0.1", master.port)) for _ in range(200)]
        heartbeat, code = greet(("127.0.0.1", master.port), ROLE_HEARTBEAT)
        assert code == 0
        assert master.get("/health")[0] == 200
        for one in (heartbeat, *silent):
            one.close()


def test_an_engine_keeps_as_many_as_it_has_places(monkeypatch, tmp_path):
    """Three quarters of its descriptors, and of one address three quarters of those; the oldest that has asked nothing goes, and work goes on."""
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    with open(tmp_path / "log", "w", encoding="utf-8") as log, Peer(log=log, MC_LOG_LEVEL="INFO") as peer:
        data = int(re.search(r"data on port (\d+)", (tmp_path / "log").read_text()).group(1))
        resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE, (400, 400))
        near = Near()

        def writes(near):
            return near.engine.transfer_sync_write(peer.target, near.address, peer.address, 4096) == 0
        assert writes(near)  # over a connection that has asked
        for port in (data, peer.port):
            first = [connect(("127.0.0.1", port), "127.0.0.2") for _ in range(240)]
            first[0].settimeout(5)
            assert is_closed(first[0]) and not is_over(first[-1])
            others = [connect(("127.0.0.1", port), "127.0.0.3") for _ in range(200)]
            for one in others[:100]:
                one.sendall(b"x" * 7)  # the beginning of something
            assert writes(Near()) and writes(near) and not is_over(others[-1])
            for one in (*first, *others):
                one.close()


@pytest.mark.parametrize("how", ["idle", "slow"])
def test_an_engines_places_are_no_two_addresses(monkeypatch, tmp_path, how):
    """All of them are connections that have asked once, of two addresses, which rest, or say a byte now and then: who comes from a third has one of
    the address that has most, and transfers go on over connections that were closed while they rested."""
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    with open(tmp_path / "log", "w", encoding="utf-8") as log, Peer(log=log, MC_LOG_LEVEL="INFO") as peer, contextlib.ExitStack() as stack:
        data = int(re.search(r"data on port (\d+)", (tmp_path / "log").read_text()).group(1))
        resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE, (400, 400))
        near = Near()

        def writes(near):
            return near.engine.transfer_sync_write(peer.target, near.address, peer.address, 4096) == 0

        def asked(source):
            one = stack.enter_context(connect(("127.0.0.1", data), source))
            one.sendall(struct.pack("<QQB7x", 1, peer.address, 0x80))
            assert len(one.recv(9, socket.MSG_WAITALL)) == 9
            return one
        assert writes(near)  # its connection rests, too
        first, second = ([asked(source) for _ in range(count)] for source, count in (("127.0.0.2", 225), ("127.0.0.3", 74)))
        for second_of in range(12 if how == "slow" else 2):
            for one in first + second if how == "slow" else ():
                one.sendall(b"x")
            time.sleep(1)
        others = [asked("127.0.0.4") for _ in range(20)]
        assert sum(map(is_over, first)) == 20 and not any(map(is_over, second + others))
        assert writes(Near()) and writes(near)
        if how == "idle":  # of one's own address the one that has rested for longest goes
            time.sleep(1.1)
            rest = [one for one in first if not is_over(one)]
            more = [asked("127.0.0.2") for _ in rest[10:]]
            gone = list(map(is_over, rest))
            assert gone == sorted(gone, reverse=True) and sum(gone) > 180 and not any(map(is_over, more)) and writes(near)
            for one in first + second + others + more:
                one.close()
            time.sleep(1.1)
            near_by = [asked("127.0.0.1") for _ in range(225)]
            time.sleep(0.2)
            assert not any(map(is_over, near_by)) and writes(near), "its own went, and nobody sees it"
