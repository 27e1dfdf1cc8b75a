"""Command lines, curl calls and expected words of the documents that users follow, as written there; only ports and sizes are other ones."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile

from cluster import BUILD, START_S, wait_until
from service_process import environment


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def running(command, words):
    """A shell's command, until its log holds the words; yields a function that reads the log. It must end well when told to."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(["sh", "-c", "exec " + command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment())

        def text():
            return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        try:
            wait_until(lambda: words in text() or process.poll() is not None, START_S, words)
            assert words in text(), text()
            yield text
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, text()


def shell(command):
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30).stdout


def test_fastdeploy():
    rpc, metadata, metrics = free_ports(3)
    command = f"""mooncake_master \\
    --port={rpc} \\
    --enable_http_metadata_server=true \\
    --http_metadata_server_host=0.0.0.0 \\
    --http_metadata_server_port={metadata} \\
    --metrics_port={metrics}"""
    with running(command, "HTTP metadata server started"):
        # "Check master status": an answer of the server, not a refused connection.
        assert "key" in shell(f"curl http://localhost:{metadata}/metadata")
        assert "master_key_count" in shell(f"curl http://localhost:{metrics}/metrics")
        assert f":{rpc}" in shell(f"ss -ltn | grep {rpc}")


def test_lmcache():
    metadata, rpc, metrics = free_ports(3)
    with running(f"mooncake_http_metadata_server --port {metadata}", f"HTTP metadata server started on 0.0.0.0:{metadata}"), \
            running(f"mooncake_master -v=1 --rpc_port={rpc} --metrics_port={metrics}", "HTTP metrics server started") as log:
        assert f"Master service started on port {rpc}" in log() and f"HTTP metrics server started on port {metrics}" in log()
        wait_until(lambda: re.search(r"Master Metrics: Storage: 0(\.00)? B / 0(\.00)? B.*\| Keys: 0 ", log()), 30, "the line of metrics")
        assert "<html" in shell(f"curl -s http://localhost:{metrics}").lower()
        assert shell(f"curl -s -X PUT 'http://127.0.0.1:{metadata}/metadata?key=k' -d v") == "metadata updated"


def test_vllm_v0():
    [rpc, metrics] = free_ports(2)
    with running(f"mooncake_master --port {rpc} --metrics_port {metrics}", "Master service started") as log:
        assert f"Master service started on port {rpc}" in log()


def test_commands_of_the_package():
    for name in ("mooncake_master", "mooncake_client", "mooncake_http_metadata_server", "mc_store_rest_server"):
        assert (BUILD / name).exists()
        assert shell(f"{BUILD / name} --version").startswith(name)
