# SPDX-License-Identifier: Apache-2.0
"""Tensors in shards: what each rank of a parallel program stores, and how readers of another partition put it together again.

One axis of tensor parallelism: `key_tp_<rank>`. More axes, or others: `key__dp_1of4__tp_0of2_sd1__ep_0of8_eid3__pp_1of4_sid1`, in this
order. Shards cut by a writer: `key__writer_0of2_sd0`. Shards of one tensor are equally long. A manifest beside them says how many there
are: 96 bytes of magic, u16 version, u16 size, i32 dtype, u32 dimensions, i32 split dimension, i32 shards, i32 edition, i32 chain, 8 x i64 shape.

A put leaves what is there and has these names, edition 0: so do older releases and the original. Each upsert has an edition, and shards
of their own names, `key__tp_0of2_sd0__edition_5eed_7`. The manifest says which partition and edition hold. A rank writes its shard and looks
whether all ranks have; who finds the edition whole writes the manifest, and removes what it replaces. Which upserts of the ranks are one
edition: those with the same `version`; without versions the n-th of each rank, counted in the process from the manifest's on. Ranks may so
be ahead of each other, and an edition of which a rank never writes its shard holds for nobody; its shards go as they grow old. With axes
besides "tp" each place on those has editions and a manifest of its own. Who finds no manifest puts one of edition 0 with a chain, a number
drawn by lot that is in all names: so what was removed, or is gone, and written anew has nothing to do with shards of before.

Invariant: a shard is used only if its own header says that it is the one that was asked for: its place on every axis, the whole's shape,
the dtype; and if there is a manifest, only if it is of the manifest's partition and edition. So no answer has parts of two editions. One
exception has one part, and no other rank's to disagree with: while no other rank has a shard in the edition that holds, a store that asks for
the shard that it has upserted gets that.

That an edition is one version is the callers' part, nothing here can see it: each shard of it must be written by one rank, always with the
same value. `version` says so. Counting does only while each rank writes all its upserts through one store: a rank that begins anew in the
middle counts from the manifest's edition, may be behind what it wrote ahead of the others, and writes a later value over a shard of an
edition that is not whole yet. When that becomes whole, its answers have parts of two upserts.
"""

import ctypes
import logging
import secrets
from typing import NamedTuple, Optional

from mooncake._tensor import (
    DTYPES,
    HEADER_SIZE,
    SHARD,
    WHOLE,
    Axis,
    Header,
    Packed,
    Raw,
    carrier,
    header_at,
    header_in,
    memory,
    need_torch,
    open_buffer,
    over,
    pack,
    plain,
    publishable,
    refused,
    same_length,
    tensor_at,
    write,
)
from mooncake._tensor_places import (  # noqa: F401
    _INT_MAX,
    _MANIFEST,
    _NO_PLACE,
    _PARALLEL,
    SHARDS_MAX,
    TP,
    Manifest,
    Names,
    ParallelAxis,
    Place,
    ReadTarget,
    TensorParallelism,
    _manifest_of,
    _place,
    _writer_place,
)

log = logging.getLogger("mooncake.store")

READS_MAX = 32  # of shards whose manifest changes meanwhile
NO_OBJECT = -704
COUNTS_MAX = 1 << 16  # shards of which a store remembers its last edition


# ---- writing ----


def _header(code, whole, shape, place):
    axes = tuple(a._replace(extent=shape[a.split_dim]) if a.kind == TP else a for a in place.axes)
    return Header(code, SHARD, tuple(whole), tuple(shape), axes)


def _shard_of(tensor, code, place):
    """The part of a whole tensor that belongs to a place; None if it cannot be cut so."""
    whole, split = tuple(tensor.shape), place.split
    if split is not None:
        if split.split_dim >= len(whole) or whole[split.split_dim] % split.size:
            log.error("a tensor of shape %s cannot be cut into %d along dimension %d", whole, split.size, split.split_dim)
            return None
        extent = whole[split.split_dim] // split.size
        tensor = tensor.narrow(split.split_dim, split.rank * extent, extent).contiguous()
    return Packed(_header(code, whole, tensor.shape, place), tensor)


