# SPDX-License-Identifier: Apache-2.0
"""Tensors in shards: what each rank of a parallel program stores, and how readers of another partition put it together again.

One axis of tensor parallelism: `key_tp_<rank>`. More axes, or others: `key__dp_1of4__tp_0of2_sd1__ep_0of8_eid3__pp_1of4_sid1`, in this
order. Shards cut by a writer: `key__writer_0of2_sd0`. Shards of one tensor are equally long. A manifest beside them says how many there
are: 96 bytes of magic, u16 version, u16 size, i32 dtype, u32 dimensions, i32 split dimension, i32 shards, i32 edition, 0, 8 x i64 shape.

Writers of another partition leave shards of the former one behind. So the manifest says which partition holds, and each change of it has a
number, the edition, which is also in the shards: an upsert by another partition than the manifest's counts on, one by the same partition
takes the manifest's, and is by one more rank of it. What the original or an older release wrote has edition 0 throughout.

Invariant: a shard is used only if its own header says that it is the one that was asked for: its place on every axis, the whole's shape,
the dtype; and if there is a manifest, only if it is of the manifest's partition and edition. So no answer has parts that writers of two
partitions wrote. While a partition replaces another, and not all of its ranks have written, there is no answer.
Each rank of one partition replaces its shard when it likes: within a partition nobody knows which upserts belong together.
"""

import logging
import struct
from typing import NamedTuple, Optional, Tuple

from mooncake._tensor import (
    AXES_MAX,
    DIMENSIONS_MAX,
    DTYPES,
    HEADER_SIZE,
    INVALID_PARAMS,
    SHARD,
    WHOLE,
    Axis,
    Header,
    Packed,
    Raw,
    carrier,
    header_at,
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
    tensor_of,
    write,
)

log = logging.getLogger("mooncake.store")

SHARDS_MAX = 1 << 16
READS_MAX = 4  # of shards whose manifest changes meanwhile
_INT_MAX = (1 << 31) - 1

_MANIFEST = struct.Struct("<IHHiIiiii8q")
_MANIFEST_MAGIC = 0x574D414E
_MANIFEST_VERSION = 1
_PARALLEL = "__parallelism_manifest"
_WRITER = "__writer_manifest"

DP, TP, EP, PP = range(4)
_KINDS = {"dp": DP, "tp": TP, "ep": EP, "pp": PP}


# ---- what callers describe ----


def _int_field(name, doc, optional=False):
    def get(self):
        return self.__dict__.get(name)

    def set(self, value):
        if value is None and optional:
            self.__dict__[name] = None
            return
        value = value.__index__() if hasattr(value, "__index__") else None
        if value is None:
            raise TypeError(f"{name} is an int" + (" or None" if optional else ""))
        if not -_INT_MAX <= value <= _INT_MAX:
            raise TypeError(f"{name} does not fit into 32 bits")
        self.__dict__[name] = value

    return property(get, set, doc=doc)


class ParallelAxis:
    """One axis of parallelism: kind "dp", "tp", "ep" or "pp"; rank of size. "tp" needs split_dim, "ep" expert_id, "pp" stage_id."""

    rank = _int_field("rank", "Which of the axis's shards.")
    size = _int_field("size", "How many shards the axis has.")
    split_dim = _int_field("split_dim", "The dimension that the tensor is cut along (kind tp), or None.", optional=True)
    expert_id = _int_field("expert_id", "The expert (kind ep), or None.", optional=True)
    stage_id = _int_field("stage_id", "The stage of the pipeline (kind pp), or None.", optional=True)

    def __init__(self):
        self.kind = ""
        self.rank, self.size = 0, 1
        self.split_dim = self.expert_id = self.stage_id = None

    @property
    def kind(self):
        """dp, tp, ep or pp."""
        return self.__dict__["kind"]

    @kind.setter
    def kind(self, value):
        if not isinstance(value, str):
            raise TypeError("kind is a str")
        self.__dict__["kind"] = value

    def __repr__(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if value is not None)
        return f"ParallelAxis({fields})"


