"""The laboratory itself: its hosts differ as machines do, and its network does what it is told."""
import json
import os
import subprocess
import sys
import time

# Sends and receives datagrams that begin with their number.
SEND = """
import socket, sys, time
address, count, pause, room = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(count):
    end.sendto(number.to_bytes(8, "big") + bytes(room), (address, 7000))
    time.sleep(pause)
"""
RECEIVE = """
import json, select, socket, sys
SO_RCVBUFFORCE = 33
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
end.bind(("0.0.0.0", 7000))
print("ready", flush=True)
got, silence = [], None
while True:
    ready = select.select([end] if silence else [end, sys.stdin], [], [], silence)[0]
    if end in ready:
        got.append(int.from_bytes(end.recv(2000)[:8], "big"))
    elif ready:
        silence = float(sys.argv[1])  # all are sent: what is still on its way comes soon
    else:
        break
print(json.dumps(got))
"""
ECHO = """
import socket, time
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.bind(("0.0.0.0", 7001))
print("ready", flush=True)
while True:
    data, peer = end.recvfrom(100)
    end.sendto(data, peer)
"""
ASK = """
import json, socket, sys, time
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.settimeout(20)
times = []
for _ in range(20):
    start = time.monotonic()
    end.sendto(b"hello", (sys.argv[1], 7001))
    end.recv(100)
    times.append(time.monotonic() - start)
print(json.dumps(sorted(times)))
"""
STREAM = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 7002))
print("ready", flush=True)
peer, _ = server.accept()
start, total = None, 0
while data := peer.recv(1 << 20):
    start = start or time.monotonic()
    total += len(data)
print(total / (time.monotonic() - start))
"""
PUSH = """
import socket, sys
socket.create_connection((sys.argv[1], 7002)).sendall(bytes(int(sys.argv[2])))
"""


def python(host, text, *words, **more):
    return host.popen([sys.executable, "-c", text, *map(str, words)], stdout=subprocess.PIPE, text=True, **more)


def datagrams(sender, receiver, count, pause=0.0, silence=0.5, room=0):
    """The numbers that arrive, in their order: until nothing has come for so long after the last was sent, however long the sender needs to start."""
    inbox = python(receiver, RECEIVE, silence, stdin=subprocess.PIPE)
    assert inbox.stdout.readline() == "ready\n"
    assert python(sender, SEND, receiver.address, count, pause, room).wait(30) == 0
    return json.loads(inbox.communicate(timeout=30)[0])


def test_hosts_differ_as_machines_do(make_lab):
    lab = make_lab(seed=5)
    one, two = lab.host("one"), lab.host("two")
    look = "import time; print(open('/proc/sys/kernel/random/boot_id').read().strip(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    seen = {}
    for host in (one, two):
        assert host.run(["hostname"]).stdout.strip() == host.name
        boot_id, monotonic, boottime = host.run([sys.executable, "-c", look]).stdout.split()
        seen[host.name] = boot_id, float(monotonic), float(boottime)
        assert boot_id == host.boot_id
    assert abs(seen["one"][1] - seen["two"][1]) > 60 and abs(seen["one"][2] - seen["two"][2]) > 60
    assert abs((seen["one"][2] - seen["one"][1]) - (seen["two"][2] - seen["two"][1])) > 60, "one has slept longer than the other"


CLOCKS = """
import ctypes, time
libc = ctypes.CDLL(None)
print("ready", flush=True)
while True:
    input()
    times = [time.clock_gettime(clock) for clock in (time.CLOCK_REALTIME, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC)]
    print(*times, libc.time(None), open("/proc/sys/kernel/random/boot_id").read().strip(), flush=True)