def _all_shards(tensor, code, place):
    """Every rank's (place, Packed), or None."""
    split = place.split
    ranks = range(split.size) if split is not None else [0]
    found = []
    for rank in ranks:
        own = place.at(rank, split.size, split.split_dim) if split is not None else place
        packed = _shard_of(tensor, code, own)
        if packed is None:
            return None
        found.append((own, packed))
    return found


def _local_shard(tensor, code, place):
    """A tensor that is one rank's shard already."""
    split, whole = place.split, list(tensor.shape)
    if split.split_dim >= len(whole):
        return None
    whole[split.split_dim] *= split.size
    return Packed(_header(code, whole, tensor.shape, place), tensor)


class _Shards(list):
    """[(name, Packed), ..., (name, manifest)]: what a put of shards writes, the manifest last, so that who finds it finds them."""

    def __init__(self, names, shards, manifest):
        self.names, self.shards, self.manifest = names, shards, manifest
        self.call(manifest.edition, manifest.chain)

    def call(self, edition, chain):
        """Gives all the names of an edition."""
        self.manifest = self.manifest._replace(edition=edition, chain=chain)
        for _, packed in self.shards:
            if packed.header.edition != edition:
                packed.stamp(edition)
        self[:] = [(self.names.shard(place, edition, chain), packed) for place, packed in self.shards]
        self.append((self.names.own if edition else self.names.common, Raw(self.manifest.pack())))


def _with_manifest(key, place, shards, writer=False):
    split, header = place.split, shards[0][1].header
    names = Names(key, place, writer)
    if split is None:
        return [(names.shard(own, 0), packed) for own, packed in shards]
    return _Shards(names, shards, Manifest(header.dtype, split.split_dim, split.size, header.whole))


def _manifests(store, names):
    """The manifest that holds for each; None: there is none."""
    wanted = [each.manifests() for each in names]
    buffers = iter(store.batch_get_buffer([name for each in wanted for name in each]))
    found = [[_manifest_in(next(buffers)) for _ in each] for each in wanted]
    return [next((manifest for manifest in each if manifest is not None), None) for each in found]


def _put_shards(store, groups, config):
    """A put replaces no manifest: its shards belong to what is there, or, of another partition, to nothing."""
    shards = [group for group in groups if isinstance(group, _Shards)]
    for group, there in zip(shards, _manifests(store, [group.names for group in shards]) if shards else ()):
        if there is None or not there.is_cut_as(group.manifest):
            group.call(0, _lot())
        else:
            group.call(there.edition, there.chain)
    return write(store, groups, config, False)


class _Counts:
    """The last edition of each shard that this store has written, and whether its upsert failed: then it is made again."""

    def __init__(self):
        self._last = {}

    def next(self, group, there):
        last, chain, failed = self._last.get(self._name(group.names, group.manifest, group.shards[0][0].split), (0, None, False))
        if chain != there.chain:
            return there.edition + 1
        return last if failed and last >= there.edition else max(last, there.edition) + 1

    def ahead(self, names, split, there):
        """The edition that this store has written and that does not hold yet, of the shard at a split; None: there is none."""
        last, chain, failed = self._last.get(self._name(names, there, split), (0, None, True))
        return last if chain == there.chain and last > there.edition and not failed else None

    def note(self, group, failed):
        name = self._name(group.names, group.manifest, group.shards[0][0].split)
        self._last.pop(name, None)
        self._last[name] = (group.manifest.edition, group.manifest.chain, failed)
        while len(self._last) > COUNTS_MAX:
            try:
                del self._last[next(iter(self._last))]
            except (KeyError, RuntimeError, StopIteration):
                pass  # another thread was here

    @staticmethod
    def _name(names, manifest, split):
        # Not the edition's own name: that has the edition.
        return names.own, names.writer, manifest.split_dim, manifest.size, split.rank