class TensorParallelism:
    """Where a shard lies: one ParallelAxis for each kind of parallelism. Reading `axes` gives a copy: assign the list."""

    def __init__(self):
        self._axes = []

    @property
    def axes(self):
        """The axes, at most four, each kind once."""
        return list(self._axes)

    @axes.setter
    def axes(self, value):
        value = list(value)
        if not all(isinstance(axis, ParallelAxis) for axis in value):
            raise TypeError("axes is a list of ParallelAxis")
        self._axes = value

    def __repr__(self):
        return f"TensorParallelism({self._axes!r})"


class ReadTarget:
    """What a get of a tensor in shards returns: mode "as_stored", "shard" (of the given parallelism) or "full"."""

    _MODES = ("as_stored", "shard", "full")

    def __init__(self):
        self._mode, self._parallelism = self._MODES[0], None

    @property
    def mode(self):
        """as_stored, shard or full."""
        return self._mode

    @mode.setter
    def mode(self, value):
        if not isinstance(value, str):
            raise TypeError("mode is a str")
        if value.lower() not in self._MODES:
            raise RuntimeError(f"ReadTarget has no mode {value!r}: it is one of {', '.join(self._MODES)}")
        self._mode = value.lower()

    @property
    def parallelism(self):
        """The reader's place, or None: the tensor under the key itself."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, value):
        if value is not None and not isinstance(value, TensorParallelism):
            raise TypeError("parallelism is a TensorParallelism or None")
        self._parallelism = value


class Place(NamedTuple):
    """A checked TensorParallelism: axes in the caller's order."""

    axes: Tuple[Axis, ...]

    @property
    def split(self) -> Optional[Axis]:
        return next((axis for axis in self.axes if axis.kind == TP), None)

    @property
    def alone(self):
        """One axis of tensor parallelism and nothing else."""
        return len(self.axes) == 1 and self.split is not None

    def at(self, rank, size, split_dim):
        """The same place on the other axes."""
        return Place(tuple(a._replace(rank=rank, size=size, split_dim=split_dim) if a.kind == TP else a for a in self.axes))

    def key(self, key):
        if self.alone:
            return f"{key}_tp_{self.axes[0].rank}"
        return key + "".join(_suffix(axis) for axis in sorted(self.axes))

    def is_of(self, header):
        """Whether a header says that its tensor lies here."""

        def places(axes):
            return sorted((axis.kind, axis.rank, axis.size, axis.split_dim, axis.id) for axis in axes)

        return header.layout == SHARD and places(self.axes) == places(header.axes)


def _suffix(axis):
    text = f"__{('dp', 'tp', 'ep', 'pp')[axis.kind]}_{axis.rank}of{axis.size}"
    return text + (f"_sd{axis.split_dim}", f"_eid{axis.id}", f"_sid{axis.id}")[axis.kind - 1] if axis.kind != DP else text


def _checked_axis(index, axis):
    kind = _KINDS.get(axis.kind.lower())
    if kind is None or not 0 <= axis.rank < axis.size <= SHARDS_MAX:
        return None
    if (axis.split_dim is not None) != (kind == TP):
        return None
    if kind == TP:
        return Axis(kind, index, axis.rank, axis.size, axis.split_dim) if 0 <= axis.split_dim < DIMENSIONS_MAX else None
    number = {EP: axis.expert_id, PP: axis.stage_id, DP: 0}[kind]
    return None if number is None else Axis(kind, index, axis.rank, axis.size, -1, number)


def _place(parallelism):
    """A Place, or None for what describes none."""
    if not isinstance(parallelism, TensorParallelism) or not 1 <= len(parallelism.axes) <= AXES_MAX:
        log.error("a TensorParallelism with 1 to %d axes is needed, not %r", AXES_MAX, parallelism)
        return None
    axes = [_checked_axis(index, axis) for index, axis in enumerate(parallelism.axes)]
    if None in axes or len({axis.kind for axis in axes}) < len(axes):
        log.error("not a place in a parallel program: %r", parallelism)
        return None
    return Place(tuple(axes))


