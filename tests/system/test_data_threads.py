"""A store node of which one thread that copies stands still: the master misses nothing, and who comes anew is served."""
import os
import signal
import time

import cluster
from python_cluster import wait_until
from test_half_dead import HeldThread, Node, TTL_S, opened, put_at

from harm import threads_of
from service_process import CLIENT, REST, Service


def test_one_stands_still(monkeypatch):
    monkeypatch.setenv("MC_PATHS", "tcp")
    monkeypatch.setenv("MC_SERVE_THREADS", "2")
    with cluster.Master(f"--client_ttl={TTL_S}s") as master:
        node = Node(master)
        clients = [opened(master)]
        try:
            put_at(clients[0], node, "key", b"v" * 100000)
            tasks = threads_of(node.process.pid, "mc-data")
            assert len(tasks) == 2
            held = HeldThread(node.process.pid, task=tasks[0])
            began = time.monotonic()
            try:
                clients.append(opened(master))
                clients.append(opened(master))
                # Of connections that are made now the one that stands still is given one, and no more until it has taken that.
                wait_until(lambda: any(client.get("key") == b"v" * 100000 for client in clients[1:]), 20)
                wait_until(lambda: clients[2].put("other", os.urandom(100000)) == 0, 20)
                wait_until(lambda: time.monotonic() - began > TTL_S + 2, TTL_S + 10)
                metrics = master.metrics()
                assert metrics["mooncake_segments"] == 1 and metrics["mooncake_owners_stuck_total"] == 0
            finally:
                held.release()
            for client in clients:
                wait_until(lambda client=client: client.get("key") == b"v" * 100000, 20)
        finally:
            for client in clients:
                client.close()
            node.stop(signal.SIGKILL)


def test_how_many_by_flag():
    with cluster.Master() as master:
        for command, host in ((REST, "--local_hostname=127.0.0.1"), (CLIENT, "--host=127.0.0.1")):
            service = Service("--serve_threads=3", "--populate_threads=2", "--numa_nodes=0", host, f"--master_server_address={master.address}", "--global_segment_size=64mb",
                              command=command).spawn()
            try:
                wait_until(lambda: len(threads_of(service.process.pid, "mc-data")) == 3, 20)
                assert "NUMA node" in service.log()
            finally:
                assert service.stop() == 0


def test_how_many(monkeypatch):
    for wanted, found in (("0", 0), ("3", 3), ("17", None), ("many", None)):
        monkeypatch.setenv("MC_SERVE_THREADS", wanted)
        with cluster.Master() as master:
            node = Node(master)
            try:
                count = len(threads_of(node.process.pid, "mc-data"))
                assert count == found or (found is None and 1 <= count <= 4)
            finally:
                node.stop(signal.SIGKILL)
