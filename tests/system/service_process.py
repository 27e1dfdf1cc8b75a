"""A store service as a real process: mc_store_rest_server, mooncake_client, or the Python module that becomes the first.

    with Service("--max-wait-time=20", MOONCAKE_MASTER=master.address) as service:
        service.call("PUT", "/api/put", {"key": "a", "value": "b"})   # (200, {"status": "success"})

Ports are chosen by the kernel and read from the log. No MOONCAKE_* of the caller's environment reaches it.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from cluster import BUILD, START_S, Child, request, wait_until

REST = [str(BUILD / "mc_store_rest_server")]
CLIENT = [str(BUILD / "mooncake_client")]
MODULE = [sys.executable, "-m", "mooncake.mooncake_store_service"]
SEGMENT = 64 << 20


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOONCAKE_") and name != "LOCAL_HOSTNAME"}
    kept["PYTHONPATH"] = os.environ.get("MC_PYTHONPATH", "")
    kept["PATH"] = f"{BUILD}:{kept.get('PATH', '')}"
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def run(command, *flags, timeout_s=60, cwd=None, **variables):
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=timeout_s, env=environment(**variables), cwd=cwd)


class Service(Child):
    """started=False: start() returns at once, wait() waits until it serves."""

    def __init__(self, *flags, command=REST, ports=("--port=0",), **variables):
        self.arguments = [*command, *ports, *flags]
        if command is not CLIENT:
            variables.setdefault("MOONCAKE_GLOBAL_SEGMENT_SIZE", SEGMENT)
        self.environment = environment(**variables)
        self.process = self.port = None
        self.log_file = tempfile.NamedTemporaryFile(prefix="mc-service-", suffix=".log")

    def spawn(self):
        with open(self.log_file.name, "ab") as log:
            self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        return self

    def wait(self, pattern=r"REST API started on port (\d+)", timeout_s=START_S):
        def look():
            found = re.search(pattern, self.log())
            assert found or self.process.poll() is None, f"it has ended: {self.log()}"
            return found
        found = wait_until(look, timeout_s, f"'{pattern}' in the log")
        if found.groups():
            self.port = int(found.group(1))
        wait_until(lambda: "is running" in self.log(), timeout_s, "'is running'")
        return self

    def start(self):
        self.spawn()
        with self.or_end():
            return self.wait()

    def log(self):
        with open(self.log_file.name, "rb") as log:
            return log.read().decode(errors="replace")

    def call(self, method, path, body=None, **more):
        """(status, body): JSON as its value, anything else as bytes."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        status, reply = request(self.port, method, path, body=body, **more)
        try:
            return status, json.loads(reply)
        except ValueError:
            return status, reply

    def put(self, key, value):
        """Until there is room: a segment is made ready in the background."""
        return wait_until(lambda: self.call("PUT", "/api/put", {"key": key, "value": value})[0] == 200, START_S, "room for an object")

