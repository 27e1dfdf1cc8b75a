"""The line that replays a failing seed replays the same run: with each option that changes what happens."""
import re
import subprocess
import sys

SIM = sys.argv[1]
RUNS = ["", "--only kill_master --only reboot --disks", "--only none", "--only kill_owner --only clock --without clock --diskless",
        "--without kill_master --without reboot --plain", "--mild --noteless --dozes --narrow", "--hard --wide --owners 2 --clients 2 --threads 1 --keys 3 --operations 60"]


def run(options):
    return subprocess.run([SIM, *options.split()], capture_output=True, text=True, timeout=60).stdout


def run_hash(options):
    return re.search(r"hash ([0-9a-f]{16}), .* operations", run(options))[1]


found = []
for options in RUNS:
    found.append([])
    for seed in (3, 8):
        asked = f"--seed {seed} {options}"
        replay = re.search(r"replay: \./dev sim (.*) --trace\n", run(asked + " --fails"))[1]
        found[-1].append(run_hash(asked))
        assert run_hash(replay) == found[-1][-1], (asked, replay)
        assert run_hash(asked + " --trace") == found[-1][-1], (asked, "what is only looked at is another run")
assert len(set(map(tuple, found))) == len(RUNS), "an option that changes no seed proves nothing"
