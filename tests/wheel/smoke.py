"""A newcomer's first minute with an installed wheel: start the command, join, put, get, leave. Standard library only: it also runs
where there is nothing but Python. Usage: python3 smoke.py; exits 0 when everything was as it must be."""
import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time


def find_master():
    beside = pathlib.Path(sys.executable).parent / "mooncake_master"
    found = str(beside) if beside.exists() else shutil.which("mooncake_master")
    assert found, "mooncake_master is not on PATH"
    return found


def start_master(command):
    """Returns (process, port); the port is chosen by the kernel and read from the log line that users look for."""
    process = subprocess.Popen([command, "--rpc_port=0", "--metrics_port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(10, process.kill)
    watchdog.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        match = re.search(r"Master service started on port (\d+)", line)
        if match:
            watchdog.cancel()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(match.group(1))
    raise AssertionError("no master after 10 s:\n" + "".join(seen))


def put_and_get(port):
    from mooncake.store import MooncakeDistributedStore

    value = os.urandom(3 * 1024 * 1024 + 17)
    store, reader = MooncakeDistributedStore(), MooncakeDistributedStore()
    master = f"127.0.0.1:{port}"
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
    assert reader.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    end = time.monotonic() + 10
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


def main():
    version = importlib.metadata.version("mooncake-transfer-engine")
    assert "+" in version, f"{version} has no local label"
    command = find_master()
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    assert version.split("+")[0] in said, (version, said)
    process, port = start_master(command)
    try:
        put_and_get(port)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=2)
        assert code == 0, f"mooncake_master ended with {code}"
    finally:
        process.kill()
        process.wait()
    print(f"wheel {version}: put and get through port {port}")


if __name__ == "__main__":
    main()
