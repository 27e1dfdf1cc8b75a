# SPDX-License-Identifier: Apache-2.0
"""The metadata server of transfer engines. As a command it is native: ``python -m mooncake.http_metadata_server --port N [--host H]`` becomes
mooncake_http_metadata_server. KVBootstrapServer runs that beside the process that makes it, and ends with it.
"""

import asyncio
import enum
import http.client
import os
import re
import subprocess
import sys
import threading
import weakref
from typing import Any, Dict, Optional, Tuple
from urllib.parse import quote

from mooncake._native import become, find

__all__ = ["KVBootstrapServer", "KVPoll"]

_COMMAND = "mooncake_http_metadata_server"
_STARTED = re.compile(r"HTTP metadata server started on \S+:(\d+)")
_CLOSE_S = 10.0
_ASK_S = 10.0  # as long as the command looks whether an engine lives, and more
_KEY_MAX, _VALUE_MAX = 4096, 1 << 20  # the command's own
_BLANKS = " \t\r\n\v\f"

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
        self.store: Dict[str, bytes] = {}  # what _handle_metadata keeps while the command does not run
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

    async def _handle_metadata(self, request: Any) -> Any:
        """For an application of aiohttp: what the command answers if it runs, else the same from this process's memory, where nobody looks
        whether an engine lives whose address is to be replaced."""
        from aiohttp import web

        method, key = request.method, request.query.get("key", "").strip(_BLANKS)
        body = await request.read() if method == "PUT" else b""
        if self.poll() is KVPoll.Success:
            headers = {name: value for name, value in getattr(request, "headers", {}).items() if name.lower() == "authorization"}
            status, answer = await asyncio.get_running_loop().run_in_executor(None, self._ask, method, key, body, headers)
        else:
            status, answer = self._answer(method, key, body)
        return web.Response(status=status, body=answer, content_type="application/json")

    def _ask(self, method: str, key: str, body: bytes, headers: Dict[str, str]) -> Tuple[int, bytes]:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        connection = http.client.HTTPConnection(host, self.port, timeout=_ASK_S)
        try:
            connection.request(method, f"/metadata?key={quote(key, safe='')}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 503, f"the metadata server does not answer: {error}".encode()
        finally:
            connection.close()

    def _answer(self, method: str, key: str, body: bytes) -> Tuple[int, bytes]:
        if method not in ("GET", "PUT", "DELETE"):
            return 405, b"GET, PUT or DELETE"
        if not key:
            return 400, b"Missing key parameter"
        if len(key.encode()) > _KEY_MAX or len(body) > _VALUE_MAX:
            return 413, b"The key is longer than 4096 bytes, or the value than 1 MiB."
        old = self.store.get(key)
        if method == "PUT":
            if old is not None and "rpc_meta" in key:  # an engine's address
                return (200, b"metadata unchanged") if old == body else (400, b"Duplicate rpc_meta key not allowed")
            self.store[key] = bytes(body)
            return 200, b"metadata updated"
        if old is None:
            return 404, b"metadata not found"
        if method == "GET":
            return 200, old
        del self.store[key]
        return 200, b"metadata deleted"

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
