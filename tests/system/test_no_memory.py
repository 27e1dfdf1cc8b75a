"""Peers want more memory than there is: it costs their connections, not the process."""
import json
import os
import resource
import socket
import struct

import pytest

import cluster
from proxy_engines import Engine, Proxy, post_bytes
from python_cluster import SLOW, joined, wait_until
from wire import ROLE_CALL, Connection, PUT_START

ROOM = 24 << 20  # what the process may still take
BODY = (4 << 20) - 64
GREEDY = 24      # connections, each with nearly a whole frame of the largest size


def leave_room(pid, room):
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.prlimit(pid, resource.RLIMIT_AS, (size + room, size + room))


@pytest.mark.skipif(cluster.SANITIZED, reason="a sanitizer maps terabytes")
def test_a_master_without_memory_closes_who_wants_it():
    with cluster.Master() as master:
        store = joined(master, 16 << 20)
        assert wait_until(lambda: store.put("key", b"value") == 0)
        leave_room(master.pid, ROOM)
        greedy = [Connection(master.port, ROLE_CALL, os.urandom(16)) for _ in range(GREEDY)]
        closed = 0
        for connection in greedy:
            connection.socket.settimeout(5 * SLOW)
            try:
                connection.socket.sendall(struct.pack("<IHHQ", BODY, PUT_START, 0, 1) + bytes(BODY - 4096))
            except (ConnectionError, socket.timeout):
                closed += 1
        assert master.process.poll() is None, f"the master has ended: {master.log()[-2000:]}"
        assert closed > 0 or "out of memory" in master.log()
        assert store.get("key") == b"value" and store.put("other", b"value") == 0
        for connection in greedy:
            connection.close()
        assert wait_until(lambda: store.put("third", b"value") == 0)
        assert store.close() == 0


@pytest.mark.skipif(cluster.SANITIZED, reason="a sanitizer maps terabytes")
@pytest.mark.parametrize("room", [4, 10, 18, 26, 34, 42])
def test_a_proxy_without_memory_refuses_who_wants_it(room):
    """Whether it is out when the request comes, is looked at, or is written anew for prefill or decode."""
    prefill, decode = Engine("p"), Engine("d")
    prefill.kv_params = {"a": 1}
    body = json.dumps({"model": "m", "prompt": "x" * (8 << 20)}).encode()
    try:
        with Proxy("--mode=sequential", "--prefill", prefill.address, "--decode", decode.address) as proxy:
            wait_until(lambda: proxy.complete()[0] == 200)
            leave_room(proxy.process.pid, room << 20)
            for _ in range(3):
                answer = proxy.raw(post_bytes("/v1/completions", body, headers="Connection: close\r\n"), timeout_s=20 * SLOW)
                assert answer[:13] in (b"", b"HTTP/1.1 200 ", b"HTTP/1.1 503 "), answer[:200]
            assert proxy.process.poll() is None, f"the proxy has ended: {proxy.log()[-2000:]}"
            assert proxy.complete()[0] == 200
    finally:
        prefill.kill()
        decode.kill()
