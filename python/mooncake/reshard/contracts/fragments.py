# SPDX-License-Identifier: Apache-2.0
"""The memory that one part of a placement lies in."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Optional

from mooncake.reshard import _check
from mooncake.reshard.contracts.ids import PlacementFragmentId, RuntimeFragmentId


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes from one index to the next, in each dimension of an array whose last dimension runs fastest."""
    strides, bytes_below = [], itemsize
    for extent in reversed(shape):
        strides.append(bytes_below)
        bytes_below *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class RuntimeBindingFragment:
    """A view of `nbytes` bytes at `address`, within the allocation that begins at `storage_address`.

    `owner` keeps the allocation alive in this process. It is neither compared nor pickled: another process must bind anew.
    """

    placement_fragment_id: PlacementFragmentId
    fragment_id: RuntimeFragmentId
    address: int
    nbytes: int
    worker_id: str
    endpoint: str
    device: str
    itemsize: int
    local_shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    storage_address: int
    storage_nbytes: int
    storage_offset_bytes: int
    owner: Optional[object] = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check.texts(self, "placement_fragment_id", "fragment_id", "worker_id", "endpoint", "device")
        _check_range(self.address, self.nbytes)
        _check.integer(self.itemsize, "runtime itemsize", 1)
        self._settle_strides()
        _check_range(self.storage_address, self.storage_nbytes)
        _check.u64(self.storage_offset_bytes, "storage_offset_bytes")
        if self.storage_offset_bytes > _check.U64_MAX - self.storage_address:
            raise ValueError("normalized runtime address must fit in 64 bits")
        if self.address != self.storage_address + self.storage_offset_bytes:
            raise ValueError("runtime address must equal storage_address plus storage_offset_bytes")
        if self.storage_offset_bytes + self.nbytes > self.storage_nbytes:
            raise ValueError("runtime view exceeds storage allocation bounds")

    def _settle_strides(self) -> None:
        """In a dimension of one index the stride means nothing, and frameworks put anything there: it becomes the contiguous one."""
        shape = _integers(self.local_shape, "runtime local_shape", 1)
        strides = _integers(self.strides_bytes, "runtime strides_bytes", 0)
        if len(strides) != len(shape):
            raise ValueError("runtime stride rank differs from local_shape")
        if any(extent > 1 and stride == 0 for extent, stride in zip(shape, strides)):
            raise ValueError("runtime stride must be positive for non-singleton dimensions")
        contiguous = contiguous_strides(shape, self.itemsize)
        _check.settle(self, local_shape=shape, strides_bytes=tuple(
            wanted if extent == 1 else stride for extent, stride, wanted in zip(shape, strides, contiguous)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self) if one.name != "owner")


def _integers(values: Any, name: str, minimum: int) -> tuple[int, ...]:
    if type(values) not in (tuple, list):
        raise ValueError(f"{name} must be a tuple or list")
    return tuple(_check.integer(one, f"{name}[{index}]", minimum) for index, one in enumerate(values))


def _check_range(address: object, nbytes: object) -> None:
    """Address 0 is nobody's, and the end must be an address too."""
    if _check.u64(address, "address", 1) + _check.u64(nbytes, "nbytes", 1) > _check.U64_MAX:
        raise ValueError("address range must fit in an unsigned 64-bit integer")
