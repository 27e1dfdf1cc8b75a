# SPDX-License-Identifier: Apache-2.0
"""Tensors as objects: a header of 304 bytes, then the elements, contiguous, in the machine's byte order.

Invariant: a tensor is returned only from an object whose header accounts for every one of its bytes; else the answer is None. What cannot
be an object (no tensor, a dtype without a code, more than 8 dimensions) is -600, and nothing is written.

Nothing is copied here that need not be: a put hands the addresses of header and elements to the store, a get returns a tensor over the
memory that the store filled. The header is that of the original Mooncake (0.3.13), little endian:

====== =================================================================
0      magic, u16 version, u16 size of the header
8      i32 dtype, u32 dimensions, u32 layout (0 whole, 1 shard), u32 edition (of an upsert's shard, _tensor_parallel.py; the original has 0)
24     u64 offset of the elements, u64 their bytes
40     8 x i64 shape of the whole tensor, -1 behind the last
104    8 x i64 shape of what is stored here
168    u32 axes, u32 0, then 4 axes of 32 bytes (zero where unused):
       kind, index, rank, size, split dimension, id, i64 extent
====== =================================================================
"""

import ctypes
import logging
import struct
import sys
from math import prod
from typing import NamedTuple, Tuple

from mooncake._types import ReplicateConfig

log = logging.getLogger("mooncake.store")

INVALID_PARAMS = -600
FILE_NOT_FOUND = -1100

HEADER_SIZE = 304
DIMENSIONS_MAX = 8
AXES_MAX = 4
TENSOR_BYTES_MAX = 1 << 62

_MAGIC = 0x4D4F4F4E
_VERSION = 1
_FIXED = struct.Struct("<IHHiIIIQQ8q8qII")
_AXIS = struct.Struct("<IIiiiiq")
WHOLE, SHARD = 0, 1

# The code of a dtype is its place here.
DTYPES = (
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)
ITEM_SIZES = (4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 1, 1)
# Whole numbers of the size of an element: copies between them work for every dtype, on every version of torch.
_CARRIERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}

_READ, _WRITE = 0x100, 0x200
_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


class Axis(NamedTuple):
    """One axis of a header; `id` is the expert's or the stage's number, `extent` the length of the shard along the split dimension."""

    kind: int
    index: int
    rank: int
    size: int
    split_dim: int = -1
    id: int = 0
    extent: int = 0


class Header(NamedTuple):
    dtype: int
    layout: int
    whole: Tuple[int, ...]
    shape: Tuple[int, ...]
    axes: Tuple[Axis, ...]
    edition: int = 0

    @property
    def data_bytes(self):
        return prod(self.shape) * ITEM_SIZES[self.dtype]

    def pack(self):
        def dimensions(shape):
            return tuple(shape) + (-1,) * (DIMENSIONS_MAX - len(shape))

        fixed = _FIXED.pack(
            _MAGIC, _VERSION, HEADER_SIZE, self.dtype, len(self.shape), self.layout, self.edition, HEADER_SIZE, self.data_bytes,
            *dimensions(self.whole), *dimensions(self.shape), len(self.axes), 0,
        )  # fmt: skip
        return (fixed + b"".join(_AXIS.pack(*axis) for axis in self.axes)).ljust(HEADER_SIZE, b"\0")


def parse(data, size):
    """The header that begins `data`, of an object of `size` bytes; None unless it describes exactly such an object."""
    if size < HEADER_SIZE or len(data) < HEADER_SIZE:
        return None
    magic, version, header_size, dtype, dimensions, layout, edition, offset, data_bytes, *rest = _FIXED.unpack_from(data)
    axis_count = rest[16]
    if (magic, version, header_size, offset) != (_MAGIC, _VERSION, HEADER_SIZE, HEADER_SIZE):
        return None
    if not 0 <= dtype < len(DTYPES) or dimensions > DIMENSIONS_MAX or layout not in (WHOLE, SHARD) or axis_count > AXES_MAX:
        return None
    whole, shape = tuple(rest[:dimensions]), tuple(rest[8 : 8 + dimensions])
    axes = tuple(Axis._make(_AXIS.unpack_from(data, _FIXED.size + i * _AXIS.size)) for i in range(axis_count))
    if any(length < 0 for length in shape) or (layout == WHOLE and (axes or whole != shape)):
        return None
    if any(unused != -1 for unused in rest[dimensions:8] + rest[8 + dimensions : 16]):
        return None
    header = Header(dtype, layout, whole, shape, axes, edition)
    if data_bytes != header.data_bytes or size != HEADER_SIZE + data_bytes:
        return None
    return header


def header_in(data):
    """The header that begins an object of which no more is there."""
    return None if len(data) < HEADER_SIZE else parse(data, HEADER_SIZE + _FIXED.unpack_from(data)[8])


# ---- torch ----


