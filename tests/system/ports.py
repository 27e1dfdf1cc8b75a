"""Ports for programs that have to be told one. Where a program can, it lets the kernel choose and says which."""
import fcntl
import os
import pathlib
import random
import socket
import tempfile

# Above the ports that the product's own hosts take by default (12300-17000), and below the range from which the kernel takes those of outgoing
# connections: one of them could have a port before the program comes that was told it.
LOWEST, BLOCK = 17_000, 400
_ours = {}  # of this process: the block's lock, and its ports, the next to be tried first


def _block():
    """The ports of this process alone, for as long as it lives: tests run beside each other, and a port that was free a moment ago could be
    given to two of them."""
    if _ours.get("pid") != os.getpid():
        top = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        blocks = list(range(LOWEST, max(top, LOWEST + 7_000) - BLOCK + 1, BLOCK))
        random.shuffle(blocks)
        folder = pathlib.Path(tempfile.gettempdir()) / f"mooncake-test-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for block in blocks:
            lock = open(folder / str(block), "w")  # held until this process ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            _ours.update(pid=os.getpid(), lock=lock, ports=list(range(block, block + BLOCK)))
            break
        else:
            raise OSError(f"every block of ports is taken by another test: {folder}")
    return _ours["ports"]


def free_ports(count):
    """So many different ones of 127.0.0.1 that are free and that no other test is told. One comes again only after all others of its block."""
    ports, found = _block(), {}
    try:
        for _ in range(BLOCK):
            port = ports.pop(0)
            ports.append(port)
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.close()
                continue
            found[port] = probe
            if len(found) == count:
                return list(found)
        raise OSError("no free ports")
    finally:
        for probe in found.values():
            probe.close()


def free_port():
    return free_ports(1)[0]
