# SPDX-License-Identifier: Apache-2.0
"""Where shards of tensors lie: what callers describe, names, and manifests. `_tensor_parallel.py` says what they are for."""

import logging
import struct
from typing import NamedTuple, Optional, Tuple

from mooncake._tensor import AXES_MAX, DIMENSIONS_MAX, DTYPES, SHARD, Axis

log = logging.getLogger("mooncake.store")

SHARDS_MAX = 1 << 16
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

    @classmethod
    def _of(cls, axis):
        """A copy of what has an axis's attributes, checked. AttributeError, TypeError."""
        copy = cls()
        copy.kind, copy.rank, copy.size = axis.kind, axis.rank, axis.size
        for name in ("split_dim", "expert_id", "stage_id"):
            setattr(copy, name, getattr(axis, name, None))
        return copy

    def __repr__(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if value is not None)
        return f"ParallelAxis({fields})"


class TensorParallelism:
    """Where a shard lies: one ParallelAxis for each kind of parallelism. `axes` is copied when it is assigned; what is read is a list of
    its own, of the axes themselves: assign the list, or an axis's fields."""

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
        self._axes = [ParallelAxis._of(axis) for axis in value]

    @classmethod
    def _of(cls, place):
        """A copy of what has a place's attributes, checked. AttributeError, TypeError."""
        copy = cls()
        copy.axes = [ParallelAxis._of(axis) for axis in place.axes]
        return copy

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
        """The reader's place, copied when it is assigned; or None: the tensor under the key itself."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, value):
        if value is not None and not isinstance(value, TensorParallelism):
            raise TypeError("parallelism is a TensorParallelism or None")
        self._parallelism = None if value is None else TensorParallelism._of(value)

    @classmethod
    def _of(cls, target):
        """A copy of what has a target's attributes, checked. AttributeError, TypeError, RuntimeError."""
        copy, place = cls(), target.parallelism
        copy.mode, copy.parallelism = target.mode, None if place is None else TensorParallelism._of(place)
        return copy


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
    """A Place, or None for what describes none. Whatever has the attributes of a TensorParallelism may, as in the original."""
    try:
        given = TensorParallelism._of(parallelism).axes
    except (AttributeError, TypeError):
        given = []
    if not 1 <= len(given) <= AXES_MAX:
        log.error("a TensorParallelism with 1 to %d axes is needed, not %r", AXES_MAX, parallelism)
        return None
    axes = [_checked_axis(index, axis) for index, axis in enumerate(given)]
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


_NO_PLACE = Place((Axis(TP, 0, 0, 1, 0),))  # one axis, of any rank and partition


class Names(NamedTuple):
    """What the shards of one tensor are called, and their manifest. A place's rank and partition do not matter."""

    key: str
    place: Place
    writer: bool = False

    def shards(self, manifest, ranks=None):
        """(place, name) of the ranks' shards, or of all."""
        places = [self.place.at(rank, manifest.size, manifest.split_dim) for rank in ranks or range(manifest.size)]
        return [(place, self.shard(place, manifest.edition, manifest.chain)) for place in places]

    def shard(self, place, edition, chain=0):
        plain = _writer_key(self.key, place.axes[0]) if self.writer else place.key(self.key)
        if edition == 0:
            return plain
        # The partition is in the name: two may have the same edition.
        return (plain if self.writer else self.key + "".join(_suffix(axis) for axis in sorted(place.axes))) + f"__edition_{chain:x}_{edition}"

    @property
    def common(self):
        """The manifest of edition 0."""
        return self.key + (_WRITER if self.writer else _PARALLEL)

    @property
    def own(self):
        """The manifest of upserts."""
        others = "".join(_suffix(axis) for axis in sorted(self.place.axes) if axis.kind != TP)
        return self.key + others + (_WRITER if self.writer else _PARALLEL)

    def manifests(self):
        """Names of the manifests, of which the first that is there holds."""
        return [self.own] if self.own == self.common else [self.own, self.common]


class Manifest(NamedTuple):
    dtype: int
    split_dim: int
    size: int
    whole: Tuple[int, ...]
    edition: int = 0
    chain: int = 0

    def is_cut_as(self, other):
        return (self.split_dim, self.size) == (other.split_dim, other.size)

    def is_of(self, header):
        """Whether a shard's header is of this partition and edition. What has no edition's name may have been read from one."""
        split = next((axis for axis in header.axes if axis.kind == TP), None)
        return (
            split is not None
            and (split.split_dim, split.size) == (self.split_dim, self.size)
            and self.edition in (0, header.edition)
            and (header.dtype, header.whole) == (self.dtype, self.whole)
            and header.shape[self.split_dim] * self.size == self.whole[self.split_dim]
        )

    def pack(self):
        return _MANIFEST.pack(
            _MANIFEST_MAGIC, _MANIFEST_VERSION, _MANIFEST.size, self.dtype, len(self.whole), self.split_dim, self.size, self.edition, self.chain,
            *self.whole, *(-1,) * (DIMENSIONS_MAX - len(self.whole)),
        )  # fmt: skip


def _manifest_of(data):
    if len(data) != _MANIFEST.size:
        return None
    magic, version, size, dtype, dimensions, split_dim, shards, edition, chain, *rest = _MANIFEST.unpack(data)
    if (magic, version, size) != (_MANIFEST_MAGIC, _MANIFEST_VERSION, _MANIFEST.size):
        return None
    if not 0 <= dtype < len(DTYPES) or not 1 <= shards <= SHARDS_MAX or not 0 <= split_dim < dimensions <= DIMENSIONS_MAX:
        return None
    if edition < 0 or chain < 0:
        return None
    whole = tuple(rest[:dimensions])
    return None if any(length < 0 for length in whole) or whole[split_dim] % shards else Manifest(dtype, split_dim, shards, whole, edition, chain)