def _upsert_shards(store, groups, config, version):
    if version is not None and (not hasattr(version, "__index__") or not 0 < version.__index__() < _INT_MAX):
        log.error("a version is a number from 1 to %d, not %r", _INT_MAX - 1, version)
        return refused(groups)
    groups = list(groups)
    places = [i for i, group in enumerate(groups) if isinstance(group, _Shards)]
    if not places:
        return write(store, groups, config, True)
    failed = {}
    counts = store.__dict__.setdefault("_edition_counts", _Counts())
    begun = _begin(store, groups, places, config)
    before = dict(zip(places, _manifests(store, [groups[i].names for i in places])))
    for i in places:
        if before[i] is None:
            failed[i] = begun.get(i) or NO_OBJECT
            groups[i] = None
            continue
        edition = counts.next(groups[i], before[i]) if version is None else version.__index__()
        if version is not None and before[i].edition > edition:
            log.error("%s has version %d: %d is not later", groups[i].names.key, before[i].edition, edition)
            groups[i] = None
        elif edition >= _INT_MAX:
            groups[i] = None
        else:
            groups[i].call(edition, before[i].chain)
    places = [i for i in places if groups[i] is not None]
    codes = write(store, [group[:-1] if isinstance(group, _Shards) else group for group in groups], config, True)
    whole = [i for i in places if codes[i] == 0 and _is_whole(store, groups[i])]
    for i, code in _swap(store, groups, whole, config):
        codes[i] = code
    for i in places:
        counts.note(groups[i], codes[i] != 0)
    return [failed.get(i, code) for i, code in enumerate(codes)]


def _begin(store, groups, places, config):
    """Gives those a manifest of edition 0 that have none: the first one that is put is every rank's. Their codes."""
    there = _manifests(store, [groups[i].names for i in places])
    lacking = [i for i, manifest in zip(places, there) if manifest is None]
    if not lacking:
        return {}
    for i in lacking:
        groups[i].call(0, _lot())
    beginnings = [[(groups[i].names.own, groups[i][-1][1])] if i in lacking else None for i in range(len(groups))]
    codes = write(store, beginnings, config, False)
    return {i: codes[i] for i in lacking}


def _lot():
    return secrets.randbelow(_INT_MAX - 1) + 1


def _is_whole(store, group):
    """Whether every rank has written its shard of a group's edition."""
    shards = group.names.shards(group.manifest)
    if len(shards) == len(group.shards):
        return True
    if any(code != 1 for code in store.batch_is_exist([name for _, name in shards])):
        return False
    room = ctypes.create_string_buffer(HEADER_SIZE * len(shards))
    places = [[HEADER_SIZE * i] for i in range(len(shards))]
    lengths = store.get_into_ranges(
        [ctypes.addressof(room)], [[name for _, name in shards]], [places], [[[0]] * len(shards)], [[[HEADER_SIZE]] * len(shards)]
    )[0]
    for (place, _), [length], [at] in zip(shards, lengths, places):
        header = None if length != HEADER_SIZE else header_in(room.raw[at : at + HEADER_SIZE])
        if header is None or not place.is_of(header) or not group.manifest.is_of(header):
            return False
    return True


def _is_later(manifest, there):
    """Without a manifest, or of another chain: what was upserted has been removed meanwhile."""
    return there is not None and there.chain == manifest.chain and there.edition < manifest.edition


def _swap(store, groups, whole, config):
    """Makes whole editions hold, unless a later one does already, and removes what they replace. (place in groups, code) of each."""
    if not whole:
        return []
    there = dict(zip(whole, _manifests(store, [groups[i].names for i in whole])))
    late = [i for i in whole if not _is_later(groups[i].manifest, there[i])]
    swaps = [i for i in whole if i not in late]
    codes = write(store, [groups[i][-1:] if i in swaps else None for i in range(len(groups))], config, True)
    former = []
    for i in swaps:
        if codes[i] == 0:
            former += [name for _, name in groups[i].names.shards(there[i])]
    if former:
        # What cannot be removed grows old.
        store.batch_remove(former, True)
    return [(i, codes[i]) for i in swaps]


def _manifest_in(buffer):
    if buffer is None or len(buffer) != _MANIFEST.size:
        return None
    with memoryview(buffer) as view:
        return _manifest_of(bytes(view))


def _tp_group(key, found, tp_size, split_dim):
    """Shards for every rank of a whole tensor, without a manifest; the tensor itself for one rank."""
    if found is None:
        return None
    tensor, code = found
    if tp_size <= 1:
        shape = tuple(tensor.shape)
        return [(key, Packed(Header(code, WHOLE, shape, shape, ()), tensor))]
    if tp_size > SHARDS_MAX or not 0 <= split_dim < tensor.dim():
        return None
    place = Place((Axis(TP, 0, 0, tp_size, split_dim),))
    shards = _all_shards(tensor, code, place)
    return None if shards is None else [(own.key(key), packed) for own, packed in shards]


