"""mooncake.reshard: manifests, what they refuse, their bytes. No server is needed. What plans do is in test_reshard_plans.py."""
import copy
import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys
import typing

import pytest

import weights

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake import reshard  # noqa: E402
from mooncake.reshard import contracts, geometry, weight  # noqa: E402
from mooncake.reshard.weight import (  # noqa: E402
    OwnershipAxis, ParallelRank, ParallelTopology, PlacementFragment, ReplicatedAxis, RuntimeBindingFragment, SplitAxis, StoredFragment, TensorDescriptor,
    TopologyParticipant, WeightManifest, WeightPlacementManifest, WeightPlacementPart, WeightRuntimeBindingManifest, validate_runtime_binding,
    validate_runtime_bindings, weight_placement_from_json, weight_placement_to_json)

NAMES = weights.RESOURCE


def tensor(**more):
    return TensorDescriptor(**{"tensor_id": "w", "global_shape": (4, 4), "dtype": "bfloat16", "itemsize": 2, "shard_dims": (0,), "layout_fingerprint": "v1",
                               "parallel_axes": (SplitAxis("tp", 0),), **more})


def piece(**more):
    return PlacementFragment(**{"tensor_id": "w", "global_offset": (0, 0), "local_shape": (4, 4), "nbytes": 32, "rank": ParallelRank(), **more})


def row(index, **more):
    """One of two halves, for the rank of that number."""
    return piece(**{"global_offset": (2 * index, 0), "local_shape": (2, 4), "nbytes": 16, "rank": ParallelRank(tp=index), **more})


def topology(*ranks, **sizes):
    ranks = ranks or (ParallelRank(),)
    return ParallelTopology(**{**{f"{kind}_size": 1 + max(getattr(rank, kind) for rank in ranks) for kind in weights.KINDS}, **sizes},
                            participants=tuple(TopologyParticipant(f"worker-{index}", rank) for index, rank in enumerate(ranks)))


def placement(tensors=None, fragments=None, ranks=(), **more):
    fragments = [piece()] if fragments is None else fragments
    ranks = ranks or sorted({one.rank for one in fragments}, key=dataclasses.astuple)
    return WeightPlacementManifest.from_fragments(**{**NAMES, "placement_set_id": "set", "topology": topology(*ranks), "tensors": tensors or [tensor()],
                                                     "fragments": fragments, **more})


def part(**more):
    return WeightPlacementPart(**{**NAMES, "placement_set_id": "set", "topology_id": topology().topology_id, "participant_id": "worker-0",
                                  "rank": ParallelRank(), "tensors": (tensor(),), "fragments": (piece(),), **more})


def assembled(**more):
    return WeightPlacementManifest(**{**NAMES, "placement_set_id": "set", "topology": topology(), "parts": (part(),), **more})


def memory(**more):
    return RuntimeBindingFragment(**{"placement_fragment_id": placement().fragments[0].fragment_id, "fragment_id": "f", "address": 0x1000, "nbytes": 32,
                                     "worker_id": "h", "endpoint": "h:1", "device": "cuda:0", "itemsize": 2, "local_shape": (4, 4),
                                     "strides_bytes": (8, 2), "storage_address": 0x1000, "storage_nbytes": 32, "storage_offset_bytes": 0, **more})


def binding(of=None, **more):
    of = of or placement()
    return WeightRuntimeBindingManifest(**{"resource_id": of.resource_id, "placement_id": of.placement_id, "placement_digest": of.digest, "generation": 1,
                                           "instance_id": "i", "lease_id": "l", "revision": of.revision, "participant_id": "worker-0",
                                           "fragments": (memory(),), **more})


def stored(**more):
    return StoredFragment(**{"fragment_id": "f", "tensor_id": "w", "global_offset": (0, 0), "local_shape": (4, 4), "nbytes": 32, "object_offset": 0,
                             "object_key": f"{weights.GROUP}/payload/0", **more})


def manifest(**more):
    return WeightManifest(**{**NAMES, "namespace": "default", "group_id": weights.GROUP, "manifest_key": f"{weights.GROUP}/manifest",
                             "tensors": (tensor(),), "fragments": (stored(),), "created_at": "2026-01-01T00:00:00Z", **more})