def _writer_place(partition):
    try:
        rank, size, split_dim = int(partition.rank), int(partition.size), int(partition.split_dim)
    except (AttributeError, TypeError, ValueError, OverflowError):
        log.error("a writer_partition needs rank, size and split_dim, not %r", partition)
        return None
    if not 0 <= rank < size <= SHARDS_MAX or not 0 <= split_dim < DIMENSIONS_MAX:
        return None
    return Place((Axis(TP, 0, rank, size, split_dim),))


def _writer_key(key, axis):
    return f"{key}__writer_{axis.rank}of{axis.size}_sd{axis.split_dim}"


class Manifest(NamedTuple):
    dtype: int
    split_dim: int
    size: int
    whole: Tuple[int, ...]
    edition: int = 0

    def is_cut_as(self, other):
        return (self.split_dim, self.size) == (other.split_dim, other.size)

    def is_of(self, header):
        """Whether a shard's header is of this partition and edition."""
        split = next((axis for axis in header.axes if axis.kind == TP), None)
        return split is not None and (split.split_dim, split.size, header.edition) == (self.split_dim, self.size, self.edition)

    def pack(self):
        return _MANIFEST.pack(
            _MANIFEST_MAGIC, _MANIFEST_VERSION, _MANIFEST.size, self.dtype, len(self.whole), self.split_dim, self.size, self.edition, 0,
            *self.whole, *(-1,) * (DIMENSIONS_MAX - len(self.whole)),
        )  # fmt: skip


def _manifest_of(data):
    if len(data) != _MANIFEST.size:
        return None
    magic, version, size, dtype, dimensions, split_dim, shards, edition, _, *rest = _MANIFEST.unpack(data)
    if (magic, version, size) != (_MANIFEST_MAGIC, _MANIFEST_VERSION, _MANIFEST.size):
        return None
    if not 0 <= dtype < len(DTYPES) or not 1 <= shards <= SHARDS_MAX or not 0 <= split_dim < dimensions <= DIMENSIONS_MAX:
        return None
    if edition < 0:
        return None
    whole = tuple(rest[:dimensions])
    return None if any(length < 0 for length in whole) or whole[split_dim] % shards else Manifest(dtype, split_dim, shards, whole, edition)


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


def _with_manifest(key, place, shards, suffix=_PARALLEL):
    """What is written: the shards, then the manifest, so that who finds it finds them."""
    split, header = place.split, shards[0][1].header
    items = [(own.key(key) if suffix == _PARALLEL else _writer_key(key, own.axes[0]), packed) for own, packed in shards]
    if split is not None:
        items.append((key + suffix, _Swap(Manifest(header.dtype, split.split_dim, split.size, header.whole))))
    return items


class _Swap(Raw):
    """A manifest on its way into the store."""

    __slots__ = ("manifest",)

    def __init__(self, manifest):
        super().__init__(manifest.pack())
        self.manifest = manifest


