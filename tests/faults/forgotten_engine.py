"""A firewall forgets the connections between two engines' hosts, or one of the engines is stopped or cut off for a while.

    python forgotten_engine.py --order write,read --bytes 4096 --json FILE     # what is called after that, four times each
    python forgotten_engine.py --stopped 4 --order write --bytes 33554432      # nothing is forgotten: the peer stands still for so many seconds
    python forgotten_engine.py --stopped 2 --late --order write,read   # they are forgotten while it stands still and its kernel has confirmed what came
    python forgotten_engine.py --cut 12 --order write     # no packet arrives for so many seconds

Prints and writes what the calls came to, and how long they took. A process of its own: it moves into namespaces.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import forgotten
import lossy

PEER = pathlib.Path(__file__).resolve().parent.parent / "system" / "engine_peer.py"
CALLS, SIZE = 4, 48 << 20


class Engine:
    def __init__(self, host, log):
        environment = {**os.environ, "MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "WARNING", "MC_TCP_LANES_PER_PEER": "4"}
        self.process = host.popen([sys.executable, "-B", PEER, host.address, "P2PHANDSHAKE", SIZE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=log, text=True, env=environment)
        code, port, self.address = map(int, self.process.stdout.readline().split())
        assert code == 0
        self.target = f"{host.address}:{port}"

    def ask(self, *words):
        lossy.tell(self.process, " ".join(map(str, words)))
        return self.process.stdout.readline().strip()


def measured(near, far, what, size):
    took, codes = [], []
    for _ in range(CALLS):
        start = time.monotonic()
        codes.append(int(near.ask(what, far.target, far.address, size)))
        took.append(1000 * (time.monotonic() - start))
    return {"codes": codes, "slowest ms": max(took)}


def run(arguments):
    network = lossy.Network.make()
    if not network.real:
        return None
    hosts = [network.host(name) for name in ("near", "far")]
    log = pathlib.Path(tempfile.mkdtemp(prefix="mc-forgotten-")) / "near.log"
    engines = []
    try:
        with open(log, "ab") as file:
            engines = near, far = [Engine(host, where) for host, where in zip(hosts, (file, subprocess.DEVNULL))]
        assert near.ask("write", far.target, far.address, 16 << 20) == "0"  # over several connections
        figures = {"connections": 0}
        if arguments.stopped:
            far.process.send_signal(signal.SIGSTOP)
            if arguments.late:
                threading.Timer(arguments.stopped / 2, forgotten.forget, [hosts[0], [hosts[1]]]).start()
            threading.Timer(arguments.stopped, far.process.send_signal, [signal.SIGCONT]).start()
        elif arguments.cut:
            hosts[1].partition()
            threading.Timer(arguments.cut, hosts[1].heal).start()
        else:
            figures["connections"] = forgotten.forget(hosts[0], [hosts[1]])
        figures.update({what: measured(near, far, what, arguments.bytes) for what in arguments.order.split(",")})
        figures["same bytes"] = near.ask("crc", 0, arguments.bytes) == far.ask("crc", 0, arguments.bytes)
        figures["log"] = log.read_text()
        return figures
    finally:
        for engine in engines:
            engine.process.kill()
            engine.process.wait()
        network.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", default="write,read")
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--stopped", type=float, default=0)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--cut", type=float, default=0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    figures = run(arguments)
    print(json.dumps(figures, indent=4))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