def test_names():
    assert reshard.__all__ == ["ResourceKind", "ResourceManifest", "PlacementManifest", "RuntimeBindingManifest"]
    for module in (reshard, contracts, geometry, weight):
        for name in module.__all__:
            assert getattr(module, name) is not None
    for name in ("manifest", "planner", "types", "topology", "part", "placement", "runtime", "binding", "serde", "storage_manifest"):
        __import__(f"mooncake.reshard.weight.{name}")
    assert [contracts.ResourceKind(name).name for name in ("model_weight", "kv_cache")] == ["MODEL_WEIGHT", "KV_CACHE"]
    for one in (placement(), binding(), manifest()):
        assert one.resource_kind is reshard.ResourceKind.MODEL_WEIGHT and one.resource_id == "model"


def test_types_resolve():
    for name in set(weight.__all__) - {"LogicalTransferOperation"}:  # that is a name for TransferRegion of two classes
        assert typing.get_type_hints(getattr(weight, name))


def test_nothing_is_needed_but_python():
    """Nor the extension, nor what a test has installed."""
    script = "import sys, mooncake.reshard.weight\nprint([name for name in sys.modules if name.split('.')[0] in ('torch', 'numpy', 'typing_extensions')" \
             " or name == 'mooncake._store'])"
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"]})
    assert done.stdout == "[]\n", done.stderr


# ---- fields ----

