# SPDX-License-Identifier: Apache-2.0
"""Bundles: named buffers that are stored, read and removed together. A manifest, JSON under a key of its own, names the keys of their pieces.

Invariant: the manifest is written last and removed last, so a bundle whose manifest is there has been whole.
Invariant: a manifest is data from elsewhere. No key that it names is touched unless it lies below the bundles that it says it is made of.
"""

import concurrent.futures
import ctypes
import dataclasses
import json
import uuid
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

MISSING = -704
CHUNK_BYTES = 64 << 20
_INFLIGHT_MAX = 64
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class BundleTransferPolicy:
    """How a bundle's pieces are put: so many at a time. put_mode "batch" is one at a time; copy_mode is accepted: nothing is ever copied first."""

    max_inflight_put: int = 1
    put_mode: str = "auto"
    copy_mode: str = "auto"

    def __post_init__(self):
        if self.put_mode not in ("auto", "batch", "parallel") or self.copy_mode not in ("auto", "zero_copy", "copy"):
            raise ValueError(f"unknown put_mode {self.put_mode!r} or copy_mode {self.copy_mode!r}")
        if not isinstance(self.max_inflight_put, int) or self.max_inflight_put < 1:
            raise ValueError("max_inflight_put must be a number from 1")

    def threads(self, pieces):
        wanted = self.max_inflight_put
        if self.put_mode == "auto" and wanted == 1 and pieces >= 8:
            wanted = 4
        return 1 if self.put_mode == "batch" else min(wanted, pieces, _INFLIGHT_MAX)


@dataclasses.dataclass
class RemoteBundleRef:
    """A bundle by the key of its manifest. manifest {}: it is read when it is needed."""

    manifest_key: str
    manifest: Dict[str, Any]


