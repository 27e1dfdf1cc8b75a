"""The file system of the master's note hangs: writes into the page cache, and the waits for the disk. Nobody waits for it."""
import contextlib
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

import cluster
import secured
from cluster import wait_until
from python_cluster import MISSING, joined
from store_process import StoreProcess
from wire import GET, HELLO, ROLE_CALL, Connection, data, frame, hello, record, records

if cluster.SANITIZED:
    pytest.skip("a sanitizer's runtime comes first", allow_module_level=True)

LATE_S = 20  # for what takes milliseconds, or for ever

REMOVER = """
import os, sys
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
for key in sys.stdin:
    print(store.remove(key.strip(), True), flush=True)
"""


class Hanging:
    """A master whose note hangs as long as the flag is there."""

    def __init__(self, folder):
        self.flag = folder / "hangs"
        self.disk_flag = folder / "hangs.disk"
        self.slow_flag = folder / "hangs.slow"
        self.records_flag = folder / "hangs.records"
        self.open_flag = folder / "hangs.open"
        self.flags = [self.flag, self.disk_flag, self.slow_flag, self.records_flag, self.open_flag]
        shim = cluster.BUILD / "tests" / "libhung_note.so"
        self.master = cluster.Master(environment={"LD_PRELOAD": str(shim), "MC_TEST_HANGS": str(self.flag)})


@pytest.fixture
def hanging(tmp_path):
    made = Hanging(tmp_path)
    with made.master:
        yield made
        for flag in made.flags:
            flag.unlink(missing_ok=True)