def _found_at(address, size):
    """(header, (tensor, code)) of what fills the caller's memory, or (None, None)."""
    header = header_at(address, size)
    tensor = None if header is None else over(memory(address, size, 0x200), header)
    return (None, None) if tensor is None else (header, (tensor, header.dtype))


def _parallel_group(key, tensor, parallelism, partition):
    if partition is not None:
        return None if parallelism is not None else _writer_group(key, plain(tensor), partition)
    if parallelism is None:
        packed = pack(tensor)
        return None if packed is None else [(key, packed)]
    place, found = _place(parallelism), plain(tensor)
    if place is None or found is None:
        return None
    # One axis: ranks hold their shard. More: each rank holds the tensor, and its part is cut out here.
    packed = _local_shard(*found, place) if place.alone else _shard_of(*found, place)
    return None if packed is None else _with_manifest(key, place, [(place, packed)])


def _writer_group(key, found, partition):
    place = _writer_place(partition)
    packed = None if place is None or found is None else _shard_of(*found, place)
    return None if packed is None else _with_manifest(key, place, [(place, packed)], True)


def _parallel_group_from(key, address, size, parallelism, partition):
    header, found = _found_at(address, size)
    if header is None or (partition is not None and parallelism is not None):
        return None
    if partition is not None:
        return _writer_group(key, found, partition) if header.layout == WHOLE else None
    if parallelism is None:
        return [(key, Packed(header, found[0]))]
    place = _place(parallelism)
    if place is None:
        return None
    if header.layout == SHARD:
        # A shard is only ever stored as itself.
        return _with_manifest(key, place, [(place, Packed(header, found[0]))]) if place.is_of(header) else None
    shards = _all_shards(*found, place)
    return None if shards is None else _with_manifest(key, place, shards)


def _each(keys, value, default=None):
    """A list as long as keys: the caller's, or defaults; None for anything else."""
    if value is None:
        return [default] * len(keys)
    return value if isinstance(value, (list, tuple)) and len(value) == len(keys) else None


# ---- reading ----


class Request(NamedTuple):
    """A checked ReadTarget. place None: the tensor under the key itself."""

    mode: str
    place: Optional[Place]


def _request(target):
    if target is None:
        return Request("as_stored", None)
    try:
        target = ReadTarget._of(target)
    except (AttributeError, TypeError, RuntimeError) as error:
        log.error("a ReadTarget is needed, not %s: %s", type(target).__name__, error)
        return None
    if target.parallelism is None:
        return None if target.mode == "shard" else Request(target.mode, None)
    place = _place(target.parallelism)
    if place is None or (target.mode == "full" and place.split is None):
        return None
    return Request(target.mode, place)


def _first_key(key, request):
    """What is read in the first round: the answer itself, as far as its name is known."""
    if request.place is None:
        return key
    return None if request.mode == "full" else request.place.key(key)


class _Source(NamedTuple):
    """Shards that together are one tensor."""

    manifest: Manifest
    names: Names

    def read(self, store, first, last):
        """Headers and buffers of shards first..last-1, or None."""
        shards = self.names.shards(self.manifest, range(first, last))
        buffers = store.batch_get_buffer([name for _, name in shards])
        headers = [open_buffer(buffer) for buffer in buffers]
        for (place, _), header in zip(shards, headers):
            if header is None or not place.is_of(header) or not self.manifest.is_of(header):
                return None
        return list(zip(headers, buffers))


def _sources(store, key, place, writers=True):
    """Where the shards of a key may lie, most likely first."""
    if place is not None:
        names = Names(key, place)
        manifest = _manifests(store, [names])[0]
        if manifest is None and place.alone:
            manifest = _manifest_by_shard(store, key, place)
        if manifest is not None:
            yield _Source(manifest, names)
    if writers and (place is None or place.alone):
        names = Names(key, _NO_PLACE, True)
        manifest = _manifests(store, [names])[0]
        if manifest is not None:
            yield _Source(manifest, names)


