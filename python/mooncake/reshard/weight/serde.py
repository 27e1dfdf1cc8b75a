# SPDX-License-Identifier: Apache-2.0
"""Placements as canonical JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mooncake.reshard import _check, _json
from mooncake.reshard.contracts import ResourceKind
from mooncake.reshard.weight.placement import WeightPlacementManifest, part_of
from mooncake.reshard.weight.topology import ParallelTopology, TopologyParticipant
from mooncake.reshard.weight.types import AXES, ParallelAxis, ParallelRank, PlacementFragment, TensorDescriptor

__all__ = ["weight_placement_from_json", "weight_placement_to_json"]


def weight_placement_to_json(placement: WeightPlacementManifest) -> str:
    if not isinstance(placement, WeightPlacementManifest):
        raise ValueError("placement must be a WeightPlacementManifest")
    return _json.canonical(placement)


def weight_placement_from_json(value: str) -> WeightPlacementManifest:
    """The placement that this is the JSON of; ValueError if it is not complete, or its content is not what its placement_id says."""
    label = "placement manifest"
    read = read_fields(_json.load(value, label), PLACEMENT, label)
    if read.pop("resource_kind") != ResourceKind.MODEL_WEIGHT.value:
        raise ValueError(f"{label} resource_kind must be model_weight")
    read["topology"] = topology = _topology(read["topology"])
    listed = [read_tensor(one, f"placement tensor {index}", "placement tensor parallel_axes")
              for index, one in enumerate(_check.sequence(read.pop("tensors"), "placement tensors"))]
    tensors = {tensor.tensor_id: tensor for tensor in listed}
    if len(tensors) != len(listed):
        raise ValueError("duplicate tensor_id in placement JSON")
    common = {name: read[name] for name in ("resource_id", "revision", "weight_generation", "placement_set_id")}
    parts = []
    for index, one in enumerate(_check.sequence(read.pop("parts"), "placement parts")):
        part = read_fields(one, {"participant_id": TEXT, "rank": ANY, "fragments": ANY}, f"placement part {index}")
        fragments = [_fragment(fragment, place) for place, fragment in enumerate(_check.sequence(part["fragments"], "placement part fragments"))]
        unknown = {fragment.tensor_id for fragment in fragments} - set(tensors)
        if unknown:
            raise ValueError(f"unknown tensor_id in placement part: {min(unknown)}")
        parts.append(part_of(part["participant_id"], _rank(part["rank"], f"placement part rank {index}"), tensors, fragments,
                             topology_id=topology.topology_id, **common))
    idle = set(tensors) - {fragment.tensor_id for part in parts for fragment in part.fragments}
    if idle:
        raise ValueError(f"placement JSON contains an unreferenced tensor: {min(idle)}")
    return WeightPlacementManifest(parts=tuple(parts), **read)


# ---- Tables of fields: what stands in an object of JSON, and the least value of its numbers. ----

Integer = Callable[[object, str, int], int]
TEXT, TEXTS, ANY = ("text", 0), ("texts", 0), ("any", 0)


def at_least(minimum: int) -> tuple[str, int]:
    return "integer", minimum


def each_at_least(minimum: int) -> tuple[str, int]:
    return "integers", minimum


OPTIONAL = ("optional", 0)
PLACEMENT = {"resource_kind": TEXT, "resource_id": TEXT, "revision": TEXT, "weight_generation": at_least(0), "placement_set_id": TEXT,
             "placement_id": TEXT, "topology": ANY, "tensors": ANY, "parts": ANY}
TOPOLOGY = {"tp_size": at_least(1), "pp_size": at_least(1), "ep_size": at_least(1), "dp_size": at_least(1), "topology_id": TEXT, "participants": ANY}
TENSOR = {"tensor_id": TEXT, "global_shape": each_at_least(1), "dtype": TEXT, "itemsize": at_least(1), "shard_dims": each_at_least(0),
          "layout_fingerprint": TEXT, "parallel_axes": ANY, "layer_id": OPTIONAL, "expert_id": OPTIONAL}
FRAGMENT = {"placement_fragment_id": TEXT, "tensor_id": TEXT, "global_offset": each_at_least(0), "local_shape": each_at_least(1),
            "nbytes": at_least(1), "rank": ANY, "aliases": TEXTS}
RANK = {"dp": at_least(0), "tp": at_least(0), "pp": at_least(0), "ep": at_least(0)}


def _integer(value: object, name: str, minimum: int) -> int:
    if type(value) is not int or value < minimum:
        raise ValueError(f"{name} must be an integer at least {minimum}")
    return value


def read_fields(value: object, table: Mapping[str, tuple[str, int]], label: str, prefix: str = "", integer: Integer = _integer) -> dict[str, Any]:
    """An object with exactly these fields. Errors call a field by `prefix` and its name."""
    raw = _json.exactly(value, table.keys(), label)
    return {name: _read(raw[name], kind, minimum, prefix + name, integer) for name, (kind, minimum) in table.items()}


def _read(value: Any, kind: str, minimum: int, name: str, integer: Integer) -> Any:
    if kind == "any" or (kind == "optional" and value is None):
        return value
    if kind == "text":
        return _check.text(value, name)
    if kind == "texts":
        return tuple(_check.text(one, name[:-2]) for one in _check.sequence(value, name))
    if kind == "integers":
        if integer is _check.integer:
            return _check.integers(value, name, minimum)
        return tuple(integer(one, name, minimum) for one in _check.sequence(value, name))
    return integer(value, name, minimum)


def read_tensor(value: object, label: str, axes_label: str, prefix: str = "", integer: Integer = _integer) -> TensorDescriptor:
    read = read_fields(value, TENSOR, label, prefix, integer)
    read["parallel_axes"] = tuple(_axis(axis, f"placement tensor parallel axis {index}")
                                  for index, axis in enumerate(_check.sequence(read["parallel_axes"], axes_label)))
    return TensorDescriptor(**read)


def _axis(value: object, label: str) -> ParallelAxis:
    semantics = _check.text(_json.mapping(value, label).get("semantics"), "axis semantics")
    if semantics not in AXES:
        raise ValueError(f"unsupported parallel axis semantics: {semantics}")
    table = {"semantics": TEXT, "kind": ANY, **({"dim": at_least(0)} if semantics == "split" else {})}
    read = read_fields(value, table, label, "split axis ")
    del read["semantics"]
    return AXES[semantics](**read)


def _fragment(value: object, index: int) -> PlacementFragment:
    raw = _json.mapping(value, f"placement fragment {index}")
    table = {**FRAGMENT, "pipeline_stage_id": OPTIONAL} if "pipeline_stage_id" in raw else FRAGMENT
    if set(raw) != set(table):
        raise ValueError(f"placement fragment {index} has an invalid schema")
    read = read_fields(raw, table, "placement fragment")
    return PlacementFragment(**{**read, "rank": _rank(read["rank"], f"placement rank {index}")})


def _rank(value: object, label: str) -> ParallelRank:
    return ParallelRank(**read_fields(value, RANK, label, "rank "))


def _topology(value: object) -> ParallelTopology:
    read = read_fields(value, TOPOLOGY, "parallel topology")
    participants = []
    for index, one in enumerate(_check.sequence(read["participants"], "parallel topology participants")):
        participant = read_fields(one, {"participant_id": TEXT, "rank": ANY}, f"parallel topology participant {index}")
        participants.append(TopologyParticipant(participant["participant_id"], _rank(participant["rank"], f"parallel topology rank {index}")))
    return ParallelTopology(**{**read, "participants": tuple(participants)})
