"""The original Mooncake, from PyPI."""

from .base import Contestant, apt_install, make_venv

VERSION = "0.3.13.post1"


class Original(Contestant):
    name = "original"
    title = f"original {VERSION}"
    # Only loopback, and no noise that costs time.
    env = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2", "MC_STORE_CLIENT_METRIC": "0"}

    def prepare(self, cache):
        apt_install("libibverbs1")
        path = cache / "bench-original"
        make_venv(path, [f"mooncake-transfer-engine-non-cuda=={VERSION}"], VERSION)
        self.python = path / "bin/python"
        self.master = path / "bin/mooncake_master"

    def server_command(self, port, metrics_port):
        return [self.master, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={metrics_port}"]

    def health_url(self, metrics_port):
        return f"http://127.0.0.1:{metrics_port}/metrics"
