# SPDX-License-Identifier: Apache-2.0
"""Rows by name: which fragment of which batch has each field of a row.

A catalog knows names, tags and handles; bytes stay in the store. It belongs to one process, whose calls to it come one after the other; other
processes reach it by whatever calls they have (an actor, an RPC) and use DataProtoCatalogTransfer, which puts batches and publishes them here.

Invariant: a fragment that was published is told as retired when no row names it and nobody reads it, not before; and again until it is acknowledged.
Invariant: an operation that has a number is done once, however often its answer is lost.
"""

import copy
import dataclasses
import logging
import threading
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from mooncake._dataproto import export_dataproto_ref, import_dataproto_ref

__all__ = ["DataProtoCatalog", "DataProtoCatalogTransfer"]

logger = logging.getLogger(__name__)


def _text(value, what):
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a non-empty text")
    return value


def _names(values, what):
    if isinstance(values, str):
        raise ValueError(f"{what} must be a sequence of texts, not one text")
    names = tuple(values)
    if not names or not all(isinstance(one, str) and one for one in names):
        raise ValueError(f"{what} must be non-empty texts, and some")
    if len(set(names)) != len(names):
        raise ValueError(f"{what} must be unique")
    return names


def _tags(tags, count):
    if tags is None:
        return None
    if len(tags) != count:
        raise ValueError(f"tags and keys must be of the same length: {len(tags)} and {count}")
    if not all(isinstance(one, Mapping) for one in tags):
        raise TypeError("each tag must be a mapping")
    return [copy.deepcopy(dict(one)) for one in tags]


def _normal(handle):
    """(reference, the handle as it would be written here)."""
    ref = import_dataproto_ref(handle)
    return ref, export_dataproto_ref(ref)


@dataclasses.dataclass
class _Fragment:
    handle: Dict[str, Any]
    is_managed: bool
    uses: int = 0  # fields of rows that are here
    readers: int = 0


@dataclasses.dataclass
class _Row:
    tag: Dict[str, Any] = dataclasses.field(default_factory=dict)
    fields: Dict[str, Tuple[str, int]] = dataclasses.field(default_factory=dict)  # fragment, number of the row in it


