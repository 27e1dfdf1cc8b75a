"""The OpenAPI documents of docs/: they have the routes and rights of the source, and servers answer as they say."""
import http.client
import json
import re

from cluster import Master
from service_process import Service
from test_documents import document
from wire import FakeOwner


def described(kind):
    document_ = json.loads(document(f"docs/openapi-{kind}.json"))
    return document_, {(method.upper(), path): call for path, calls in document_["paths"].items() for method, call in calls.items()}


def test_routes_of_the_master():
    _, calls = described("master")
    rows_ = re.findall(r'\{"(\w+)", "([^"]+)", \w+, (?:MC_RIGHT_)?(\w+), ', document("src/store/master/admin.c"))
    assert {(method, path): call.get("x-right", "0").upper() for (method, path), call in calls.items()} == {(method, path): right for method, path, right in rows_}


def test_routes_of_a_store_service():
    _, calls = described("store")
    rows_ = re.findall(r'^    \{"(\w+)", "(/[^"]+)", \w+, \w+, (?:MC_RIGHT_)?(\w+), \w+\},', document("src/store/service/rest.c"), re.M)
    assert len(rows_) > 10
    assert {(method, path.replace("{key}", "")): call.get("x-right", "0").upper() for (method, path), call in calls.items()} == {(method, path): right for method, path, right in rows_}