def need_torch():
    torch = sys.modules.get("torch")
    # A torch that is being imported (by another thread, or by whoever imports us) has no Tensor yet: wait for it as any import does.
    if torch is not None and hasattr(torch, "frombuffer"):
        return torch
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"the tensor calls of mooncake.store need torch, which cannot be imported: {error}") from error
    return torch


def _code_of(torch, dtype):
    return next((i for i, name in enumerate(DTYPES) if getattr(torch, name, None) is dtype), None)


class Packed:
    """A tensor on its way into the store: its header, and where its elements lie. Keeps both alive."""

    __slots__ = ("header", "tensor", "address", "size", "_bytes")

    def __init__(self, header, tensor):
        self.header = header
        self.tensor = tensor
        self.size = header.data_bytes
        self.address = tensor.data_ptr() if self.size else 0
        self._bytes = ctypes.create_string_buffer(header.pack(), HEADER_SIZE)

    def stamp(self, edition):
        self.header = self.header._replace(edition=edition)
        self._bytes = ctypes.create_string_buffer(self.header.pack(), HEADER_SIZE)

    def addresses(self):
        return [ctypes.addressof(self._bytes), self.address]

    def sizes(self):
        return [HEADER_SIZE, self.size]


class Raw:
    """Bytes that go beside tensors in one batch."""

    __slots__ = ("_bytes",)

    def __init__(self, data):
        self._bytes = ctypes.create_string_buffer(data, len(data))

    def addresses(self):
        return [ctypes.addressof(self._bytes)]

    def sizes(self):
        return [len(self._bytes)]


def memory(address, size, flags=_READ):
    return _memory_at(address, size, flags)


def plain(tensor):
    """The tensor as one run of elements in the host's memory, and the code of its dtype; None for what has no such form."""
    torch = need_torch()
    if not isinstance(tensor, torch.Tensor):
        log.error("not a tensor: %s", type(tensor).__name__)
        return None
    code = _code_of(torch, tensor.dtype)
    if code is None or tensor.dim() > DIMENSIONS_MAX or tensor.layout is not torch.strided:
        log.error("a tensor of %s, %d dimensions, %s cannot be stored", tensor.dtype, tensor.dim(), tensor.layout)
        return None
    try:
        # A view may be a negation that nobody has carried out yet; its memory holds the other sign.
        tensor = tensor.detach().resolve_neg().cpu().contiguous()
        tensor.data_ptr()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        log.error("the elements of a tensor cannot be read: %s", error)
        return None
    return (tensor, code) if tensor.device.type == "cpu" else None


def pack(tensor):
    """Packed for a whole tensor, or None."""
    found = plain(tensor)
    if found is None:
        return None
    tensor, code = found
    shape = tuple(tensor.shape)
    return Packed(Header(code, WHOLE, shape, shape, ()), tensor)


def over(buffer, header):
    """A tensor over the bytes behind the header of a writable buffer; it keeps the buffer alive, and shares it."""
    torch = need_torch()
    dtype = getattr(torch, DTYPES[header.dtype], None)
    if dtype is None:
        log.error("this torch has no %s", DTYPES[header.dtype])
        return None
    if header.data_bytes == 0:
        return torch.empty(header.shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=torch.uint8, offset=HEADER_SIZE, count=header.data_bytes).view(dtype).reshape(header.shape)


def carrier(tensor):
    """The same memory as whole numbers."""
    torch = need_torch()
    return tensor.view(getattr(torch, _CARRIERS[tensor.element_size()]))


def open_buffer(buffer):
    """Header of a BufferHandle, or None (absent, or no tensor)."""
    if buffer is None:
        return None
    with memoryview(buffer) as view, view[:HEADER_SIZE] as head:
        header = parse(bytes(head), view.nbytes)
    if header is None:
        log.error("an object of %d bytes is not a tensor", len(buffer))
    return header


def tensor_of(buffer):
    header = open_buffer(buffer)
    return None if header is None else over(buffer, header)


def header_at(address, size):
    """Header of the tensor that fills `size` bytes of the caller's memory, or None."""
    if not address or not HEADER_SIZE <= size <= TENSOR_BYTES_MAX:
        return None
    return parse(ctypes.string_at(address, HEADER_SIZE), size)


def tensor_at(address, size):
    """The tensor that fills `size` bytes of the caller's memory, over that memory; None if there is none."""
    header = header_at(address, size)
    return None if header is None else over(memory(address, size, _WRITE), header)


def metadata_size():
    """Size of the header in front of a tensor's elements."""
    return HEADER_SIZE


def serialize(tensor):
    """(header, address of the elements, their bytes, the tensor that owns them) of what a put of the tensor writes."""
    packed = pack(tensor)
    if packed is None:
        raise ValueError("this object cannot be stored as a tensor")
    # The caller's own tensor where the elements are its: it may compare.
    owner = tensor if tensor.data_ptr() == packed.tensor.data_ptr() else packed.tensor
    return packed.header.pack(), packed.tensor.data_ptr(), packed.size, owner


