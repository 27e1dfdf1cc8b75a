"""The dashboards that are shipped: every query of every panel finds something in a Prometheus beside a pool that works."""
import contextlib
import json
import math
import re
import sys
import threading

import pytest
from cluster import Master, wait_until
from prometheus import PROMETHEUS, SHIPPED, watching
from proxy_engines import Engine, Proxy
from python_cluster import joined
from service_process import Service
from test_documents import document, metrics_of, names, section

sys.path.insert(0, str(SHIPPED))

import dashboards  # noqa: E402

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here")

MIB = 1 << 20
FILES = sorted((SHIPPED / "dashboards").glob("*.json"))


def panels(file):
    return [panel for panel in json.loads(file.read_text())["panels"] if panel["type"] != "row"]


QUERIES = [(f"{file.stem}: {panel['title']}", target["expr"]) for file in FILES for panel in panels(file) for target in panel["targets"]]


def asked(expression):
    """As Grafana asks, with its variables put in."""
    expression = expression.replace("$__rate_interval", "10s").replace("$store", ".*")
    assert "$" not in expression
    return expression


@contextlib.contextmanager
def work(master, nodes, proxy):
    """Puts and gets of more than there is memory for, of all kinds, until the end."""
    end, client, failed = threading.Event(), joined(master, 0), []
    wait_until(lambda: client.put("first", bytes(MIB)) == 0)

    def run():
        number = 0
        try:
            while not end.wait(0.02):
                number += 1
                key = f"key-{number % 100}"
                if number % 5 == 0:
                    client.remove(key, True)
                if client.is_exist(key) != 1:
                    client.put(key, bytes(2 * MIB))
                client.get(f"key-{number * 7 % 100}")
                node = nodes[number % len(nodes)]
                node.call("PUT", "/api/put", {"key": f"own-{number}", "value": "v" * 1000})
                node.call("GET", f"/api/get/own-{number}")
                proxy.complete()
        except Exception as error:  # the test says so
            failed.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        client.close()
        assert not failed, failed


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    disk = dict(MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=256 * MIB)
    with Master("--client_ttl=3600s", "--enable_offload", "--default_kv_lease_ttl=0") as master, contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Service(MOONCAKE_MASTER=master.address, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path_factory.mktemp("disk"), **disk)) for _ in range(2)]
        proxy = stack.enter_context(Proxy("--prefill", Engine().address, "--decode", Engine().address))
        with work(master, nodes, proxy), watching(master, nodes, [proxy]) as running:
            yield running


def test_files_are_what_the_table_says():
    assert [file.stem for file in FILES] == sorted(f"mooncake-{name}" for name in dashboards.DASHBOARDS)
    for name in dashboards.DASHBOARDS:
        assert (SHIPPED / "dashboards" / f"mooncake-{name}.json").read_text() == dashboards.text_of(name), "run packaging/monitoring/dashboards.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_lie_beside_each_other(file):
    board = json.loads(file.read_text())
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_names_are_documented():
    """A panel asks for nothing that docs/metrics.md does not explain."""
    text = document("docs/metrics.md")
    text = text.replace(section(text, "Always 0"), "").replace(section(text, "Tenants"), "")
    known = {name for cells in metrics_of(text) for name in names(cells[0])}
    for title, expression in QUERIES:
        for name in re.findall(r"\b(?:mooncake|master|segment|mem_cache)_\w+", re.sub(r'"[^"]*"', "", expression)):
            is_proxys = name.startswith("mooncake_proxy_")
            assert is_proxys or re.sub("_bucket$", "", name) in known, (title, name)


@pytest.mark.parametrize("title, expression", QUERIES, ids=[f"{title}-{i}" for i, (title, _) in enumerate(QUERIES)])
def test_no_panel_is_empty(prometheus, title, expression):
    def values():
        return [value for _, value in prometheus.query(asked(expression)) if not math.isnan(value)]
    wait_until(values, 120, f"{title}: {expression}")