def _manifest_by_shard(store, key, place):
    """Shards without a manifest: the first one says how many there are."""
    buffer = store.get_buffer(place.at(0, 1, 0).key(key))
    header = open_buffer(buffer)
    if header is None or header.layout != SHARD or len(header.axes) != 1 or header.axes[0].kind != TP:
        return None
    axis = header.axes[0]
    if not 0 <= axis.split_dim < len(header.whole) or not 1 <= axis.size <= SHARDS_MAX:
        return None
    return Manifest(header.dtype, axis.split_dim, axis.size, header.whole, header.edition)


def _wanted(source, request):
    """(header of the answer, begin, end along the split dimension), or None."""
    manifest = source.manifest
    length = manifest.whole[manifest.split_dim]
    if request.mode == "full":
        return Header(manifest.dtype, WHOLE, manifest.whole, manifest.whole, ()), 0, length
    split = request.place.split
    if split is None or split.split_dim != manifest.split_dim or length % split.size:
        return None
    extent = length // split.size
    shape = list(manifest.whole)
    shape[split.split_dim] = extent
    return _header(manifest.dtype, manifest.whole, shape, request.place), split.rank * extent, (split.rank + 1) * extent


def _assemble(store, key, request, room, writers=True):
    """The tensor that is put together from shards, in what `room(header)` gives; None when they are not (all) there."""
    seen = None
    for _ in range(READS_MAX):
        manifests = []
        for source in _sources(store, key, request.place, writers):
            manifests.append(source.manifest)
            found = _from_shards(store, source, request, room)
            if found is not None:
                return found
        # Shards that do not fit to their manifest may fit to the next one, which their writers were about to put there.
        if manifests in ([], seen):
            return None
        seen = manifests
    return None


