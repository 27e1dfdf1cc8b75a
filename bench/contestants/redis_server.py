"""Redis of Debian with redis-py, as the store that everybody knows. It keeps values in its own memory and copies through a socket."""

from .base import Contestant, apt_install, make_venv


class RedisServer(Contestant):
    name = "redis"
    title = "Redis (TCP)"
    api = "redis"

    def prepare(self, cache):
        apt_install("redis-server")
        path = cache / "bench-redis"
        make_venv(path, ["redis", "hiredis"], "redis hiredis")
        self.python = path / "bin/python"

    def server_command(self, port, metrics_port):
        return [
            "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--proto-max-bulk-len", 1 << 30, "--client-query-buffer-limit", 1 << 30, "--dir", "/tmp",
        ]  # fmt: skip

    def health_url(self, metrics_port):
        return None
