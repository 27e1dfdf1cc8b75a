# SPDX-License-Identifier: Apache-2.0
"""The small types of mooncake.store: ReplicateConfig, what tells of replicas and tasks, the enums. The extension makes and reads them."""

from mooncake._record import Constant, Record, Small, absent, field, made
from mooncake._store import _number, _snapshot

__all__ = ["Descriptor", "DiskDescriptor", "EngramStore", "EngramStoreConfig", "MemoryDescriptor", "MooncakeDistributedNoFRegister", "QueryTaskResponse",
           "ReplicaDescriptor", "ReplicateConfig", "SoftPinAction"]
_MODULE = "mooncake.store"


def _enum(name, names, exported=True):
    enum = Constant(name, names, module=_MODULE, start=0)
    members = enum.__members__ if exported else {}
    globals().update({name: enum}, **members)  # of equal names the last one stays, as in the original
    __all__.extend([name, *members])
    return enum


SoftPinAction = _enum("SoftPinAction", "PRESERVE ENABLE DISABLE", exported=False)
ObjectDataType = _enum("ObjectDataType", "UNKNOWN KVCACHE TENSOR WEIGHT SAMPLE ACTIVATION GRADIENT OPTIMIZER_STATE METADATA GENERAL")
ReplicaStatus = _enum("ReplicaStatus", "UNDEFINED INITIALIZED PROCESSING COMPLETE REMOVED FAILED")
TaskType = _enum("TaskType", "REPLICA_COPY REPLICA_MOVE")
TaskStatus = _enum("TaskStatus", "PENDING PROCESSING FAILED SUCCESS")

# ---- ReplicateConfig. What is looked at is a value's type, not isinstance(), which believes what a mock says of itself. ----


def _is(value, *types):
    return issubclass(type(value), types)


def _wrong_type(name, wanted, value):
    return TypeError(f"ReplicateConfig.{name} must be {wanted}, not {type(value)!r}")


def _count(name, value):
    return _number(value)


def _flag(name, value):
    return bool(value)


def _text(name, value):
    if not _is(value, str):
        raise _wrong_type(name, "str", value)
    return value


def _texts(name, value):
    texts = _snapshot(value, name)
    for text in texts:
        if not _is(text, str):
            raise _wrong_type(name, "a list of str", text)
    return texts


def _optional(check):
    return lambda name, value: None if value is None else check(name, value)


def _member(enum):
    def check(name, value):
        if _is(value, enum):
            return value
        if _is(value, int):
            return enum(value)
        raise _wrong_type(name, enum.__name__, value)

    return check


# Name, default, what is stored for a value that was assigned, meaning. src/python/store_types.c reads the values in this order.
_FIELDS = (
    ("replica_num", 1, _count, "wanted copies on distinct segments, 1 to 16; fewer is success"),
    ("nof_replica_num", 0, _count, "accepted as 0 only: no such tier in this build"),
    ("dfs_replica_num", 0, _count, "accepted as 0 only: no such tier in this build"),
    ("soft_pin_action", SoftPinAction.PRESERVE, _member(SoftPinAction), "SoftPinAction.ENABLE: evicted only when nothing else can be"),
    ("soft_pin_ttl_ms", None, _optional(_count), "milliseconds of the soft pin, however it is used; needs ENABLE; 0: no pin; None: the master's default; above its maximum: -600"),
    ("with_soft_pin", False, _flag, "older spelling of soft_pin_action = ENABLE"),
    ("with_hard_pin", False, _flag, "never evicted"),
    ("preferred_segments", (), _texts, "names (get_hostname() of their owners) that are tried first, in this order"),
    ("preferred_segment", "", _text, "older spelling of one preferred segment"),
    ("preferred_nof_segments", (), _texts, "accepted and not used"),
    ("prefer_alloc_in_same_node", False, _flag,
     "all of a batch_put_from_multi_buffers in one segment, of this machine if there is room; one replica"),
    ("data_type", ObjectDataType.UNKNOWN, _member(ObjectDataType), "ObjectDataType; a tag without effect"),
    ("group_ids", None, _optional(_texts),
     "a group's name for each key of the call (\"\": none), or None: a read protects the whole group, which is evicted together"),
    ("firm_pin_ms", 0, _count, "not 0: a soft pin of so many milliseconds, before whose end it is not evicted, as far as the master's max_firm_pin_ratio goes"),
    ("firm_pin_or_not", False, _flag, "with firm_pin_ms: puts nothing instead, -1908 (or -705: the key exists); 0 says that it is pinned"),
)


def _property(at, name, check, doc):
    def get(self):
        value = self._values[at]
        return list(value) if type(value) is tuple else value  # a list of its own for each reading, as in the original

    def assign(self, value):
        checked = check(name, value)
        self._values = (*self._values[:at], checked, *self._values[at + 1 :])

    def delete(self):
        raise AttributeError(f"ReplicateConfig.{name} cannot be deleted")

    return property(get, assign, delete, doc)