def _from_shards(store, source, request, room):
    wanted = _wanted(source, request)
    if wanted is None:
        return None
    header, begin, end = wanted
    manifest = source.manifest
    if request.mode == "as_stored" and (source.names.writer or request.place.split.size != manifest.size):
        return None
    each = manifest.whole[manifest.split_dim] // manifest.size
    first, last = (begin // each, -(-end // each)) if each else (0, manifest.size)
    shards = source.read(store, first, last)
    target = None if shards is None else room(header)
    if target is not None:
        _copy(target, shards, manifest.split_dim, begin - first * each)
    return target


def _copy(target, shards, dimension, skip):
    """Fills the target along a dimension with the shards' elements, without the first `skip` of them."""
    if target.numel() == 0:
        return
    target, at = carrier(target), 0
    for header, buffer in shards:
        take = min(header.shape[dimension] - skip, target.shape[dimension] - at)
        part = carrier(over(buffer, header))
        target.narrow(dimension, at, take).copy_(part.narrow(dimension, skip, take))
        at, skip = at + take, 0


def _own_memory(header):
    torch = need_torch()
    return torch.empty(header.shape, dtype=getattr(torch, DTYPES[header.dtype]))


def _callers_memory(address, size):
    def room(header):
        if HEADER_SIZE + header.data_bytes > size:
            log.error("a buffer of %d bytes is too small for a tensor of %d", size, HEADER_SIZE + header.data_bytes)
            return None
        target = memory(address, HEADER_SIZE + header.data_bytes, 0x200)
        target[:HEADER_SIZE] = header.pack()
        return over(target, header)

    return room


def _manifest_names(key, request):
    """Of the manifests that say whether the shard in the place's name is what holds; none for a place that has none."""
    if request is None or request.place is None or request.place.split is None or request.mode == "full":
        return []
    return Names(key, request.place).manifests()


def _ahead(store, key, request, manifest):
    """The name of the shard that is asked for, if this store has upserted it and no other rank has put any: who wrote it reads it. Or None."""
    split = None if manifest is None else request.place.split
    if split is None or (split.size, split.split_dim) != (manifest.size, manifest.split_dim) or "_edition_counts" not in store.__dict__:
        return None
    names = Names(key, request.place)
    edition = store._edition_counts.ahead(names, split, manifest)
    if edition is None or any(store.batch_is_exist([name for place, name in names.shards(manifest) if place.split.rank != split.rank])):
        return None
    return names.shard(request.place, edition, manifest.chain)


def _is_answer(request, header, manifest):
    if header is None or request.place is None:
        return header is not None
    return request.place.is_of(header) and (manifest is None or (manifest.edition == 0 and manifest.is_of(header)))


def _second_round(store, key, request, room, plain_read):
    """After the name that was guessed: from shards of any partition; or, for one rank of one, the tensor itself."""
    place = request.place
    if request.mode == "as_stored" and (place is None or place.split is None):
        return None
    found = _assemble(store, key, request, room)
    if found is not None or request.mode == "as_stored":
        return found
    return plain_read(key) if place is not None and place.alone and place.split.size == 1 else None


def _of_rank(header, tp_rank, tp_size):
    """A shard that says of itself that it is another one is not the one that was asked for."""
    splits = [axis for axis in header.axes if axis.kind == TP]
    return all((axis.rank, axis.size) == (tp_rank, tp_size) for axis in splits)


def _shard_with_tp(store, key, tp_rank, tp_size, room):
    """The shard of a partition that an upsert has written, along whichever dimension."""
    manifest = _manifests(store, [Names(key, _NO_PLACE)])[0]
    if manifest is None or manifest.size != tp_size or not 0 <= tp_rank < tp_size:
        return None
    return _assemble(store, key, Request("as_stored", _NO_PLACE.at(tp_rank, tp_size, manifest.split_dim)), room, False)


def _rank_key(key, tp_rank, tp_size):
    return key if tp_size <= 1 else f"{key}_tp_{tp_rank}"


class ParallelTensorCalls:
    """The calls of MooncakeDistributedStore on tensors in shards."""

    # ---- with_tp: a whole tensor goes in, every rank's shard is written ----

    def _put_tp(self, keys, tensors, config, tp_size, split_dim):
        keys, tensors = list(keys), list(tensors)
        if not same_length(keys, tensors) or not publishable(config):
            return refused(keys)
        return write(self, [_tp_group(key, plain(each), tp_size, split_dim) for key, each in zip(keys, tensors)], config, False)

    def put_tensor_with_tp(self, key, tensor, tp_rank=0, tp_size=1, split_dim=0):
        """Cuts a whole tensor into tp_size equal shards and puts them all, as key_tp_<rank>. tp_rank is not used.

        Returns 0 or the first shard's code that is not; -600 when it cannot be cut so. tp_size 1: put_tensor."""
        return self._put_tp([key], [tensor], None, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(self, base_keys, tensors_list, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp of many, in one batch. A list of codes as long as base_keys."""
        return self._put_tp(base_keys, tensors_list, None, tp_size, split_dim)

    def pub_tensor_with_tp(self, key, tensor, config=None, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp with a ReplicateConfig."""
        return self._put_tp([key], [tensor], config, tp_size, split_dim)[0]

    def batch_pub_tensor_with_tp(self, base_keys, tensors_list, config=None, tp_rank=0, tp_size=1, split_dim=0):
        """pub_tensor_with_tp of many, in one batch. A list of codes as long as base_keys."""
        return self._put_tp(base_keys, tensors_list, config, tp_size, split_dim)

    def put_tensor_with_tp_from(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp of the tensor (header and elements) that fills the caller's memory."""
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1, split_dim=0):
        """put_tensor_with_tp_from of many, in one batch. A list of codes as long as base_keys."""
        keys = list(base_keys)
        if not same_length(keys, buffer_ptrs, sizes):
            return refused(keys)
        found = [_found_at(address, size)[1] for address, size in zip(buffer_ptrs, sizes)]
        return write(self, [_tp_group(key, each, tp_size, split_dim) for key, each in zip(keys, found)], None, False)

    def get_tensor_with_tp(self, key, tp_rank=0, tp_size=1, split_dim=0):
        """The shard key_tp_<tp_rank> as it was put, or None; tp_size 1: get_tensor. split_dim is the one that it was put with."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(self, base_keys, tp_rank=0, tp_size=1):
        """get_tensor_with_tp of many, in one batch: a list of tensors and None."""
        need_torch()
        keys = list(base_keys)
        if tp_size <= 1:
            return self.batch_get_tensor(keys)
        found = self.batch_get_buffer([key + _PARALLEL for key in keys] + [_rank_key(key, tp_rank, tp_size) for key in keys])
        tensors = []
        for key, manifest, buffer in zip(keys, found, found[len(keys) :]):
            manifest = _manifest_in(manifest)
            if manifest is not None and manifest.edition != 0:
                tensors.append(_shard_with_tp(self, key, tp_rank, tp_size, _own_memory))
                continue
            header = open_buffer(buffer)
            tensors.append(over(buffer, header) if header is not None and _of_rank(header, tp_rank, tp_size) else None)
        return tensors

    def get_tensor_with_tp_into(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        """get_tensor_with_tp into the caller's memory (header and elements). Returns a tensor over it, or None."""
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1):
        """get_tensor_with_tp_into of many, in one batch. Lists of unequal length: -600 for each key."""
        keys, addresses, sizes = list(base_keys), list(buffer_ptrs), list(sizes)
        if tp_size <= 1 or not same_length(keys, addresses, sizes):
            return self.batch_get_tensor_into(keys, addresses, sizes)
        need_torch()
        manifests = [_manifest_in(buffer) for buffer in self.batch_get_buffer([key + _PARALLEL for key in keys])]
        found = [None] * len(keys)
        plain = [i for i, each in enumerate(manifests) if each is None or each.edition == 0]
        tensors = self.batch_get_tensor_into(
            [_rank_key(keys[i], tp_rank, tp_size) for i in plain], [addresses[i] for i in plain], [sizes[i] for i in plain]
        )
        for i, each in zip(plain, tensors):
            if each is not None and _of_rank(header_at(addresses[i], HEADER_SIZE + each.nbytes), tp_rank, tp_size):
                found[i] = each
        for i in range(len(keys)):
            if i not in plain and addresses[i]:
                found[i] = _shard_with_tp(self, keys[i], tp_rank, tp_size, _callers_memory(addresses[i], sizes[i]))
        return found

    # ---- with_parallelism ----

    def _put_parallel(self, make, keys, values, parallelisms, config, partitions, upsert, version=None):
        keys = list(keys)
        if not same_length(keys, values) or not publishable(config) or (parallelisms is not None and partitions is not None):
            return refused(keys)
        places, cuts = _each(keys, parallelisms), _each(keys, partitions)
        if places is None or cuts is None:
            log.error("parallelisms and writer_partitions are lists as long as keys, or None")
            return refused(keys)
        groups = [make(*each) for each in zip(keys, values, places, cuts)]
        return _upsert_shards(self, groups, config, version) if upsert else _put_shards(self, groups, config)

    def put_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None):
        """Puts a rank's part of a tensor: with one axis "tp" the tensor is that rank's shard; with more axes it is the whole, of which the
        shard is cut out. With a writer_partition (rank, size, split_dim) it is the whole, of which this writer puts its part.

        Returns 0; -600 when the description or the tensor does not fit; else the code of put."""
        return self._put_parallel(
            _parallel_group, [key], [tensor], _one(parallelism), config, _one(writer_partition), False
        )[0]  # fmt: skip

    def upsert_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None, version=None):
        """put_tensor_with_parallelism that replaces a value, once all ranks of the partition have written theirs: until then the former holds.

        version: a number from 1 on that later upserts raise; ranks that give the same one belong together, whatever happened to them meanwhile,
        and may give it again with the same value. -600 for one below that which holds. Without: the n-th upserts of the ranks belong together,
        which is true only while no rank is restarted alone."""
        return self._put_parallel(
            _parallel_group, [key], [tensor], _one(parallelism), config, _one(writer_partition), True, version
        )[0]  # fmt: skip

    def batch_put_tensor_with_parallelism(self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None):
        """put_tensor_with_parallelism of many, in one batch. A list of codes as long as keys."""
        return self._put_parallel(_parallel_group, keys, tensors_list, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism(
        self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None, version=None
    ):
        """upsert_tensor_with_parallelism of many. A list of codes as long as keys."""
        return self._put_parallel(_parallel_group, keys, tensors_list, parallelisms, config, writer_partitions, True, version)

    def put_tensor_with_parallelism_from(self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None):
        """Puts the tensor (header and elements) that fills the caller's memory: a whole one as the shards of every "tp" rank, a shard only
        as itself (-600 for another place)."""
        return self._put_parallel_from([key], [buffer_ptr], [size], _one(parallelism), config, _one(writer_partition), False)[0]

    def upsert_tensor_with_parallelism_from(self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None, version=None):
        """put_tensor_with_parallelism_from that replaces a value."""
        return self._put_parallel_from([key], [buffer_ptr], [size], _one(parallelism), config, _one(writer_partition), True, version)[0]

    def batch_put_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None
    ):
        """put_tensor_with_parallelism_from of many, in one batch. A list of codes as long as keys."""
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None, version=None
    ):
        """upsert_tensor_with_parallelism_from of many. A list of codes as long as keys."""
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, True, version)

    def _put_parallel_from(self, keys, buffer_ptrs, sizes, parallelisms, config, partitions, upsert, version=None):
        keys = list(keys)
        if not same_length(keys, buffer_ptrs, sizes):
            return refused(keys)
        values = list(zip(buffer_ptrs, sizes))
        return self._put_parallel(
            lambda key, value, place, cut: _parallel_group_from(key, *value, place, cut),
            keys, values, parallelisms, config, partitions, upsert, version,
        )  # fmt: skip

    def get_tensor_with_parallelism(self, key, target=None):
        """The tensor that a ReadTarget asks for, from shards of any partition along the same dimension; without one: get_tensor. Or None."""
        return self.batch_get_tensor_with_parallelism([key], None if target is None else [target])[0]

    def batch_get_tensor_with_parallelism(self, keys, targets=None):
        """get_tensor_with_parallelism of many: a list of tensors and None, as long as keys."""
        need_torch()
        keys = list(keys)
        targets = _each(keys, targets)
        requests = [None] * len(keys) if targets is None else [_request(target) for target in targets]
        firsts = [None if request is None else _first_key(key, request) for key, request in zip(keys, requests)]
        names = [_manifest_names(key, request) for key, request in zip(keys, requests)]
        wanted = [each for several in names for each in several] + [each for each in firsts if each is not None]
        buffers = iter(self.batch_get_buffer(wanted))
        manifests = [[_manifest_in(next(buffers)) for _ in several] for several in names]
        manifests = [next((each for each in several if each is not None), None) for several in manifests]
        found = []
        for key, request, first, manifest in zip(keys, requests, firsts, manifests):
            buffer = None if first is None else next(buffers)
            own = _ahead(self, key, request, manifest)
            ahead = None if own is None else self.get_buffer(own)
            header = open_buffer(buffer if ahead is None else ahead)
            if ahead is not None and header is not None and request.place.is_of(header):
                found.append(over(ahead, header))
            elif request is None or _is_answer(request, header, manifest):
                found.append(None if header is None else over(buffer, header))
            else:
                found.append(_second_round(self, key, request, _own_memory, self.get_tensor))
        return found

    def get_tensor_with_parallelism_into(self, key, buffer_ptr, size, target=None):
        """get_tensor_with_parallelism into the caller's memory (header and elements). Returns a tensor over it, or None."""
        need_torch()
        request = _request(target)
        if request is None or not buffer_ptr:
            return None
        first = _first_key(key, request)
        if first is not None:
            beside = _manifest_names(key, request)
            manifest = _manifests(self, [Names(key, request.place)])[0] if beside else None
            own = _ahead(self, key, request, manifest)
            if own is not None:
                length = self.get_into(own, buffer_ptr, size)
                header = header_at(buffer_ptr, length)
                if header is not None and request.place.is_of(header):
                    return tensor_at(buffer_ptr, length)
            length = self.get_into(first, buffer_ptr, size)
            header = header_at(buffer_ptr, length)
            if _is_answer(request, header, manifest):
                return tensor_at(buffer_ptr, length)
        room = _callers_memory(buffer_ptr, size)
        return _second_round(self, key, request, room, lambda own: self.get_tensor_into(own, buffer_ptr, size))

    def batch_get_tensor_with_parallelism_into(self, keys, buffer_ptrs, sizes, targets=None):
        """get_tensor_with_parallelism_into of many. Lists of unequal length: -600 for each key."""
        need_torch()
        keys = list(keys)
        targets = _each(keys, targets)
        if targets is None or not same_length(keys, buffer_ptrs, sizes):
            return refused(keys)
        return [self.get_tensor_with_parallelism_into(*each) for each in zip(keys, buffer_ptrs, sizes, targets)]


def _one(value):
    return None if value is None else [value]
