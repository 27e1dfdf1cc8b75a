#!/usr/bin/env python3
"""The name server of the laboratory. It knows the names of the hosts, and answers each asking host as it was told to.

    resolver = Resolver("10.77.0.254")            # starts the process; it dies with us
    resolver.name("node0", "10.77.0.3")
    resolver.mode(host, "slow", 3000)             # answers 3 s late; or "silent", "wrong" (another host's address), "unknown" (no such name),
    resolver.mode(host, "well")                   # "broken" (SERVFAIL); "*" is every host; only="node": for names that begin so
    resolver.asked()                              # {host's address: questions}
"""
import heapq
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time

MODES = ("well", "slow", "silent", "wrong", "unknown", "broken")
PORT = 53
QUESTION_MAX = 512
WRONG_ADDRESS = "10.77.0.253"  # nobody has it
TYPE_A, CLASS_IN = 1, 1
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
ANSWER_FLAGS = 0x8180  # a recursive answer


class Resolver:
    def __init__(self, address):
        from network import dies_with_parent
        self.process = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=dies_with_parent, text=True)
        if self._line() != "ready":
            self.end()
            raise OSError("the laboratory's resolver does not start")

    def _line(self):
        return json.loads(self.process.stdout.readline() or '"gone"')

    def _ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._line()

    def name(self, name, address):
        self._ask("name", name, address)

    def mode(self, host, mode, milliseconds=0, only=""):
        assert mode in MODES, mode
        self._ask("mode", host if host == "*" else host.address, mode, milliseconds, only)

    def asked(self):
        return self._ask("asked")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def parse(question):
    """(id, name, type, the question's own bytes), or None."""
    try:
        number, flags, count = struct.unpack_from(">HHH", question)
        labels, at = [], 12
        while question[at] != 0:
            labels.append(question[at + 1:at + 1 + question[at]].decode("ascii").lower())
            at += 1 + question[at]
        kind, family = struct.unpack_from(">HH", question, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if flags & 0x8000 or count != 1 or family != CLASS_IN:
        return None
    return number, ".".join(labels), kind, question[12:at + 5]


class Server:
    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, PORT))
        self.names, self.modes, self.late, self.asked, self.count = {}, {}, [], {}, 0

    def answer(self, parsed, mode):
        number, name, kind, own = parsed
        address = self.names.get(name)
        code, records = NO_ERROR, b""
        if mode == "broken":
            code = SERVER_FAILURE
        elif mode == "unknown" or address is None:
            code = NO_SUCH_NAME
        elif kind == TYPE_A:
            found = WRONG_ADDRESS if mode == "wrong" else address
            records = struct.pack(">HHHIH", 0xC00C, TYPE_A, CLASS_IN, 0, 4) + socket.inet_aton(found)  # it may not be kept
        return struct.pack(">HHHHHH", number, ANSWER_FLAGS | code, 1, 1 if records else 0, 0, 0) + own + records

    def question(self):
        question, asker = self.socket.recvfrom(QUESTION_MAX)
        self.asked[asker[0]] = self.asked.get(asker[0], 0) + 1
        parsed = parse(question)
        if parsed is None:
            return
        mode, milliseconds, only = self.modes.get(asker[0], self.modes.get("*", ("well", 0, "")))
        if not parsed[1].startswith(only):
            mode, milliseconds = "well", 0
        if mode != "silent":
            self.count += 1
            heapq.heappush(self.late, (time.monotonic() + milliseconds / 1000, self.count, self.answer(parsed, mode), asker))

    def obey(self, command, *words):
        if command == "name":
            self.names[words[0].lower()] = words[1]
        elif command == "mode":
            self.modes[words[0]] = words[1:]
            if words[0] == "*":
                self.modes = {"*": words[1:]}
        elif command == "asked":
            return self.asked
        return "ok"

    def run(self):
        print('"ready"', flush=True)
        while True:
            wait = max(self.late[0][0] - time.monotonic(), 0) if self.late else None
            ready = select.select([self.socket, sys.stdin], [], [], wait)[0]
            if self.socket in ready:
                self.question()
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                print(json.dumps(self.obey(*json.loads(line))), flush=True)
            while self.late and self.late[0][0] <= time.monotonic():
                _, _, answer, asker = heapq.heappop(self.late)
                self.socket.sendto(answer, asker)


if __name__ == "__main__":
    Server(sys.argv[1]).run()