BundleRef = Union[RemoteBundleRef, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes at an address that somebody keeps, or is a buffer itself."""

    address: int
    size: int
    owner: Any = None


def memory_of(value, what):
    """Memory of anything with the buffer protocol."""
    if isinstance(value, Memory):
        return value
    try:
        view = memoryview(value)
        flat = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    except TypeError as error:
        raise TypeError(f"{what}: {type(value).__name__} is no contiguous buffer") from error
    if flat.nbytes == 0:
        return Memory(0, 0)
    if flat.readonly:
        kept = bytes(flat) if not isinstance(value, bytes) else value
        return Memory(ctypes.cast(ctypes.c_char_p(kept), ctypes.c_void_p).value or 0, len(kept), kept)
    return Memory(ctypes.addressof(ctypes.c_char.from_buffer(flat)), flat.nbytes, flat)


def check_name(value, what):
    """A part of a key."""
    if not isinstance(value, str) or not value or "/" in value or any(ord(letter) < 32 for letter in value):
        raise ValueError(f"{what} {value!r} must be a text without slashes and control characters")


def check_chunk(size):
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"chunk_bytes {size!r} must be a number from 1")
    return size


def encode_json(value, what):
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what} must be JSON-serializable: {error}") from error


def decode_json(data, what):
    try:
        value = json.loads(bytes(data).decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no JSON") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object")
    return value


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Bundles:
    """Bundles below a prefix of a store."""

    def __init__(self, store, prefix, chunk_bytes):
        prefix = prefix.strip("/") if isinstance(prefix, str) else ""
        if not prefix or any(ord(letter) < 32 for letter in prefix):
            raise ValueError("key_prefix must be a text without control characters")
        self.store, self.prefix, self.chunk_bytes = store, prefix, check_chunk(chunk_bytes)

    # ---- putting ----

    def _put_piece(self, piece, config):
        key, address, size, _owner = piece
        if getattr(self.store, "put_from", None) is not None:
            call, value = self.store.put_from, (address, size)
        else:
            call, value = self.store.put, (ctypes.string_at(address, size),)
        code = call(key, *value) if config is None else call(key, *value, config=config)
        if code != 0:
            raise RuntimeError(f"put of {key} failed: code {code}")

    def _pieces(self, key, memory, chunk_bytes):
        """The spec of a payload, and what is to be put: of nothing, nothing."""
        chunks = []
        count = (memory.size + chunk_bytes - 1) // chunk_bytes
        for i in range(count):
            size = min(chunk_bytes, memory.size - i * chunk_bytes)
            chunks.append((key if count == 1 else f"{key}/{i}", memory.address + i * chunk_bytes, size, memory.owner))
        return {"key": key, "bytes": memory.size, "chunks": [{"key": one[0], "bytes": one[2]} for one in chunks]}, chunks

    def put(self, meta, buffers, partition, chunk_bytes, policy, config, base: Optional[Mapping[str, Any]] = None) -> RemoteBundleRef:
        """A new bundle. base: the manifest of another, whose buffers it has too: what is removed with it is then all of both."""
        check_name(partition, "partition")
        for name in buffers:
            check_name(name, "buffer name")
        chunk_bytes = self.chunk_bytes if chunk_bytes is None else check_chunk(chunk_bytes)
        object_id = f"{partition}/{uuid.uuid4().hex}"
        root = f"{self.prefix}/{object_id}"
        meta_spec, pieces = self._pieces(f"{root}/meta", memory_of(meta, "meta"), chunk_bytes)
        specs = dict(base["buffers"]) if base is not None else {}
        for name, value in buffers.items():
            whole = value.size if isinstance(value, Memory) and value.size > 0 and getattr(value.owner, "is_one_piece", False) else chunk_bytes
            specs[name], more = self._pieces(f"{root}/buffer/{name}", memory_of(value, name), whole)
            pieces += more
        manifest = {"version": _VERSION, "layout": "bundle", "object_id": object_id, "meta": meta_spec, "buffers": specs}
        if base is not None:
            manifest["buffer_object_ids"] = sorted({object_id, *self._object_ids(base)})
            manifest["cleanup_keys"] = [*base.get("cleanup_keys", ()), *(one["key"] for one in base["meta"]["chunks"]),
                                        self._key_of(base["object_id"])]
        self.check(manifest)
        encoded = memory_of(encode_json(manifest, "manifest"), "manifest")
        key = self._key_of(object_id)
        try:
            self._put_all(pieces, policy or BundleTransferPolicy(), config)
            self._put_piece((key, encoded.address, encoded.size, encoded.owner), config)
        except BaseException:
            self._remove_keys([*(one[0] for one in pieces), key], strict=False)
            raise
        return RemoteBundleRef(key, manifest)

    def _put_all(self, pieces, policy, config):
        threads = policy.threads(len(pieces))
        if threads <= 1:
            for piece in pieces:
                self._put_piece(piece, config)
            return
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(self._put_piece, piece, config) for piece in pieces]:
                done.result()

    # ---- manifests ----

    def _key_of(self, object_id):
        return f"{self.prefix}/{object_id}/manifest"

    @staticmethod
    def _object_ids(manifest):
        return manifest.get("buffer_object_ids", [manifest["object_id"]])

    def check(self, manifest):
        """ValueError: it is no manifest of a bundle below this prefix."""
        if not isinstance(manifest, Mapping) or manifest.get("version") != _VERSION or manifest.get("layout") != "bundle":
            raise ValueError("this is no manifest of a bundle")
        ids = [manifest.get("object_id"), *manifest.get("buffer_object_ids", ())]
        if not all(isinstance(one, str) and one.count("/") == 1 and all(one.split("/")) for one in ids):
            raise ValueError("bundle manifest: its object ids are no ids")
        roots = tuple(f"{self.prefix}/{one}/" for one in ids)
        buffers = manifest.get("buffers")
        if not isinstance(buffers, Mapping):
            raise ValueError("bundle manifest: buffers must be an object")
        for spec in (manifest.get("meta"), *buffers.values()):
            self._check_spec(spec, roots)
        if not all(isinstance(key, str) and key.startswith(roots) for key in manifest.get("cleanup_keys", ())):
            raise ValueError("bundle manifest: one of cleanup_keys is outside of the namespace of its bundles")

    @staticmethod
    def _check_spec(spec, roots):
        chunks = spec.get("chunks") if isinstance(spec, Mapping) else None
        if not isinstance(chunks, list) or not all(isinstance(one, Mapping) and _is_count(one.get("bytes")) for one in chunks):
            raise ValueError("bundle manifest: a payload has no chunks")
        keys = [one.get("key") for one in chunks]
        if not all(isinstance(key, str) and key.startswith(roots) for key in keys):
            raise ValueError("bundle manifest: a key is outside of the namespace of its bundles")
        if len(set(keys)) != len(keys) or spec.get("bytes") != sum(one["bytes"] for one in chunks):
            raise ValueError("bundle manifest: the chunks of a payload do not add up")

    def manifest(self, ref: BundleRef) -> Mapping[str, Any]:
        key, manifest = _fields(ref)
        if not manifest:
            if not isinstance(key, str) or not key:
                raise ValueError("a bundle's reference needs its manifest_key")
            data = self.store.get(key)
            if not data:
                raise KeyError(f"there is no bundle {key}: it was removed or evicted")
            manifest = decode_json(data, "bundle manifest")
        self.check(manifest)
        if key is not None and key != self._key_of(manifest["object_id"]):
            raise ValueError("the bundle's manifest_key is not that of its manifest")
        return manifest

    # ---- reading ----

    def read_into(self, spec, offset, memory: Memory) -> None:
        """Bytes of a payload from that offset on, as many as there is room for."""
        keys: List[str] = []
        targets: List[List[int]] = []
        sources: List[List[int]] = []
        sizes: List[List[int]] = []
        at, end = 0, offset + memory.size
        for chunk in spec["chunks"]:
            first, last = max(offset, at), min(end, at + chunk["bytes"])
            if first < last:
                keys.append(chunk["key"])
                targets.append([first - offset])
                sources.append([first - at])
                sizes.append([last - first])
            at += chunk["bytes"]
        if end > at:
            raise ValueError(f"{end} bytes of a payload of {at} are asked for")
        if keys:
            self._ranges(memory, keys, targets, sources, sizes)

    def read_parts(self, spec, parts: Sequence[Tuple[int, int]], memory: Memory) -> None:
        """Several (offset, size) of a payload, one after the other, in one call."""
        keys, targets, sources, sizes = [], [], [], []
        at = 0
        starts = []
        for chunk in spec["chunks"]:
            starts.append(at)
            at += chunk["bytes"]
        by_chunk: Dict[int, List[Tuple[int, int, int]]] = {}
        place = 0
        for offset, size in parts:
            if offset < 0 or size < 0 or offset + size > at:
                raise ValueError(f"bytes {offset} to {offset + size} of a payload of {at} are asked for")
            number = 0 if len(starts) == 1 else next((i - 1 for i, start in enumerate(starts) if start > offset), len(starts) - 1)
            while size > 0:
                inside = offset - starts[number]
                take = min(size, spec["chunks"][number]["bytes"] - inside)
                by_chunk.setdefault(number, []).append((place, inside, take))
                place, offset, size, number = place + take, offset + take, size - take, number + 1
        for number, pieces in by_chunk.items():
            keys.append(spec["chunks"][number]["key"])
            targets.append([one[0] for one in pieces])
            sources.append([one[1] for one in pieces])
            sizes.append([one[2] for one in pieces])
        if keys:
            self._ranges(memory, keys, targets, sources, sizes)

    def _ranges(self, memory, keys, targets, sources, sizes):
        if getattr(self.store, "get_into_ranges", None) is None:
            self._copy(memory, keys, targets, sources, sizes)
            return
        answers = self.store.get_into_ranges([memory.address], [keys], [targets], [sources], [sizes])[0]
        for key, wanted, got in zip(keys, sizes, answers):
            if list(got) != wanted:
                code = next(one for one, size in zip(got, wanted) if one != size)
                raise RuntimeError(f"get of {key} failed: code {code}")

    def _copy(self, memory, keys, targets, sources, sizes):
        """Of a store that has whole objects only."""
        for key, places, froms, lengths in zip(keys, targets, sources, sizes):
            data = self.store.get(key)
            for place, start, length in zip(places, froms, lengths):
                if len(data) < start + length:
                    raise RuntimeError(f"get of {key} failed: code {MISSING if not data else -600}")
                ctypes.memmove(memory.address + place, data[start : start + length], length)

    def read(self, spec) -> bytearray:
        """The whole payload."""
        data = bytearray(spec["bytes"])
        if data:
            self.read_into(spec, 0, memory_of(data, "payload"))
        return data

    # ---- removing ----

    def keys(self, ref: BundleRef) -> List[str]:
        """All that goes with it, the manifest last."""
        manifest = self.manifest(ref)
        payloads = (manifest["meta"], *manifest["buffers"].values())
        return [*(chunk["key"] for spec in payloads for chunk in spec["chunks"]), *manifest.get("cleanup_keys", ()), self._key_of(manifest["object_id"])]

    def remove(self, ref: BundleRef, but: Sequence[str] = ()) -> None:
        """Also of one that is gone: nothing. but: keys that stay."""
        key, manifest = _fields(ref)
        exists = getattr(self.store, "is_exist", None)  # a program's own store need not have it
        if not manifest and exists is not None and exists(key) == 0:
            return
        kept = set(but)
        self._remove_keys([one for one in self.keys(ref) if one not in kept], strict=True)

    def _remove_keys(self, keys, strict):
        """strict: RuntimeError when one stays; then the last, by which the others are found again, stays too."""
        failed = []
        keys = list(dict.fromkeys(keys))
        for key in keys:
            if failed and strict and key == keys[-1]:
                break
            try:
                code = self.store.remove(key, True)
            except Exception:
                if strict:
                    raise
                continue
            if code not in (0, MISSING):
                failed.append((key, code))
        if strict and failed:
            raise RuntimeError(f"remove of {failed[0][0]} failed: code {failed[0][1]} ({len(failed)} keys)")


def _fields(ref):
    if isinstance(ref, RemoteBundleRef):
        return ref.manifest_key, ref.manifest
    if isinstance(ref, Mapping):
        return ref.get("manifest_key"), ref.get("manifest")
    raise TypeError(f"a bundle's reference is expected, not {type(ref).__name__}")
