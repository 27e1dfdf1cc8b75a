"""The machine itself, by Debian's own tools and none of our code: when these fail, the other tests of this lane say nothing."""
import pathlib
import socket
import subprocess

import pytest

import cables
import cluster


def attribute(device, name):
    return (cables.CLASS / device / "ports/1" / name).read_text().strip()


def test_devices():
    assert cables.COUNT >= 2
    for number, device in enumerate(cables.DEVICES):
        assert attribute(device, "state") == "4: ACTIVE"
        assert attribute(device, "link_layer") == "Ethernet"
        mapped = socket.inet_aton(cables.address(number)).hex()
        assert attribute(device, "gids/1").replace(":", "") == "0" * 20 + "ffff" + mapped
        assert attribute(device, "gids/0").startswith("fe80:")
        for index in (0, 1):
            assert attribute(device, f"gid_attrs/types/{index}") == "RoCE v2"
            assert attribute(device, f"gid_attrs/ndevs/{index}") == f"nic{number}"
    assert "active_mtu:\t\t4096 (5)" in subprocess.run(["ibv_devinfo", "-d", "rxe0"], capture_output=True, text=True, check=True).stdout
    assert pathlib.Path("/dev/infiniband/rdma_cm").exists()


def pair(server, client, seconds=30):
    """Runs a program that waits for another, and that other, tried until the first listens; their exit codes and what they printed."""
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as waiting:
        try:
            for _ in range(20):
                done = subprocess.run(client, capture_output=True, text=True, timeout=seconds)
                if done.returncode == 0 or waiting.poll() is not None or "connect" not in done.stdout + done.stderr:
                    break
            said = done.stdout + done.stderr
            if done.returncode != 0:
                waiting.kill()
            said += waiting.communicate(timeout=seconds)[0]
            return waiting.returncode, done.returncode, said
        finally:
            waiting.kill()


def pingpong(one, other):
    command = ["ibv_rc_pingpong", "-g", "1", "-c", "-n", "50", "-s", "65536", "-p", "18600"]
    return pair([*command, "-d", f"rxe{one}"], [*command, "-d", f"rxe{other}", "127.0.0.1"])


@pytest.mark.parametrize("other", range(1, cables.COUNT))
def test_pingpong(other):
    """Reliable connections set up out of band, contents checked; the bytes crossed the two cables."""
    before = cables.carried_by_all()
    server, client, said = pingpong(0, other)
    assert (server, client) == (0, 0), said
    for number in (0, other):
        assert cables.carried(number) - before[number] > 2 * 50 * 65536


def test_connection_manager():
    """Connections set up by rdma_cm, contents checked."""
    before = cables.carried(1)
    for _ in range(3):  # a client that is there before the server listens is rejected
        server, client, said = pair(["rping", "-s", "-V", "-C", "20", "-S", "32768", "-a", cables.address(0)],
                                    ["rping", "-c", "-V", "-C", "20", "-S", "32768", "-a", cables.address(0), "-I", cables.address(1)])
        if "REJECTED" not in said:
            break
    assert (server, client) == (0, 0), said
    assert cables.carried(1) - before > 20 * 32768


def test_cable():
    """A pulled cable is seen at its port and stops what needs it, and nothing else; plugged again, all goes on."""
    cables.pull(1)
    cluster.wait_until(lambda: not cables.is_active(1), 20, "the port of rxe1 goes down")
    assert [cables.is_active(number) for number in range(cables.COUNT)].count(False) == 1
    before = cables.carried(1)
    with pytest.raises(subprocess.TimeoutExpired):
        pingpong_for(3, 0, 1)
    assert cables.carried(1) - before < 65536
    if cables.COUNT > 2:
        assert pingpong(0, 2)[:2] == (0, 0)
    cables.plug(1)
    cables.wait_active(1)
    server, client, said = pingpong(0, 1)
    assert (server, client) == (0, 0), said


def pingpong_for(seconds, one, other):
    command = ["ibv_rc_pingpong", "-g", "1", "-c", "-n", "50", "-s", "65536", "-p", "18601"]
    return pair([*command, "-d", f"rxe{one}"], [*command, "-d", f"rxe{other}", "127.0.0.1"], seconds)
