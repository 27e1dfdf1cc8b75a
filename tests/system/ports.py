"""Ports for programs that have to be told one. Where a program can, it lets the kernel choose and says which."""
import pathlib
import random
import socket


def free_ports(count):
    """So many different ones of 127.0.0.1 that were free a moment ago. None is of the range from which the kernel takes those of outgoing connections:
    one of them could have it before the program comes."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = {}
    try:
        for port in random.sample(range(10_000, max(first, 20_000)), 1000):
            probe = socket.socket()
            found[port] = probe
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                del found[port]
                probe.close()
            if len(found) == count:
                return list(found)
        raise OSError("no free ports")
    finally:
        for probe in found.values():
            probe.close()


def free_port():
    return free_ports(1)[0]