def _number(store, groups, upsert):
    """Gives shards and manifests their edition, which depends on the manifest that is there."""
    groups = [group for group in groups if group and isinstance(group[-1][1], _Swap)]
    if not groups:
        return
    for group, buffer in zip(groups, store.batch_get_buffer([group[-1][0] for group in groups])):
        there, (name, swap) = _manifest_in(buffer), group[-1]
        edition = 0 if there is None else there.edition
        # A put replaces no manifest: its shards belong to what is there, or, of another partition, to nothing.
        if there is not None and upsert and not there.is_cut_as(swap.manifest):
            edition = (edition + 1) % _INT_MAX
        for _, packed in group[:-1]:
            if packed.header.edition != edition:
                packed.stamp(edition)
        if edition != 0:
            group[-1] = (name, _Swap(swap.manifest._replace(edition=edition)))


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
    return None if packed is None else _with_manifest(key, place, [(place, packed)], _WRITER)


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
    if not isinstance(target, ReadTarget):
        log.error("a ReadTarget is needed, not %s", type(target).__name__)
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
    place: Place
    name: object

    def read(self, store, first, last):
        """Headers and buffers of shards first..last-1, or None."""
        manifest = self.manifest
        places = [self.place.at(rank, manifest.size, manifest.split_dim) for rank in range(first, last)]
        buffers = store.batch_get_buffer([self.name(place) for place in places])
        headers = [open_buffer(buffer) for buffer in buffers]
        for place, header in zip(places, headers):
            if header is None or not place.is_of(header) or not manifest.is_of(header):
                return None
            if (header.dtype, header.whole) != (manifest.dtype, manifest.whole):
                return None
            if header.shape[manifest.split_dim] * manifest.size != manifest.whole[manifest.split_dim]:
                return None
        return list(zip(headers, buffers))


def _sources(store, key, place):
    """Where the shards of a key may lie, most likely first."""
    if place is not None:
        manifest = _manifest_of(store.get(key + _PARALLEL))
        if manifest is None and place.alone:
            manifest = _manifest_by_shard(store, key, place)
        if manifest is not None:
            yield _Source(manifest, place, lambda own: own.key(key))
    if place is None or place.alone:
        manifest = _manifest_of(store.get(key + _WRITER))
        if manifest is not None:
            yield _Source(manifest, Place((Axis(TP, 0, 0, 1, 0),)), lambda own: _writer_key(key, own.axes[0]))


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


def _assemble(store, key, request, room):
    """The tensor that is put together from shards, in what `room(header)` gives; None when they are not (all) there."""
    seen = None
    for _ in range(READS_MAX):
        manifests = []
        for source in _sources(store, key, request.place):
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


def _manifest_key(key, request):
    """Of the manifest that says whether the shard in the place's name is what holds; None: there is none for such a place."""
    return None if request.place is None or request.place.split is None or request.mode == "full" else key + _PARALLEL


def _is_answer(request, header, manifest):
    if header is None or request.place is None:
        return header is not None
    return request.place.is_of(header) and (manifest is None or manifest.is_of(header))


def _second_round(store, key, request, room, plain_read):
    """After the name that was guessed: from shards of any partition; or, for one rank of one, the tensor itself."""
    if request.mode == "as_stored":
        return None
    found = _assemble(store, key, request, room)
    place = request.place
    return plain_read(key) if found is None and place is not None and place.alone and place.split.size == 1 else found


