"""What goes over the loopback, as whoever has the wire sees it.

    with Capture() as capture:
        ...
    capture.shows(b"...")   # in any packet
"""
import socket
import threading
import time

import pytest

SO_RCVBUFFORCE, EVERYTHING = 33, 3


class Capture:
    def __enter__(self):
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
        except PermissionError:
            pytest.skip("only root may capture packets")
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.packets, self.ends = [], None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while True:
            try:
                self.packets.append(self.socket.recv(1 << 17))
            except TimeoutError:
                pass
            if self.ends and time.monotonic() > self.ends:
                return

    def __exit__(self, *unused):
        self.ends = time.monotonic() + 1  # what is queued is still read
        self.thread.join()
        self.socket.close()

    def shows(self, what):
        return any(what in packet for packet in self.packets)