REFUSED = {
    "rank": (lambda: ParallelRank(dp=True), "parallel rank dp must be an integer"),
    "rank below": (lambda: ParallelRank(tp=-1), "parallel rank tp must be at least 0"),
    "axis kind": (lambda: ReplicatedAxis("xp"), "unsupported parallel axis kind: xp"),
    "axis no kind": (lambda: OwnershipAxis(""), "parallel axis kind must be a non-empty string"),
    "split dp": (lambda: SplitAxis("dp", 0), "dp cannot use split semantics"),
    "split dim": (lambda: SplitAxis("tp", True), "split axis dim must be an integer"),
    "split ep": (lambda: SplitAxis("ep", 1), "EP must split the leading logical expert dimension"),
    "no shape": (lambda: tensor(global_shape=()), "global_shape must not be empty"),
    "shape of floats": (lambda: tensor(global_shape=(4.0, 4)), "global_shape must be an integer"),
    "shape unordered": (lambda: tensor(global_shape={4, 8}), "global_shape must contain integers"),
    "shape text": (lambda: tensor(global_shape="44"), "global_shape must contain integers"),
    "itemsize": (lambda: tensor(itemsize=0), "itemsize must be at least 1"),
    "dtype": (lambda: tensor(dtype=""), "dtype must be a non-empty string"),
    "layout": (lambda: tensor(layout_fingerprint=None), "layout_fingerprint must be a non-empty string"),
    "dims twice": (lambda: tensor(shard_dims=(0, 0)), "shard_dims must not contain duplicates"),
    "dims order": (lambda: tensor(shard_dims=(1, 0)), "shard_dims must be sorted"),
    "dims range": (lambda: tensor(shard_dims=(2,)), "shard_dims contains an out-of-range dimension"),
    "dims other": (lambda: tensor(shard_dims=(1,)), "parallel axis split dimensions conflict with shard_dims"),
    "axes none": (lambda: tensor(parallel_axes=None), "TensorDescriptor parallel_axes must be a sequence"),
    "axes foreign": (lambda: tensor(parallel_axes=("tp",)), "TensorDescriptor parallel_axes must contain explicit axis values"),
    "axes twice": (lambda: tensor(parallel_axes=(SplitAxis("tp", 0), ReplicatedAxis("tp"))), "parallel_axes must not contain duplicate kinds"),
    "axes one dim": (lambda: tensor(parallel_axes=(SplitAxis("tp", 0), SplitAxis("ep", 0))), "split axes must not share a dimension"),
    "axes range": (lambda: tensor(parallel_axes=(SplitAxis("tp", 2),)), "split axis dimension is out of range"),
    "expert": (lambda: tensor(expert_id=1, parallel_axes=(SplitAxis("ep", 0),)), "an individually allocated expert requires explicit EP ownership"),
    "layer": (lambda: tensor(layer_id=-1), "layer_id must be at least 0"),
    "offset": (lambda: piece(global_offset=(-1, 0)), "global_offset must be at least 0"),
    "extent": (lambda: piece(local_shape=(0, 4)), "local_shape must be at least 1"),
    "no tensor": (lambda: piece(tensor_id=""), "tensor_id must be a non-empty string"),
    "bytes": (lambda: piece(nbytes=1 << 64), "nbytes must fit in an unsigned 64-bit integer"),
    "foreign rank": (lambda: piece(rank=(0, 0, 0, 0)), "rank must be a ParallelRank"),
    "stage": (lambda: piece(pipeline_stage_id=1.0), "pipeline_stage_id must be an integer"),
    "alias text": (lambda: piece(aliases="wx"), "aliases must be a sequence"),
    "alias of none": (lambda: piece(aliases=("w", "")), "aliases must contain non-empty strings"),
    "alias twice": (lambda: piece(aliases=("w", "w")), "aliases must not contain duplicates"),
    "alias alone": (lambda: piece(aliases=("w",)), "alias group must contain at least two tensor IDs"),
    "alias others": (lambda: piece(aliases=("x", "y")), "alias group must contain the fragment tensor_id"),
    "fragment id": (lambda: piece(placement_fragment_id=""), "placement_fragment_id must be a non-empty string"),
    "participant": (lambda: TopologyParticipant("", ParallelRank()), "participant_id must be a non-empty string"),
    "participant rank": (lambda: TopologyParticipant("a", 0), "topology participant rank must be a ParallelRank"),
    "size": (lambda: topology(tp_size=0), "tp_size must be at least 1"),
    "nobody": (lambda: ParallelTopology(tp_size=1, pp_size=1, ep_size=1, dp_size=1, participants=()), "parallel topology participants must not be empty"),
    "one name": (lambda: ParallelTopology(tp_size=2, pp_size=1, ep_size=1, dp_size=1, participants=[
        TopologyParticipant("a", ParallelRank(tp=index)) for index in range(2)]), "duplicate topology participant_id"),
    "one rank": (lambda: topology(ParallelRank(), ParallelRank()), "duplicate topology parallel rank"),
    "rank range": (lambda: topology(ParallelRank(ep=1), ep_size=1), "ep rank is out of range for participant worker-0"),
    "topology id": (lambda: dataclasses.replace(topology(), tp_size=2), "topology_id does not match canonical topology"),
    "stranger": (lambda: topology().participant("worker-9"), "unknown topology participant: worker-9"),
}
PARTS = {
    "part rank": (lambda: part(rank=None), "placement part rank must be a ParallelRank"),
    "part tensors": (lambda: part(tensors=("w",)), "WeightPlacementPart tensors must contain TensorDescriptor"),
    "part fragments": (lambda: part(fragments=None), "WeightPlacementPart fragments must be a sequence"),
    "part other rank": (lambda: part(fragments=(piece(rank=ParallelRank(tp=1)),)), "placement part fragment rank differs from part rank"),
    "part idle": (lambda: part(tensors=(tensor(), tensor(tensor_id="x"))), "placement part contains an unreferenced tensor: x"),
    "part tensor twice": (lambda: part(tensors=(tensor(),) * 2), "duplicate tensor_id: w"),
    "part name twice": (lambda: part(fragments=[row(index, rank=ParallelRank(), placement_fragment_id="a") for index in range(2)]), "duplicate fragment_id: a"),
    "part box twice": (lambda: part(fragments=(piece(), piece(placement_fragment_id="zz"))), "duplicate logical fragment for tensor and parallel rank: zz"),
    "part unknown": (lambda: part(fragments=(piece(), piece(tensor_id="x"))), "unknown tensor_id: x"),
    "part dimensions": (lambda: part(fragments=(piece(global_offset=(0,), placement_fragment_id="a"),)), "fragment rank mismatch: a"),
    "part outside": (lambda: part(fragments=(piece(global_offset=(1, 0), placement_fragment_id="a"),)), "fragment is out of bounds: a"),
    "part bytes": (lambda: part(fragments=(piece(nbytes=31, placement_fragment_id="a"),)), "fragment byte size mismatch: a: expected 32, got 31"),
    "part overlap": (lambda: part(fragments=(row(0, rank=ParallelRank()), piece(global_offset=(1, 0), local_shape=(3, 4), nbytes=24))),
                     "logical fragment boxes overlap for tensor and parallel rank"),
    "whole topology": (lambda: assembled(topology=None), "topology must be a ParallelTopology"),
    "whole generation": (lambda: assembled(weight_generation=-1), "weight_generation must be at least 0"),
    "whole parts": (lambda: assembled(parts=[None]), "WeightPlacementManifest parts must contain WeightPlacementPart"),
    "whole other id": (lambda: assembled(placement_id="sha256:0"), "placement_id does not match canonical logical content"),
    "whole twice": (lambda: assembled(parts=(part(), part())), "duplicate placement participant"),
    "whole missing": (lambda: assembled(parts=()), "missing topology participant: worker-0"),
    "whole unknown": (lambda: assembled(parts=(part(), part(participant_id="zz"))), "unknown topology participant: zz"),
    "whole topology id": (lambda: assembled(parts=(part(topology_id="t"),)), "placement part topology_id differs"),
    "whole rank": (lambda: assembled(parts=(part(rank=ParallelRank(tp=1), tensors=(), fragments=()),)), "placement part rank differs from topology"),
    "whole empty": (lambda: assembled(parts=(part(tensors=(), fragments=()),)), "global weight placement must contain tensors"),
    **{f"whole {name}": (lambda name=name, value=value: assembled(parts=(part(**{name: value}),)), f"placement part {name} differs")
       for name, value in (("resource_id", "x"), ("revision", "x"), ("weight_generation", 9), ("placement_set_id", "x"))},
    "list unknown": (lambda: placement(fragments=[piece(tensor_id="x")]), "unknown tensor_id: x"),
    "list idle": (lambda: placement(tensors=[tensor(), tensor(tensor_id="x")]), "global placement contains an unreferenced tensor: x"),
    "list twice": (lambda: placement(tensors=[tensor()] * 2), "duplicate tensor_id in placement tensors"),
    "list rank": (lambda: placement(fragments=[piece(rank=ParallelRank(pp=1), placement_fragment_id="a")], ranks=(ParallelRank(),)),
                  "placement fragment rank has no topology participant: a"),
}
TWO = (ParallelRank(), ParallelRank(tp=1))
FREE = {"shard_dims": ()}  # of a tensor that no axis splits
COVER = "global placement tensor is not fully covered: "
COVERS = {
    "gap": (lambda: placement(fragments=[row(0)], ranks=TWO), COVER + "w"),
    "overlap": (lambda: placement(fragments=[row(0), piece(rank=ParallelRank(tp=1))]), COVER + "w"),
    "split rank": (lambda: placement(fragments=[piece()], ranks=TWO), COVER + "missing or unexpected split-axis participant for w"),
    "split range": (lambda: placement(topology=topology(tp_size=2)), COVER + "missing or unexpected split-axis participant for w"),
    "replica": (lambda: placement([tensor(**FREE, parallel_axes=(ReplicatedAxis("tp"),))], [piece()], TWO),
                COVER + "missing or unexpected replicated-axis participant for w"),
    "owners": (lambda: placement([tensor(**FREE, parallel_axes=(OwnershipAxis("tp"),))], [row(0), row(1)]), COVER + "w"),
    "wrong dimension": (lambda: placement(fragments=[row(index, global_offset=(0, 2 * index), local_shape=(4, 2)) for index in range(2)]),
                        "split-axis rank geometry conflicts with declared dimension: w: tp -> dim 0"),
    "no grid": (lambda: placement([tensor(shard_dims=(0, 1), parallel_axes=(SplitAxis("ep", 0), SplitAxis("tp", 1)))],
                                  [row(index, rank=ParallelRank(tp=index, ep=index)) for index in range(2)]),
                "non-Cartesian split-axis participant mapping cannot prove rank-to-dimension ownership: w"),
    "silent pp": (lambda: placement(fragments=[piece()], topology=topology(pp_size=2)),
                  "global placement tensor requires explicit parallel semantics for active undeclared pp axis: w"),
    "silent tp": (lambda: placement([tensor(**FREE, parallel_axes=())], [row(0), row(1)]), "global placement tensor varies across undeclared tp axis: w"),
    "silent ep": (lambda: placement(fragments=[row(0), row(1, rank=ParallelRank(tp=1)), row(1, rank=ParallelRank(tp=1, ep=1))]),
                  "global placement tensor varies independently across undeclared ep axis: w"),
    "alias unknown": (lambda: placement(fragments=[piece(aliases=("w", "x"))]), "alias group references unknown tensor: x"),
    "alias silent": (lambda: placement([tensor(), tensor(tensor_id="x")], [piece(aliases=("w", "x")), piece(tensor_id="x")]),
                     "alias group is not declared consistently for tensor: x"),
    "other descriptor": (lambda: assembled(topology=topology(*TWO), parts=[
        part(topology_id=topology(*TWO).topology_id, participant_id=f"worker-{index}", rank=ParallelRank(tp=index), fragments=(row(index),),
             tensors=(tensor(dtype=f"d{index}"),)) for index in range(2)]), "placement part tensor descriptor mismatch: w"),
}
MEMORY = {
    "no worker": (lambda: memory(worker_id=""), "worker_id must be a non-empty string"),
    "null": (lambda: memory(address=0), "address must be at least 1"),
    "too much": (lambda: memory(nbytes=1 << 64), "nbytes must fit in an unsigned 64-bit integer"),
    "beyond the end": (lambda: memory(address=(1 << 64) - 16), "address range must fit in an unsigned 64-bit integer"),
    "shape": (lambda: memory(local_shape="44"), "runtime local_shape must be a tuple or list"),
    "stride": (lambda: memory(strides_bytes=(8, 2.0)), "runtime strides_bytes[1] must be an integer"),
    "strides": (lambda: memory(strides_bytes=(8,)), "runtime stride rank differs from local_shape"),
    "stride 0": (lambda: memory(strides_bytes=(0, 2)), "runtime stride must be positive for non-singleton dimensions"),
    "offset range": (lambda: memory(storage_address=(1 << 64) - 64, storage_offset_bytes=(1 << 64) - 1), "normalized runtime address must fit in 64 bits"),
    "offset": (lambda: memory(storage_offset_bytes=8), "runtime address must equal storage_address plus storage_offset_bytes"),
    "allocation": (lambda: memory(storage_nbytes=31), "runtime view exceeds storage allocation bounds"),
    "digest": (lambda: binding(placement_digest="A" * 64), "placement_digest must be a lowercase SHA-256 digest"),
    "generation": (lambda: binding(generation=True), "generation must be an integer"),
    "fragment twice": (lambda: binding(fragments=[memory(), memory(fragment_id="g")]), "duplicate placement fragment in runtime binding"),
    "memory twice": (lambda: binding(fragments=[memory(), memory(placement_fragment_id="g")]), "duplicate runtime fragment_id in runtime binding"),
}
STORED = {
    "key": (lambda: manifest(manifest_key="elsewhere"), "manifest_key does not belong to manifest group"),
    "payload": (lambda: manifest(fragments=[stored(object_key="elsewhere")]), "payload object_key does not belong to manifest group"),
    "kind": (lambda: manifest(fragments=[piece()]), "WeightManifest fragments must contain StoredFragment"),
    "offset": (lambda: stored(object_offset=-1), "object_offset must be at least 0"),
    "tensor": (lambda: manifest(fragments=[stored(tensor_id="x")]), "unknown tensor_id: x"),
    "twice": (lambda: manifest(fragments=[stored(), stored()]), "duplicate fragment_id: f"),
    "geometry": (lambda: manifest(fragments=[stored(), stored(fragment_id="g", object_offset=32)]), "duplicate fragment geometry: w"),
    "gap": (lambda: manifest(fragments=[stored(local_shape=(2, 4), nbytes=16)]), "tensor is not fully covered: w"),
    "nothing": (lambda: manifest(fragments=[]), "tensor is not fully covered: w"),
    "overlap": (lambda: manifest(fragments=[stored(local_shape=(2, 4), nbytes=16), stored(global_offset=(1, 0), local_shape=(2, 4), nbytes=16,
                                                                                        fragment_id="g", object_offset=16)]), "tensor is not fully covered: w"),
    "object": (lambda: manifest(fragments=[stored(local_shape=(2, 4), nbytes=16), stored(global_offset=(2, 0), local_shape=(2, 4), nbytes=16,
                                                                                       fragment_id="g", object_offset=15)]),
               f"stored fragment object ranges overlap: f and g in {weights.GROUP}/payload/0"),
    "alias unknown": (lambda: manifest(fragments=[stored(aliases=("w", "x"))]), "stored alias references unknown tensor: x"),
    "alias alone": (lambda: manifest(tensors=[tensor(), tensor(tensor_id="x")], fragments=[
        stored(aliases=("w", "x")), stored(fragment_id="g", tensor_id="x", object_offset=32)]), "stored alias group is incomplete for fragment geometry"),
    "alias other": (lambda: manifest(tensors=[tensor(), tensor(tensor_id="x", dtype="f")], fragments=[
        stored(aliases=("w", "x")), stored(fragment_id="g", tensor_id="x", object_offset=32, aliases=("w", "x"))]), "stored alias tensor descriptors differ"),
}


