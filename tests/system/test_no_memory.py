"""Peers want more memory than there is: it costs their connections, not the process."""
import os
import resource
import socket
import struct

import pytest

import cluster
from python_cluster import SLOW, joined, wait_until
from wire import ROLE_CALL, Connection, PUT_START

ROOM = 24 << 20  # what the process may still take
BODY = (4 << 20) - 64
GREEDY = 24      # connections, each with nearly a whole frame of the largest size


@pytest.mark.skipif(cluster.SANITIZED, reason="a sanitizer maps terabytes")
def test_a_master_without_memory_closes_who_wants_it():
    with cluster.Master() as master:
        store = joined(master, 16 << 20)
        assert wait_until(lambda: store.put("key", b"value") == 0)
        with open(f"/proc/{master.pid}/statm", encoding="ascii") as statm:
            size = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.prlimit(master.pid, resource.RLIMIT_AS, (size + ROOM, size + ROOM))
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
