# SPDX-License-Identifier: Apache-2.0
"""Members of a structured object: bytes, arrays and tensors as payloads of a bundle, whole or by rows.

Arrays are their elements; tensors are what MooncakeDistributedStore.put_tensor writes, a header of 304 bytes and the elements.
"""

import dataclasses
import math
from typing import Any, Optional, Tuple

import numpy as np

from mooncake import _rows, _tensor
from mooncake._bundle import Memory, memory_of


@dataclasses.dataclass(frozen=True)
class StructuredMemberSlice:
    """Rows start, start + step, ... below end of a member. axis is 0."""

    axis: int
    start: int
    end: int
    step: int = 1


@dataclasses.dataclass(frozen=True)
class TensorBuffer:
    """A tensor as put_tensor writes it, in memory that `owner` keeps."""

    ptr: int
    size: int
    owner: Any = None
    batch_size: Optional[int] = None
    is_one_piece = True

    def __len__(self):
        if self.batch_size is None:
            raise TypeError("tensor_object_buffer: batch_size is needed here")
        return self.batch_size


@dataclasses.dataclass(frozen=True)
class RawDestination:
    """Memory for the elements of an array, or for a tensor with its header."""

    ptr: int
    size: int
    owner: Any = None
    pre_registered: bool = False


def encode(name: str, value: Any) -> Tuple[dict, Any]:
    """(what is said of it, its payload)."""
    if isinstance(value, TensorBuffer):
        return {"encoding": "torch_tensor"}, Memory(value.ptr, value.size, value)
    if _rows._is_tensor(value):
        return _encode_tensor(name, value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OV":
            raise TypeError(f"member {name!r}: arrays of {value.dtype} are no plain elements")
        array = np.ascontiguousarray(value) if value.ndim else value.copy()
        return {"encoding": "ndarray", "dtype": array.dtype.str, "shape": list(value.shape)}, array.reshape(-1).view(np.uint8)
    return {"encoding": "bytes"}, memory_of(value, f"member {name!r}")


def _encode_tensor(name, tensor):
    import torch

    if tensor.is_nested:
        data, offsets = _rows.pack_column(list(tensor.unbind()))
        whole = np.concatenate([offsets.view(np.uint8), data])
        return {"encoding": "rows", "rows": len(offsets) - 1, "nested": str(tensor.layout)}, whole
    try:
        header, address, size, owner = _tensor.serialize(tensor)
    except ValueError:
        raise TypeError(f"member {name!r}: a tensor of {tensor.dtype} and layout {tensor.layout} cannot be stored") from None
    whole = torch.empty(len(header) + size, dtype=torch.uint8)
    array = whole.numpy()
    array[: len(header)] = np.frombuffer(header, np.uint8)
    if size:
        array[len(header) :] = np.frombuffer(_tensor.memory(address, size), np.uint8)
    del owner
    return {"encoding": "torch_tensor", "shape": list(tensor.shape), "dtype": str(tensor.dtype).rpartition(".")[2]}, array


class Rows:
    """Which rows of `total` are wanted, in which order: a slice, or numbers."""

    def __init__(self, wanted: Any, total: int) -> None:
        if isinstance(wanted, StructuredMemberSlice):
            if wanted.axis != 0:
                raise ValueError("rows are taken along axis=0 only")
            wanted = slice(wanted.start, wanted.end, wanted.step)
        if isinstance(wanted, slice):
            if wanted.step is not None and wanted.step <= 0:
                raise ValueError("a slice of rows: step must be positive")
            self.numbers: Any = range(*wanted.indices(total))
        elif isinstance(wanted, (str, bytes, bytearray)) or not hasattr(wanted, "__len__"):
            raise TypeError("rows must be a slice, a StructuredMemberSlice or numbers of rows")
        else:
            self.numbers = [self._number(one, total) for one in wanted]

    @staticmethod
    def _number(one, total):
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            raise TypeError("row indices must be whole numbers")
        number = int(one) + (total if one < 0 else 0)
        if not 0 <= number < total:
            raise IndexError(f"row {one} is out of range: there are {total}")
        return number

    def __len__(self):
        return len(self.numbers)

    def runs(self):
        """(first, count) of rows that lie together."""
        runs: list = []
        for number in self.numbers:
            if runs and sum(runs[-1]) == number:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])
        return runs


def _array_target(name, destination, dtype, shape):
    nbytes = dtype.itemsize * math.prod(shape)
    if destination is None:
        return np.empty(shape, dtype)
    if isinstance(destination, RawDestination):
        if destination.size < nbytes:
            raise ValueError(f"member {name!r}: {nbytes} bytes do not fit into a raw_destination of {destination.size}")
        return np.frombuffer(_tensor.memory(destination.ptr, nbytes, _tensor._WRITE), np.uint8).view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)
    if not isinstance(destination, np.ndarray):
        raise TypeError(f"member {name!r}: its destination must be a numpy.ndarray or a raw_destination")
    flags = destination.flags
    if destination.dtype != dtype or destination.shape != tuple(shape) or not flags.c_contiguous or not flags.writeable:
        raise ValueError(f"member {name!r}, destination shape mismatch, or of type: a contiguous, writable {dtype.str} of shape {tuple(shape)} is needed")
    return destination