def _of_rank(header, tp_rank, tp_size):
    """A shard that says of itself that it is another one is not the one that was asked for."""
    splits = [axis for axis in header.axes if axis.kind == TP]
    return all((axis.rank, axis.size) == (tp_rank, tp_size) for axis in splits)


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
        buffers = self.batch_get_buffer([_rank_key(key, tp_rank, tp_size) for key in base_keys])
        headers = [open_buffer(buffer) for buffer in buffers]
        if tp_size > 1:
            headers = [None if header is None or not _of_rank(header, tp_rank, tp_size) else header for header in headers]
        return [None if header is None else over(buffer, header) for header, buffer in zip(headers, buffers)]

    def get_tensor_with_tp_into(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        """get_tensor_with_tp into the caller's memory (header and elements). Returns a tensor over it, or None."""
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1):
        """get_tensor_with_tp_into of many, in one batch. Lists of unequal length: -600 for each key."""
        keys, addresses = [_rank_key(key, tp_rank, tp_size) for key in base_keys], list(buffer_ptrs)
        if not same_length(keys, addresses, sizes):
            return refused(keys)
        found = self.batch_get_tensor_into(keys, addresses, sizes)
        if tp_size <= 1:
            return found
        return [
            None if each is None or not _of_rank(header_at(address, HEADER_SIZE + each.nbytes), tp_rank, tp_size) else each
            for each, address in zip(found, addresses)
        ]

    # ---- with_parallelism ----

    def _put_parallel(self, make, keys, values, parallelisms, config, partitions, upsert):
        keys = list(keys)
        if not same_length(keys, values) or not publishable(config) or (parallelisms is not None and partitions is not None):
            return refused(keys)
        places, cuts = _each(keys, parallelisms), _each(keys, partitions)
        if places is None or cuts is None:
            log.error("parallelisms and writer_partitions are lists as long as keys, or None")
            return refused(keys)
        groups = [make(*each) for each in zip(keys, values, places, cuts)]
        _number(self, groups, upsert)
        return write(self, groups, config, upsert)

    def put_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None):
        """Puts a rank's part of a tensor: with one axis "tp" the tensor is that rank's shard; with more axes it is the whole, of which the
        shard is cut out. With a writer_partition (rank, size, split_dim) it is the whole, of which this writer puts its part.

        Returns 0; -600 when the description or the tensor does not fit; else the code of put."""
        return self._put_parallel(
            _parallel_group, [key], [tensor], _one(parallelism), config, _one(writer_partition), False
        )[0]  # fmt: skip

    def upsert_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None):
        """put_tensor_with_parallelism that replaces a value."""
        return self._put_parallel(
            _parallel_group, [key], [tensor], _one(parallelism), config, _one(writer_partition), True
        )[0]  # fmt: skip

    def batch_put_tensor_with_parallelism(self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None):
        """put_tensor_with_parallelism of many, in one batch. A list of codes as long as keys."""
        return self._put_parallel(_parallel_group, keys, tensors_list, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism(self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None):
        """upsert_tensor_with_parallelism of many. A list of codes as long as keys."""
        return self._put_parallel(_parallel_group, keys, tensors_list, parallelisms, config, writer_partitions, True)

    def put_tensor_with_parallelism_from(self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None):
        """Puts the tensor (header and elements) that fills the caller's memory: a whole one as the shards of every "tp" rank, a shard only
        as itself (-600 for another place)."""
        return self._put_parallel_from([key], [buffer_ptr], [size], _one(parallelism), config, _one(writer_partition), False)[0]

    def upsert_tensor_with_parallelism_from(self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None):
        """put_tensor_with_parallelism_from that replaces a value."""
        return self._put_parallel_from([key], [buffer_ptr], [size], _one(parallelism), config, _one(writer_partition), True)[0]

    def batch_put_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None
    ):
        """put_tensor_with_parallelism_from of many, in one batch. A list of codes as long as keys."""
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None
    ):
        """upsert_tensor_with_parallelism_from of many. A list of codes as long as keys."""
        return self._put_parallel_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, True)

    def _put_parallel_from(self, keys, buffer_ptrs, sizes, parallelisms, config, partitions, upsert):
        keys = list(keys)
        if not same_length(keys, buffer_ptrs, sizes):
            return refused(keys)
        values = list(zip(buffer_ptrs, sizes))
        return self._put_parallel(
            lambda key, value, place, cut: _parallel_group_from(key, *value, place, cut),
            keys, values, parallelisms, config, partitions, upsert,
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
        manifests = [None if request is None else _manifest_key(key, request) for key, request in zip(keys, requests)]
        buffers = iter(self.batch_get_buffer([each for each in [*manifests, *firsts] if each is not None]))
        manifests = [None if each is None else _manifest_in(next(buffers)) for each in manifests]
        found = []
        for key, request, first, manifest in zip(keys, requests, firsts, manifests):
            buffer = None if first is None else next(buffers)
            header = open_buffer(buffer)
            if request is None or _is_answer(request, header, manifest):
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
            beside = _manifest_key(key, request)
            manifest = None if beside is None else _manifest_of(self.get(beside))
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
