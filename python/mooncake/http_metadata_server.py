# SPDX-License-Identifier: Apache-2.0
"""The metadata server of transfer engines. As a command it is native: ``python -m mooncake.http_metadata_server --port N [--host H]`` becomes
mooncake_http_metadata_server. KVBootstrapServer runs that beside the process that makes it, and ends with it.
"""

import enum
import os
import re
import subprocess
import sys
import threading
import weakref
from typing import Optional

from mooncake._native import become, find

__all__ = ["KVBootstrapServer", "KVPoll"]

_COMMAND = "mooncake_http_metadata_server"
_STARTED = re.compile(r"HTTP metadata server started on \S+:(\d+)")
_CLOSE_S = 10.0

# Inputs of servers, which end when their input does: a forked child must not keep them open.
_inputs: "weakref.WeakSet" = weakref.WeakSet()


def _close_inputs() -> None:
    for one in list(_inputs):
        one.close()


os.register_at_fork(after_in_child=_close_inputs)


def _say(line: str) -> None:
    """To stderr; where that is closed, or there is none, nowhere: the server's pipe must be read all the same."""
    try:
        sys.stderr.write(line)
    except (AttributeError, OSError, ValueError):
        pass


class KVPoll(enum.Enum):
    """How a server is."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer:
    """A metadata server on host:port. `port` 0: the kernel chooses, and run() writes here which one it is."""

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self.host = host
        self.thread: Optional[threading.Thread] = None
        self._process: Optional[subprocess.Popen] = None
        self._settled = threading.Event()

    def run(self) -> threading.Thread:
        """Starts it and returns when it listens, or has failed: poll() says which. The thread lives as long as the server."""
        if self.poll() is KVPoll.Success:
            raise RuntimeError("this server runs already")
        self._settled.clear()
        # Its input ends with this process, however that ends. The level: a line of the log tells that it listens.
        self._process = subprocess.Popen([find(_COMMAND), f"--port={self.port}", f"--host={self.host}", "--until_stdin_ends", "--log_level=INFO"],
                                         stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        assert self._process.stdin is not None
        _inputs.add(self._process.stdin)
        self.thread = threading.Thread(target=self._follow, args=(self._process,), name="metadata server", daemon=True)
        self.thread.start()
        self._settled.wait()
        return self.thread

    def _follow(self, process: subprocess.Popen) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            _say(line)
            started = _STARTED.search(line)
            if started:
                self.port = int(started.group(1))
                self._settled.set()
        process.wait()
        process.stderr.close()
        self._settled.set()

    def poll(self) -> KVPoll:
        """Success while it runs, else Failed."""
        runs = self.thread is not None and self.thread.is_alive() and self._process is not None and self._process.poll() is None
        return KVPoll.Success if runs else KVPoll.Failed

    def close(self) -> None:
        """Ends it; what it kept is gone."""
        process = self._process
        if process is None or self.thread is None:
            return
        process.terminate()
        self.thread.join(_CLOSE_S)
        if process.stdin is not None:
            process.stdin.close()


def main() -> None:
    become(_COMMAND, sys.argv[1:])


if __name__ == "__main__":
    main()