@pytest.mark.parametrize("make, message", [pytest.param(*case, id=f"{table}-{name}") for table, cases in (
    ("field", REFUSED), ("part", PARTS), ("cover", COVERS), ("memory", MEMORY), ("stored", STORED)) for name, case in cases.items()])
def test_what_is_refused(make, message):
    with pytest.raises(ValueError) as raised:
        make()
    assert type(raised.value) is ValueError and str(raised.value) == message


def test_what_is_normalized():
    assert tensor(global_shape=[4, 4], shard_dims=[0]) == tensor() and hash(tensor()) == hash(tensor(global_shape=[4, 4]))
    axes = (SplitAxis("tp", 0), OwnershipAxis("pp"), ReplicatedAxis("dp"), OwnershipAxis("ep"))
    assert [axis.kind for axis in tensor(parallel_axes=axes).parallel_axes] == ["dp", "pp", "ep", "tp"]
    assert piece(aliases=["x", "w"]).aliases == ("w", "x") and piece().fragment_id == piece().placement_fragment_id
    assert topology(*TWO) == dataclasses.replace(topology(*TWO), participants=topology(*TWO).participants[::-1])
    assert topology(*TWO).world_size == 2 and topology(*TWO).participant("worker-1").rank == ParallelRank(tp=1)
    singles = memory(local_shape=(1, 16), strides_bytes=(999, 2))
    assert singles.strides_bytes == (32, 2), "the stride of a dimension of one index means nothing"


