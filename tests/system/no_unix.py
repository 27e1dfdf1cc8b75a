"""no_unix.py COMMAND...: the command, for which there are no unix sockets: what it says to processes of its machine goes by TCP, as to others."""
import ctypes
import os
import platform
import struct
import sys

SOCKET = {"x86_64": 41, "aarch64": 198}[platform.machine()]
AF_UNIX, EACCES = 1, 13
LOAD, EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
# The number of the call, then its first argument.
FILTER = [(LOAD, 0, 0, 0), (EQUAL, 0, 3, SOCKET), (LOAD, 0, 0, 16), (EQUAL, 0, 1, AF_UNIX), (RETURN, 0, 0, ERRNO | EACCES), (RETURN, 0, 0, ALLOW)]

libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("=HBBI", *one) for one in FILTER)
held = ctypes.create_string_buffer(code)
program = struct.pack("@HP", len(FILTER), ctypes.addressof(held))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges: what a filter asks for
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