class DataProtoCatalog:
    """Partitions of rows, by name."""

    def __init__(self) -> None:
        self._rows: Dict[str, Dict[str, _Row]] = {}
        self._fragments: Dict[str, _Fragment] = {}
        self._retired: Dict[str, Dict[str, Any]] = {}
        self._publications: Dict[str, Dict[str, Any]] = {}  # operations that are not acknowledged, and what they were told
        self._reads: Dict[int, Tuple[str, ...]] = {}
        self._next_read = 1
        self._is_drained = False

    # ---- rows that come ----

    def update(self, partition: str, keys: Sequence[str], *, tags: Optional[Sequence[Mapping[str, Any]]] = None,
               handle: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Tags are added to the rows, and a batch whose rows these are. What the batch is and when it goes is the caller's business."""
        return self._update(partition, keys, tags, handle, False)

    def publish(self, operation_id: str, partition: str, keys: Sequence[str], *, tags: Optional[Sequence[Mapping[str, Any]]] = None,
                handle: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """update, once for each operation_id, of a batch that nobody else names: it is told as retired when no row needs it."""
        return self._once(operation_id, lambda: self._update(partition, keys, tags, handle, handle is not None))

    def publish_append(self, operation_id: str, fragment_id: str, partition: str, keys: Sequence[str], *, previous_handle: Mapping[str, Any],
                       handle: Mapping[str, Any]) -> Dict[str, Any]:
        """A published batch has got more fields: its new handle in place of the former. {"append_rejected": why}: it is not what it was."""
        def append():
            problem = self._append(fragment_id, partition, keys, previous_handle, handle)
            return self._told(partition, keys) if problem is None else {"append_rejected": problem}

        return self._once(operation_id, append)

    def ack_publication(self, operation_id: str) -> None:
        """Its answer has arrived: it will not be asked for again."""
        self._publications.pop(_text(operation_id, "operation_id"), None)

    def _once(self, operation_id, call):
        if _text(operation_id, "operation_id") not in self._publications:
            self._publications[operation_id] = call()
        return copy.deepcopy(self._publications[operation_id])

    def _update(self, partition, keys, tags, handle, is_managed):
        if self._is_drained:
            raise RuntimeError("this DataProto catalog is drained")
        _text(partition, "partition")
        keys = _names(keys, "keys")
        tags = _tags(tags, len(keys))
        if tags is None and handle is None:
            raise ValueError("an update needs tags, or a batch's handle")
        fragment_id, fields = (None, ()) if handle is None else self._take(handle, len(keys), is_managed)
        rows = self._rows.setdefault(partition, {})
        for number, key in enumerate(keys):
            row = rows.setdefault(key, _Row())
            row.tag.update(tags[number] if tags is not None else {})
            for field in fields:
                self._place(row, field, fragment_id, number)
        return self._told(partition, keys)

    def _take(self, handle, count, is_managed):
        """(id, fields) of a batch that is known from now on. ValueError: it cannot be, and nothing has changed."""
        ref, normal = _normal(handle)
        if len(ref.stage_refs) != 1:
            raise ValueError("a fragment of a catalog must have exactly one stage")
        fragment_id = next(iter(ref.stage_refs.values())).manifest_key
        if ref.batch_size != count:
            raise ValueError(f"a batch size of {ref.batch_size} and {count} keys")
        fields = _names(ref.field_index, "fields")
        known = self._fragments.get(fragment_id)
        if known is not None and known.handle != normal:
            raise ValueError(f"collision: fragment {fragment_id!r} has another handle")
        if known is not None and known.is_managed != is_managed:
            raise ValueError(f"fragment {fragment_id!r} is managed by {'this catalog' if known.is_managed else 'its caller'}")
        if fragment_id in self._retired:
            raise ValueError(f"fragment {fragment_id!r} is retired, and about to be removed")
        self._fragments.setdefault(fragment_id, _Fragment(normal, is_managed))
        return fragment_id, fields

    def _append(self, fragment_id, partition, keys, previous_handle, handle):
        """None, or why not."""
        if self._is_drained:
            return "this DataProto catalog is drained"
        before, before_normal = _normal(previous_handle)
        ref, normal = _normal(handle)
        known = self._fragments.get(_text(fragment_id, "fragment_id"))
        if known is None or not known.is_managed or known.handle != before_normal:
            return f"stale handle: fragment {fragment_id!r} is not what it was"
        identity = [(one.batch_size, one.partition, one._storage_group_id) for one in (ref, before)]
        if identity[0] != identity[1] or ref.batch_size != len(_names(keys, "keys")):
            return "the handle is of another batch"
        if any(ref.field_index.get(name) != place for name, place in before.field_index.items()):
            return "the handle lacks fields that there were, or has them elsewhere"
        rows = self._rows.get(_text(partition, "partition"), {})
        missing = [key for key in keys if key not in rows]
        if missing:
            return f"keys {missing} were not found in partition {partition!r}"
        for number, key in enumerate(keys):
            if any(rows[key].fields.get(field) != (fragment_id, number) for field in before.field_index):
                return f"stale rows: {key!r} has fields of another batch by now, or is another row of this one"
        known.handle = normal
        for number, key in enumerate(keys):
            for field in ref.field_index:
                if field not in before.field_index:
                    self._place(rows[key], field, fragment_id, number)
        return None

    def _place(self, row, field, fragment_id, number):
        before = row.fields.get(field)
        row.fields[field] = (fragment_id, number)
        self._fragments[fragment_id].uses += 1
        if before is not None:
            self._unplace(before)

    def _unplace(self, place):
        self._fragments[place[0]].uses -= 1
        self._settle(place[0])

    def _settle(self, fragment_id):
        """What no row names and nobody reads is not known any more."""
        fragment = self._fragments[fragment_id]
        if fragment.uses == 0 and fragment.readers == 0:
            del self._fragments[fragment_id]
            if fragment.is_managed:
                self._retired[fragment_id] = fragment.handle

    def _told(self, partition, keys):
        rows = self._rows[partition]
        return {"keys": list(keys), "tags": [copy.deepcopy(rows[key].tag) for key in keys], "fields": self._fields(rows, keys), **self._told_retired()}

    @staticmethod
    def _fields(rows, keys):
        return list(dict.fromkeys(field for key in keys for field in rows[key].fields))

    # ---- rows that are read ----

    def resolve(self, partition: str, keys: Sequence[str], fields: Optional[Sequence[str]] = None, *, pin: bool = False) -> Dict[str, Any]:
        """Where the rows' fields lie, in the order of the keys: field_groups, each of fields that lie alike, and the handles of all fragments. pin:
        they are kept until release_read(read_token)."""
        rows = self._rows.get(_text(partition, "partition"), {})
        keys = _names(keys, "keys")
        missing = [key for key in keys if key not in rows]
        if missing:
            raise ValueError(f"keys {missing} were not found in partition {partition!r}")
        wanted = self._fields(rows, keys) if fields is None else list(_names(fields, "fields"))
        if not wanted:
            raise ValueError("these rows do not contain any fields")
        for key in keys:
            late = [field for field in wanted if field not in rows[key].fields]
            if late:
                raise ValueError(f"fields {late} of {key!r} are not ready")
        groups: Dict[Tuple[Tuple[str, int], ...], List[str]] = {}
        for field in wanted:
            groups.setdefault(tuple(rows[key].fields[field] for key in keys), []).append(field)
        used = tuple(dict.fromkeys(place[0] for places in groups for place in places))
        handles = {one: copy.deepcopy(self._fragments[one].handle) for one in used}
        plan = {
            "keys": list(keys), "tags": [copy.deepcopy(rows[key].tag) for key in keys], "fields": wanted,
            "field_groups": [{"fields": names, "locations": list(places)} for places, names in groups.items()],
            "handles": handles, "meta_info": self._meta_info(handles.values()),
        }
        if pin:
            plan["read_token"] = self._pin(used)
        return plan

    @staticmethod
    def _meta_info(handles):
        merged: Dict[str, Any] = {}
        for handle in handles:
            for name, value in handle.get("meta_info", {}).items():
                if merged.setdefault(name, value) != value:
                    raise ValueError(f"conflicting values of meta_info {name!r}")
        return copy.deepcopy(merged)

    def _pin(self, fragment_ids):
        token, self._next_read = self._next_read, self._next_read + 1
        self._reads[token] = fragment_ids
        for one in fragment_ids:
            self._fragments[one].readers += 1
        return token

    def release_read(self, token: int) -> Dict[str, Any]:
        """The read has ended; again: nothing."""
        for one in self._reads.pop(token, ()):
            self._fragments[one].readers -= 1
            self._settle(one)
        return self._told_retired()

    def list(self, partition: Optional[str] = None) -> Dict[str, Dict[str, Any]]:
        """Tags by partition and name."""
        if partition is not None and _text(partition, "partition") not in self._rows:
            return {}
        chosen = self._rows if partition is None else {partition: self._rows[partition]}
        return {one: {key: copy.deepcopy(row.tag) for key, row in rows.items()} for one, rows in chosen.items()}

    # ---- rows that go ----

    def remove(self, partition: str, keys: Sequence[str]) -> Dict[str, Any]:
        """Forgets rows; those that are not there: nothing."""
        rows = self._rows.get(_text(partition, "partition"), {})
        for key in _names(keys, "keys"):
            for place in rows.pop(key, _Row()).fields.values():
                self._unplace(place)
        if not rows:
            self._rows.pop(partition, None)
        return self._told_retired()

    def drain(self) -> Dict[str, Any]:
        """The end: all rows go, and nothing comes any more."""
        if self._reads:
            raise RuntimeError(f"cannot drain a catalog with {len(self._reads)} active reads")
        self._retired.update({one: fragment.handle for one, fragment in self._fragments.items() if fragment.is_managed})
        for table in (self._rows, self._fragments, self._publications):
            table.clear()
        self._is_drained = True
        return self._told_retired()

    def ack_retired(self, handles: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """They are removed from the store. What is not retired: nothing."""
        for handle in handles:
            ref, normal = _normal(handle)
            known = [one for one, retired in self._retired.items() if retired == normal]
            for one in known:
                del self._retired[one]
            if not known and any(stage.manifest_key in self._retired for stage in ref.stage_refs.values()):
                raise ValueError("mismatch: the fragment that is retired has another handle")
        return self._told_retired()

    def _told_retired(self):
        return {"retired_handles": [copy.deepcopy(one) for one in self._retired.values()]}


class _Pending:
    """What could not be done yet."""

    def __init__(self, label: str, action: Callable[[Any], Any], attempts: int = 1) -> None:
        self.label, self.action, self.attempts = label, action, attempts
        self.items: List[Any] = []
        self.lock = threading.Lock()

    def add(self, item):
        with self.lock:
            self.items.append(item)

    def run(self, *more, is_strict=False):
        """Tries all of it, and more. is_strict: RuntimeError when something is left."""
        with self.lock:
            left, self.items = [*self.items, *more], []
        for _ in range(self.attempts):
            left = [one for one in left if not self._done(one)]
        with self.lock:
            self.items[:0] = left
        if is_strict and left:
            raise RuntimeError(f"could not {self.label}: {len(left)} left")

    def _done(self, item):
        try:
            self.action(item)
        except Exception:
            logger.exception("could not %s", self.label)
            return False
        return True


class DataProtoCatalogTransfer:
    """Puts batches and publishes them in a catalog; removes what the catalog says is retired.

    transfer      a MooncakeBundleTransfer.
    catalog_call  catalog_call(method, *args, **keywords) calls a method of the catalog, where that is. It may fail, and its answer may be lost."""

    _RESULTS = "_mooncake_catalog_results"

    def __init__(self, transfer: Any, catalog_call: Callable[..., Any]) -> None:
        self.transfer = transfer
        self._catalog_call = catalog_call
        self._publications = _Pending("publish pending batches", self._publish)
        self._acknowledgements = _Pending("acknowledge publications", lambda one: self._catalog_call("ack_publication", one))
        self._results = _Pending("release results", lambda one: self.transfer.release_result(one), attempts=2)

    def put(self, data: Any, *, partition: str, keys: Sequence[str], tags: Optional[Sequence[Mapping[str, Any]]] = None, **put_keywords: Any) -> Dict[str, Any]:
        """Puts a batch, whose rows get these names; None: only tags."""
        self._catch_up()
        keys = _names(keys, "keys")
        tags = _tags(tags, len(keys))
        if data is None and tags is None:
            raise ValueError("tags or a batch are needed")
        handle = None
        if data is not None:
            self._check_size(data, keys)
            handle = export_dataproto_ref(self.transfer.put(data, type="dataproto", partition=_text(partition, "partition"), **put_keywords))
        return self._publish_surely("publish", (_text(partition, "partition"), keys), {"tags": tags, "handle": handle})

    def append(self, fragment_id: str, handle: Mapping[str, Any], data: Any, *, partition: str, keys: Sequence[str], stage: str,
               **append_keywords: Any) -> Dict[str, Any]:
        """Adds fields to a batch that was put; ValueError when it is not what the handle says any more."""
        self._catch_up()
        keys = _names(keys, "keys")
        if append_keywords.get("overwrite"):
            raise ValueError("nothing is overwritten in a catalog: put the rows anew")
        self._check_size(data, keys)
        before, normal = _normal(handle)
        if before.partition != _text(partition, "partition"):
            raise ValueError(f"the batch is of partition {before.partition!r}")
        plan = self._catalog_call("resolve", partition, keys, list(before.field_index))
        if plan["handles"].get(_text(fragment_id, "fragment_id")) != normal:
            raise ValueError(f"stale handle: fragment {fragment_id!r} is not what it was")
        new = export_dataproto_ref(self.transfer.append_dataproto_fields(normal, data, stage=stage, **append_keywords))
        told = self._publish_surely("publish_append", (fragment_id, partition, keys), {"previous_handle": normal, "handle": new})
        if "append_rejected" in told:
            raise ValueError(told["append_rejected"])
        return told

    @staticmethod
    def _check_size(data, keys):
        if len(data) != len(keys):
            raise ValueError(f"a batch size of {len(data)} and {len(keys)} keys")

    def resolve(self, partition: str, keys: Sequence[str], fields: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Where rows lie; they are kept until release_read(read_token)."""
        return self._catalog_call("resolve", partition, keys, fields, pin=True)

    def release_read(self, token: int) -> None:
        """The read has ended."""
        self._clean(self._catalog_call("release_read", token))

    def attach_results(self, output: Any, results: Sequence[Any]) -> None:
        """Results that go with an object: release_result(object) gives them back."""
        setattr(output, self._RESULTS, list(results))

    def release_result(self, output: Any) -> None:
        """Gives back what was attached to an object."""
        results = getattr(output, self._RESULTS, None) or ()
        setattr(output, self._RESULTS, [])
        self.discard_results(results)

    def discard_results(self, results: Sequence[Any], *, strict: bool = False) -> None:
        """Gives results back to the transfer; those that it does not take are tried again later. strict: RuntimeError then."""
        self._results.run(*results, is_strict=strict)

    def list(self, partition: Optional[str] = None) -> Dict[str, Dict[str, Any]]:
        """Tags by partition and name."""
        return self._catalog_call("list", partition)

    def remove(self, partition: str, keys: Sequence[str]) -> None:
        """Forgets rows, and removes what nobody needs any more."""
        self._clean(self._catalog_call("remove", partition, keys))

    def drain(self) -> None:
        """The catalog's end; all that was published is removed."""
        try:
            self._drain()
        except Exception:
            logger.exception("could not drain the catalog: trying once more")
            self._drain()

    def _drain(self):
        self._publications.run(is_strict=True)
        self._clean(self._catalog_call("drain"), is_strict=True)

    def close(self) -> None:
        """Does what was left; RuntimeError when something still cannot be done."""
        self._results.run(is_strict=True)
        self._publications.run(is_strict=True)
        self._acknowledgements.run(is_strict=True)

    # ---- how ----

    def _catch_up(self):
        self._acknowledgements.run()
        self._publications.run(is_strict=True)

    def _publish_surely(self, method, args, keywords):
        """Twice; then it is left for later, and the error is the caller's."""
        publication = (uuid.uuid4().hex, method, args, keywords)
        try:
            return self._publish(publication)
        except Exception:
            logger.exception("could not publish a batch: trying once more")
        try:
            return self._publish(publication)
        except Exception:
            self._publications.add(publication)
            raise

    def _publish(self, publication):
        operation_id, method, args, keywords = publication
        told = self._catalog_call(method, operation_id, *args, **keywords)
        if "append_rejected" in told:
            self.transfer.cleanup_dataproto_append(keywords["previous_handle"], keywords["handle"])
        self._clean(told)
        self._acknowledgements.run(operation_id)
        return told

    def _clean(self, told, is_strict=False):
        removed, failed = [], 0
        for handle in told.get("retired_handles", ()):
            try:
                self.transfer.cleanup_dataproto(handle)
                removed.append(handle)
            except Exception:
                logger.exception("could not remove a retired fragment")
                failed += 1
        if removed:
            try:
                self._catalog_call("ack_retired", removed)
            except Exception:
                logger.exception("could not acknowledge that retired fragments are removed")
                if is_strict:
                    raise
        if is_strict and failed:
            raise RuntimeError(f"could not remove {failed} retired fragments")