def test_names_are_made_of_content():
    """These were computed with the original; they stand in manifests that are stored and exchanged."""
    assert piece().placement_fragment_id == "sha256:6c9cccd1d5964acd25489fe5e09304d714ec90d15167c6e6587ac0f108cb1fed"
    assert topology(*TWO).topology_id == "sha256:aa1ed3edaeb1e367d29e922c14541d2b70dfc735515943f0bf9709991bcdebcb"
    whole = placement(fragments=[row(0), row(1, pipeline_stage_id=3)])
    assert whole.placement_id == "sha256:2131c5099467d625a5c0a7e70a884a28d83744ba99cfff399659fb7780224141"
    assert whole.digest == "a8b9362d07fdf3a648a07d42013139ffa5d2e3cfda5b9d7e47836fa155348f03"
    text = weight_placement_to_json(whole)
    assert hashlib.sha256(text.encode()).hexdigest() == whole.digest and text.count('"pipeline_stage_id":3') == text.count("pipeline_stage_id") == 1
    digest = "63682851b85b1ec6af36113981e879487bc1d7cb77901e285e109700272152fe"
    assert manifest().manifest_digest == digest == manifest().manifest_identity.content_sha256


def test_order_and_names_of_what_is_given_do_not_matter():
    for seed in range(30):
        case = weights.Case(seed)
        said = case.placement("set")
        try:
            first = weights.build_placement(weight, said)
        except ValueError:
            continue
        shuffled = copy.deepcopy(said)
        for name in ("tensors", "fragments"):
            shuffled[name].reverse()
        assert weights.build_placement(weight, shuffled) == first
        text = weight_placement_to_json(first)
        again = weight_placement_from_json(text)
        assert again == first and again.digest == first.digest and weight_placement_to_json(again) == text
        assert pickle.loads(pickle.dumps(first)) == first
        other = weights.build_placement(weight, {**said, "placement_set_id": "other"})
        assert other.placement_id != first.placement_id and other.digest != first.digest
        said = case.manifest()
        lying = weights.build_manifest(weight, said)
        assert WeightManifest.from_json(lying.to_json()) == lying == WeightManifest.from_json(lying.to_json().encode())
        assert WeightManifest.from_dict(json.loads(lying.to_json())).manifest_digest == lying.manifest_digest


