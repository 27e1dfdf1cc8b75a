"""The least that a client of a store must do, without a store: ask for SIZE bytes, wait until they are there, ask again.

    bare_loop.py serve PORT SIZE                answers one connection until it ends
    bare_loop.py ask HOST PORT SIZE SECONDS     asks one after the other; prints the bytes a second

iperf3 keeps its window full for the whole run; whoever asks for one value at a time leaves the link idle for a round trip after each,
and a lost packet at the end of a value is not made up for by the next. This is the limit of such a client on one connection.
"""
import socket
import sys
import time


def serve(port, size):
    listener = socket.create_server(("", port), family=socket.AF_INET)
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    value = bytes(size)
    while link.recv(1):
        link.sendall(value)


def ask(host, port, size, seconds):
    link = socket.create_connection((host, port), timeout=30)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer, calls, began = memoryview(bytearray(size)), 0, time.monotonic()
    while time.monotonic() - began < seconds:
        link.sendall(b"?")
        have = 0
        while have < size:
            got = link.recv_into(buffer[have:])
            if not got:
                raise SystemExit("the server closed")
            have += got
        calls += 1
    print(size * calls / (time.monotonic() - began))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