def deserialize(data):
    """The tensor in the bytes of an object (a copy)."""
    if not isinstance(data, bytes):
        raise TypeError(f"bytes, not {type(data).__name__}")
    header = parse(data, len(data))
    if header is None:
        raise ValueError("these bytes are not a stored tensor")
    return over(bytearray(data), header)


# ---- calls ----


def same_length(keys, *lists):
    return all(len(each) == len(keys) for each in lists)


def refused(keys):
    return [INVALID_PARAMS] * len(keys)


def check_config(config):
    if config is not None and not isinstance(config, ReplicateConfig):
        raise TypeError(f"config must be ReplicateConfig, not {type(config).__name__}")


def publishable(config):
    """Named segments must be one for each copy."""
    check_config(config)
    if config is None or not config.preferred_segments or len(config.preferred_segments) == config.replica_num:
        return True
    log.error("%d preferred segments for %d replicas", len(config.preferred_segments), config.replica_num)
    return False


def _for_items(config, owners):
    """The config for objects of which several may belong to one key: each takes its key's group."""
    groups = None if config is None else config.group_ids
    if not groups or list(owners) == list(range(len(groups))):
        return config
    copy = ReplicateConfig()
    for name in dir(config):
        if not name.startswith("_") and name not in ("preferred_segment", "with_soft_pin"):
            setattr(copy, name, getattr(config, name))
    copy.group_ids = [groups[owner] for owner in owners]
    return copy


def write(store, groups, config, upsert):
    """One code for each group. A group is a list of (key, Packed or Raw), written in one batch with the others; None is refused.

    The code of a group is that of its first item that failed."""
    check_config(config)
    results = [INVALID_PARAMS if group is None else 0 for group in groups]
    if config is not None and config.group_ids and len(config.group_ids) != len(groups):
        return [INVALID_PARAMS] * len(groups)
    owners = [i for i, group in enumerate(groups) for _ in group or ()]
    items = [item for group in groups for item in group or ()]
    if not items:
        return results
    call = store._batch_upsert_from_multi_buffers if upsert else store.batch_put_from_multi_buffers
    codes = call([key for key, _ in items], [each.addresses() for _, each in items], [each.sizes() for _, each in items],
                 _for_items(config, owners))  # fmt: skip
    for owner, code in zip(owners, codes):
        if results[owner] == 0:
            results[owner] = code
    return results


def _named(key, packed):
    return None if packed is None else [(key, packed)]


