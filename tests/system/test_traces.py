"""A put and a get as spans of one trace: of the client, the master and the store node (docs/operations.md, "Traces")."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import cluster
import wire
from otlp_collector import Collector, spans_in
from python_cluster import SLOW, wait_until
from scene import Scene
from store_process import StoreProcess

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import released  # noqa: E402

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SIZE = 3 << 20

# What an engine is that uses OpenTelemetry: it has imported it, and is in a span. argv: master, how the context comes, how often.
CLIENT = """
import asyncio, contextvars, json, os, sys, time, types
sys.path.insert(0, os.environ["MC_PYTHONPATH"])
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import MooncakeDistributedStore
master, way, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = (MooncakeDistributedStoreAsync if way == "awaited" else MooncakeDistributedStore)()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
assert "opentelemetry" not in sys.modules
while store.put("warm up", bytes(1 << 20)) != 0:
    time.sleep(0.01)
value = bytes(range(256)) * (%d // 256)

class Context:
    trace_id, span_id, trace_flags = 0x%s, 0x%s, 1

class NoSpan:
    def get_span_context(self):
        context = Context()
        context.trace_id = context.span_id = context.trace_flags = 0
        return context

class Span:
    def get_span_context(self):
        if way == "broken":
            raise RuntimeError("no")
        if way == "interrupted":
            raise KeyboardInterrupt
        context = Context()
        if way == "unsampled":
            context.trace_flags = 0
        if way == "text":
            context.trace_id = "no number"
        return context

span = contextvars.ContextVar("current_span")
if way not in ("environment", "none"):
    trace = types.ModuleType("opentelemetry.trace")
    trace.get_current_span = lambda *unused: span.get(NoSpan())
    span.set(Span())
    sys.modules["opentelemetry"] = types.ModuleType("opentelemetry")
    sys.modules["opentelemetry.trace"] = trace
if way == "interrupted":
    try:
        store.put("key", value)
        time.sleep(10)
        raise SystemExit("the interrupt was swallowed")
    except KeyboardInterrupt:
        span.set(NoSpan())
slowest = 0
for i in range(times):
    since = time.monotonic()
    if way == "awaited":
        assert asyncio.run(store.async_put(f"key {i}", value)) == 0
        assert asyncio.run(store.async_get(f"key {i}")) == value
    else:
        assert store.put(f"key {i}", value) == 0
        assert store.get(f"key {i}") == value
    slowest = max(slowest, time.monotonic() - since)
since = time.monotonic()
assert store.close() == 0
print(json.dumps([slowest, time.monotonic() - since]))
""" % (SIZE, TRACE, PARENT)


def run(master, way="span", times=1, python_path=None, **environment):
    """The slowest put and get in seconds, the seconds of close, and the log."""
    everything = {**os.environ, **environment}
    if python_path:
        everything["MC_PYTHONPATH"] = str(python_path)
    done = subprocess.run([sys.executable, "-B", "-c", CLIENT, master.address, way, str(times)], env=everything, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return (*json.loads(done.stdout), done.stderr)


def traced(collector, **more):
    return {"MC_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **more}


def of(spans, name):
    found = [span for span in spans if span.name == name]
    assert found, f"no {name} in {[span.name for span in spans]}"
    return found


def check_tree(spans, path, value=SIZE):
    """That they are one trace, and each is where it belongs."""
    assert {span.trace for span in spans} == {TRACE}
    by_id = {span.span: span for span in spans}
    assert len(by_id) == len(spans)
    parents = {"mooncake.put": None, "mooncake.get": None, "mooncake.put.ask": "mooncake.put", "mooncake.put.write": "mooncake.put",
               "mooncake.put.confirm": "mooncake.put", "mooncake.get.ask": "mooncake.get", "mooncake.get.read": "mooncake.get",
               "mooncake.master.put_start": "mooncake.put.ask", "mooncake.master.put_done": "mooncake.put.ask",
               "mooncake.master.get": "mooncake.get.ask", "mooncake.node.write": "mooncake.put.write", "mooncake.node.read": "mooncake.get.read"}
    for span in spans:
        above = parents[span.name]
        if above is None:
            assert span.parent == PARENT and span.kind == 1
        else:
            assert by_id[span.parent].name == above and span.kind == (2 if ".master." in span.name or ".node." in span.name else 3), span
        assert 0 <= span.end - span.begin < 60e9 and abs(span.begin / 1e9 - time.time()) < 600
        assert span.status == {} and span.attributes["mooncake.code"] == 0
        assert span.service == ("master" if ".master." in span.name else "node" if ".node." in span.name else "engine")
        assert "mooncake.key" not in span.attributes
    for name in ("mooncake.put", "mooncake.get"):
        assert len(of(spans, name)) == 1 and of(spans, name)[0].attributes["mooncake.bytes"] == value
        assert of(spans, name)[0].attributes["mooncake.keys"] == 1
    for name in ("mooncake.put.write", "mooncake.get.read"):
        moved = of(spans, name)[0]
        assert moved.attributes["mooncake.path"] == path and moved.attributes["mooncake.bytes"] == value and moved.attributes["mooncake.segment"]
        assert by_id[moved.parent].begin <= moved.begin
    for name in ("mooncake.put.ask", "mooncake.put.confirm", "mooncake.get.ask", "mooncake.master.put_start", "mooncake.master.put_done",
                 "mooncake.master.get"):
        of(spans, name)


def arrived(collector, *names):
    wait_until(lambda: {span.name for span in collector.spans()} >= set(names))
    return collector.spans()


MASTERS = ("mooncake.put", "mooncake.get", "mooncake.master.put_start", "mooncake.master.put_done", "mooncake.master.get")
NODES = ("mooncake.node.write", "mooncake.node.read")


def test_a_put_and_a_get_over_tcp_are_one_trace():
    with Collector() as collector, cluster.Master(environment=traced(collector, OTEL_SERVICE_NAME="master")) as master, \
            StoreProcess(master.address, **traced(collector, OTEL_SERVICE_NAME="node")) as node:
        run(master, MC_PATHS="tcp", **traced(collector, OTEL_SERVICE_NAME="engine", OTEL_EXPORTER_OTLP_HEADERS="x-key=some%20word"))
        spans = arrived(collector, *MASTERS, *NODES)
        check_tree(spans, "tcp")
        for name in NODES:  # in pieces, perhaps, and behind each object are its table and its key
            assert SIZE <= sum(span.attributes["mooncake.bytes"] for span in of(spans, name)) < SIZE * 1.01
        assert {path for path, _ in collector.requests} == {"/v1/traces"}
        assert "some word" in {headers.get("x-key") for _, headers in collector.requests}
        assert all(headers["Content-Type"] == "application/json" for _, headers in collector.requests)
        wait_until(lambda: master.metrics()["mooncake_trace_spans_sent_total"] >= 3)
        assert master.metrics()["mooncake_trace_spans_dropped_total"] == 0
        assert "malformed" not in master.log() + node.log()


def test_a_put_and_a_get_over_shared_memory_are_one_trace(folder):
    with Collector() as collector, cluster.Master(environment=traced(collector, OTEL_SERVICE_NAME="master")) as master, \
            StoreProcess(master.address, **traced(collector, OTEL_SERVICE_NAME="node")):
        run(master, MC_PATHS="shm", MC_TRACES=f"file:{folder}/spans.json", OTEL_SERVICE_NAME="engine")
        arrived(collector, *[name for name in MASTERS if ".master." in name])
        lines = (folder / "spans.json").read_text().splitlines()
        own = [span for line in lines for span in spans_in(line)]
        check_tree(own + collector.spans(), "shm")
        assert not [span for span in collector.spans() if ".node." in span.name]  # it is asked for nothing


def test_what_is_awaited_is_a_part_of_the_span_of_who_awaits_it(folder):
    with cluster.Master() as master, StoreProcess(master.address):
        run(master, "awaited", MC_TRACES=f"file:{folder}/spans.json")
        spans = [span for line in (folder / "spans.json").read_text().splitlines() for span in spans_in(line)]
        assert [span.parent for span in of(spans, "mooncake.put") + of(spans, "mooncake.get")] == [PARENT] * 2


def test_the_command_of_the_documents(tmp_path):
    block = re.search(r"^## Traces$.*?^```sh\n(.*?)^```$", (pathlib.Path(os.environ["MC_SOURCE"]) / "docs" / "operations.md").read_text(), re.M | re.S).group(1)
    first, master, rest = block.replace("/tmp/spans.json", f"{tmp_path}/spans.json").split("\n", 2)
    assert master == "mooncake_master & sleep 1"
    with Scene(tmp_path, ports=[50051, 9003]) as scene:
        scene.start(scene.text("mooncake_master"), "HTTP metrics server started", **dict([first.removeprefix("export ").split("=", 1)]))
        said = scene.run(f"{first}\n{scene.text(rest.replace('kill %1; wait', 'sleep 1'))}")
    assert "b'hello'" in said and {"put", "get", "master.put_start", "master.get"} <= set(re.findall(r'"name":"mooncake\.([a-z_.]+)"', said)), said


def test_the_context_of_the_environment_is_that_of_all_calls(folder):
    with cluster.Master() as master, StoreProcess(master.address):
        more = {"MC_TRACES": f"file:{folder}/spans.json", "TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "MC_TRACES_KEYS": "hash"}
        run(master, "environment", times=2, **more)
        spans = [span for line in (folder / "spans.json").read_text().splitlines() for span in spans_in(line)]
        assert len(of(spans, "mooncake.get")) == 2 and {span.parent for span in of(spans, "mooncake.put")} == {PARENT}
        assert {len(span.attributes["mooncake.key"]) for span in of(spans, "mooncake.get")} == {32}


@pytest.mark.parametrize("way", ["none", "unsampled", "broken", "text", "interrupted"])
def test_without_a_good_context_nothing_is_traced_and_nothing_fails(way, folder):
    with cluster.Master(environment={"MC_TRACES": f"file:{folder}/master.json"}) as master, StoreProcess(master.address):
        log = run(master, way, times=2, MC_TRACES=f"file:{folder}/spans.json")[2]
        assert log.count("the current span of opentelemetry cannot be read") == (way in ("broken", "text", "interrupted"))
    assert (folder / "spans.json").read_text() == "" == (folder / "master.json").read_text()  # now that all have ended


def test_an_engines_own_settings_do_not_switch_it_on():
    with Collector() as collector:
        own = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_EXPORTER": "otlp", "TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
        with cluster.Master(environment=own) as master, StoreProcess(master.address, **own):
            run(master, **own)
        assert collector.requests == []


@pytest.mark.parametrize("collector", [{"hangs": True}, {"status": 503}, {"status": 404}, None], ids=["hangs", "503", "404", "away"])
def test_a_collector_that_is_of_no_use_slows_and_fails_nothing(collector):
    with Collector(**(collector or {})) as there:
        more = traced(there) if collector else {"MC_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
        with cluster.Master(environment=more) as master, StoreProcess(master.address, 256 << 20, **more):
            usual = run(master, "none", times=40, MC_PATHS="tcp")[0]
            slowest, close, log = run(master, times=40, MC_PATHS="tcp", **more)
            assert slowest < max(2 * usual, 1 * SLOW), (slowest, usual)  # not the 2 s of a request
            assert close < 3 * SLOW, close
            wait_until(lambda: master.metrics()["mooncake_trace_spans_dropped_total"] > 0, 90)  # 503: after it was sent five times
            assert log.count("spans of traces do not get to") == 1, log
            assert master.get("/health")[0] == 200


@pytest.mark.parametrize("status, later", [(429, "1"), (503, None), (503, "date"), (502, None), (400, "1")])
def test_what_a_collector_takes_later_is_sent_again(status, later):
    """As OTLP over HTTP wants it: after 429, 502, 503 and 504, not before the collector says; after others it is dropped."""
    with Collector(refuses=1, status=status, retry_after=later) as collector, cluster.Master(environment=traced(collector)) as master:
        caller = wire.Connection(master.port, wire.ROLE_CALL, os.urandom(16))
        ask(caller, CONTEXT)
        wait_until(lambda: len(collector.requests) >= 1)

        def counts():
            now = master.metrics()
            return now["mooncake_trace_spans_sent_total"], now["mooncake_trace_spans_dropped_total"]
        wait_until(lambda: sum(counts()) == 1, 20)
        assert counts() == ((0, 1) if status == 400 else (1, 0))
        assert len(collector.requests) == (1 if status == 400 else 2)
        assert status == 400 or collector.times[1] - collector.times[0] > (2 if later == "date" else 0.9)
        caller.close()


def test_what_a_collector_rejects_of_a_request_is_counted():
    with Collector(rejects=2) as collector, cluster.Master(environment=traced(collector)) as master, StoreProcess(master.address):
        run(master, **traced(collector))
        def counts():
            now = master.metrics()
            return now["mooncake_trace_spans_sent_total"], now["mooncake_trace_spans_dropped_total"]
        wait_until(lambda: sum(counts()) == 3)  # put_start, put_done, get
        assert counts()[1] >= 2


def ask(connection, context=None, request_id=None):
    """An existence check, as a part of that; the answer's codes."""
    connection.request_id += 1
    if context is not None:
        connection.socket.sendall(wire.frame(wire.TRACE, request_id or connection.request_id + 1, wire.record(context)))
    return connection.call(wire.EXIST, wire.EXIST_REPLY, wire.record() + wire.records([wire.data(b"key")]))


CONTEXT = bytes(range(16)) + b"12345678" + b"\1"


def test_whoever_sends_contexts_a_master_exports_no_more_than_it_is_to(folder):
    with cluster.Master(environment={"MC_TRACES": f"file:{folder}/spans.json", "MC_TRACES_RATE": "10"}) as master:
        caller = wire.Connection(master.port, wire.ROLE_CALL, os.urandom(16))
        for context in (bytes(25), CONTEXT[:24] + b"\0", CONTEXT[:16] + bytes(8) + b"\1"):  # none, not sampled, without a parent
            ask(caller, context)
        ask(caller, CONTEXT, request_id=10**6)  # of another request
        since = time.monotonic()
        for _ in range(1000):
            ask(caller, CONTEXT)
        seconds = time.monotonic() - since
        caller.close()

        def counts():
            now = master.metrics()
            return now["mooncake_trace_spans_sent_total"], now["mooncake_trace_spans_dropped_total"]
        wait_until(lambda: sum(counts()) == 1000)
        assert 10 <= counts()[0] <= 12 + 10 * seconds
    spans = [span for line in (folder / "spans.json").read_text().splitlines() for span in spans_in(line)]
    assert {(span.name, span.parent) for span in spans} == {("mooncake.master.exist", "3837363534333231")}


@pytest.mark.parametrize("traces, context", [("none", CONTEXT), ("otlp", CONTEXT[:20]), ("otlp", CONTEXT + b"\0\0")],
                         ids=["off", "short", "longer"])
def test_a_context_that_nobody_wants_or_can_read_ends_the_connection(traces, context):
    with cluster.Master(environment={"MC_TRACES": traces, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) as master:
        caller = wire.Connection(master.port, wire.ROLE_CALL, os.urandom(16))
        ask(caller)
        if len(context) > 25:  # a later release may say more
            ask(caller, context)
            return
        with pytest.raises((AssertionError, OSError)):
            ask(caller, context)
        assert master.get("/health")[0] == 200


@pytest.mark.parametrize("who", ["master", "node", "client"])
def test_a_peer_of_the_last_release_is_told_nothing_and_works(who):
    old = released.build(pathlib.Path(cluster.BUILD).resolve().parent)
    if old is None:
        pytest.skip(released.WHY)
    with Collector() as collector:
        master_program = {"program": old.build / "mooncake_master"} if who == "master" else {}
        node_path = {"MC_PYTHONPATH": str(old.python_path)} if who == "node" else {}
        with cluster.Master(environment=traced(collector, OTEL_SERVICE_NAME="master"), **master_program) as master, \
                StoreProcess(master.address, **traced(collector, OTEL_SERVICE_NAME="node", **node_path)) as node:
            run(master, times=3, python_path=old.python_path if who == "client" else None, MC_PATHS="tcp",
                **traced(collector, OTEL_SERVICE_NAME="engine"))
            if who != "client":
                arrived(collector, "mooncake.put", *(NODES if who == "master" else MASTERS))
            assert "malformed" not in master.log() + node.log()
        services = {"master": {"node", "engine"}, "node": {"master", "engine"}, "client": set()}[who]
        assert {span.service for span in collector.spans()} == services  # of all that have ended
