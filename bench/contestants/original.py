"""The original Mooncake, from PyPI; and with the snapshots that its deployment guide sets up against the loss of a master."""

import time

from .base import Contestant, apt_install, make_venv

VERSION = "0.3.13.post1"


class Original(Contestant):
    name = "original"
    title = f"original {VERSION}"
    # Only loopback, and no noise that costs time. Connections are kept, as its documents advise: else each transfer makes its own.
    env = {"MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2", "MC_STORE_CLIENT_METRIC": "0", "MC_TCP_ENABLE_CONNECTION_POOL": "1"}

    def prepare(self, cache):
        apt_install("libibverbs1")
        path = cache / "bench-original"
        make_venv(path, [f"mooncake-transfer-engine-non-cuda=={VERSION}"], VERSION)
        self.python = path / "bin/python"
        self.master = path / "bin/mooncake_master"


class OriginalSnapshot(Original):
    name = "original-snapshot"
    title = f"original {VERSION}, --enable_snapshot"
    SECONDS = 5  # its default is 600: what was put since the last one is lost, so often is the best that it can do here
    LEASE_MS = 600_000  # its default is 5,000; it starts again without the keys whose lease has ended, so their readers must have been there lately

    def server_command(self, port, metrics_port):
        return [*super().server_command(port, metrics_port), "--enable_snapshot=true", f"--snapshot_interval_seconds={self.SECONDS}", "--snapshot_retention_count=5",
                "--snapshot_object_store_type=local", "--enable_snapshot_restore=true", f"--default_kv_lease_ttl={self.LEASE_MS}"]  # fmt: skip

    def env_in(self, folder):
        snapshots = folder / "snapshots"
        snapshots.mkdir(exist_ok=True)
        return {"MOONCAKE_SNAPSHOT_LOCAL_PATH": str(snapshots)}

    def settle(self, folder):
        """One that has begun after the last put is written to its end."""
        time.sleep(3 * self.SECONDS)
        if not any(path.is_file() for path in (folder / "snapshots").rglob("*")):
            raise RuntimeError("it has written no snapshot")