def test_names_of_other_letters():
    lying = manifest(namespace="größe\u4e2d")
    assert "größe\u4e2d" in lying.to_json() and WeightManifest.from_json(lying.to_json()) == lying
    whole = placement(placement_set_id="größe")
    assert weight_placement_to_json(whole).isascii() and weight_placement_from_json(weight_placement_to_json(whole)) == whole


def walk(value, path=()):
    """Every place in what was read from JSON."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from walk(inner, (*path, key))


@pytest.mark.parametrize("read, text", [(weight_placement_from_json, weight_placement_to_json(placement(
    [tensor(layer_id=1), tensor(tensor_id="x", layer_id=1)], [row(0), row(1, pipeline_stage_id=3), row(0, tensor_id="x"), row(1, tensor_id="x")]))),
    (WeightManifest.from_json, manifest().to_json())], ids=["placement", "manifest"])
def test_any_other_json_is_refused_or_another_manifest(read, text):
    """Each value replaced, left out, or with a neighbour: a ValueError, or a manifest that says so."""
    refused = 0
    for path in walk(json.loads(text)):
        for change in ("drop", "more", None, True, -1, 1.5, "", "other", [], {}, 1 << 70):
            said = json.loads(text)
            *above, last = path
            place = said
            for key in above:
                place = place[key]
            if change == "drop":
                del place[last]
            elif change == "more":
                place.update(more=1) if isinstance(place, dict) else place.append(place[last])
            else:
                place[last] = change
            if said == json.loads(text) or (change == "drop" and last == "pipeline_stage_id"):
                continue
            try:
                other = read(json.dumps(said))
            except ValueError as error:
                refused += type(error) is ValueError
                continue
            assert other != read(text)
            assert isinstance(other, (WeightManifest, WeightPlacementManifest))
    assert refused > 200


@pytest.mark.parametrize("text, message", [
    ("nonsense", "placement manifest is not valid JSON"), ("[]", "placement manifest must be a JSON object"), (5, "placement manifest is not valid JSON"),
    ('{"a":NaN}', "non-finite JSON number is unsupported: NaN"), ('{"a":1,"a":2}', "duplicate JSON field: a"),
    ("{}", "placement manifest schema fields do not match contract"),
    (weight_placement_to_json(placement()).replace("model_weight", "kv_cache"), "placement manifest resource_kind must be model_weight"),
    (weight_placement_to_json(placement()).replace('"step-1"', '"step-2"'), "placement_id does not match canonical logical content"),
    (weight_placement_to_json(placement()).replace('"nbytes":32', '"nbytes":true'), "nbytes must be an integer at least 1"),
    (weight_placement_to_json(placement()).replace('"semantics":"split"', '"semantics":"cut"'), "unsupported parallel axis semantics: cut"),
])
def test_json_that_is_refused(text, message):
    with pytest.raises(ValueError) as raised:
        weight_placement_from_json(text)
    assert str(raised.value) == message
    with pytest.raises(ValueError, match="placement must be a WeightPlacementManifest"):
        weight_placement_to_json(text)


# ---- bindings ----


def two_tensors(aliases=()):
    return placement([tensor(), tensor(tensor_id="x")], [piece(placement_fragment_id="a", aliases=aliases),
                                                        piece(placement_fragment_id="b", tensor_id="x", aliases=aliases)])


def bound(of, *memories):
    return binding(of, fragments=[memory(placement_fragment_id=name, fragment_id=f"m-{name}", **more) for name, more in memories])


def test_a_binding_that_fits():
    keep = object()
    fits = memory(owner=keep)
    assert validate_runtime_binding(placement(), binding(fragments=(fits,))) is None
    assert validate_runtime_bindings(placement(), [binding()]) is None
    back = pickle.loads(pickle.dumps(fits))
    assert fits.owner is keep and back == fits and back.owner is None and "owner" not in repr(fits)
    inside = memory(address=0x1010, storage_offset_bytes=16, storage_nbytes=48)
    assert validate_runtime_binding(placement(), binding(fragments=(inside,))) is None


@pytest.mark.parametrize("more, message", [
    ({"resource_id": "x"}, "placement and runtime binding resource_id differ"), ({"revision": "x"}, "placement and runtime binding revision differ"),
    ({"placement_id": "x"}, "placement_id and runtime binding placement_id differ"),
    ({"placement_digest": "0" * 64}, "placement digest and runtime binding placement digest differ"),
    ({"participant_id": "x"}, "unknown runtime binding participant: x"),
    ({"fragments": ()}, f"missing placement fragment in runtime binding: {piece().fragment_id}"),
    ({"fragments": (memory(), memory(placement_fragment_id="x", fragment_id="g"))}, "unknown placement fragment in runtime binding: x"),
    ({"fragments": (memory(nbytes=64, storage_nbytes=64),)}, f"runtime binding byte size does not match placement: {piece().fragment_id}"),
    ({"fragments": (memory(local_shape=(2, 8), strides_bytes=(16, 2)),)}, f"runtime binding local_shape does not match placement: {piece().fragment_id}"),
    ({"fragments": (memory(itemsize=1),)}, f"runtime binding itemsize does not match placement: {piece().fragment_id}"),
    ({"fragments": (memory(strides_bytes=(2, 8)),)},
     f"runtime binding stride does not describe a canonical contiguous view: {piece().fragment_id}"),
])
def test_bindings_that_do_not_fit(more, message):
    for check, given in ((validate_runtime_binding, binding(**more)), (validate_runtime_bindings, [binding(**more)])):
        with pytest.raises(ValueError) as raised:
            check(placement(), given)
        assert str(raised.value) == message


@pytest.mark.parametrize("aliases, second, message", [
    ((), {"address": 0x1020, "storage_address": 0x1020}, None), ((), {"device": "cuda:1"}, None), ((), {"worker_id": "other"}, None),
    ((), {}, "address ranges overlap: m-a and m-b in ('i', 'h', 'cuda:0')"), (("w", "x"), {}, None),
    (("w", "x"), {"address": 0x1008, "storage_address": 0x1008}, "address ranges overlap: m-a and m-b in ('i', 'h', 'cuda:0')"),
    ((), {"address": 0x1020, "storage_address": 0x1010, "storage_offset_bytes": 16, "storage_nbytes": 48},
     "storage allocation ranges overlap: m-a and m-b in ('i', 'h', 'cuda:0')"),
])
def test_memory_that_two_fragments_have(aliases, second, message):
    of = two_tensors(aliases)
    given = bound(of, ("a", {}), ("b", second))
    if message is None:
        assert validate_runtime_binding(of, given) is None
        return
    with pytest.raises(ValueError) as raised:
        validate_runtime_binding(of, given)
    assert str(raised.value) == f"runtime binding {message}"


def test_bindings_of_all_participants():
    of = placement(fragments=[row(0), row(1)])
    first, second = (binding(of, participant_id=one.participant_id, fragments=[memory(
        placement_fragment_id=one.fragments[0].fragment_id, local_shape=(2, 4), nbytes=16, storage_nbytes=16, fragment_id=one.participant_id,
        address=0x1000 + 16 * index, storage_address=0x1000 + 16 * index)]) for index, one in enumerate(of.parts))
    assert validate_runtime_bindings(of, [second, first]) is None
    over = dataclasses.replace(second, fragments=[dataclasses.replace(second.fragments[0], address=0x1008, storage_address=0x1008)])
    assert validate_runtime_bindings(of, [first, dataclasses.replace(over, instance_id="j")]) is None
    for given, message in (([first], "missing runtime binding participant: worker-1"), ([first, first], "duplicate runtime binding participant"),
                           (None, "runtime bindings must be a sequence"), ([first, None], "runtime bindings must contain WeightRuntimeBindingManifest"),
                           ([first, over], "runtime binding address ranges overlap: worker-0 and worker-1 in ('i', 'h', 'cuda:0')")):
        with pytest.raises(ValueError) as raised:
            validate_runtime_bindings(of, given)
        assert str(raised.value) == message
    owned = placement([tensor(**FREE, parallel_axes=(OwnershipAxis("tp"),))], [piece()], TWO)
    idle = binding(owned, participant_id="worker-1", fragments=())
    with pytest.raises(ValueError, match="^unknown runtime binding participant: worker-1$"):
        validate_runtime_bindings(owned, [binding(owned), idle])
    for given in ((None, idle), (owned, None)):
        with pytest.raises(ValueError, match="must be a Weight"):
            validate_runtime_binding(*given)
