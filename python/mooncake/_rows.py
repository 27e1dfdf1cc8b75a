# SPDX-License-Identifier: Apache-2.0
"""Values of Python as bytes, and columns of them: numbers, texts, bytes, arrays, tensors, and lists, tuples and dicts of these.

A value is the length of a JSON text in 4 bytes, the text, and the bytes of its arrays, one after the other; the text says what they are. What it
cannot say is a TypeError: nothing is pickled, so reading runs no code. A column is its values, one after the other, and where each begins.
"""

import json
import struct
from typing import Any, List, Sequence, Tuple

import numpy as np

CODEC = "mooncake_c_rows"
_DEPTH_MAX = 200
_LENGTH = struct.Struct("<I")
_DTYPES = "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128 float8_e4m3fn float8_e5m2 uint16 uint32 uint64".split()


def _is_tensor(value):
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_sparse") and hasattr(value, "untyped_storage")


def tensor_bytes(tensor):
    """(its dtype's name, its shape, its elements as an array of bytes)."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be stored")
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in _DTYPES:
        raise TypeError(f"tensors of {tensor.dtype} cannot be stored")
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return name, list(tensor.shape), plain.view(torch.uint8).numpy() if plain.numel() > 0 else np.empty(0, np.uint8)


def tensor_over(name, shape, data):
    """A tensor over an array of bytes that may be written to."""
    import torch

    if name not in _DTYPES:
        raise ValueError(f"{name!r} is no dtype of a tensor")
    dtype = getattr(torch, name)
    if data.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


class _Packer:
    def __init__(self):
        self.blobs: List[Any] = []

    def blob(self, data):
        self.blobs.append(data)
        return data.nbytes if isinstance(data, np.ndarray) else len(data)

    def say(self, value, depth=0):
        kind = type(value)
        if depth > _DEPTH_MAX:
            raise TypeError("a value is nested too deep")
        if value is None or kind is bool or kind is int or kind is float or kind is str:
            return value
        if kind is list:
            return [self.say(one, depth + 1) for one in value]
        if isinstance(value, dict):
            return {"d": [[self.key(key), self.say(one, depth + 1)] for key, one in value.items()]}
        if isinstance(value, tuple):
            return {"t": [self.say(one, depth + 1) for one in value]}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"b": self.blob(bytes(value))}
        if isinstance(value, np.generic) and value.dtype.kind not in "OV":
            return {"s": [value.dtype.str, self.blob(value.tobytes())]}
        if isinstance(value, np.ndarray):
            return self.array(value, depth)
        if _is_tensor(value):
            name, shape, data = tensor_bytes(value)
            return {"T": [name, shape, self.blob(data)]}
        if isinstance(value, list):
            return [self.say(one, depth + 1) for one in value]
        if isinstance(value, (bool, int, float, str)):
            return next(one(value) for one in (int, float, str) if isinstance(value, one))
        raise TypeError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be stored")

    @staticmethod
    def key(key):
        if key is None or isinstance(key, (bool, int, float, str)):
            return key
        raise TypeError(f"a dict's key of type {type(key).__name__} cannot be stored")

    def array(self, value, depth):
        if value.dtype.kind == "O":
            return {"o": [list(value.shape), [self.say(one, depth + 1) for one in value.reshape(-1).tolist()]]}
        if value.dtype.kind == "V":
            raise TypeError("arrays of records cannot be stored")
        return {"n": [value.dtype.str, list(value.shape), self.blob(np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else b"")]}


def pack(value) -> bytes:
    """The bytes of a value. TypeError names what cannot be stored."""
    packer = _Packer()
    text = json.dumps(packer.say(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join([_LENGTH.pack(len(text)), text, *(bytes(one) for one in packer.blobs)])


class _Unpacker:
    def __init__(self, data, at):
        self.data, self.at = data, at

    def take(self, size):
        if not isinstance(size, int) or size < 0 or size > len(self.data) - self.at:
            raise ValueError("the bytes of a value are cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def hear(self, said):
        if isinstance(said, list):
            return [self.hear(one) for one in said]
        if not isinstance(said, dict):
            return said
        [(kind, what)] = said.items()
        if kind == "d":
            return {key: self.hear(one) for key, one in what}
        if kind == "t":
            return tuple(self.hear(one) for one in what)
        if kind == "b":
            return bytes(self.take(what))
        if kind == "s":
            return np.frombuffer(bytearray(self.take(what[1])), _dtype(what[0]))[0]
        if kind == "n":
            return np.frombuffer(bytearray(self.take(what[2])), _dtype(what[0])).reshape(what[1])
        if kind == "T":
            return tensor_over(what[0], what[1], np.frombuffer(bytearray(self.take(what[2])), np.uint8))
        if kind == "o":
            array = np.empty(len(what[1]), object)
            for i, one in enumerate(what[1]):
                array[i] = self.hear(one)
            return array.reshape(what[0])
        raise ValueError(f"a value of kind {kind!r} is not known: a later release has stored it")


def _dtype(text):
    dtype = np.dtype(text)
    if dtype.kind in "OV":
        raise ValueError(f"{text!r} is no dtype of plain elements")
    return dtype


def unpack(data):
    """The value. ValueError: the bytes are none."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise ValueError("the bytes of a value are cut short")
    length = _LENGTH.unpack(view[: _LENGTH.size])[0]
    if length > len(view) - _LENGTH.size:
        raise ValueError("the bytes of a value are cut short")
    reader = _Unpacker(view, _LENGTH.size + length)
    try:
        value = reader.hear(json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]).decode("utf-8", "surrogatepass")))
    except (TypeError, KeyError, IndexError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the bytes are no value: {error}") from error
    if reader.at != len(view):
        raise ValueError("there are bytes behind a value")
    return value


def pack_column(values: Sequence[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """(bytes, where each value begins, and where the last one ends)."""
    packed = []
    for row, value in enumerate(values):
        try:
            packed.append(pack(value))
        except TypeError as error:
            raise TypeError(f"row {row}: {error}") from None
    offsets = np.zeros(len(packed) + 1, np.int64)
    np.cumsum([len(one) for one in packed], out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    if packed:
        data[:] = np.frombuffer(b"".join(packed), np.uint8)
    return data, offsets


def unpack_column(data, offsets) -> List[Any]:
    view = memoryview(data)
    return [unpack(view[int(first) : int(last)]) for first, last in zip(offsets[:-1], offsets[1:])]
