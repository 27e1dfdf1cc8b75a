"""Long work shows itself: on a terminal a line with how far, how fast and how much longer, which is gone at the end; elsewhere nothing of it."""
import contextlib
import os
import pathlib
import pty
import re
import socket
import subprocess
import threading
import time

import pytest

from cluster import BUILD, Master
from test_replay import Trace
from service_process import REST, Service
from wire import FakeOwner

PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("MC_AUTH", "MOONCAKE_"))}
WIPED = "\r\x1b[K"


class AtTerminal:
    """A command whose stderr is a terminal; `shown` is all that came there."""

    def __init__(self, *words):
        ours, theirs = pty.openpty()
        self.shown, self.ours = "", ours
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True, env=PLAIN)
        os.close(theirs)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        with contextlib.suppress(OSError):  # nobody has its other end any more
            while True:
                self.shown += os.read(self.ours, 4096).decode()

    def end(self, seconds=90):
        self.out = self.process.communicate(timeout=seconds)[0]
        self.reader.join(30)
        os.close(self.ours)
        return self.process.returncode


def check_both(pattern, *words, code=0):
    """At a terminal `pattern` is shown and wiped; through pipes no word of it."""
    shown = AtTerminal(*words)
    assert shown.end() == code, (shown.out, shown.shown)
    assert re.search(pattern, shown.shown), shown.shown
    last = re.sub(r"[IWE]\d{4} [^\r\n]*\r\n", "", shown.shown)  # the log may have the last word
    assert "\r" not in shown.out and re.search(r"\r\x1b\[K[^\r\[]*$", last), shown.shown
    piped = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=90, env=PLAIN)
    assert piped.returncode == code and not re.search(r"\r| left\b", piped.stdout + piped.stderr), piped
    return shown


def test_replay(tmp_path):
    trace = Trace(tmp_path / "slow.jsonl", 1000, spacing_ms=1000)
    check_both(r"\[#+\.+\] +\d+ %  \d+ of 1000 requests, [\d.]+/s, \d s left  hits ", BUILD / "mooncake_bench", "replay", trace.path, "--workers=2", "--capacity=48M", "--speed=10", "--duration=4")


@pytest.mark.parametrize("words, pattern", [
    (["work", "--operations=exist", "--seconds=3", "--keys=64"], r"exist  \[#+\.+\] +\d+ %  \d+ keys, \d+/s, [01] s left"),
    (["engine", "--operation=write", "--sizes=64K", "--seconds=3", "--total=16M"], r"step 1 of 1  \[#+\.+\] +\d+ %  [\d.]+ \wB, [\d.]+ \wB/s, [01] s left"),
    (["disk", "--seconds=2.5", "--total=16M", "--size=1M", "--path=FOLDER"], r"(write|read)  \[#+\.+\] +\d+ %  [\d.]+ \wB, [\d.]+ \wB/s, \d s left"),
    (["policy", "--synthetic=conversation", "--capacities=" + ",".join(["100000"] * 12)], r"[\w ()]+  \[[#.]+\] +\d+ %  \d+ of \d+ requests, [\d.]+/s, "),
])
def test_benchmarks(tmp_path, words, pattern):
    check_both(pattern, BUILD / "mooncake_bench", *(word.replace("FOLDER", str(tmp_path)) for word in words))


def test_drain():
    with Master("--client_ttl=600s") as master:
        owner = FakeOwner(master.port, "node-a:1")
        assert owner.put([b"%d" % number for number in range(22)], 4096) == [0] * 22
        command = [BUILD / "mooncake", f"--admin=127.0.0.1:{master.metrics_port}"]
        waiting = AtTerminal(*command, "drain", "node-a:1")
        time.sleep(3.5)
        assert re.search(r"drain  \[\.+\]   0 %  0 of 22 objects, 0.0/s, \d s so far", waiting.shown), waiting.shown
        subprocess.run([*map(str, command), "undrain", "node-a:1"], check=True, stdout=subprocess.DEVNULL, timeout=60, env=PLAIN)
        assert waiting.end() == 1 and WIPED + "mooncake: the drain has ended without success: CANCELED" in waiting.shown
        owner.close()