"""


def test_clocks_are_set_drift_sleep_and_begin_anew(make_lab):
    lab = make_lab(clocks="boot", fake_clocks=True)
    host, other = lab.host("one"), lab.host("two")
    watched = []

    def watch(host):
        child = python(host, CLOCKS, stdin=subprocess.PIPE, env={**os.environ, **host.environment()})
        assert child.stdout.readline() == "ready\n"
        watched.append(child)
        return child

    def look(child):
        """How far the wall clock and the boot-time clock are before the monotonic one, which nobody touches; and the boot id."""
        child.stdin.write("\n")
        child.stdin.flush()
        wall, boot, monotonic, whole, boot_id = child.stdout.readline().split()
        assert abs(float(wall) - float(whole)) < 1.1  # time() is the same clock
        return float(wall) - float(monotonic), float(boot) - float(monotonic), boot_id
    try:
        child, beside = watch(host), watch(other)
        wall, boot, boot_id = look(child)
        beside_before = look(beside)
        host.clock.step_wall(-3600)
        now = look(child)
        assert abs(wall - 3600 - now[0]) < 0.1 and abs(boot - now[1]) < 0.1
        host.clock.sleep(600)
        now = look(child)
        assert abs(wall - 3000 - now[0]) < 0.1 and abs(boot + 600 - now[1]) < 0.1
        host.clock.drift(100_000)
        time.sleep(2)
        host.clock.drift(0)
        fast = look(child)[1] - now[1]
        assert 0.19 < fast < 0.6
        time.sleep(0.5)
        assert abs(look(child)[1] - now[1] - fast) < 0.05, "what it gained stays, and is not more"
        assert abs(look(beside)[0] - beside_before[0]) < 0.1 and abs(look(beside)[1] - beside_before[1]) < 0.1, "another host has its own"
        child.kill()
        host.reboot()
        again = watch(host)
        again.stdin.write("\n")
        again.stdin.flush()
        words = again.stdout.readline().split()
        assert 29 < float(words[1]) < 40 and words[4] == host.boot_id != boot_id
    finally:
        for child in watched:
            child.kill()
            child.wait()


def test_a_network_that_is_told_nothing_loses_nothing(make_lab):
    lab = make_lab()
    assert datagrams(lab.host("one"), lab.host("two"), 500) == list(range(500))


def test_loss_is_drawn_from_the_seed_for_each_way(make_lab):
    arrived = {}
    for seed, again in ((1, 0), (1, 1), (2, 0)):
        lab = make_lab(seed=seed, loss=0.1)
        arrived[seed, again] = datagrams(lab.host("one"), lab.host("two"), 1000)
        lost = 1000 - len(arrived[seed, again])
        assert 50 < lost < 160, lost
        assert lab.switch.stats()[1, 2].lost == lost
    assert arrived[1, 0] == arrived[1, 1] != arrived[2, 0]
    lab.switch.rule(1, 2, loss=0)
    assert datagrams(lab.host("one"), lab.host("two"), 300) == list(range(300))
    assert len(datagrams(lab.host("two"), lab.host("one"), 300)) < 300, "the other way has its own rule"


def test_delay_and_reordering(make_lab):
    lab = make_lab(delay_ms=5)
    one, two = lab.host("one"), lab.host("two")
    echo = python(two, ECHO)
    assert echo.stdout.readline() == "ready\n"
    times = json.loads(python(one, ASK, two.address).communicate(timeout=30)[0])
    echo.kill()
    assert 0.010 <= times[0] < 0.1, times
    lab.switch.rule("*", "*", reorder=0.2)
    arrived = datagrams(one, two, 500, pause=0.0002)
    assert sorted(arrived) == list(range(500)) != arrived


def test_a_line_has_a_rate_and_a_queue(make_lab):
    lab = make_lab(rate=1_000_000)
    one, two = lab.host("one"), lab.host("two")
    sink = python(two, STREAM)
    assert sink.stdout.readline() == "ready\n"
    assert python(one, PUSH, two.address, 1_500_000).wait(30) == 0
    assert 600_000 < float(sink.communicate(timeout=30)[0]) < 1_050_000
    assert len(datagrams(one, two, 1000, room=1000)) < 1000, "a queue that is full loses"
    assert lab.switch.stats()[1, 2].overflowed > 0


def test_cut_one_way_and_healed(make_lab):
    lab = make_lab()
    one, two, three = (lab.host(name) for name in ("one", "two", "three"))
    one.deafen(two)
    assert datagrams(one, two, 10) == []
    assert datagrams(two, one, 10) == datagrams(one, three, 10) == list(range(10))
    one.heal()
    one.partition()
    assert datagrams(one, two, 10) == datagrams(three, one, 10) == []
    one.heal()
    assert datagrams(one, two, 10) == list(range(10))


def resolves(host, name, seconds=20):
    done = host.run(["timeout", seconds, "getent", "ahostsv4", name], check=False)
    return done.stdout.split()[0] if done.stdout else done.returncode


def test_names_are_resolved_slowly_not_at_all_or_wrong(make_lab):
    lab = make_lab()
    one, two = lab.host("one"), lab.host("two")
    late, unknown = 124, 2  # as timeout and getent say
    assert resolves(one, "two") == two.address and resolves(one, "ONE") == one.address
    assert resolves(one, "nobody") == unknown
    for mode, answer in (("silent", late), ("wrong", "10.77.0.253"), ("unknown", unknown)):
        lab.resolver.mode(one, mode)
        assert resolves(one, "two", 1 if answer == late else 20) == answer, mode
        assert resolves(two, "one") == one.address
    lab.resolver.mode(one, "slow", 700)
    assert resolves(one, "two", 0.5) == late
    assert resolves(one, "two") == two.address
    lab.resolver.mode("*", "silent", only="two")
    assert resolves(one, "two", 1) == late and resolves(two, "one") == one.address
    assert lab.resolver.asked()[one.address] > 0
