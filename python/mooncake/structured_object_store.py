# SPDX-License-Identifier: Apache-2.0
"""Objects with a structure on top of the store: named members, batches of rows, of which readers take the fields and rows that they need.

    transfer = MooncakeBundleTransfer(store, key_prefix="train")
    ref = transfer.put({"ids": tensor, "prompts": ["a", "b"]}, type="dict")
    ids = transfer.get(ref, type="dict", fields=["ids"], rows=[1])["ids"]
    transfer.cleanup_dataproto(ref)

A batch lies in bundles, one for each stage that has added fields to it. Dense arrays and tensors are members as they are; columns of other values
(texts, lists, dicts, tensors of unequal length) are stored row by row (_rows.py). Nothing is pickled. numpy is needed; torch for tensors.
"""

import copy
import dataclasses
import uuid
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mooncake import _rows
from mooncake._bundle import CHUNK_BYTES, MISSING, BundleRef, Bundles, BundleTransferPolicy, RemoteBundleRef, check_name, decode_json, encode_json
from mooncake._dataproto import (DATAPROTO_REF_HANDLE_TYPE, DATAPROTO_REF_HANDLE_VERSION, SECTIONS, STORAGE_GROUP_ID, DataProtoRefLike,
                                 MooncakeDataProtoRef, StructuredFieldLocation, export_dataproto_ref, import_dataproto_ref, is_dataproto_ref_handle,
                                 resolve_ref)
from mooncake._members import RawDestination, Reader, Rows, StructuredMemberSlice, TensorBuffer, encode
from mooncake._types import _FIELDS, ReplicateConfig

__all__ = ["BundleStore", "BundleTransferPolicy", "MISSING_OBJECT_ERROR", "DATAPROTO_REF_HANDLE_TYPE", "DATAPROTO_REF_HANDLE_VERSION", "DEFAULT_BUNDLE_CHUNK_BYTES",
           "DataProtoRefLike", "FieldSchema", "MooncakeBundleTransfer", "MooncakeDataProtoRef", "RemoteBundleRef", "STORAGE_GROUP_ID", "STRUCTURED_FIELD_SPECS_KEY", "StructuredFieldLocation",
           "StructuredMemberSlice", "StructuredObjectPayload", "StructuredObjectReadSpec", "StructuredObjectResult", "export_dataproto_ref", "export_ref",
           "import_dataproto_ref", "import_ref", "is_dataproto_ref_handle", "raw_destination", "tensor_object_buffer"]

DEFAULT_BUNDLE_CHUNK_BYTES = CHUNK_BYTES
MISSING_OBJECT_ERROR = MISSING
STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"
_WRAPPED = "__mooncake_wrapped_object__"
_ALL_SECTIONS = (*SECTIONS, "meta_info")

export_ref = export_dataproto_ref
import_ref = import_dataproto_ref


class BundleStore(Protocol):
    """What a store must have at least; MooncakeDistributedStore's other calls are used where they are there."""

    def put(self, key: str, value: Any, config: Any = None) -> int: ...
    def get(self, key: str) -> bytes: ...
    def remove(self, key: str, force: bool = False) -> int: ...
    def is_exist(self, key: str) -> int: ...


def tensor_object_buffer(ptr: int, size: int, owner: Any = None, batch_size: Optional[int] = None) -> TensorBuffer:
    """A tensor in memory, header and elements as get_tensor_into leaves them: to be put, or to be read into."""
    return TensorBuffer(int(ptr), int(size), owner, batch_size)


def raw_destination(ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False) -> RawDestination:
    """Memory to read into: an array's elements, or a tensor with its header."""
    return RawDestination(int(ptr), int(size), owner, pre_registered)


@dataclasses.dataclass(frozen=True)
class FieldSchema:
    """What is known of a field. metadata["section"] says where it belongs, metadata["dtype"] which numbers an "ndarray" has; nullable False: None
    is refused. Other codecs are accepted: how rows are stored follows from what they are."""

    codec: str
    nullable: bool = True
    metadata: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def section(self, name: str) -> Optional[str]:
        said = self.metadata.get("section")
        if said is not None and said not in _ALL_SECTIONS:
            raise ValueError(f"FieldSchema of {name!r}: section {said!r} is none of {', '.join(_ALL_SECTIONS)}")
        return said


