#!/usr/bin/env python3
"""What keys and TLS cost: the same work without them, with keys, and with TLS, in turn, in one run, beside what the cipher alone can do.

    ./dev bench secure [--rounds 6] [--only keys]

Each round starts a deployment (master, store node, client, all on one core) of every kind, and gives them the same work in turns of a quarter
of a second, in an order that rotates; a ratio is taken within a turn, to the one without anything, so that a machine whose speed changes from
second to second changes both. "ratio" is the median of all turns, and within which bounds it is by 95 of 100 (by the order of the turns' ratios,
as if none depended on the one before). "again" is another one without anything: its ratio should be 1. A bar that lies within the bounds is not decided.
Without a path in its name a row goes the way of one machine (shared memory), "tcp" rows go over TCP. TLS counts there only. Rates are of all processes together on one core, so are those of the cipher: a byte is encrypted once and decrypted once.
The bars: with keys at most 3 % slower (small) and 1 % (16 MiB); TLS at least 70 % of what the cipher alone allows.
"""

import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import paths  # noqa: F401, before what it makes importable
import certificates
import contestants.base
import figures
import store
from contestants import Cluster, Ours
from figures import spread_of, times_as_good

MIB = store.MIB
SEGMENT = 512 * MIB
LARGE = 16 * MIB
ROUNDS = 4
TURNS = 40  # of each round
KINDS = ("off", "again", "keys", "tls")
# title, step, figure, less is better, at least so good with keys
WORKS = [
    ("put 4 KiB, p50, us", "small", "put_us", True, 0.97),
    ("get 4 KiB, p50, us", "small", "get_us", True, 0.97),
    ("is_exist, per s", "exist", "exist_per_s", False, 0.97),
    ("batch_is_exist of 128, keys/s", "exist", "batch_exist_keys_per_s", False, 0.97),
    ("batch put 128 x 4 KiB, per s", "batch", "batch_put_per_s", False, 0.97),
    ("batch get 128 x 4 KiB, per s", "batch", "batch_get_per_s", False, 0.97),
    ("put_from 16 MiB, GB/s", "transfer", "put_gbps", False, 0.99),
    ("get_into 16 MiB, GB/s", "transfer", "get_gbps", False, 0.99),
]
CIPHER_PART = 0.70


class Kind(Ours):
    """This tree, with keys or TLS, or without."""

    def __init__(self, kind, tcp, folder):
        super().__init__(tcp)
        self.kind, self.tcp = kind, tcp
        self.name = f"{kind}-tcp" if tcp else kind
        build = pathlib.Path(paths.os.environ["MC_BUILD"])
        self.use_build(sys.executable, paths.os.environ["MC_PYTHONPATH"], build / "mooncake_master", None)
        self.flags = []
        if kind == "keys":
            self.flags = [f"--auth_file={folder / 'keys'}"]
            self.env = {**self.env, "MC_AUTH_TOKEN": (folder / "token").read_text().strip()}
        elif kind == "tls":
            self.env = {**self.env, "MC_TLS_CA_CERT": str(folder / "ca.pem"), "MC_TLS_CERT": str(folder / "node.pem"), "MC_TLS_KEY": str(folder / "node.key")}

    def server_command(self, port, metrics_port):
        return [*super().server_command(port, metrics_port), *self.flags]

    def health_url(self, metrics_port):
        return ""  # with keys the page is not everybody's


def prepare(folder):
    """A file of keys, a token of it, an authority, and a certificate for 127.0.0.1."""
    program = pathlib.Path(paths.os.environ["MC_BUILD"]) / "mooncake_key"
    subprocess.run([program, "new", folder / "keys", "bench", "read,write,node"], check=True, capture_output=True)
    token = subprocess.run([program, "token", folder / "keys", "bench"], check=True, capture_output=True, text=True).stdout
    (folder / "token").write_text(token)
    certificates.Authority(folder, "ca").sign("node", ["IP:127.0.0.1", "DNS:localhost"], days=2)


