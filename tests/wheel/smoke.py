"""A newcomer's first minute with an installed wheel: start the command, join, put, get, leave. Standard library only: it also runs
where there is nothing but Python. Usage: python3 smoke.py; exits 0 when everything was as it must be."""
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request


PATIENCE_S = 60  # for what takes no time; an emulated processor on a busy machine needs it


def find_master():
    beside = pathlib.Path(sys.executable).parent / "mooncake_master"
    found = str(beside) if beside.exists() else shutil.which("mooncake_master")
    assert found, "mooncake_master is not on PATH"
    return found


def start(what, arguments, pattern, environment=None):
    """Returns (process, port); the port is chosen by the kernel and read from the log line that users look for."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        match = re.search(pattern, line)
        if match:
            watchdog.cancel()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(match.group(1))
    raise AssertionError(f"no {what} after {PATIENCE_S} s:\n" + "".join(seen))


def stop(process):
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=PATIENCE_S)
    assert code == 0, f"{process.args} ended with {code}"


def call(method, url, body=None):
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=PATIENCE_S) as reply:
        return reply.read()


def serve(master_port):
    """The modules that documents name; each becomes its native command, which it finds without PATH."""
    environment = {"MOONCAKE_MASTER": f"127.0.0.1:{master_port}", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "64mb"}
    service, port = start("store service", [sys.executable, "-I", "-m", "mooncake.mooncake_store_service", "--port", "0"], r"REST API started on port (\d+)", environment)
    metadata, metadata_port = start("metadata server", [sys.executable, "-I", "-m", "mooncake.http_metadata_server", "--port", "0", "--host", "127.0.0.1"],
                                    r"HTTP metadata server started on \S+:(\d+)", {})
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert call("PUT", f"http://127.0.0.1:{port}/api/put", b'{"key": "k", "value": "v"}') == b'{"status": "success"}'
                break
            except urllib.error.HTTPError as error:
                assert error.code == 500 and time.monotonic() < end, error  # no room yet
                time.sleep(0.05)
        assert call("GET", f"http://127.0.0.1:{port}/api/get/k") == b"v"
        call("PUT", f"http://127.0.0.1:{metadata_port}/metadata?key=a", b"1")
        assert call("GET", f"http://127.0.0.1:{metadata_port}/metadata?key=a") == b"1"
        stop(service)
        stop(metadata)
    finally:
        for process in (service, metadata):
            process.kill()
            process.wait()


def put_and_get(port):
    from mooncake.store import MooncakeDistributedStore

    value = os.urandom(3 * 1024 * 1024 + 17)
    store, reader = MooncakeDistributedStore(), MooncakeDistributedStore()
    master = f"127.0.0.1:{port}"
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
    assert reader.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    end = time.monotonic() + PATIENCE_S
    # The segment is populated in the background: a first put may come before there is room.
    while (code := store.put("greeting", value)) == -200 and time.monotonic() < end:
        time.sleep(0.05)
    assert code == 0, code
    assert reader.get("greeting") == value
    assert reader.is_exist("greeting") == 1
    assert reader.is_exist("nothing") == 0
    assert reader.get("nothing") == b""
    assert reader.close() == 0
    assert store.close() == 0


def see_parts(command, version):
    """What is linked in: the installed list, what the command says, and a licence text for each."""
    (found,) = (file for file in importlib.metadata.files("mooncake-transfer-engine") if file.name == "sbom.cdx.json")
    parts = {part["name"]: part["version"] for part in json.loads(found.read_text(encoding="utf-8"))["components"]}
    assert len(parts) == 6, parts
    said = subprocess.run([command, "--version", "--verbose"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.splitlines()
    assert said[0] == f"mooncake_master {version}" and said[1].startswith(f"built as {version}"), said
    assert dict(line.split()[:2] for line in said[2:]) == parts, (said, parts)
    texts = {file.stem for file in importlib.metadata.files("mooncake-transfer-engine") if "licenses" in file.parts}
    assert texts == {"LICENSE", "NOTICE", *parts}, texts


def main():
    version = importlib.metadata.version("mooncake-transfer-engine")
    assert "+" in version, f"{version} has no local label"
    command = find_master()
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert version.split("+")[0] in said, (version, said)
    see_parts(command, version)
    for name in ("mooncake", "mooncake_proxy", "mooncake_disk", "mooncake_key", "mooncake_doctor", "transfer_engine_topology_dump"):
        other = str(pathlib.Path(command).with_name(name))
        said = subprocess.run([other, "--version"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
        assert version.split("+")[0] in said, (version, said)
    process, port = start("master", [command, "--rpc_port=0", "--metrics_port=0"], r"Master service started on port (\d+)")
    try:
        put_and_get(port)
        serve(port)
        stop(process)
    finally:
        process.kill()
        process.wait()
    print(f"wheel {version}: put and get through port {port}")


if __name__ == "__main__":
    main()