class ReplicateConfig(Small):
    """How a put places its copies. One object may be used for many calls."""

    __slots__ = ("_values",)
    __module__ = _MODULE

    def __new__(cls, *args, **keywords):
        if args or keywords:
            raise TypeError("ReplicateConfig() takes no arguments; set its attributes")
        self = object.__new__(cls)
        self._values = tuple(default for _, default, _, _ in _FIELDS)
        return self

    def __repr__(self):
        return "ReplicateConfig(%s)" % ", ".join(f"{name}={getattr(self, name)!r}" for name, _, _, _ in _FIELDS)


for _at, (_name, _default, _check, _doc) in enumerate(_FIELDS):
    setattr(ReplicateConfig, _name, _property(_at, _name, _check, _doc))
del _at, _name, _default, _check, _doc


# ---- replicas ----


class Descriptor(Record):
    """Where bytes lie in a segment."""

    __slots__ = ()
    __module__ = _MODULE
    size = size_ = field(0, "length in bytes")
    buffer_address = buffer_address_ = field(1, "offset of the data in its segment")
    transport_endpoint = transport_endpoint_ = field(2, '"host:port" of the segment\'s owner')


class MemoryDescriptor(Record):
    """A replica in memory."""

    __slots__ = ()
    __module__ = _MODULE
    buffer_descriptor = field(0, "Descriptor of the memory")


class DiskDescriptor(Record):
    """A replica in a file; this build makes none."""

    __slots__ = ()
    __module__ = _MODULE
    file_path = field(0, "path of the file")
    object_size = field(1, "length in bytes")


class ReplicaDescriptor(Record):
    """One copy of an object."""

    __slots__ = ()
    __module__ = _MODULE
    status = field(0, "ReplicaStatus")

    def get_disk_descriptor(self):
        """Raises RuntimeError: no replica of this build is a file of its own."""
        raise RuntimeError("get_disk_descriptor: this replica is " + ("on a node's disk" if self._fields[1] is None else "in memory"))

    def get_memory_descriptor(self):
        """MemoryDescriptor of this replica; RuntimeError if it is on a node's disk."""
        if self._fields[1] is None:
            raise RuntimeError("get_memory_descriptor: this replica is on a node's disk")
        return self._fields[1]

    def is_memory_replica(self):
        """True if it is in memory."""
        return self._fields[1] is not None

    def is_disk_replica(self):
        """False: no replica of this build is a file of its own."""
        return False

    def is_local_disk_replica(self):
        """True if it is on the disk of a node."""
        return self._fields[1] is None


_STATUSES = tuple(ReplicaStatus)
_new, _fill = object.__new__, Record._fields.__set__


def _replica(size, address, segment_name, status, is_on_disk):
    # The number comes from another process: what we do not know is UNDEFINED.
    known = _STATUSES[status if 0 <= status < len(_STATUSES) else 0]
    if is_on_disk:
        replica = _new(ReplicaDescriptor)
        _fill(replica, (known, None))
        return replica
    place, memory, replica = _new(Descriptor), _new(MemoryDescriptor), _new(ReplicaDescriptor)
    _fill(place, (size, address, segment_name))
    _fill(memory, (place,))
    _fill(replica, (known, memory))
    return replica


# ---- tasks ----


class QueryTaskResponse(Record):
    """What query_task tells of a task."""

    __slots__ = ()
    __module__ = _MODULE
    id = field(0, "two ints, as create_copy_task returned them")
    type = field(1, "TaskType")
    status = field(2, "TaskStatus")
    created_at_ms_epoch = field(3, "milliseconds since 1970")
    last_updated_at_ms_epoch = field(4, "milliseconds since 1970")
    assigned_client = field(5, "always (0, 0): the store that made the task carries it out")
    message = field(6, "why it failed, else empty")

    def __new__(cls, *args, **keywords):
        if args:
            raise TypeError("QueryTaskResponse() takes no arguments")
        return _task((0, 0), 0, 0, 0, 0, "")

    def __repr__(self):
        return f"QueryTaskResponse(id={self.id!r}, type={self.type!r}, status={self.status!r}, message={self.message!r})"


def _task(number, is_move, status, created_ms, updated_ms, message):
    return made(QueryTaskResponse, number, TaskType(is_move), TaskStatus(status), created_ms, updated_ms, (0, 0), message)


# ---- what there is not ----

_NO_ENGRAM = "EngramStore: embedding tables are not in this build; store them as objects of their own."
EngramStore, EngramStoreConfig = (absent(_MODULE, name, _NO_ENGRAM) for name in ("EngramStore", "EngramStoreConfig"))
MooncakeDistributedNoFRegister = absent(_MODULE, "MooncakeDistributedNoFRegister",
                                        "MooncakeDistributedNoFRegister: there is no NVMe-over-Fabrics tier in this build.")