def cipher_gbps():
    """Of one core: {name: GB/s of encrypting and decrypting each byte once}, records of 16 KiB."""
    found = {}
    for name in ("aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"):
        both = []
        for way in ([], ["-decrypt"]):
            command = ["taskset", "-c", str(min(contestants.base.affinity("pinned"))), "openssl", "speed", "-mr", "-seconds", "1", "-bytes", "16384", *way, "-evp", name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            rate = re.search(r"^\+F:\d+:[^:]+:([\d.]+)", done.stdout, re.M)
            if rate:
                both.append(float(rate[1]) / 1e9)
        if len(both) == 2:
            found[name] = 1 / (1 / both[0] + 1 / both[1])
    return found


class Run(contestants.base.Run):
    def turn(self, cluster):
        client, name = cluster.client, cluster.contestant.name
        for step in ({"step": "small", "count": 120}, {"step": "batch", "batches": 4}, {"step": "exist", "seconds": 0.02},
                     {"step": "transfer", "size": LARGE, "total": 3 * LARGE}):  # fmt: skip
            result = client.ask(**step)
            if result["errors"]:
                self.problem(f"{name}, {step['step']}: {result['errors']} calls failed or gave wrong bytes; see {self.logs}")
            for figure, value in result.items():
                self.figures.setdefault((name, step["step"], figure), []).append(value)

    def round(self, kinds, number):
        clusters = [Cluster(kind, "pinned", self.logs, SEGMENT) for kind in contestants.base.in_turn(kinds, number)]
        try:
            for cluster in clusters:
                cluster.start()
                cluster.client.ask(step="buffers", size=3 * LARGE)
                cluster.client.ask(step="fill", capacity=SEGMENT)
            for turn in range(2 if self.quick else TURNS):
                for cluster in contestants.base.in_turn(clusters, turn) if turn % 2 == 0 else reversed(contestants.base.in_turn(clusters, turn)):
                    self.turn(cluster)
        finally:
            for cluster in clusters:
                cluster.__exit__()


def bounds_of(ratios):
    """Within which the median is by 95 of 100: two of the ratios themselves, as many from its ends as a fair coin allows."""
    ordered, count = sorted(ratios), len(ratios)
    less = max(0, int(count / 2 - 0.98 * count ** 0.5) - 1)
    return ordered[less], ordered[count - 1 - less]


def report(run, kinds, cipher):
    """Lines, and how many bars are missed."""
    lines, missed = [f"cipher alone, one core, each byte encrypted and decrypted once: {', '.join(f'{name} {rate:.2f} GB/s' for name, rate in cipher.items())}", ""], 0
    form = "{:<36} {:<8} {:<28} {:<24} {}"
    lines.append(form.format("work", "with", "median (min-max)", "ratio to off (bounds)", ""))
    for tcp in ("", "-tcp"):
        for title, step, figure, lower, bar in WORKS:
            off = run.figures.get((f"off{tcp}", step, figure), [])
            for kind in KINDS:
                mine = run.figures.get((f"{kind}{tcp}", step, figure), [])
                if not mine or not off:
                    continue
                ratios = times_as_good(lower, mine, off)
                good, note, (low, high) = True, "", bounds_of(ratios)
                if kind == "keys":
                    good = low >= bar
                    note = f"{'PASS' if good else 'MISS' if high < bar else 'NOT DECIDED'} (at least {bar})"
                elif kind == "tls" and "gbps" in figure and cipher:
                    part = statistics.median(mine) / cipher["aes-256-gcm"]
                    good = part >= CIPHER_PART
                    rest = 1 / (1 / cipher["aes-256-gcm"] + 1 / statistics.median(off))
                    note = f"{'PASS' if good else 'MISS'}: {part:.2f} of the cipher alone (at least {CIPHER_PART}), {statistics.median(mine) / rest:.2f} of cipher and plain way together"
                missed += not good
                ratio = f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})" if kind != "off" else ""
                lines.append(form.format(f"{'tcp ' if tcp else ''}{title}", kind, spread_of(mine), ratio, note).rstrip())
    return lines, missed


def main():
    parser = figures.parser_of(__doc__, "less of everything", rounds=f"{ROUNDS}; with --quick 1", keep=False)
    parser.add_argument("--only", action="append", choices=KINDS[2:], help="keys or tls alone")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else ROUNDS)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mooncake-secure-"))
    try:
        prepare(folder)
        wanted = [kind for kind in KINDS if kind in KINDS[:2] or not arguments.only or kind in arguments.only]
        kinds = [Kind(kind, tcp, folder) for tcp in (False, True) for kind in wanted if tcp or kind != "tls"]
        run = Run(arguments, store.ROOT / ".cache")
        conditions = figures.Conditions(arguments).begin()
        cipher = cipher_gbps()
        for number in range(arguments.rounds):
            run.attempt_and_say(f"round {number + 1} of {arguments.rounds}", run.round, kinds, number)
        lines, missed = report(run, kinds, cipher)
        said = conditions.end(arguments.rounds, [], run.problems)
        document = {"figures": {": ".join(names): values for names, values in run.figures.items()}, "cipher": cipher, "missed": missed}
        arguments.keep = False
        return figures.finish("secure", arguments, said, lines + ["", f"{missed} bars missed or not decided"], document, run.problems)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
