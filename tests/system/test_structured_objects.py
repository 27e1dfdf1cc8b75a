"""mooncake.structured_object_store and mooncake.dataproto_catalog. They need numpy, so object_cases.py runs in the Python that MC_TORCH_PYTHON names, or
in this one if it has numpy. The catalog alone needs nothing."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from python_cluster import master  # noqa: F401
from mooncake._bundle import Bundles, RemoteBundleRef
from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer

PYTHON = os.environ.get("MC_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("numpy") else None)
CASES = "bundles failures objects values batches bad_batches appends tensors catalog".split()


@pytest.mark.skipif(PYTHON is None, reason="no Python with numpy")
@pytest.mark.timeout(1500)
def test_at_a_cluster(master):
    """One process for all: to import torch takes longer than they do."""
    script = pathlib.Path(__file__).with_name("object_cases.py")
    done = subprocess.run([PYTHON, "-B", script, master.address, *CASES], capture_output=True, text=True, timeout=1480,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("passed")] == CASES


def test_a_removal_that_fails_can_be_tried_again():
    """The manifest stays as long as a piece does: by it the piece is found again."""
    class Store(dict):
        refused = set()

        def put(self, key, value):
            self[key] = value
            return 0

        def get(self, key):
            return dict.get(self, key, b"")

        def is_exist(self, key):
            return int(key in self)

        def remove(self, key, _force):
            return -900 if key in self.refused else 0 if self.pop(key, None) is not None else -704

    store = Store()
    bundles = Bundles(store, "t", 10)
    ref = bundles.put(b"meta", {"one": b"x" * 25}, "p", None, None, None)
    assert len(store) == 5
    store.refused = {ref.manifest["buffers"]["one"]["chunks"][1]["key"]}
    with pytest.raises(RuntimeError, match="-900"):
        bundles.remove(RemoteBundleRef(ref.manifest_key, {}))
    assert set(store) == store.refused | {ref.manifest_key}
    store.refused = set()
    bundles.remove(RemoteBundleRef(ref.manifest_key, {}))
    assert not store


def test_a_store_of_a_program_that_cannot_say_what_is_there():
    class Store(dict):
        def put(self, key, value):
            self[key] = value
            return 0

        def get(self, key):
            return self[key]

        def remove(self, key, _force):
            return 0 if self.pop(key, None) is not None else -704

    store = Store()
    ref = Bundles(store, "t", 10).put(b"meta", {"one": b"x" * 25}, "p", None, None, None)
    Bundles(store, "t", 10).remove(RemoteBundleRef(ref.manifest_key, {}))
    assert not store


# ---- the catalog ----


def handle(name, fields, rows=2):
    """Of a fragment that nobody has put."""
    return {"type": "mooncake_dataproto_ref", "version": 1, "kind": "bundle_stages", "batch_size": rows, "stage_refs": {"s": {"manifest_key": name}},
            "field_index": {field: {"stage": "s", "member": f"batch.{field}", "section": "batch"} for field in fields}}


def names_of(retired):
    return [one["stage_refs"]["s"]["manifest_key"] for one in retired["retired_handles"]]


def test_rows_come_from_the_fragments_that_have_their_fields():
    catalog = DataProtoCatalog()
    catalog.update("p", ["a", "b"], tags=[{"n": 1}, {"n": 2}], handle=handle("one", ["x", "y"]))
    told = catalog.update("p", ["b", "a"], tags=[{"m": 3}, {"n": 4}], handle=handle("two", ["z"]))
    assert told["fields"] == ["x", "y", "z"] and told["tags"] == [{"n": 2, "m": 3}, {"n": 4}] and told["keys"] == ["b", "a"]
    assert catalog.list() == {"p": {"a": {"n": 4}, "b": {"n": 2, "m": 3}}} == catalog.list("p") and catalog.list("q") == {}
    plan = catalog.resolve("p", ["a", "b"], ["z", "x", "y"])
    assert plan["field_groups"] == [{"fields": ["z"], "locations": [("two", 1), ("two", 0)]}, {"fields": ["x", "y"], "locations": [("one", 0), ("one", 1)]}]
    assert set(plan["handles"]) == {"one", "two"} and "read_token" not in plan
    plan["tags"][0]["n"] = 9
    assert catalog.list()["p"]["a"] == {"n": 4}, "what is told is a copy"
    catalog.update("p", ["a"], handle=handle("three", ["x"], 1))
    assert catalog.resolve("p", ["a", "b"], ["x"])["field_groups"] == [{"fields": ["x"], "locations": [("three", 0), ("one", 1)]}]


def test_what_is_refused_changes_nothing():
    catalog = DataProtoCatalog()
    catalog.update("p", ["a", "b"], tags=[{}, {}])
    catalog.update("p", ["a"], handle=handle("one", ["x"], 1))
    for call, text in ((lambda: catalog.resolve("p", ["no"]), "not found"), (lambda: catalog.resolve("p", ["a", "b"]), "not ready"), (lambda: catalog.resolve("p", ["b"]), "any fields"),
                       (lambda: catalog.update("p", ["a", "b"], tags=[{}]), "same length"), (lambda: catalog.update("p", "a", tags=[{}]), "sequence"),
                       (lambda: catalog.update("p", [], tags=[]), "non-empty"), (lambda: catalog.update("p", ["a", "a"], tags=[{}, {}]), "unique"),
                       (lambda: catalog.update("q", ["a"]), "tags"), (lambda: catalog.update("q", ["a"], handle=handle("two", ["x"])), "batch size"),
                       (lambda: catalog.update("q", ["a"], handle=handle("two", [], 1)), "non-empty"), (lambda: catalog.update("q", ["a"], handle=handle("one", ["y"], 1)), "collision"),
                       (lambda: catalog.update("q", ["a"], handle={**handle("two", ["x"], 1), "version": 9}), "version"),
                       (lambda: catalog.publish("", "q", ["a"], tags=[{}]), "operation_id"), (lambda: catalog.publish("o", "q", ["a"], handle=handle("one", ["x"], 1)), "managed")):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError):
        catalog.update("q", ["a"], tags=[5])
    assert catalog.list() == {"p": {"a": {}, "b": {}}}


def test_meta_info_of_several_fragments():
    catalog = DataProtoCatalog()
    catalog.update("p", ["a"], handle={**handle("one", ["x"], 1), "meta_info": {"m": 1}})
    catalog.update("p", ["a"], handle={**handle("two", ["y"], 1), "meta_info": {"m": 1, "n": 2}})
    assert catalog.resolve("p", ["a"])["meta_info"] == {"m": 1, "n": 2}
    catalog.update("p", ["a"], handle={**handle("three", ["z"], 1), "meta_info": {"m": 5}})
    with pytest.raises(ValueError, match="conflicting"):
        catalog.resolve("p", ["a"])


def test_only_published_fragments_are_told_as_retired():
    catalog = DataProtoCatalog()
    catalog.update("p", ["a"], handle=handle("direct", ["x"], 1))
    assert names_of(catalog.remove("p", ["a", "no"])) == [] and names_of(catalog.remove("no", ["a"])) == []
    told = catalog.publish("op", "p", ["a", "b"], handle=handle("one", ["x"]))
    assert catalog.publish("op", "q", ["z"], handle=handle("other", ["y"], 1)) == told and catalog.list("q") == {}, "the same operation once more"
    assert names_of(catalog.publish("op 2", "p", ["a"], handle=handle("two", ["x"], 1))) == [], "b needs it"
    assert names_of(catalog.remove("p", ["b"])) == ["one"]
    with pytest.raises(ValueError, match="retire"):
        catalog.publish("op 3", "p", ["a", "b"], handle=handle("one", ["x"]))
    with pytest.raises(ValueError, match="mismatch"):
        catalog.ack_retired([handle("one", ["other"])])
    assert names_of(catalog.ack_retired([handle("one", ["x"]), handle("unknown", ["x"])])) == []
    catalog.ack_publication("op")
    catalog.ack_publication("op")


def test_who_reads_keeps_a_fragment():
    catalog = DataProtoCatalog()
    catalog.publish("op", "p", ["a"], handle=handle("one", ["x"], 1))
    tokens = [catalog.resolve("p", ["a"], pin=True)["read_token"] for _ in range(2)]
    assert names_of(catalog.remove("p", ["a"])) == []
    with pytest.raises(RuntimeError, match="active read"):
        catalog.drain()
    assert names_of(catalog.release_read(tokens[0])) == [] and names_of(catalog.release_read(tokens[0])) == []
    assert names_of(catalog.release_read(tokens[1])) == ["one"] == names_of(catalog.drain()), "until it is acknowledged"
    with pytest.raises(RuntimeError, match="drained"):
        catalog.update("p", ["a"], tags=[{}])


def test_an_append_replaces_the_handle_that_it_knew():
    catalog = DataProtoCatalog()
    before, after = handle("one", ["x"]), handle("one", ["x", "y"])
    after["stage_refs"]["s"]["manifest_key"] = "one, longer"
    catalog.publish("op", "p", ["a", "b"], handle=before)
    told = catalog.publish_append("op 2", "one", "p", ["a", "b"], previous_handle=before, handle=after)
    assert told["fields"] == ["x", "y"] and catalog.publish_append("op 2", "one", "p", ["a"], previous_handle=before, handle=after) == told
    refused = [catalog.publish_append("late", "one", "p", ["a", "b"], previous_handle=before, handle=after),
               catalog.publish_append("size", "one", "p", ["a"], previous_handle=after, handle={**after, "batch_size": 1}),
               catalog.publish_append("gone", "no", "p", ["a", "b"], previous_handle=after, handle=after),
               catalog.publish_append("keys", "one", "p", ["a", "c"], previous_handle=after, handle=after),
               catalog.publish_append("fields", "one", "p", ["a", "b"], previous_handle=after, handle=before)]
    assert all(list(one) == ["append_rejected"] for one in refused)
    assert list(catalog.publish_append("order", "one", "p", ["b", "a"], previous_handle=after, handle=after)) == ["append_rejected"]
    catalog.publish("new a", "p", ["a"], handle=handle("two", ["x"], 1))
    told = catalog.publish_append("joined", "one", "p", ["a", "b"], previous_handle=after, handle=after)
    assert "stale rows: 'a'" in told["append_rejected"], "a has the x of another batch: it gets no y of this one"
    assert sorted(names_of(catalog.remove("p", ["a", "b"]))) == ["one, longer", "two"]
    assert "drained" in (catalog.drain() and catalog.publish_append("end", "one", "p", ["a"], previous_handle=before, handle=after)["append_rejected"])


class Transfer:
    """Instead of a cluster."""

    def __init__(self):
        self.count, self.cleaned, self.refuses_releases = 0, [], 0

    def put(self, data, **_more):
        from mooncake._dataproto import import_dataproto_ref

        self.count += 1
        return import_dataproto_ref(handle(f"put {self.count}", ["x"], len(data)))

    def cleanup_dataproto(self, one):
        self.cleaned.append(one["stage_refs"]["s"]["manifest_key"])

    def release_result(self, _result):
        self.refuses_releases -= 1
        if self.refuses_releases >= 0:
            raise RuntimeError("not now")


class Calls:
    """Calls of a catalog elsewhere: before or after they are done, some are lost."""

    def __init__(self, catalog):
        self.catalog, self.lost = catalog, {}

    def __call__(self, method, *args, **keywords):
        when, count = self.lost.get(method, ("", 0))
        self.lost[method] = (when, count - 1)
        if count > 0 and when == "before":
            raise ConnectionError(method)
        told = getattr(self.catalog, method)(*args, **keywords)
        if count > 0:
            raise ConnectionError(method)
        return told


@pytest.fixture
def client():
    return DataProtoCatalogTransfer(Transfer(), Calls(DataProtoCatalog()))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publication_is_tried_again_and_done_once(client, when):
    client._catalog_call.lost["publish"] = (when, 1)
    client.put([0], partition="p", keys=["a"])
    client._catalog_call.lost["publish"] = (when, 2)
    with pytest.raises(ConnectionError):
        client.put([0], partition="p", keys=["b"])
    client.close()
    assert client.list() == {"p": {"a": {}, "b": {}}} and client.transfer.cleaned == []
    client.remove("p", ["a", "b"])
    assert client.transfer.cleaned == ["put 1", "put 2"]


def test_a_late_publication_brings_nothing_back(client):
    """Its answer was lost, then another replaced it: when it is made again, it is the same operation."""
    client._catalog_call.lost["publish"] = ("after", 2)
    with pytest.raises(ConnectionError):
        client.put([0], partition="p", keys=["a"])
    other = DataProtoCatalogTransfer(client.transfer, client._catalog_call)
    other.put([0], partition="p", keys=["a"])
    client.close()
    assert set(client.resolve("p", ["a"])["handles"]) == {"put 2"} and client.transfer.cleaned == ["put 1"]


def test_lost_acknowledgements(client):
    client._catalog_call.lost["ack_publication"] = ("before", 1)
    client.put([0], partition="p", keys=["a"])
    assert client._catalog_call.catalog._publications
    client.close()
    assert not client._catalog_call.catalog._publications
    client._catalog_call.lost["publish"] = ("before", 100)
    with pytest.raises(ConnectionError):
        client.put([0], partition="p", keys=["b"])
    with pytest.raises(RuntimeError, match="publish"):
        client.drain()
    client._catalog_call.lost.clear()
    client.drain()
    assert sorted(client.transfer.cleaned) == ["put 1", "put 2"]


def test_results_that_are_given_back(client):
    output = type("Output", (), {})()
    client.attach_results(output, ["result"])
    client.transfer.refuses_releases = 1
    client.release_result(output)
    client.release_result(output)
    assert client.transfer.refuses_releases == -1, "tried twice, and not again"
    client.transfer.refuses_releases = 5
    with pytest.raises(RuntimeError, match="release"):
        client.discard_results(["other"], strict=True)
    client.transfer.refuses_releases = 0
    client.close()
    for bad in ({"keys": ["a", "b"]}, {"keys": []}, {"partition": ""}):
        with pytest.raises(ValueError):
            client.put([0], **{"partition": "p", "keys": ["a"], **bad})
    with pytest.raises(ValueError):
        client.put(None, partition="p", keys=["a"])
    assert client.put(None, partition="p", keys=["a"], tags=[{"n": 1}])["tags"] == [{"n": 1}]
