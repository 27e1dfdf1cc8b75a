"""Clocks of one host that can be set: its processes are started with Clock.environment(), which preloads clock.c.

    clock = Clock(path, build)
    clock.step_wall(-60)      # the time of day
    clock.sleep(3600)         # CLOCK_BOOTTIME goes on by so much, as after a suspend; the time of day, too
    clock.drift(500)          # both are so many millionths too fast, from now on
    clock.boot()              # the machine has just started
"""
import mmap
import os
import pathlib
import struct
import time

PAGE = struct.Struct("<Qqqqq")  # sequence, wall_ns, boot_ns, rate_ppm, since_ns: struct page of clock.c
BOOTED_S = 30
SECOND = 10**9


class Clock:
    def __init__(self, path, build, machine_boot_s=0):
        """machine_boot_s: by how much the host's CLOCK_BOOTTIME is later than ours without this."""
        self.path, self.library, self.machine_boot_ns = pathlib.Path(path), pathlib.Path(build) / "tests/lab_clock.so", machine_boot_s * SECOND
        self.wall_ns = self.boot_ns = self.rate_ppm = self.since_ns = self.sequence = 0
        self.path.write_bytes(bytes(PAGE.size))
        with open(self.path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), PAGE.size)

    def environment(self):
        return {"MC_LAB_CLOCK": str(self.path), "LD_PRELOAD": str(self.library)}

    def _write(self):
        for sequence in (self.sequence + 1, self.sequence + 2):
            struct.pack_into("<Q", self.page, 0, sequence)
            if sequence % 2:
                PAGE.pack_into(self.page, 0, sequence, self.wall_ns, self.boot_ns, self.rate_ppm, self.since_ns)
        self.sequence += 2

    def _change(self, wall_ns=0, boot_ns=0, rate_ppm=None):
        """What the rate has gained so far stays."""
        now = time.monotonic_ns()
        gained = (now - self.since_ns) * self.rate_ppm // 10**6
        self.wall_ns += gained + wall_ns
        self.boot_ns += gained + boot_ns
        self.since_ns, self.rate_ppm = now, self.rate_ppm if rate_ppm is None else rate_ppm
        self._write()

    def step_wall(self, seconds):
        self._change(wall_ns=round(seconds * SECOND))

    def sleep(self, seconds):
        self._change(wall_ns=round(seconds * SECOND), boot_ns=round(seconds * SECOND))

    def drift(self, millionths):
        self._change(rate_ppm=millionths)

    def boot(self):
        """Only while nothing runs on the host: no clock of this kind ever goes back under a running process."""
        self._change()
        self.boot_ns = BOOTED_S * SECOND - self.machine_boot_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._write()

    def end(self):
        self.page.close()
