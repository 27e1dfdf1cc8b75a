"""Debian's promtool and prometheus, in the folder MC_TEST_PROMETHEUS or on the PATH.

    with Prometheus({"mooncake": [f"127.0.0.1:{master.metrics_port}"]}, rules=scaled(RULES.read_text())) as prometheus:
        prometheus.query("up")    # [({label: value}, number)]
        prometheus.fired()        # the names of all alerts that were firing at any time

It asks twice a second, and three seconds are a minute of its rules: what a rule waits for comes while a test runs.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.parse

import cluster
from ports import free_port

FOLDER = os.environ.get("MC_TEST_PROMETHEUS")
PROMTOOL, PROMETHEUS = (shutil.which(name, path=FOLDER) for name in ("promtool", "prometheus"))
SHIPPED = pathlib.Path(os.environ["MC_SOURCE"]) / "packaging" / "monitoring"
RULES = SHIPPED / "alerts.yml"
INTERVAL_MS = 500
FASTER = 20
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def promtool(*words, text=""):
    """(exit code, what it says)"""
    done = subprocess.run([PROMTOOL, *map(str, words)], input=text, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def shorter(span):
    """30s: 1500ms"""
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", span).groups()
    return f"{int(number) * UNITS_MS[unit] // FASTER}ms"


def scaled(rules):
    """The same rules, in which time goes faster: what they wait for, and what they look back on."""
    rules = re.sub(r"(?<=\[)\w+(?=\])", lambda span: shorter(span[0]), rules)
    return re.sub(r"(?<= for: )\w+", lambda span: shorter(span[0]), rules)


class Prometheus:
    """targets: {job: [host:port]}; their metrics are asked for at /metrics."""

    def __init__(self, targets, rules=None):
        self.folder = tempfile.TemporaryDirectory(prefix="mc-prometheus-")
        root = pathlib.Path(self.folder.name)
        settings = {"global": {"scrape_interval": f"{INTERVAL_MS}ms", "evaluation_interval": f"{INTERVAL_MS}ms"},
                    "scrape_configs": [{"job_name": job, "static_configs": [{"targets": list(ports)}]} for job, ports in targets.items()]}
        if rules is not None:
            (root / "alerts.yml").write_text('{"groups": []}')  # until it has seen all targets once: what has not come yet is absent
            settings["rule_files"] = ["alerts.yml"]
        (root / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        self.root, self.rules, self.targets = root, rules, {job: ports for job, ports in targets.items() if ports}

    def __enter__(self):
        self.port = free_port()
        with open(self.root / "log", "wb") as log:
            self.process = subprocess.Popen([PROMETHEUS, f"--config.file={self.root / 'prometheus.yml'}", f"--storage.tsdb.path={self.root / 'data'}",
                                             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _settle(self):
        """It has read every target; a test harms what it has seen whole."""
        cluster.wait_until(self._answers, 60, "prometheus")
        for job, ports in self.targets.items():
            self.wait(f'count(up{{job="{job}"}} == 1) == {len(ports)}')
        if self.rules is not None:
            (self.root / "alerts.yml").write_text(self.rules)
            self.process.send_signal(signal.SIGHUP)
            cluster.wait_until(lambda: "mooncake" in self.get("/api/v1/rules"), 60, "the rules")

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.folder.cleanup()

    def _answers(self):
        assert self.process.poll() is None, (self.root / "log").read_text()
        try:
            return cluster.request(self.port, "GET", "/-/ready")[0] == 200
        except OSError:
            return False

    def get(self, path):
        return cluster.request(self.port, "GET", path)[1].decode()

    def query(self, expression):
        """[(labels, value)], at this moment; an expression that Prometheus does not take fails."""
        status, body = cluster.request(self.port, "GET", "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        answer = json.loads(body)
        assert status == 200 and answer["status"] == "success" and not answer.get("warnings"), (expression, answer)
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        return [({}, float(result[1]))] if kind == "scalar" else [(series["metric"], float(series["value"][1])) for series in result]

    def wait(self, expression, seconds=60):
        return cluster.wait_until(lambda: self.query(expression), seconds, expression)

    def fired(self):
        return {labels["alertname"] for labels, _ in self.query('count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))')}

    def turns(self, count):
        """So many more rounds of the rules have ended, as it counts itself."""
        start = self._rounds()
        cluster.wait_until(lambda: self._rounds() >= start + count, 60 + count, "rounds of the rules")

    def _rounds(self):
        found = re.findall(r"^prometheus_rule_group_iterations_total(?:{[^}]*})? (\S+)$", self.get("/metrics"), re.M)
        return sum(map(float, found))


def watching(master, services=(), proxies=()):
    """With the rules that are shipped, and the jobs that they expect."""
    targets = {"mooncake": [f"127.0.0.1:{master.metrics_port}"], "mooncake-store": [f"127.0.0.1:{service.port}" for service in services],
               "mooncake-proxy": [f"127.0.0.1:{proxy.port}" for proxy in proxies]}
    return Prometheus(targets, scaled(RULES.read_text()))