@dataclasses.dataclass(frozen=True)
class StructuredObjectPayload:
    """What put_structured_object stores: metadata that JSON can say, and named members."""

    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    buffers: Optional[Mapping[str, Any]] = None

    def __post_init__(self):
        if self.buffers is None:
            raise TypeError("StructuredObjectPayload needs buffers")
        if self.metadata is None:
            object.__setattr__(self, "metadata", {})


@dataclasses.dataclass
class StructuredObjectResult:
    """What was read of an object."""

    metadata: Dict[str, Any]
    objects: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StructuredObjectReadSpec:
    """What is to be read of an object; each call gives a new one."""

    ref: BundleRef
    member_names: Optional[Tuple[str, ...]] = None
    member_slices: Tuple[Tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Optional[Sequence[str]]) -> "StructuredObjectReadSpec":
        """Only these members; None: all."""
        return dataclasses.replace(self, member_names=None if names is None else tuple(names))

    def slice_member(self, name: str, axis: int, start: int, end: int, step: int = 1) -> "StructuredObjectReadSpec":
        """Of this member only these rows."""
        slices = {**dict(self.member_slices), name: StructuredMemberSlice(axis, start, end, step)}
        return dataclasses.replace(self, member_slices=tuple(slices.items()))

    def member_slice(self, name: str) -> Optional[StructuredMemberSlice]:
        return dict(self.member_slices).get(name)


# ---- groups: what belongs together is evicted together ----


def _named_group(config):
    """The one group that a caller has named, for all keys of the object; None: it says none."""
    said = getattr(config, "group_ids", None)
    groups = [said] if isinstance(said, str) else list(said or ())
    if len(groups) > 1 or not all(isinstance(one, str) for one in groups):
        raise ValueError("config.group_ids must contain strings, and here one: it stands for all keys of the object")
    return groups[0] if groups else None


def _in_group(config, group):
    """The config with that group for the key of a put; None: with none."""
    if config is None and group is None:
        return None
    own = ReplicateConfig() if config is None else type(config)() if isinstance(config, ReplicateConfig) else copy.copy(config)
    if isinstance(config, ReplicateConfig):
        for name, *_rest in _FIELDS:
            setattr(own, name, getattr(config, name))
    own.group_ids = [group] if group else None
    return own


# ---- sections of a batch ----


def _mapping(value):
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if callable(getattr(value, "items", None)):
        return dict(value.items())
    raise TypeError(f"a mapping is expected, not {type(value).__name__}")


def _sections(data):
    """(batch, non_tensor_batch, meta_info) of an object with these attributes, a dict of them, or a dict of fields."""
    if not isinstance(data, Mapping):
        return tuple(_mapping(getattr(data, name, None)) for name in _ALL_SECTIONS)
    if data and set(data) <= set(_ALL_SECTIONS) and all(one is None or hasattr(one, "items") for one in data.values()):
        return tuple(_mapping(data.get(name)) for name in _ALL_SECTIONS)
    return dict(data), {}, {}


def _is_list(value):
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_dense(value):
    return (isinstance(value, np.ndarray) and value.dtype.kind not in "OV" or _rows._is_tensor(value)) and value.ndim > 0


def _column(name, value):
    """A column of any values, as an array of objects or of plain elements."""
    if isinstance(value, np.ndarray):
        return value
    if not _is_list(value):
        raise TypeError(f"field {name!r} must be an array or a list, not {type(value).__name__}")
    column = np.empty(len(value), object)
    for row, one in enumerate(value):
        column[row] = one
    return column


def _row_count(data, schemas):
    """Of a flat dict: what the schemas say, else the dense fields, else all lists."""
    groups = [{name: value for name, value in data.items() if name in schemas and schemas[name].section(name) in SECTIONS}]
    free = {name: value for name, value in data.items() if name not in schemas or schemas[name].section(name) is None}
    groups.append({name: value for name, value in free.items() if _is_dense(value)})
    groups.append({name: value for name, value in free.items() if _is_list(value) or isinstance(value, np.ndarray) and value.ndim > 0})
    for fields in groups:
        counts = {len(value) for value in fields.values()}
        if len(counts) > 1:
            raise ValueError(f"fields {sorted(fields)} have different numbers of rows, {sorted(counts)}: "
                             "say by FieldSchema metadata['section'] which are no rows")
        if counts:
            return counts.pop()
    return 0