def check(value, schema, document_, where):
    """Has the answer the members and types that are described, and no others?"""
    while "$ref" in schema:
        schema = document_["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        return check(value, schema["anyOf"][isinstance(value, list)], document_, where)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    wanted = schema.get("type", list(kinds))
    assert any(isinstance(value, kinds[one]) for one in ([wanted] if isinstance(wanted, str) else wanted)), (where, value)
    if "properties" in schema:
        assert set(value) <= set(schema["properties"]) and set(schema.get("required", ())) <= set(value), (where, set(value) ^ set(schema["properties"]))
        for name, one in value.items():
            check(one, schema["properties"][name], document_, f"{where}.{name}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for name, one in value.items():
            check(one, schema["additionalProperties"], document_, f"{where}.{name}")
    for one in value if isinstance(value, list) else ():
        check(one, schema.get("items", {}), document_, where + "[]")


def answered(document_, calls, call, answer, where=None):
    """The answer's code, type and members are among those described."""
    method, path = call
    status, body, headers = answer
    told = calls[(method, path)]["responses"]
    assert str(status) in told, (call, status, body)
    content = told[str(status)].get("content", {})
    for kind, described_ in content.items():
        assert headers.get("Content-Type", "").startswith(kind), (call, headers)
        if kind == "application/json":
            check(json.loads(body), described_.get("schema", {}), document_, f"{method} {path} {status}")
    return json.loads(body) if "application/json" in content else body


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body=body)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_master_answers_as_described(tmp_path):
    document_, calls = described("master")
    asked = set()
    (tmp_path / "quotas.yaml").write_text("version: 1\ntenants: []\n")
    with Master("--enable_multi_tenants", "--enable_kv_events", "--client_ttl=600", "--tenant_quota_connector_uri=" + str(tmp_path / "quotas.yaml")) as master:

        def look(method, path, query="", body=None):
            asked.add((method, path))
            return answered(document_, calls, (method, path), ask(master.metrics_port, method, path + query, body))

        assert look("GET", "/openapi.json") == document_
        look("PUT", "/api/v1/tenant_quotas", "?tenant_id=default", '{"requested_quota_bytes": 1000000000}')
        owner = FakeOwner(master.port, "127.0.0.1:9")
        assert owner.put([b"a"], 5000) == [0]
        name = master.get("/get_all_segments")[1].decode().strip()
        for path in ("/api/v1/overview", "/api/v1/nodes", "/api/v1/keys", "/api/v1/history", "/api/v1/events", "/api/v1/drain_jobs"):
            look("GET", path)
        for path, query in (("/api/v1/nodes", "?limit=x"), ("/api/v1/keys", "?limit=0"), ("/api/v1/key", "?key=a"), ("/api/v1/key", "?key=b"), ("/api/v1/key", ""), ("/api/v1/history", "?range=x"), ("/api/v1/events", "?since=x")):
            look("GET", path, query)
        for path in ("/", "/app.js", "/metrics", "/metrics/summary", "/health", "/role", "/ha_status", "/leader", "/get_all_keys", "/get_all_segments", "/get_segments_detail"):
            look("GET", path)
        for path, query in (("/query_key", "?key=a"), ("/query_key", "?key=b"), ("/query_key", ""), ("/batch_query_keys", "?keys=a,b"), ("/batch_query_keys", ""),
                            ("/query_segment", f"?segment={name}"), ("/query_segment", ""), ("/query_segment", "?segment=x"), ("/api/v1/segments/status", f"?segment={name}"),
                            ("/api/v1/segments/status", "?segment=x"), ("/api/v1/drain_jobs/query", "?job_id=1-2"), ("/api/v1/tenant_quotas", ""), ("/api/v1/misses", ""), ("/api/v1/slow", ""), ("/api/v1/slow", "?limit=x"), ("/api/v1/misses", "?more_bytes=x"), ("/api/v1/misses/why", "?key=b"), ("/api/v1/misses/why", ""),
                            ("/api/v1/tenant_quotas", "?tenant_id=default"), ("/api/v1/tenant_quotas", "?tenant_id=nobody")):
            look("GET", path, query)
        look("GET", "/kv_events/status")
        told = look("GET", "/api/v1/kv_events/snapshot", "?limit=1")
        assert told["keys"] == [{"tenant_id": "default", "object_key": "a", "media": ["cpu"]}]
        assert look("GET", "/api/v1/kv_events", f"?epoch={told['epoch']}&after=0")["events"][0]["object_key"] == "a"
        for query in ("?epoch=x", "", "?limit=0"):
            look("GET", "/api/v1/kv_events", query)
        for query in ("?cursor=x", "?cursor=7.0.0"):
            look("GET", "/api/v1/kv_events/snapshot", query)
        look("POST", "/api/v1/longest_prefix", "", '["a", "b"]')
        look("POST", "/api/v1/longest_prefix", "", "{}")
        look("POST", "/api/v1/drain_jobs", "", '{"segments": ["x"]}')
        job = look("POST", "/api/v1/drain_jobs", "", json.dumps({"segments": [name]}))["job_id"]
        look("GET", "/api/v1/drain_jobs/query", f"?job_id={job}")
        look("POST", "/api/v1/drain_jobs/cancel", f"?job_id={job}")
        look("POST", "/api/v1/drain_jobs/cancel", f"?job_id={job}")
        assert look("GET", "/api/v1/drain_jobs")["jobs"][0]["status"] == "CANCELED"
        look("POST", "/api/v1/undrain", "", json.dumps({"segments": [name]}))
        look("POST", "/api/v1/undrain", "", '{"segments": ["x"]}')
        look("POST", "/api/v1/undrain", "", "{}")
        look("POST", "/api/v1/remove_all", "?tenant_id=nobody&force=true")
        look("POST", "/api/v1/remove_all", "?tenant_id=_no_name")
        look("DELETE", "/api/v1/tenant_quotas", "?tenant_id=default")
        look("DELETE", "/api/v1/tenant_quotas", "?tenant_id=nobody")
        owner.close()
    assert asked == set(calls)


def test_a_store_service_answers_as_described():
    document_, calls = described("store")
    asked = set()
    with Master() as master, Service(MOONCAKE_MASTER=master.address, MOONCAKE_GLOBAL_SEGMENT_SIZE="64mb", MOONCAKE_LOCAL_BUFFER_SIZE="16mb") as node:
        def look(method, path, body=None, key="a", only=None):
            asked.add((method, path))
            answer = ask(node.port, method, path.replace("{key}", key), body)
            assert only in (None, answer[0]), answer
            return answered(document_, calls, (method, path), answer)

        assert look("GET", "/openapi.json") == document_
        look("PUT", "/api/put", '{"key": "a", "value": "b"}', only=200)
        look("PUT", "/api/put", '{"key": "a"}', only=400)
        assert look("GET", "/api/get/{key}", only=200) == b"b"
        look("GET", "/api/get/{key}", key="none", only=404)
        for path in ("/api/exist/{key}", "/health", "/metrics", "/metrics/summary"):
            look("GET", path, only=200)
        look("DELETE", "/api/remove/{key}", key="none", only=500)
        look("DELETE", "/api/remove_all", only=200)
        mounted = look("POST", "/api/mount", '{"size": 1000}', only=200)["segment_ids"]
        look("POST", "/api/unmount", json.dumps({"segment_ids": mounted}), only=200)
        for path in ("/api/mount", "/api/unmount", "/api/mount_shm", "/api/unmount_shm", "/api/reconfigure"):
            look("POST", path, "{}", only=400)
        look("POST", "/api/mount_shm", '{"name": "a", "size": 1}', only=500)
        look("POST", "/api/unmount_shm", '{"segment_ids": ["1-2"]}', only=500)
        look("POST", "/api/reconfigure", '{"mode": "prefill"}', only=200)
        look("POST", "/api/unmount_local_disk", "{}", only=200)
    assert asked == set(calls)
