#!/usr/bin/env python3
"""Faults on real processes, and a verdict on what their clients saw.

    MC_BUILD=.cache/build-release MC_PYTHONPATH=.cache/pypath-release python3 tests/faults/run.py --minutes 2 --seed 7

Starts a cluster on hosts of its own (network namespaces), lets clients put, get, remove and ask, harms one or two processes at a time (nemesis.py has
the list of faults), waits after every fault until all is well and what must be there is (keep.py), and judges the histories (checker.py). In the
last part of the run more is put than there is room for. Exit code 0: no violation, no call past its
deadline, nothing lost that had to stay, all recovered. --seed draws the same faults and operations again, though not the same timing.
MC_FAULT_MINUTES sets the length where --minutes does not: an hour is `MC_FAULT_MINUTES=60 ./dev test faults`, or this command with --minutes 60.
SIGTERM, SIGINT or SIGHUP end it early, with the verdict on what there was. It needs 0.5 GiB of disc, mostly for etcd's logs, and 5 MiB more for
each minute; --disks 0.3 GiB more for each minute and node. --etcd: what is harmed is etcd, in which three masters are elected; there must be a leader again two seconds and a lease after it is
well, and never two that acknowledge (leaders.py). With a build that is instrumented MC_FAULT_PRELOAD names the sanitizer's runtime. --expect lossy: objects may be lost when a master
restarts. --lab: on the hosts of a laboratory (tests/lab), whose network loses, delays and reorders all the time,
and whose clocks are set, drift, sleep and begin anew.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent / "lab")]
import conftest  # noqa: E402,F401  sets the environment

import harness  # noqa: E402
import trial as trials  # noqa: E402
from etcd_trouble import QUOTA, why_not  # noqa: E402
from hosts import Lab  # noqa: E402
from network import Network  # noqa: E402
from words import add_network_options  # noqa: E402


def expects_survival():
    """A master without recovery starts empty. It came with nodes that know a data directory."""
    return harness.data_option() is not None


def can_fail_over():
    text = subprocess.run([harness.BUILD / "mooncake_master", "--help"], capture_output=True, text=True).stdout
    line = next((line for line in text.splitlines() if line.startswith("  --enable_ha ")), "accepted")
    return "accepted" not in line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MC_FAULT_MINUTES", "2")))
    parser.add_argument("--seed", default=os.environ.get("MC_FAULT_SEED"))
    parser.add_argument("--masters", type=int, help="1, or 3 with an etcd of three members; default: 3 where the master can do it, else 1")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--keys", type=int, default=16, help="few keys: much happens to each")
    parser.add_argument("--crowd", type=int, default=harness.CROWD, help="in the last part of the run: so many keys more, for which the pool is too small; 0: none")
    parser.add_argument("--rate", type=float, default=600.0, help="calls per second of each client, about")
    parser.add_argument("--rolling", action="store_true", help="instead of faults: every process restarts in turn, a node joins, one leaves")
    parser.add_argument("--versions", choices=("this", "upgrade", "downgrade"), default="this",
                        help="of a rolling restart: from the last release (docs/versions.md) to this build, or back")
    parser.add_argument("--cold", action="store_true", help="nodes without a data directory")
    parser.add_argument("--disks", action="store_true", help="each node has a disk, on which all that is put is stored too; by the seed, one that never gives anything up, or a small one")
    parser.add_argument("--expect", choices=("auto", "lossy", "survive"), default=os.environ.get("MC_FAULT_EXPECT", "auto"))
    parser.add_argument("--etcd", type=int, choices=(1, 3), nargs="?", const=3,
                        help="trouble of an etcd of so many members (default 3): slow, full, emptied, brought back from a snapshot, and more (etcd_trouble.py), "
                             "often with a fault of one of three masters beside it")
    parser.add_argument("--only", default="", help="such faults alone, for example kill:master,stop:node; with --etcd: restored:etcd,kill:master")
    parser.add_argument("--absent", choices=("proves", "nothing"), default="proves",
                        help="whether a remove that answered 'no such object' proves that the value cannot come back")
    parser.add_argument("--json")
    parser.add_argument("--folder", action="store_true", help="keeps logs and histories also when all is good")
    parser.add_argument("--lab", action="store_true", help="a laboratory's hosts and network, as ./dev lab faults has them")
    add_network_options(parser, loss=0.001, delay_ms=1.0, rate_option="--line_rate")
    options = parser.parse_args()
    seed = options.seed or str(random.SystemRandom().randrange(10**6))
    masters = options.masters or (3 if can_fail_over() else 1)
    if options.etcd and (masters == 1 or options.lab or options.rolling or why_not()):
        raise SystemExit(f"--etcd: {why_not() or 'not with one master, --lab or --rolling'}")
    survives = options.expect == "survive" or options.expect == "auto" and expects_survival()
    length = "a rolling restart" if options.rolling else f"{options.minutes} minutes"
    print(f"faults: seed {seed}, {length}, {masters} master(s), {options.nodes} nodes, {options.clients} clients; "
          f"objects {'survive' if survives else 'may be lost with'} a master", flush=True)
    first = last = harness.THIS
    if options.versions != "this":
        old = harness.released.build(harness.BUILD.resolve().parent)
        if old is None:
            raise SystemExit(harness.released.WHY)
        first, last = (old, last) if options.versions == "upgrade" else (first, old)
    if options.lab and Lab.why_not():
        raise SystemExit(f"--lab: {Lab.why_not()}")
    # The histories compare monotonic times of several hosts: those have one such clock.
    network = Lab.of(options, int(seed) if seed.isdigit() else 0, clocks="boot", fake_clocks=True) if options.lab else Network.make()
    disks = random.Random(seed).choice((harness.SMALL_DISK, int(harness.LARGE_DISK * max(options.minutes, 1)))) if options.disks else 0
    cluster = harness.Cluster(network, seed, masters, options.nodes, options.clients, not options.cold, options.keys, options.rate, release=first,
                              crowd=options.crowd if options.versions == "this" else 0, members=options.etcd or 3,
                              etcd_flags=[f"--quota-backend-bytes={QUOTA}"] if options.etcd else None, disks=disks)
    try:
        trial = trials.Trial(cluster, 0 if options.rolling else options.minutes, survives, [word for word in options.only.split(",") if word],
                              upgrade=last)
        trial.absent_removes_prove = options.absent == "proves"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, trial.stop)
        result = trial.run()
    finally:
        cluster.end()
        network.end()
    trial.show(result)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    if result["good"] and not options.folder:
        cluster.forget()
    else:
        print(f"  logs and histories: {cluster.folder}")
    print(f"faults: {'good' if result['good'] else 'BAD'} (seed {seed})")
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