def _of_flat_dict(data, schemas):
    """A flat dict in sections: what has as many rows as the batch is a field, the rest is meta_info."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a dict is expected, not {type(data).__name__}")
    rows = _row_count(data, schemas)
    batch, others, meta = {}, {}, {}
    for name, value in data.items():
        section = schemas[name].section(name) if name in schemas else None
        is_row_field = rows > 0 and (_is_dense(value) or _is_list(value) or isinstance(value, np.ndarray) and value.ndim > 0) and len(value) == rows
        if section == "batch" or section is None and is_row_field and _is_dense(value):
            batch[name] = value
        elif section == "non_tensor_batch" or section is None and is_row_field:
            others[name] = value if _is_list(value) else _column(name, value)  # a list is read as a list
        else:
            meta[name] = value
    return {"batch": batch, "non_tensor_batch": others, "meta_info": meta}


def _to_flat_dict(sections):
    flat: Dict[str, Any] = {}
    for section in ("meta_info", *SECTIONS):
        for name, value in sections[section].items():
            if name in flat:
                raise ValueError(f"Duplicate keys: {name!r} is in several sections")
            flat[name] = value.tolist() if isinstance(value, np.ndarray) and value.dtype == object else value
    return flat


def _check_schemas(batch, others, meta, schemas):
    for name, schema in schemas.items():
        wanted = schema.section(name)
        found = [section for section, fields in zip(_ALL_SECTIONS, (batch, others, meta)) if name in fields]
        if wanted is not None and found and wanted not in found:
            raise ValueError(f"FieldSchema of {name!r} declares section {wanted!r}, but the data has it in {found[0]!r}")


def _check_dicts(name, column, schema):
    """Rows that a FieldSchema says are dicts of tensors: None, or its keys and no others, each of them a part of a name."""
    declared = schema.metadata.get("keys")
    for row, value in enumerate(column):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise TypeError(f"field {name!r}, row {row}: a dict is expected, not {type(value).__name__}")
        if "" in value or any(mark in str(key) for key in value for mark in "./\\"):
            raise ValueError(f"field {name!r}, row {row}: keys must not be empty and must not contain '.', '/' or '\\'")
        others = sorted(str(key) for key in value if declared is not None and key not in declared)
        if others:
            raise ValueError(f"field {name!r}, row {row}: keys not declared by its FieldSchema: {others}")
        empty = [key for key, one in value.items() if one is None]
        if empty:
            raise TypeError(f"field {name!r}, row {row}: explicit None for {empty}: a key that has no tensor is left out")


def _by_schema(name, value, schema):
    column = _column(name, value)
    if schema is None:
        return column
    if schema.codec == "ragged_tensor_dict" and schema.section(name) in (None, "non_tensor_batch"):
        _check_dicts(name, column, schema)
    if not schema.nullable and column.dtype == object and any(one is None for one in column):
        raise ValueError(f"FieldSchema of {name!r} is not nullable, and a row is None")
    dtype = schema.metadata.get("dtype")
    if column is value and schema.codec == "ndarray" and dtype is not None and (column.dtype != object or all(one is not None for one in column)):
        return np.asarray(column.tolist() if column.dtype == object else column, np.dtype(dtype))
    return column


def _built(sections, data_cls):
    if data_cls is None or data_cls is dict:
        return sections
    batch, others, meta = (sections[name] for name in _ALL_SECTIONS)
    if callable(getattr(data_cls, "from_dict", None)):
        return data_cls.from_dict(batch, others, meta_info=meta)
    try:
        return data_cls(batch=batch, non_tensor_batch=others, meta_info=meta)
    except TypeError as error:
        raise TypeError(f"{data_cls!r} cannot be constructed of batch, non_tensor_batch and meta_info: {error}") from error


class MooncakeBundleTransfer:
    """Puts, reads and removes objects with a structure. One may be used by several threads, as the store may.

    buffer_pool is accepted: bytes are read straight into what is returned."""

    def __init__(self, store: BundleStore, key_prefix: str = "bundle", default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES, buffer_pool: Any = None) -> None:
        self.store = store
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes)
        self._reader = Reader(self._bundles)
        self.key_prefix = self._bundles.prefix
        self.default_chunk_bytes = default_chunk_bytes

    # ---- bundles and objects ----

    def put_bundle(self, meta: Any, buffers: Mapping[str, Any], partition: str = "default", chunk_bytes: Optional[int] = None,
                   policy: Optional[BundleTransferPolicy] = None, max_inflight_put: Optional[int] = None, config: Any = None) -> RemoteBundleRef:
        """Bytes and named buffers as they are."""
        return self._bundles.put(meta, buffers, partition, chunk_bytes, _policy(policy, max_inflight_put), _in_group(config, _named_group(config)))

    def remove_bundle(self, ref: BundleRef) -> None:
        """All of a bundle. Of one that is gone: nothing."""
        self._bundles.remove(ref)

    def put_structured_object(self, payload: StructuredObjectPayload, partition: str = "default", chunk_bytes: Optional[int] = None,
                              policy: Optional[BundleTransferPolicy] = None, max_inflight_put: Optional[int] = None,
                              config: Any = None) -> RemoteBundleRef:
        """An object of named members: bytes, arrays, tensors."""
        return self._put_members(payload, partition, chunk_bytes, _policy(policy, max_inflight_put), _in_group(config, _named_group(config)))

    def _put_members(self, payload, partition, chunk_bytes, policy, config, base=None):
        metadata = {"layout": "structured", **payload.metadata}
        if STRUCTURED_FIELD_SPECS_KEY in payload.metadata or not isinstance(metadata["layout"], str):
            raise ValueError(f"metadata: layout must be a text, and {STRUCTURED_FIELD_SPECS_KEY} is reserved")
        said, payloads = ({}, {}) if base is None else (dict(self._metadata(base)[STRUCTURED_FIELD_SPECS_KEY]), {})
        for name, value in payload.buffers.items():
            check_name(name, "name of a member")
            said[name], payloads[name] = encode(name, value)
        metadata[STRUCTURED_FIELD_SPECS_KEY] = said
        return self._bundles.put(encode_json(metadata, "metadata"), payloads, partition, chunk_bytes, policy, config, base)

    def _metadata(self, manifest):
        metadata = decode_json(self._bundles.read(manifest["meta"]), "metadata")
        if not isinstance(metadata.setdefault(STRUCTURED_FIELD_SPECS_KEY, {}), dict):
            raise ValueError("metadata: what is said of members must be an object")
        return metadata

    def put_object(self, obj: Any, partition: str = "default", chunk_bytes: Optional[int] = None, policy: Optional[BundleTransferPolicy] = None,
                   max_inflight_put: Optional[int] = None, config: Any = None) -> RemoteBundleRef:
        """A mapping of members, or one value."""
        is_many = isinstance(obj, Mapping)
        payload = StructuredObjectPayload({}, obj) if is_many else StructuredObjectPayload({_WRAPPED: True}, {"value": obj})
        return self.put_structured_object(payload, partition, chunk_bytes, policy, max_inflight_put, config)

    def get_object(self, ref: BundleRef) -> Any:
        """What put_object has put."""
        result = self.materialize(self.read_spec(ref))
        return result.objects["value"] if result.metadata.get(_WRAPPED) else result.objects

    def read_spec(self, ref: BundleRef) -> StructuredObjectReadSpec:
        """All of the object; nothing is read yet."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Reads what the spec says."""
        return self.materialize_into(spec, None)

    def materialize_into(self, spec: StructuredObjectReadSpec, destinations: Optional[Mapping[str, Any]]) -> StructuredObjectResult:
        """The same, into the memory that is given for a member."""
        if spec.member_names is not None and not spec.member_names:
            raise ValueError("the read spec selected no members")
        manifest = self._bundles.manifest(spec.ref)
        metadata, buffers = self._metadata(manifest), manifest["buffers"]
        names = list(buffers) if spec.member_names is None else list(spec.member_names)
        self._check_there(names, buffers, "members")
        said = metadata[STRUCTURED_FIELD_SPECS_KEY]
        objects = {name: self._reader.read(name, buffers[name], said.get(name, {}), spec.member_slice(name), (destinations or {}).get(name)) for name in names}
        return StructuredObjectResult(metadata, objects)

    @staticmethod
    def _check_there(names, there, what):
        missing = [name for name in names if name not in there]
        if missing:
            raise KeyError(f"unknown {what}: {missing}")

    @staticmethod
    def release_result(result: Any) -> None:
        """Nothing: results are memory of their own, which goes with them."""

    # ---- batches of rows ----

    def put(self, data: Any, *, type: str = "dataproto", namespace: str = "default", partition: str = "default", stage: str = "default",
            chunk_bytes: Optional[int] = None, policy: Optional[BundleTransferPolicy] = None, config: Any = None,
            field_schemas: Optional[Mapping[str, FieldSchema]] = None) -> MooncakeDataProtoRef:
        """A batch: "dataproto", with batch, non_tensor_batch and meta_info as attributes or in a dict; "dict", one dict of all."""
        _check_type(type)
        data = _of_flat_dict(data, field_schemas or {}) if type == "dict" else data
        named = _named_group(config)
        group = f"structured-{uuid.uuid4().hex}" if named is None else named or None  # "": none
        empty = MooncakeDataProtoRef(-1, {}, {}, {}, namespace, partition, _storage_group_id=group)
        return self._add_stage(empty, data, stage, False, chunk_bytes, policy, config, field_schemas or {})

    def get(self, ref: DataProtoRefLike, *, type: str = "dataproto", fields: Optional[Sequence[str]] = None, batch_fields: Optional[Sequence[str]] = None,
            non_tensor_fields: Optional[Sequence[str]] = None, meta_info_keys: Optional[Sequence[str]] = None, data_cls: Any = None,
            destinations: Optional[Mapping[str, Any]] = None, rows: Union[slice, StructuredMemberSlice, Sequence[int], None] = None) -> Any:
        """A batch, or these fields and rows of it: a dict of three sections, data_cls made of them, or one dict ("dict")."""
        _check_type(type)
        sections = self._read(resolve_ref(ref), fields, batch_fields, non_tensor_fields, meta_info_keys, destinations or {}, rows)
        return _to_flat_dict(sections) if type == "dict" else _built(sections, data_cls)

    def put_dataproto(self, data: Any, *, namespace: str = "default", partition: str = "default", stage: str = "default", chunk_bytes: Optional[int] = None,
                      policy: Optional[BundleTransferPolicy] = None, field_schemas: Optional[Mapping[str, FieldSchema]] = None,
                      config: Any = None) -> MooncakeDataProtoRef:
        """put of type "dataproto"."""
        return self.put(data, namespace=namespace, partition=partition, stage=stage, chunk_bytes=chunk_bytes, policy=policy, config=config,
                        field_schemas=field_schemas)

    def get_dataproto(self, ref: DataProtoRefLike, *, fields: Optional[Sequence[str]] = None, batch_fields: Optional[Sequence[str]] = None,
                      non_tensor_fields: Optional[Sequence[str]] = None, meta_info_keys: Optional[Sequence[str]] = None, data_cls: Any = None,
                      destinations: Optional[Mapping[str, Any]] = None,
                      rows: Union[slice, StructuredMemberSlice, Sequence[int], None] = None) -> Any:
        """get of type "dataproto"."""
        return self.get(ref, fields=fields, batch_fields=batch_fields, non_tensor_fields=non_tensor_fields, meta_info_keys=meta_info_keys,
                        data_cls=data_cls, destinations=destinations, rows=rows)

    def append_dataproto_fields(self, ref: DataProtoRefLike, data: Any, *, stage: str, overwrite: bool = False, chunk_bytes: Optional[int] = None,
                                policy: Optional[BundleTransferPolicy] = None, field_schemas: Optional[Mapping[str, FieldSchema]] = None,
                                config: Any = None) -> MooncakeDataProtoRef:
        """A reference that has more fields. The former one stays valid, unless a stage is overwritten: then that stage must be given whole."""
        return self._add_stage(resolve_ref(ref), data, stage, overwrite, chunk_bytes, policy, config, field_schemas or {})

    def cleanup_dataproto(self, ref: DataProtoRefLike) -> None:
        """Removes a batch. Of one that is gone: nothing."""
        for stage_ref in {one.manifest_key: one for one in resolve_ref(ref).stage_refs.values()}.values():
            self._bundles.remove(stage_ref)

    def cleanup_dataproto_append(self, previous: DataProtoRefLike, appended: DataProtoRefLike) -> None:
        """Removes what the second reference has and the first has not."""
        before = resolve_ref(previous).stage_refs
        for stage, stage_ref in resolve_ref(appended).stage_refs.items():
            kept = before.get(stage)
            if kept is None or kept.manifest_key != stage_ref.manifest_key:
                self._bundles.remove(stage_ref, () if kept is None else self._bundles.keys(kept))

    def dataproto_manifest_view(self, ref: DataProtoRefLike) -> Dict[str, Any]:
        """What there is of a batch, and how it is stored; no field is read."""
        ref = resolve_ref(ref)
        metadata = {stage: self._metadata(self._bundles.manifest(one)) for stage, one in ref.stage_refs.items()}
        fields: Dict[str, Dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, place in ref.field_index.items():
            said = metadata[place.stage][STRUCTURED_FIELD_SPECS_KEY]
            column = ref.encoded_non_tensor.get(name)
            spec = dict(said.get(place.member, {"encoding": "bytes"})) if column is None else {
                "encoding": "structured_non_tensor", **column, "payload_specs": {one: said.get(member) for one, member in column["payload_members"].items()}}
            fields[place.section][name] = {"section": place.section, "stage": place.stage, "member": place.member, "spec": spec}
        return {
            "namespace": ref.namespace, "partition": ref.partition, "batch_size": ref.batch_size, "batch_fields": fields["batch"],
            "non_tensor_fields": fields["non_tensor_batch"], "meta_info_keys": list(ref.meta_info),
            "stages": {stage: {"manifest_key": one.manifest_key, "dataproto": metadata[stage].get("dataproto", {})} for stage, one in ref.stage_refs.items()},
        }

    # ---- how ----

    def _add_stage(self, ref, data, stage, overwrite, chunk_bytes, policy, config, schemas):
        check_name(stage, "stage")
        batch, others, meta = _sections(data)
        _check_schemas(batch, others, meta, schemas)
        named, group = _named_group(config), ref._storage_group_id
        if named and group and named != group:
            raise ValueError(f"config.group_ids {named!r} conflicts with the batch's own group {group!r}")
        both = sorted(set(batch) & set(others))
        if both:
            raise ValueError(f"batch and non_tensor_batch overlap: both have {both}")
        size = self._batch_size(ref, batch, others)
        places, columns, buffers = self._members(stage, batch, others, schemas)
        there = sorted(set(ref.field_index) & set(places))
        if there and not overwrite:
            raise ValueError(f"fields {there} already exist")
        left = [name for name, one in ref.field_index.items() if overwrite and one.stage == stage and name not in places]
        if left:
            raise ValueError(f"what overwrites stage {stage!r} must include existing fields: {left}")
        stages = dict(ref.stage_refs)
        if buffers:
            before = stages.get(stage)
            said = {"version": 1, "namespace": ref.namespace, "partition": ref.partition, "stage": stage, "batch_size": size}
            payload = StructuredObjectPayload({"layout": "dataproto_stage", "dataproto": said}, buffers)
            base = self._bundles.manifest(before) if before is not None and not overwrite else None
            stages[stage] = self._put_members(payload, ref.partition, chunk_bytes, policy, _in_group(config, group or named), base)
            if before is not None and overwrite:
                self._bundles.remove(before)
        kept = {name: one for name, one in ref.encoded_non_tensor.items() if name not in places}
        return dataclasses.replace(ref, batch_size=size, stage_refs=stages, field_index={**ref.field_index, **places},
                                   meta_info={**ref.meta_info, **meta}, encoded_non_tensor={**kept, **columns})

    @staticmethod
    def _batch_size(ref, batch, others):
        sizes = sorted({len(value) for fields in (batch, others) for value in fields.values()})
        if len(sizes) > 1:
            raise ValueError(f"fields of inconsistent batch sizes: {sizes} rows")
        size = sizes[0] if sizes else max(ref.batch_size, 0)
        if ref.batch_size >= 0 and size != ref.batch_size:
            raise ValueError(f"fields of {size} rows do not fit to the batch size, {ref.batch_size}")
        return size

    @staticmethod
    def _members(stage, batch, others, schemas):
        """(places of the fields, the columns among them, members of the bundle)."""
        places, columns, buffers = {}, {}, {}
        for name, value in batch.items():
            buffers[f"batch.{name}"] = value
            places[name] = StructuredFieldLocation(stage, f"batch.{name}", "batch")
        for name, value in others.items():
            member = f"non_tensor_batch.{name}"
            places[name] = StructuredFieldLocation(stage, member, "non_tensor_batch")
            column = value if _rows._is_tensor(value) else _by_schema(name, value, schemas.get(name))
            if _is_dense(column):
                buffers[member] = column
                continue
            try:
                data, offsets = _rows.pack_column(list(column))
            except TypeError as error:
                raise ValueError(f"unsupported structured non-tensor field {name!r}: it cannot be stored: {error}") from None
            parts = {"data": data, "offsets": offsets}
            buffers.update({f"{member}.{part}": one for part, one in parts.items()})
            columns[name] = {"codec": _rows.CODEC, "rows": len(column), "metadata": {}, "payload_members": {part: f"{member}.{part}" for part in parts}}
        return places, columns, buffers

    def _read(self, ref, fields, batch_fields, non_tensor_fields, meta_info_keys, destinations, rows):
        if rows is not None:
            Rows(rows, ref.batch_size)  # what cannot be is said before anything is read
        sections: Dict[str, Dict[str, Any]] = {section: {} for section in SECTIONS}
        opened: Dict[str, Any] = {}
        for name in self._wanted(ref, fields, batch_fields, non_tensor_fields):
            place = ref.field_index[name]
            if place.stage not in opened:
                manifest = self._bundles.manifest(ref.stage_refs[place.stage])
                opened[place.stage] = manifest["buffers"], self._metadata(manifest)[STRUCTURED_FIELD_SPECS_KEY]
            buffers, said = opened[place.stage]
            column = ref.encoded_non_tensor.get(name)
            if column is not None:
                sections[place.section][name] = self._read_column(name, column, buffers, said, rows)
                continue
            self._check_there([place.member], buffers, "members")
            sections[place.section][name] = self._reader.read(name, buffers[place.member], said.get(place.member, {}), rows, destinations.get(name))
        if meta_info_keys is not None:
            self._check_there(meta_info_keys, ref.meta_info, "keys of meta_info")
        meta = ref.meta_info if meta_info_keys is None else {key: ref.meta_info[key] for key in meta_info_keys}
        return {**sections, "meta_info": dict(meta)}

    def _read_column(self, name, column, buffers, said, rows):
        members = column.get("payload_members", {})
        if column.get("codec") != _rows.CODEC:
            raise ValueError(f"field {name!r} is of codec {column.get('codec')!r}, which this release does not know")
        self._check_there(members.values(), buffers, "members")
        offsets = self._reader.read(name, buffers[members["offsets"]], said[members["offsets"]])
        values = self._reader.values(buffers[members["data"]], 0, offsets, rows)
        return _column(name, values)

    def _wanted(self, ref, fields, batch_fields, non_tensor_fields) -> List[str]:
        if fields is not None and (batch_fields is not None or non_tensor_fields is not None):
            raise ValueError("fields cannot be combined with batch_fields and non_tensor_fields")
        if fields is not None:
            names = list(fields)
        elif batch_fields is not None or non_tensor_fields is not None:
            names = [*(batch_fields or ()), *(non_tensor_fields or ())]
        else:
            names = list(ref.field_index)
        self._check_there(names, ref.field_index, "DataProto fields")
        return names


def _policy(policy, max_inflight_put):
    if max_inflight_put is None:
        return policy
    return dataclasses.replace(policy or BundleTransferPolicy(), max_inflight_put=max_inflight_put)


def _check_type(kind):
    if kind not in ("dataproto", "dict"):
        raise ValueError(f"unsupported Mooncake payload type {kind!r}: neither 'dataproto' nor 'dict'")