class TensorCalls:
    """The calls of MooncakeDistributedStore on whole tensors."""

    def put_tensor(self, key, tensor):
        """Puts a tensor. Returns 0; -600 for what cannot be stored as one; else the code of put."""
        return write(self, [_named(key, pack(tensor))], None, False)[0]

    def upsert_tensor(self, key, tensor):
        """put_tensor that replaces a value. The value before stays readable until the new one is whole."""
        return write(self, [_named(key, pack(tensor))], None, True)[0]

    def pub_tensor(self, key, tensor, config=None):
        """put_tensor with a ReplicateConfig. -600 also when preferred segments are named, but not one for each replica."""
        if not publishable(config):
            return INVALID_PARAMS
        return write(self, [_named(key, pack(tensor))], config, False)[0]

    def upsert_pub_tensor(self, key, tensor, config=None):
        """upsert_tensor with a ReplicateConfig."""
        if not publishable(config):
            return INVALID_PARAMS
        return write(self, [_named(key, pack(tensor))], config, True)[0]

    def _write_tensors(self, keys, tensors_list, config, upsert):
        keys = list(keys)
        tensors = list(tensors_list)
        if not same_length(keys, tensors) or not publishable(config):
            return refused(keys)
        return write(self, [_named(key, pack(tensor)) for key, tensor in zip(keys, tensors)], config, upsert)

    def batch_put_tensor(self, keys, tensors_list):
        """put_tensor of many, in one batch. A list of codes as long as keys."""
        return self._write_tensors(keys, tensors_list, None, False)

    def batch_upsert_tensor(self, keys, tensors_list):
        """upsert_tensor of many. A list of codes as long as keys."""
        return self._write_tensors(keys, tensors_list, None, True)

    def batch_pub_tensor(self, keys, tensors_list, config=None):
        """pub_tensor of many, in one batch. A list of codes as long as keys."""
        return self._write_tensors(keys, tensors_list, config, False)

    def batch_upsert_pub_tensor(self, keys, tensors_list, config=None):
        """upsert_pub_tensor of many. A list of codes as long as keys."""
        return self._write_tensors(keys, tensors_list, config, True)

    def get_tensor(self, key):
        """The tensor under a key, in memory of its own; None when there is none, or the object is no tensor."""
        need_torch()
        return tensor_of(self.get_buffer(key))

    def batch_get_tensor(self, keys):
        """get_tensor of many, in one batch: a list of tensors and None, as long as keys."""
        need_torch()
        return [tensor_of(buffer) for buffer in self.batch_get_buffer(keys)]

    def get_tensor_into(self, key, buffer_ptr, size):
        """Reads header and elements into the caller's memory. Returns a tensor over it (which does not keep it alive), or None."""
        need_torch()
        if not buffer_ptr:
            return None
        return tensor_at(buffer_ptr, self.get_into(key, buffer_ptr, size))

    def batch_get_tensor_into(self, keys, buffer_ptrs, sizes):
        """get_tensor_into of many, in one batch. Lists of unequal length: -600 for each key."""
        need_torch()
        keys, addresses = list(keys), list(buffer_ptrs)
        if not same_length(keys, addresses, sizes):
            return refused(keys)
        lengths = self.batch_get_into(keys, addresses, sizes)
        return [tensor_at(address, length) for address, length in zip(addresses, lengths)]

    def put_tensor_from(self, key, buffer_ptr, size):
        """Puts the object (header and elements) that fills `size` bytes of the caller's memory, as get_tensor_into left it."""
        return INVALID_PARAMS if header_at(buffer_ptr, size) is None else self.put_from(key, buffer_ptr, size)

    def upsert_tensor_from(self, key, buffer_ptr, size):
        """put_tensor_from that replaces a value."""
        return INVALID_PARAMS if header_at(buffer_ptr, size) is None else self.upsert_from(key, buffer_ptr, size)

    def batch_put_tensor_from(self, keys, buffer_ptrs, sizes):
        """put_tensor_from of many, in one batch. A list of codes as long as keys."""
        return _from_buffers(self.batch_put_from, keys, buffer_ptrs, sizes)

    def batch_upsert_tensor_from(self, keys, buffer_ptrs, sizes):
        """upsert_tensor_from of many, in one batch. A list of codes as long as keys."""
        return _from_buffers(self.batch_upsert_from, keys, buffer_ptrs, sizes)

    def get_tensor_into_cuda(self, key, tensor):
        """Not there: this store moves bytes in the host's memory. Use get_tensor, then .to()."""
        raise NotImplementedError("tensors in a GPU's memory: use get_tensor(key).to(device)")

    def batch_get_tensor_into_cuda(self, keys, tensors_list):
        """Not there: this store moves bytes in the host's memory. Use batch_get_tensor, then .to()."""
        raise NotImplementedError("tensors in a GPU's memory: use batch_get_tensor(keys) and .to(device)")

    def save_tensor_to_safetensor(self, key, file_name=None):
        """Writes the tensor under a key to a safetensors file, under the key's name. Without a file name the key is one.

        Returns 0; -1100 without such a tensor; -600 when the file cannot be written, or there is no safetensors."""
        tensor = self.get_tensor(key)
        if tensor is None:
            return FILE_NOT_FOUND if self.get_hostname() else INVALID_PARAMS
        try:
            import safetensors.torch as files

            files.save_file({str(key): tensor}, str(key if file_name is None else file_name))
        except Exception as error:  # the library's own error, an OSError, a dtype that it does not know, or no library
            log.error("cannot write %r: %s", file_name or key, error)
            return INVALID_PARAMS
        return 0

    def load_tensor_from_safetensor(self, key=None, file_name=None):
        """Reads a tensor from a safetensors file, puts it under the key (default: the file's name) and returns it; None on failure.

        The file's tensor of that name, else its first one."""
        need_torch()
        if file_name is None:
            raise TypeError("load_tensor_from_safetensor() needs file_name")
        name = str(file_name if key is None else key)
        try:
            import safetensors.torch as files

            tensors = files.load_file(str(file_name))
        except Exception as error:  # no file, not readable, not of this format, or no library
            log.error("cannot read %r: %s", file_name, error)
            return None
        if not tensors:
            return None
        if name not in tensors and key is not None:
            log.warning("%r has no tensor %r: the first one is taken", file_name, name)
        tensor = tensors[name] if name in tensors else next(iter(tensors.values()))
        return tensor if self.put_tensor(name, tensor) == 0 else None


def _from_buffers(call, keys, buffer_ptrs, sizes):
    keys, addresses, sizes = list(keys), list(buffer_ptrs), list(sizes)
    if not same_length(keys, addresses, sizes):
        return refused(keys)
    results = refused(keys)
    good = [i for i in range(len(keys)) if header_at(addresses[i], sizes[i]) is not None]
    if good:
        codes = call([keys[i] for i in good], [addresses[i] for i in good], [sizes[i] for i in good])
        for i, code in zip(good, codes):
            results[i] = code
    return results