class Reader:
    """Reads members of one bundle."""

    def __init__(self, bundles) -> None:
        self.bundles = bundles

    def read(self, name: str, payload: Any, said: Any, rows: Any = None, destination: Any = None) -> Any:
        """rows None: all."""
        encoding = said.get("encoding", "bytes")
        if encoding == "ndarray":
            return self._array(name, payload, said, rows, destination)
        if encoding == "torch_tensor":
            return self._tensor(name, payload, rows, destination)
        if encoding == "rows":
            return self._nested(name, payload, said, rows, destination)
        if encoding != "bytes":
            raise ValueError(f"unsupported structured field encoding {encoding!r} of member {name!r}")
        return self._bytes(name, payload, rows, destination)

    def _bytes(self, name, payload, rows, destination):
        if rows is not None:
            raise ValueError(f"member {name!r} is bytes, which have no rows")
        if destination is None:
            return bytes(self.bundles.read(payload))
        target = Memory(destination.ptr, destination.size) if isinstance(destination, RawDestination) else memory_of(destination, f"destination of {name!r}")
        if target.size < payload["bytes"]:
            raise ValueError(f"member {name!r}: {payload['bytes']} bytes do not fit into {target.size}")
        self.bundles.read_into(payload, 0, Memory(target.address, payload["bytes"]))
        return destination

    def _fill(self, payload, start, width, wanted, target):
        """The wanted rows, each of that width, of those that begin at start."""
        if wanted is None:
            self.bundles.read_into(payload, start, target)
        elif len(wanted) and width:
            self.bundles.read_parts(payload, [(start + first * width, count * width) for first, count in wanted.runs()], target)

    def _array(self, name, payload, said, rows, destination):
        dtype, shape = _rows._dtype(said["dtype"]), list(said["shape"])
        if payload["bytes"] != dtype.itemsize * math.prod(shape):
            raise ValueError(f"member {name!r} has {payload['bytes']} bytes, not those of its shape")
        wanted = None
        if rows is not None:
            if not shape:
                raise ValueError(f"member {name!r} has no dimension, so no rows")
            wanted = Rows(rows, shape[0])
            shape[0] = len(wanted)
        array = _array_target(name, destination, dtype, shape)
        if array.size:
            width = dtype.itemsize * math.prod(shape[1:])
            self._fill(payload, 0, width, wanted, memory_of(array.reshape(-1).view(np.uint8), name))
        return array

    def _tensor(self, name, payload, rows, destination):
        torch = _tensor.need_torch()
        head = bytearray(min(_tensor.HEADER_SIZE, payload["bytes"]))
        if destination is not None:
            return self._tensor_into(name, payload, rows, destination)
        self.bundles.read_into(payload, 0, memory_of(head, name))
        header = _tensor.parse(head, payload["bytes"])
        if header is None:
            raise ValueError(f"member {name!r} is no tensor")
        if rows is None:
            return _tensor.over(self.bundles.read(payload), header)
        if not header.shape:
            raise ValueError(f"member {name!r} has no dimension, so no rows")
        wanted = Rows(rows, header.shape[0])
        shape = [len(wanted), *header.shape[1:]]
        width = header.data_bytes // header.shape[0] if header.shape[0] else 0
        dtype = getattr(torch, _tensor.DTYPES[header.dtype])
        if width * len(wanted) == 0:
            return torch.empty(shape, dtype=dtype)
        data = np.empty(width * len(wanted), np.uint8)
        self._fill(payload, len(head), width, wanted, memory_of(data, name))
        return torch.from_numpy(data).view(dtype).reshape(shape)

    def _tensor_into(self, name, payload, rows, destination):
        if rows is not None:
            raise ValueError(f"member {name!r}: rows of a tensor cannot be read into a destination")
        if not isinstance(destination, (RawDestination, TensorBuffer)):
            raise TypeError(f"member {name!r}: the destination of a tensor must be a tensor_object_buffer or a raw_destination")
        if destination.size < payload["bytes"]:
            raise ValueError(f"member {name!r}: {payload['bytes']} bytes, header and elements, do not fit into {destination.size}")
        self.bundles.read_into(payload, 0, Memory(destination.ptr, payload["bytes"]))
        return _tensor.tensor_at(destination.ptr, payload["bytes"])

    def column(self, payload, start, rows_total, rows):
        """Values of a column whose offsets begin at `start` of the payload, and whose bytes come behind them."""
        offsets = np.empty(rows_total + 1, np.int64)
        self.bundles.read_into(payload, start, memory_of(offsets.view(np.uint8), "offsets"))
        return self.values(payload, start + offsets.nbytes, offsets, rows)

    def values(self, payload, start, offsets, rows):
        if offsets[0] != 0 or (np.diff(offsets) < 0).any() or start + int(offsets[-1]) > payload["bytes"]:
            raise ValueError("the offsets of a column are none")
        wanted = Rows(slice(None) if rows is None else rows, len(offsets) - 1)
        lengths = [int(offsets[one + 1] - offsets[one]) for one in wanted.numbers]
        data = bytearray(sum(lengths))
        parts = [(start + int(offsets[first]), int(offsets[first + count] - offsets[first])) for first, count in wanted.runs()]
        if data:
            self.bundles.read_parts(payload, parts, memory_of(data, "column"))
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        return _rows.unpack_column(data, ends)

    def _nested(self, name, payload, said, rows, destination):
        import torch

        if destination is not None:
            raise ValueError(f"member {name!r}: a nested tensor has no destination")
        values = self.column(payload, 0, said["rows"], rows)
        return torch.nested.nested_tensor(values, layout=torch.jagged if said.get("nested") == "torch.jagged" else torch.strided)
