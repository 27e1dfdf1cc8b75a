# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that the ranks of one machine share: what every rank would hold alike is there once.

    segment = create_shared_segment("kv", {"k": dict(count=layers, shape=shape, dtype=torch.bfloat16)}, world_size, rank, comm_group=group)
    layers_k = segment.tensors("k")

One rank writes and others read, by an order that they agree on themselves. Addresses differ from rank to rank, places in the segment do not.
"""

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed

from mooncake._shared_segment import SharedSegment as _Memory

__all__ = ["SharedSegment", "SharedSegmentError", "create_shared_segment", "shared_segment_supported"]

_ALIGN = 4096


class SharedSegmentError(RuntimeError):
    """A segment cannot be made, or has no such block. All ranks get it when one of them could not go on."""


@dataclasses.dataclass(frozen=True)
class _Block:
    """`count` tensors of one shape: the first at `offset`, each further one `stride` behind."""

    count: int
    shape: Tuple[int, ...]
    dtype: torch.dtype
    numel: int
    nbytes: int
    offset: int = 0


def _block(name: str, said: Mapping[str, Any]) -> _Block:
    try:
        count, shape, dtype = int(said["count"]), tuple(int(one) for one in said["shape"]), said["dtype"]
    except (KeyError, TypeError, ValueError) as error:
        raise SharedSegmentError(f"block {name!r}: count, shape and dtype are needed") from error
    if not isinstance(dtype, torch.dtype):
        raise SharedSegmentError(f"block {name!r}: {dtype!r} is no torch.dtype")
    if count < 1 or not shape or min(shape) < 1:
        raise SharedSegmentError(f"block {name!r}: count and each dimension must be at least 1")
    numel = 1
    for one in shape:
        numel *= one
    return _Block(count, shape, dtype, numel, numel * torch.empty(0, dtype=dtype).element_size())


def _lay_out(declared: Mapping[str, Mapping[str, Any]]) -> Tuple[Dict[str, _Block], int, int]:
    """(blocks, stride, size): entry i of every block lies together, in the order of the blocks' names, each at the start of a page."""
    blocks, stride = {}, 0
    for name in sorted(declared):
        block = _block(name, declared[name])
        blocks[name] = dataclasses.replace(block, offset=stride)
        stride += (block.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN
    if not blocks:
        raise SharedSegmentError("a segment needs a block")
    return blocks, stride, stride * max(block.count for block in blocks.values())


class _Ranks:
    """What the ranks tell each other."""

    def __init__(self, world_size: int, group: Any) -> None:
        if world_size > 1 and group is None:
            raise SharedSegmentError("comm_group is needed when world_size is above 1")
        self.world_size = world_size
        self.group = getattr(group, "cpu_group", None) or group  # a coordinator of several groups has one for what lies in the host's memory

    def gather(self, mine: Any) -> List[Any]:
        if self.world_size == 1:
            return [mine]
        answers: List[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(answers, mine, group=self.group)
        return answers

    def agree(self, phase: str, error: Optional[str]) -> None:
        """All go on, or none."""
        errors = [f"rank {rank}: {said}" for rank, said in enumerate(self.gather(error)) if said is not None]
        if errors:
            raise SharedSegmentError(f"shared segment, {phase}: " + "; ".join(errors))


class SharedSegment:
    """Made by create_shared_segment. The memory stays as long as this, or a tensor of it."""

    def __init__(self, memory: _Memory, blocks: Dict[str, _Block], stride: int) -> None:
        self._memory = memory
        self._blocks = blocks
        self._stride = stride

    def tensors(self, block: str) -> List[torch.Tensor]:
        """The block's tensors, in the host's memory, without a copy."""
        laid = self._blocks.get(block)
        if laid is None:
            raise SharedSegmentError(f"there is no block {block!r}; there are {sorted(self._blocks)}")
        view = self._memory._view()
        return [torch.frombuffer(view, dtype=laid.dtype, count=laid.numel, offset=laid.offset + i * self._stride).view(laid.shape)
                for i in range(laid.count)]

    def base_addr(self) -> int:
        """Address of the segment in this process."""
        return self._memory.base_addr()

    def total_size(self) -> int:
        """Its length in bytes."""
        return self._memory.size()


def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool:
    """Whether such a segment can be made: plain memory can; what is mapped by devices cannot."""
    return _Memory.supported(mmap, host_register)


def create_shared_segment(name: str, blocks: Mapping[str, Mapping[str, Any]], world_size: int, rank_id: int, owner_rank: int = 0,
                          device_id: Optional[int] = None, comm_group: Any = None, mmap: bool = True, host_register: bool = False, *,
                          tp_group: Any = None) -> SharedSegment:
    """The segment, when every rank has it; each calls this with the same declaration, or all get a SharedSegmentError (a rank without a group
    gets it alone).

    blocks      by name a dict of count, shape and dtype.
    owner_rank  whose memory it is: it counts for that process, and is on its NUMA node.
    comm_group  torch's process group, or an object with one in cpu_group; not needed by a rank that is alone. tp_group: an older name.
    device_id, mmap, host_register  as in the original; only mmap=True, host_register=False is possible here."""
    ranks = _Ranks(world_size, tp_group if comm_group is None else comm_group)
    made, blob, error = None, b"", None
    try:
        if tp_group is not None and comm_group is not None and tp_group is not comm_group:
            raise SharedSegmentError("tp_group is an older name of comm_group: give one of them")
        laid, stride, size = _lay_out(blocks)
        declared = ";".join(f"{one}:{block.count}:{block.shape}:{block.dtype}" for one, block in laid.items())
        memory, blob = _Memory.create(f"{name}|{declared}", size, world_size, rank_id, owner_rank, device_id or 0, mmap, host_register)
        made = SharedSegment(memory, laid, stride)
    except Exception as failed:  # whatever it is: the others wait to hear of it
        error = str(failed) or type(failed).__name__
    ranks.agree("create", error)
    assert made is not None
    blobs = ranks.gather(blob)
    try:
        made._memory.complete(blobs)
    except Exception as failed:
        error = str(failed) or type(failed).__name__
    ranks.agree("complete", error)
    return made
