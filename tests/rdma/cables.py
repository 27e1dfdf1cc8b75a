"""RDMA devices of the virtual machine and their cables.

rxeN lies on nicN, whose address is address(N). Its cable can be pulled and plugged; what the cable carried is counted by the kernel, so a test needs
nobody's word for which device moved its bytes. What a device sends to itself does not cross its cable: let the two sides use different devices.
"""
import fcntl
import pathlib
import socket
import struct

import cluster

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

CLASS = pathlib.Path("/sys/class/infiniband")
DEVICES = sorted(path.name for path in CLASS.glob("rxe*")) if CLASS.is_dir() else []
COUNT = len(DEVICES)


def address(number):
    return f"10.55.0.{number + 1}"


def _cable(number, is_in):
    """The switch's end goes up or down, by two system calls: a program would come too late to meet a transfer."""
    request = struct.Struct("16sh22x")
    name = f"sw{number}".encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = request.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, request.pack(name, 0)))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request.pack(name, flags | IFF_UP if is_in else flags & ~IFF_UP))


def pull(number):
    _cable(number, False)


def plug(number):
    _cable(number, True)


def is_active(number):
    return "ACTIVE" in (CLASS / f"rxe{number}/ports/1/state").read_text()


def wait_active(*numbers):
    cluster.wait_until(lambda: all(map(is_active, numbers)), 60, f"ACTIVE of {numbers}")


def carried(number):
    """Bytes that crossed the cable since the start, both directions."""
    folder = pathlib.Path(f"/sys/class/net/nic{number}/statistics")
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def carried_by_all():
    return [carried(number) for number in range(COUNT)]