def in_time(function, *arguments):
    """What it returns, where it does: it may be called into a master that stands still for ever."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*arguments)), daemon=True)
    thread.start()
    thread.join(LATE_S)
    assert result, f"{function.__name__} has not returned in {LATE_S} s"
    return result[0]


def says_late(master, node, seen):
    """One hello of a node that has met a master of that epoch."""
    said = struct.pack("<IHHBQ16sQQ", 0x4E4F4F4D, 1, 1, ROLE_CALL, 0, node, 1, 0) + data(b"t") + data(b"") + struct.pack("<QI", seen, 10)
    try:
        with secured.connection("127.0.0.1", master.port, 5) as stranger:
            stranger.sendall(frame(HELLO, 1, record(said)))
            stranger.recv(1)
    except OSError:
        pass


def epoch_of(master):
    return (hello(master.port, 5) or (1, 0))[1]


def test_nobody_waits_for_a_note_that_hangs(hanging):
    master = hanging.master
    with StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("before", b"before") == 0)
        wait_until(lambda: client.remove("nothing", True) == MISSING, 30)  # it is of age
        hanging.flag.touch()
        end = time.monotonic() + 4  # what was written ahead is over long before
        count = 0
        while time.monotonic() < end:
            assert in_time(client.put, f"key-{count}", b"value") == 0
            assert in_time(client.get, f"key-{count}") == b"value"
            assert in_time(client.get, "before") == b"before"
            assert master.get("/health", timeout_s=LATE_S)[0] == 200
            count += 1
        assert in_time(client.remove, "before", True) == 0
        assert in_time(client.get_size, "before") == MISSING
        hanging.flag.unlink()
        client.close()


def test_it_begins_again_while_its_note_hangs(hanging):
    master = hanging.master
    with StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("before", b"before") == 0)
        first = epoch_of(master)
        hanging.flag.touch()
        nodes = [os.urandom(16), os.urandom(16)]

        def begun_again():
            for node in nodes:
                says_late(master, node, first + 100000)
            time.sleep(0.3)
            return epoch_of(master) > first + 100000
        wait_until(begun_again, 2 * LATE_S, "a later epoch")
        assert master.get("/health", timeout_s=LATE_S)[0] == 200
        wait_until(lambda: in_time(client.put, "after", b"after") == 0, LATE_S)
        wait_until(lambda: in_time(client.get, "after") == b"after" and in_time(client.get, "before") == b"before", LATE_S)
        wait_until(lambda: "takes too long" in master.log(), LATE_S)
        last = epoch_of(master)
        hanging.flag.unlink()
        wait_until(lambda: in_time(client.remove, "before", True) == 0, 2 * LATE_S)
        master.kill()
        master.start()
        wait_until(lambda: client.get("after") == b"after", 2 * LATE_S)
        assert epoch_of(master) > last and client.get_size("before") == MISSING
        client.close()


def test_it_is_killed_while_its_note_is_behind(hanging):
    """What was acknowledged meanwhile is neither forgotten nor back, with an owner that was away for the master's whole life."""
    master = hanging.master
    with StoreProcess(master.address) as away, StoreProcess(master.address) as there:
        client = joined(master, 0)
        for number in range(40):
            wait_until(lambda number=number: client.put(f"key-{number}", b"value") == 0)
        client.close()
        cluster.hold_still(away.process.pid)
        master.kill()
        master.start()
        with subprocess.Popen([sys.executable, "-c", REMOVER, master.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as remover:

            def remove(number):
                remover.stdin.write(f"key-{number}\n".encode())
                remover.stdin.flush()
                return int(remover.stdout.readline())
            assert remove(0) in (0, MISSING)  # once the master has lived for three seconds
            hanging.flag.touch()
            time.sleep(1)  # longer than it writes ahead
            assert all(in_time(remove, number) in (0, MISSING) for number in range(1, 20))
            client = joined(master, 0)
            assert in_time(client.put, "new", b"new") == 0
            client.close()
            master.kill()
            remover.kill()
        hanging.flag.unlink()
        master.start()
        away.process.send_signal(signal.SIGCONT)
        client = joined(master, 0)
        wait_until(lambda: client.get("new") == b"new", LATE_S)
        time.sleep(1.5)  # a master trusts contents after a second
        assert all(client.get_size(f"key-{number}") == MISSING for number in range(20))
        assert sum(client.get(f"key-{number}") == b"value" for number in range(20, 40)) > 0  # those of who was there
        assert there.process.poll() is None
        client.close()


class Held:
    """A young master of which somebody wants a put that it may not answer yet."""

    def __init__(self, hanging, prepare=lambda: None):
        self.client = joined(hanging.master, 0)
        wait_until(lambda: self.client.put("before", b"before") == 0)
        before = epoch_of(hanging.master)
        hanging.master.kill()
        hanging.master.start()
        wait_until(lambda: epoch_of(hanging.master) > before)
        hanging.disk_flag.touch()  # it does not come of age
        self.client.close()
        self.client = joined(hanging.master, 0)
        wait_until(lambda: self.client.get_size("before") > 0, LATE_S)
        self.prepared = prepare()
        hanging.flag.touch()
        self.results = []
        self.thread = threading.Thread(target=lambda: self.results.append(self.client.put("key", b"value")), daemon=True)
        self.thread.start()


def test_what_the_note_does_not_say_is_not_answered(hanging):
    with StoreProcess(hanging.master.address):
        held = Held(hanging)
        held.thread.join(1.5)
        assert held.results == []
        hanging.flag.unlink()
        held.thread.join(LATE_S)
        assert held.results == [0]
        assert held.client.get("key") == b"value"
        hanging.disk_flag.unlink()
        held.client.close()


def test_a_disk_that_hangs_is_no_reason_to_answer(hanging):
    """The epoch that it has taken does not come to the disk, for longer than it waits. It still waits for the file."""
    master = hanging.master
    with StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("before", b"before") == 0)
        master.kill()
        hanging.disk_flag.touch()
        master.start()
        wait_until(lambda: client.put("young", b"young") == 0, LATE_S)
        hanging.flag.touch()
        time.sleep(0.4)  # longer than it writes ahead
        results = []
        thread = threading.Thread(target=lambda: results.append(client.put("key", b"value")), daemon=True)
        thread.start()
        thread.join(0.8)
        assert results == []
        thread.join(LATE_S)
        assert results == [0]
        hanging.flag.unlink()
        hanging.disk_flag.unlink()
        client.close()


def processor_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_who_asks_for_much_meanwhile_is_not_read(hanging):
    """More than 8 MiB of answers wait for it; the master rests."""
    master = hanging.master
    with StoreProcess(master.address):
        held = Held(hanging, lambda: Connection(master.port, ROLE_CALL, os.urandom(16)))
        asked = frame(GET, 9, record(struct.pack("<I", 0)) + records([data(b"before")] * 1024))

        def ask():
            with contextlib.suppress(OSError):  # closed below
                held.prepared.socket.sendall(asked * 600)
        threading.Thread(target=ask, daemon=True).start()
        time.sleep(0.8)
        before = processor_s(master.process.pid)
        time.sleep(0.5)
        used = processor_s(master.process.pid) - before
        assert held.results == []
        assert used < 0.2, used
        hanging.flag.unlink()
        hanging.disk_flag.unlink()
        held.thread.join(LATE_S)
        assert held.results == [0]
        held.prepared.close()
        held.client.close()


def test_it_is_killed_before_it_answers(hanging):
    with StoreProcess(hanging.master.address):
        held = Held(hanging)
        time.sleep(1)
        hanging.master.kill()
        held.thread.join(1)
        assert 0 not in held.results
        hanging.flag.unlink()
        hanging.disk_flag.unlink()
        hanging.master.start()
        held.thread.join(4 * LATE_S)
        wait_until(lambda: held.client.get("before") == b"before", LATE_S)
        held.client.close()


def test_it_begins_while_its_note_hangs(hanging):
    """One and a half second in all, whether its process waits or its loop."""
    wait_until(lambda: epoch_of(hanging.master) > 0)
    hanging.master.kill()
    hanging.flag.touch()
    start = time.monotonic()
    hanging.master.start()
    assert in_time(epoch_of, hanging.master) > 0
    assert 1 < time.monotonic() - start < 3


def told(master):
    """The id of the cluster, as a hello is answered with it: 16 bytes, of zero while it is not told."""
    caller = Connection(master.port, ROLE_CALL, os.urandom(16))
    caller.close()
    return caller.cluster()


def wakes(master):
    """How often its loop has waited."""
    status = pathlib.Path(f"/proc/{master.process.pid}/task/{master.process.pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE).group(1))


def test_nobody_is_told_a_name_that_the_note_does_not_have(hanging):
    """Should it be killed, the next one would make another cluster, in which who was told this one is a stranger."""
    master = hanging.master
    with StoreProcess(master.address):
        hanging.flag.touch()
        made = re.compile(r"this is cluster (\w{16})(\w{16}), made by this master")
        wait_until(lambda: made.search(master.log()), 90, "the end of the recovery window")
        end = time.monotonic() + 13  # longer than a disk is waited for
        while time.monotonic() < end:
            assert in_time(told, master) == bytes(16)
            time.sleep(0.5)
        before = wakes(master)
        time.sleep(1)
        assert wakes(master) - before < 100  # not as often as while it may still come at any moment
        assert "nobody is told the id of this cluster yet" in master.log()
        hanging.flag.unlink()
        high, low = (int(half, 16) for half in made.search(master.log()).groups())
        name = struct.pack("<QQ", low, high)
        wait_until(lambda: in_time(told, master) == name, LATE_S)


def test_a_name_that_the_operator_says_is_told_though_the_note_hangs(hanging):
    """Not at once, but after the time that a disk is waited for: the next master has it from the operator, too."""
    master = hanging.master
    wait_until(lambda: epoch_of(master) > 0)
    master.kill()
    master.flags.append("--cluster_uuid=" + "ab" * 16)
    hanging.flag.touch()
    master.start()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert in_time(told, master) == bytes(16)
        time.sleep(0.5)
    wait_until(lambda: in_time(told, master) != bytes(16), LATE_S)
    assert told(master) == bytes.fromhex("ab" * 16)


def test_a_note_that_is_slow(hanging):
    """Each write takes longer than the note is written ahead: it comes of age all the same, and lets go who has left."""
    master = hanging.master
    with StoreProcess(master.address) as away, StoreProcess(master.address):
        hanging.slow_flag.touch()
        client = joined(master, 0)
        for number in range(20):
            wait_until(lambda number=number: client.put(f"key-{number}", b"value") == 0)
        master.kill()
        begun = time.monotonic()
        master.start()
        wait_until(lambda: client.remove("nothing", True) == MISSING, 4 * LATE_S)
        assert time.monotonic() - begun < 9  # three seconds, and what the master needs to hear of it
        wait_until(lambda: all(client.get_size(f"key-{number}") == 5 for number in range(20)), LATE_S)
        cluster.hold_still(away.process.pid)
        begun = time.monotonic()
        for number in range(20):
            wait_until(lambda number=number: client.remove(f"key-{number}", True) in (0, MISSING), 4 * LATE_S)
        assert time.monotonic() - begun < 9
        away.process.send_signal(signal.SIGCONT)
        client.close()


def test_the_record_has_to_say_how_long_it_was_young(hanging):
    """Before it removes anything, though writing the record takes two seconds and writing its age nothing."""
    master = hanging.master
    with StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("before", b"before") == 0)
        wait_until(lambda: client.remove("nothing", True) == MISSING, LATE_S)
        master.kill()
        begun_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000000
        master.start()
        wait_until(lambda: client.put("now", b"now") == 0, LATE_S)
        hanging.records_flag.touch()
        wait_until(lambda: client.remove("before", True) == 0, LATE_S)
        master.kill()
        note = (pathlib.Path(master.state_dir.name) / f"master-{master.port}.note").read_bytes()
        epoch, until_ms = struct.unpack_from("<QQ", note, 32)
        assert max(struct.unpack_from("<Q", note, at + 8)[0] for at in (512, 1024)) == epoch
        assert until_ms >= begun_ms + 3000
        client.close()


USER = [] if os.geteuid() == 0 else ["--map-root-user"]
AS_FIRST = ["unshare", *USER, "--pid", "--fork", "--kill-child", "--"]  # of its PID namespace, as in a container: no signal ends it that it has no handler for


@pytest.mark.parametrize("before", [[], AS_FIRST], ids=["plain", "first"])
def test_it_is_stopped_before_it_can_read_its_note(hanging, before):
    master = hanging.master
    if before and subprocess.run([*before, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("a PID namespace cannot be made here")
    wait_until(lambda: epoch_of(master) > 0)
    master.kill()
    hanging.open_flag.touch()
    environment = {**os.environ, "STATE_DIRECTORY": master.state_dir.name, **master.environment}
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen([*before, str(master.program), "--rpc_port=0", "--metrics_port=0"], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(1)
                assert process.poll() is None
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[0]) if before else process.pid, number)
                assert process.wait(LATE_S) == 0
            finally:
                process.kill()


def test_a_stop_is_no_time_to_write_in(hanging):
    """As a sleep of the machine: what the note had of its time before, it has afterwards."""
    master = hanging.master
    with StoreProcess(master.address):
        held = Held(hanging)
        held.thread.join(0.5)
        cluster.hold_still(master.process.pid)
        time.sleep(2)
        master.process.send_signal(signal.SIGCONT)
        held.thread.join(0.4)
        assert held.results == []
        hanging.flag.unlink()
        hanging.disk_flag.unlink()
        held.thread.join(LATE_S)
        assert held.results == [0]
        held.client.close()


def test_a_sleep_is_no_time_to_come_to_the_disk_in(hanging):
    """A master that is to come of age waits ten seconds for a disk that hangs: while it ran, not by the clock."""
    master = hanging.master
    with StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("before", b"before") == 0)
        master.kill()
        hanging.disk_flag.touch()
        master.start()
        wait_until(lambda: client.put("young", b"young") == 0, LATE_S)
        time.sleep(4)  # it is to come of age, after three seconds
        cluster.hold_still(master.process.pid)
        time.sleep(11)
        master.process.send_signal(signal.SIGCONT)
        cluster.says(master, "this process stood still")
        wait_until(lambda: client.get("young") == b"young", LATE_S)
        assert "cannot be written to the disk" not in master.log()
        hanging.disk_flag.unlink()
        wait_until(lambda: client.remove("before", True) == 0, 2 * LATE_S)
        assert "cannot be written to the disk" not in master.log()
        client.close()


def test_it_ends_while_its_note_hangs(hanging):
    """It does, whatever does not come to an end, and the next one begins."""
    master = hanging.master
    wait_until(lambda: epoch_of(master) > 0)
    hanging.flag.touch()
    wait_until(lambda: in_time(epoch_of, master) > 0)
    master.stop()
    hanging.flag.unlink()
    master.start()
    assert epoch_of(master) > 0
