# SPDX-License-Identifier: Apache-2.0
"""References to batches of rows, and the form in which programs hand them to each other: a dict that JSON can say."""

import dataclasses
import json
from typing import Any, Dict, List, Mapping, Optional, Union

from mooncake._bundle import RemoteBundleRef

DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1
STORAGE_GROUP_ID = "storage_group_id"
SECTIONS = ("batch", "non_tensor_batch")


@dataclasses.dataclass(frozen=True)
class StructuredFieldLocation:
    """Where a field lies: the bundle of which stage, and its member there."""

    stage: str
    member: str
    section: str


@dataclasses.dataclass
class MooncakeDataProtoRef:
    """A batch of rows: its fields lie in the bundles of its stages."""

    batch_size: int
    stage_refs: Dict[str, RemoteBundleRef]
    field_index: Dict[str, StructuredFieldLocation]
    meta_info: Dict[str, Any]
    namespace: str = "default"
    partition: str = "default"
    global_indexes: Optional[List[int]] = None
    encoded_non_tensor: Dict[str, Any] = dataclasses.field(default_factory=dict)
    _storage_group_id: Optional[str] = dataclasses.field(default=None, repr=False)


DataProtoRefLike = Union[MooncakeDataProtoRef, Mapping[str, Any]]


def is_dataproto_ref_handle(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def _plain(value):
    """What JSON can say, also of numpy's numbers and arrays."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a handle holds what JSON can say only, not {type(value).__name__}")


def export_dataproto_ref(ref: MooncakeDataProtoRef) -> Dict[str, Any]:
    """The handle of a reference. TypeError: its meta_info holds what JSON cannot say."""
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"MooncakeDataProtoRef is expected, not {type(ref).__name__}")
    handle = {
        "type": DATAPROTO_REF_HANDLE_TYPE, "version": DATAPROTO_REF_HANDLE_VERSION, "kind": "bundle_stages", "batch_size": int(ref.batch_size),
        "namespace": ref.namespace, "partition": ref.partition, "global_indexes": _plain(ref.global_indexes),
        "stage_refs": {stage: {"manifest_key": one.manifest_key} for stage, one in ref.stage_refs.items()},
        "field_index": {name: dataclasses.asdict(one) for name, one in ref.field_index.items()},
        "meta_info": _plain(ref.meta_info), "encoded_non_tensor": _plain(ref.encoded_non_tensor),
    }
    if ref._storage_group_id is not None:
        handle[STORAGE_GROUP_ID] = ref._storage_group_id
    json.dumps(handle)
    return handle


def _object(value, what):
    if not isinstance(value, Mapping):
        raise ValueError(f"DataProto handle: {what} must be an object")
    return value


def _text(value, what):
    if not isinstance(value, str) or not value:
        raise ValueError(f"DataProto handle: {what} must be a non-empty text")
    return value


def _number(value, what):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"DataProto handle: {what} must be a whole number")
    return value


def import_dataproto_ref(handle: Mapping[str, Any]) -> MooncakeDataProtoRef:
    """The reference of a handle; nothing is read from the store. ValueError: it is none, or of a version that is not known."""
    if not is_dataproto_ref_handle(handle):
        raise ValueError("this is no handle of a DataProto reference")
    version, group = handle.get("version"), handle.get(STORAGE_GROUP_ID)
    if version not in (DATAPROTO_REF_HANDLE_VERSION, 2):
        raise ValueError(f"DataProto handle: unsupported version {version!r}")
    if handle.get("kind") != "bundle_stages":
        raise ValueError(f"DataProto handle: unsupported kind {handle.get('kind')!r}")
    if group is not None or version == 2:
        _text(group, STORAGE_GROUP_ID)
    stages = {}
    for stage, one in _object(handle.get("stage_refs"), "stage_refs").items():
        key = _text(_object(one, "a stage").get("manifest_key"), "manifest_key")
        stages[_text(stage, "the name of a stage")] = RemoteBundleRef(key, {})
    fields = {}
    for name, one in _object(handle.get("field_index"), "field_index").items():
        place = _object(one, "a field")
        location = StructuredFieldLocation(_text(place.get("stage"), "stage"), _text(place.get("member"), "member"), place.get("section"))
        if location.stage not in stages:
            raise ValueError(f"DataProto handle: field {name!r} is of unknown stage {location.stage!r}")
        if location.section not in SECTIONS:
            raise ValueError(f"DataProto handle: field {name!r} is in section {location.section!r}, which there is not")
        fields[_text(name, "the name of a field")] = location
    indexes = handle.get("global_indexes")
    if indexes is not None and not isinstance(indexes, list):
        raise ValueError("DataProto handle: global_indexes must be a list")
    return MooncakeDataProtoRef(
        _number(handle.get("batch_size"), "batch_size"), stages, fields, dict(_object(handle.get("meta_info", {}), "meta_info")),
        str(handle.get("namespace", "default")), str(handle.get("partition", "default")),
        None if indexes is None else [_number(one, "each of global_indexes") for one in indexes],
        dict(_object(handle.get("encoded_non_tensor", {}), "encoded_non_tensor")), group)


def resolve_ref(ref: DataProtoRefLike) -> MooncakeDataProtoRef:
    if isinstance(ref, MooncakeDataProtoRef):
        return ref
    if is_dataproto_ref_handle(ref):
        return import_dataproto_ref(ref)
    raise TypeError(f"a DataProto reference or its handle is expected, not {type(ref).__name__}")