def test_doctor():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never says a word
        check_both(r"\rmaster  \d s so far  check \d+ of \d+", BUILD / "mooncake_doctor", f"--master=127.0.0.1:{silent.getsockname()[1]}", code=1)


def dev_with(folder, *last):
    """./dev by itself: its last line, which runs a command, is another one here."""
    lines = (pathlib.Path(os.environ["MC_SOURCE"]) / "dev").read_text().splitlines()
    assert lines[-1] == 'main "$@"; exit'
    script = folder / "dev"
    script.write_text("\n".join([*lines[:-1], f"cache={folder}", f"logs={folder}", *last]) + "\n")
    return script


def test_steps_of_dev(tmp_path):
    script = dev_with(tmp_path, """step slow sh -c 'for i in 1 2 3 4; do echo "line $i"; sleep 1; done'""")
    shown = AtTerminal("bash", script)
    assert shown.end() == 0 and re.search(r"\r  slow: [2-4] s  line [2-4]\x1b\[K", shown.shown) and shown.shown.endswith(WIPED), shown.shown
    assert re.fullmatch(r"  slow: done in \d s\n", shown.out), shown.out
    piped = subprocess.run(["bash", script], capture_output=True, text=True, timeout=60, env=PLAIN)
    assert piped.stderr == "" and re.fullmatch(r"  slow: done in \d s\n", piped.stdout), piped


@pytest.mark.parametrize("last, code, end", [
    ("show_begin slow; sleep 3.5; fail 'no such thing'", 1, WIPED + "dev: no such thing\r\n"),
    ("show_begin slow; sleep 3.5; false", 1, WIPED),
    ("start_results; show_begin slow; sleep 3.5; false", 1, WIPED),
    ("inner() { sleep 3.5; fail 'in its log'; }; step slow inner", 1, WIPED),
    ("show_begin slow; sleep 3.5; kill -INT $$; sleep 1", -2, WIPED),
    ("show_begin slow; sleep 3.5; kill -KILL $$", -9, WIPED),
], ids=["fail", "error", "results", "step", "interrupt", "kill"])
def test_ends_of_dev(tmp_path, last, code, end):
    """Whatever it ends by, nothing of its line stays, or is drawn any more."""
    shown = AtTerminal("bash", dev_with(tmp_path, last))
    assert shown.end() == code and re.search(r"\r  slow: \d s", shown.shown), shown.shown
    assert shown.shown.endswith(end), shown.shown
    assert not list(tmp_path.glob("results.*"))


def test_simulator():
    simulator = BUILD / "sim" / "mooncake_sim"
    if not simulator.exists():
        pytest.skip("it is there for x86-64 only")
    check_both(r"\[#+\.+\] +\d+ %  \d+ of 500 seeds, \d+/s, \d+ s left", simulator, "--seeds", "500", "--no-shrink", "--keep-going", "--skip", os.environ["MC_SOURCE"] + "/sim/seeds/open")


@pytest.fixture
def disk(tmp_path):
    """What a store node has left, and behind it holes, which stand for the hours that terabytes take."""
    with Master("--enable_offload") as master:
        node = Service("--port=0", "--global_segment_size=16MB", "--enable_ssd_offload", f"--master_server_address={master.address}", command=REST, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=str(tmp_path),
                       MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES="268435456")
        node.spawn().wait("is running")
        node.stop()
    folder = tmp_path / "mooncake-c.0"
    for number in range(4000):
        with open(folder / f"volume.{number}", "ab") as volume:
            volume.truncate(256 * 64 << 20)
    return folder


def test_disk(disk):
    shown = check_both(r"mooncake-c\.0  (\[#*\.*\])? +\d+ %  .*/s, \d+ \w+ left", BUILD / "mooncake_disk", "check", disk)
    assert shown.out.endswith("whole: every block of every object matches its checksum\n")
