# SPDX-License-Identifier: Apache-2.0
"""Types of mooncake.store. Sizes and offsets are bytes, addresses are ints; a negative result is a code of mooncake.h."""

import sys
from enum import IntEnum
from typing import Any, Dict, List, NoReturn, Optional, Protocol, Sequence, SupportsIndex, Tuple, Union, final, overload

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

from torch import Tensor

__version__: str

_Key = Union[str, bytes]

class _Array(Protocol):
    """A numpy.ndarray, which says that it is a buffer from Python 3.12 on only."""

    @property
    def __array_interface__(self) -> Dict[str, Any]: ...

_Bytes = Union[Buffer, _Array]
_Size = Union[int, str, float]

class SoftPinAction(IntEnum):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2

class ObjectDataType(IntEnum):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9

class ReplicaStatus(IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5

class TaskType(IntEnum):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1

class TaskStatus(IntEnum):
    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3

UNKNOWN: ObjectDataType
KVCACHE: ObjectDataType
TENSOR: ObjectDataType
WEIGHT: ObjectDataType
SAMPLE: ObjectDataType
ACTIVATION: ObjectDataType
GRADIENT: ObjectDataType
OPTIMIZER_STATE: ObjectDataType
METADATA: ObjectDataType
GENERAL: ObjectDataType
UNDEFINED: ReplicaStatus
INITIALIZED: ReplicaStatus
COMPLETE: ReplicaStatus
REMOVED: ReplicaStatus
PENDING: TaskStatus
PROCESSING: TaskStatus
FAILED: TaskStatus
SUCCESS: TaskStatus
REPLICA_COPY: TaskType
REPLICA_MOVE: TaskType

class ReplicateConfig:
    """How a put places its copies. One object may be used for many calls."""

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: Optional[int]
    with_soft_pin: bool
    with_hard_pin: bool
    preferred_segments: List[str]
    preferred_segment: str
    preferred_nof_segments: List[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: Optional[List[str]]
    firm_pin_ms: int
    firm_pin_or_not: bool
    def __init__(self) -> None: ...

@final
class BufferHandle:
    """One object's bytes in memory of their own: buffer protocol (1-D, format 'b', writable)."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Descriptor:
    @property
    def size(self) -> int: ...
    @property
    def buffer_address(self) -> int: ...
    @property
    def transport_endpoint(self) -> str: ...
    @property
    def size_(self) -> int: ...
    @property
    def buffer_address_(self) -> int: ...
    @property
    def transport_endpoint_(self) -> str: ...

@final
class MemoryDescriptor:
    @property
    def buffer_descriptor(self) -> Descriptor: ...

@final
class DiskDescriptor:
    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

@final
class ReplicaDescriptor:
    @property
    def status(self) -> ReplicaStatus: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...

@final
class QueryTaskResponse:
    """What query_task tells of a task."""

    def __init__(self) -> None: ...
    @property
    def id(self) -> Tuple[int, int]: ...
    @property
    def type(self) -> TaskType: ...
    @property
    def status(self) -> TaskStatus: ...
    @property
    def created_at_ms_epoch(self) -> int: ...
    @property
    def last_updated_at_ms_epoch(self) -> int: ...
    @property
    def assigned_client(self) -> Tuple[int, int]: ...
    @property
    def message(self) -> str: ...

class EngramStore:
    """Not in this build: raises NotImplementedError."""

class EngramStoreConfig:
    """Not in this build: raises NotImplementedError."""

class MooncakeDistributedNoFRegister:
    """Not in this build: raises NotImplementedError."""

class MooncakeHostMemAllocator:
    def alloc(self, size: SupportsIndex) -> int: ...
    def free(self, ptr: SupportsIndex) -> int: ...

def error_name(code: int, /) -> str: ...
def error_text(code: int, /) -> str: ...
def bind_to_numa_node(node: int) -> None: ...
def get_alloc_func_addr() -> int: ...
def get_free_func_addr() -> int: ...
def _get_pyclient_from_wrapper(wrapper: object, /) -> NoReturn: ...

class MooncakeDistributedStore:
    """One member of a Mooncake cluster: a client, a store node, or both."""

    def __init__(self) -> None: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: _Size,
        local_buffer_size: _Size,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: Any = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        data_dir: Optional[str] = None,
        stamp: str = "",
    ) -> int: ...
    @overload
    def setup(self, config: Dict[str, Any]) -> int: ...
    def close(self) -> int: ...
    def __enter__(self) -> "MooncakeDistributedStore": ...
    def __exit__(self, *exception: object) -> None: ...
    def health_check(self) -> int: ...
    def get_hostname(self) -> str: ...
    # To be unregistered before the memory is freed, mapped anew or discarded: RDMA devices keep the pages that it had.
    def register_buffer(self, buffer_ptr: SupportsIndex, size: SupportsIndex) -> int: ...
    # Waits for device requests under way; the memory must stay until the calls that use it have returned.
    def unregister_buffer(self, buffer_ptr: SupportsIndex) -> int: ...
    def put(self, key: _Key, value: _Bytes, config: Optional[ReplicateConfig] = None) -> int: ...
    def put_parts(self, key: _Key, *parts: _Bytes, config: Optional[ReplicateConfig] = None) -> int: ...
    def put_batch(self, keys: Sequence[_Key], values: Sequence[_Bytes], config: Optional[ReplicateConfig] = None) -> int: ...
    def put_from(
        self, key: _Key, buffer_ptr: SupportsIndex, size: SupportsIndex, config: Optional[ReplicateConfig] = None
    ) -> int: ...
    def batch_put_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[SupportsIndex],
        sizes: Sequence[SupportsIndex],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[SupportsIndex]],
        all_sizes: Sequence[Sequence[SupportsIndex]],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]: ...
    def get(self, key: _Key) -> bytes: ...
    def get_batch(self, keys: Sequence[_Key]) -> List[bytes]: ...
    def get_buffer(self, key: _Key) -> Optional[BufferHandle]: ...
    def batch_get_buffer(self, keys: Sequence[_Key]) -> List[Optional[BufferHandle]]: ...
    def get_into(self, key: _Key, buffer_ptr: SupportsIndex, size: SupportsIndex) -> int: ...
    def batch_get_into(
        self, keys: Sequence[_Key], buffer_ptrs: Sequence[SupportsIndex], sizes: Sequence[SupportsIndex]
    ) -> List[int]: ...
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[SupportsIndex]],
        all_sizes: Sequence[Sequence[SupportsIndex]],
        prefer_alloc_in_same_node: bool = False,
    ) -> List[int]: ...
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[SupportsIndex],
        all_keys: Sequence[Sequence[_Key]],
        all_dst_offsets: Sequence[Sequence[Sequence[SupportsIndex]]],
        all_src_offsets: Sequence[Sequence[Sequence[SupportsIndex]]],
        all_sizes: Sequence[Sequence[Sequence[SupportsIndex]]],
    ) -> List[List[List[int]]]: ...
    def is_exist(self, key: _Key) -> int: ...
    def batch_is_exist(self, keys: Sequence[_Key]) -> List[int]: ...
    def longest_prefix(self, keys: Sequence[_Key]) -> int: ...
    def get_size(self, key: _Key) -> int: ...
    def firm_pin_left(self, key: _Key) -> int: ...
    def remove(self, key: _Key, force: bool = False) -> int: ...
    def batch_remove(self, keys: Sequence[_Key], force: bool = False) -> List[int]: ...
    def remove_by_regex(self, regex_pattern: _Key, force: bool = False) -> int: ...
    def remove_all(self, force: bool = False) -> int: ...
    def get_replica_desc(self, key: _Key) -> List[ReplicaDescriptor]: ...
    def batch_get_replica_desc(self, keys: Sequence[_Key]) -> Dict[_Key, List[ReplicaDescriptor]]: ...
    def put_from_with_metadata(
        self,
        key: _Key,
        buffer_ptr: SupportsIndex,
        metadata_buffer_ptr: SupportsIndex,
        size: SupportsIndex,
        metadata_size: SupportsIndex,
        config: Optional[ReplicateConfig] = None,
    ) -> int: ...
    def upsert(self, key: _Key, value: _Bytes, config: Optional[ReplicateConfig] = None) -> int: ...
    def upsert_parts(self, key: _Key, *parts: _Bytes, config: Optional[ReplicateConfig] = None) -> int: ...
    def upsert_batch(
        self, keys: Sequence[_Key], values: Sequence[_Bytes], config: Optional[ReplicateConfig] = None
    ) -> int: ...
    def upsert_from(
        self, key: _Key, buffer_ptr: SupportsIndex, size: SupportsIndex, config: Optional[ReplicateConfig] = None
    ) -> int: ...
    def batch_upsert_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[SupportsIndex],
        sizes: Sequence[SupportsIndex],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]: ...
    def batch_get_session_start(self, keys: Sequence[_Key]) -> List[int]: ...
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[SupportsIndex]],
        all_sizes: Sequence[Sequence[SupportsIndex]],
        all_src_offsets: Sequence[Sequence[SupportsIndex]],
    ) -> List[int]: ...
    def batch_get_session_end(self, keys: Sequence[_Key]) -> int: ...
    def batch_put_session_start(
        self, keys: Sequence[_Key], sizes: Sequence[SupportsIndex], config: Optional[ReplicateConfig] = None
    ) -> List[int]: ...
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[SupportsIndex]],
        all_sizes: Sequence[Sequence[SupportsIndex]],
        all_dst_offsets: Sequence[Sequence[SupportsIndex]],
    ) -> List[int]: ...
    def batch_put_session_end(self, keys: Sequence[_Key]) -> List[int]: ...
    def batch_put_session_revoke(self, keys: Sequence[_Key]) -> List[int]: ...
    def create_copy_task(self, key: _Key, targets: Sequence[str]) -> Tuple[Tuple[int, int], int]: ...
    def create_move_task(self, key: _Key, source: str, target: str) -> Tuple[Tuple[int, int], int]: ...
    def query_task(self, task_id: Sequence[SupportsIndex]) -> Tuple[Optional[QueryTaskResponse], int]: ...
    def batch_pin(self, keys: Sequence[_Key], config: Optional[ReplicateConfig] = None) -> List[int]: ...
    def hint(self, keys: Sequence[_Key], kind: str, for_ms: SupportsIndex = 0) -> List[int]: ...
    def batch_replica_clear(self, keys: Sequence[_Key], segment_name: str = "") -> List[_Key]: ...
    def allocate_and_mount_segment(
        self, size: SupportsIndex, protocol: str = "tcp", location: str = ""
    ) -> Dict[str, Any]: ...
    def mount_segment(
        self, path: str, size: SupportsIndex, offset: SupportsIndex = 0, protocol: str = "tcp", location: str = ""
    ) -> Dict[str, Any]: ...
    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: SupportsIndex = 0) -> int: ...
    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: SupportsIndex = 0) -> int: ...
    def unmount_local_disk_segment(self, grace_period_seconds: SupportsIndex = 0) -> int: ...
    def setup_dummy(self, mem_pool_size: SupportsIndex, local_buffer_size: SupportsIndex, server_address: str) -> int: ...
    def init_all(self, protocol: str, device_name: str, mount_segment_size: SupportsIndex = 16777216) -> int: ...
    def alloc_from_mem_pool(self, size: SupportsIndex) -> int: ...
    def get_offload_rpc_read_count(self) -> int: ...
    def _get_pyclient_capsule(self) -> NoReturn: ...
    def put_tensor(self, key: _Key, tensor: Tensor) -> int: ...
    def upsert_tensor(self, key: _Key, tensor: Tensor) -> int: ...
    def pub_tensor(self, key: _Key, tensor: Tensor, config: Optional[ReplicateConfig] = None) -> int: ...
    def upsert_pub_tensor(self, key: _Key, tensor: Tensor, config: Optional[ReplicateConfig] = None) -> int: ...
    def batch_put_tensor(self, keys: Sequence[_Key], tensors_list: Sequence[Tensor]) -> List[int]: ...
    def batch_upsert_tensor(self, keys: Sequence[_Key], tensors_list: Sequence[Tensor]) -> List[int]: ...
    def batch_pub_tensor(
        self,
        keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]: ...
    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]: ...
    def get_tensor(self, key: _Key) -> Optional[Tensor]: ...
    def batch_get_tensor(self, keys: Sequence[_Key]) -> List[Optional[Tensor]]: ...
    def get_tensor_into(self, key: _Key, buffer_ptr: int, size: int) -> Optional[Tensor]: ...
    def batch_get_tensor_into(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
    ) -> List[Union[Optional[Tensor], int]]: ...
    def put_tensor_from(self, key: _Key, buffer_ptr: int, size: int) -> int: ...
    def upsert_tensor_from(self, key: _Key, buffer_ptr: int, size: int) -> int: ...
    def batch_put_tensor_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
    ) -> List[int]: ...
    def batch_upsert_tensor_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
    ) -> List[int]: ...
    def get_tensor_into_cuda(self, key: _Key, tensor: Tensor) -> NoReturn: ...
    def batch_get_tensor_into_cuda(self, keys: Sequence[_Key], tensors_list: Sequence[Tensor]) -> NoReturn: ...
    def save_tensor_to_safetensor(self, key: _Key, file_name: Optional[str] = None) -> int: ...
    def load_tensor_from_safetensor(
        self,
        key: Optional[_Key] = None,
        file_name: Optional[str] = None,
    ) -> Optional[Tensor]: ...
    def put_tensor_with_tp(
        self,
        key: _Key,
        tensor: Tensor,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> List[int]: ...
    def pub_tensor_with_tp(
        self,
        key: _Key,
        tensor: Tensor,
        config: Optional[ReplicateConfig] = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        config: Optional[ReplicateConfig] = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> List[int]: ...
    def put_tensor_with_tp_from(
        self,
        key: _Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> List[int]: ...
    def get_tensor_with_tp(
        self,
        key: _Key,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Optional[Tensor]: ...
    def batch_get_tensor_with_tp(
        self,
        base_keys: Sequence[_Key],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> List[Optional[Tensor]]: ...
    def get_tensor_with_tp_into(
        self,
        key: _Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Optional[Tensor]: ...
    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> List[Union[Optional[Tensor], int]]: ...
    def put_tensor_with_parallelism(
        self,
        key: _Key,
        tensor: Tensor,
        parallelism: Optional[TensorParallelism] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partition: Any = None,
    ) -> int: ...
    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        parallelisms: Optional[Sequence[Optional[TensorParallelism]]] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partitions: Optional[Sequence[Any]] = None,
    ) -> List[int]: ...
    def put_tensor_with_parallelism_from(
        self,
        key: _Key,
        buffer_ptr: int,
        size: int,
        parallelism: Optional[TensorParallelism] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partition: Any = None,
    ) -> int: ...
    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Optional[Sequence[Optional[TensorParallelism]]] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partitions: Optional[Sequence[Any]] = None,
    ) -> List[int]: ...
    def upsert_tensor_with_parallelism(
        self,
        key: _Key,
        tensor: Tensor,
        parallelism: Optional[TensorParallelism] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partition: Any = None,
        version: Optional[int] = None,
    ) -> int: ...
    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[_Key],
        tensors_list: Sequence[Tensor],
        parallelisms: Optional[Sequence[Optional[TensorParallelism]]] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partitions: Optional[Sequence[Any]] = None,
        version: Optional[int] = None,
    ) -> List[int]: ...
    def upsert_tensor_with_parallelism_from(
        self,
        key: _Key,
        buffer_ptr: int,
        size: int,
        parallelism: Optional[TensorParallelism] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partition: Any = None,
        version: Optional[int] = None,
    ) -> int: ...
    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Optional[Sequence[Optional[TensorParallelism]]] = None,
        config: Optional[ReplicateConfig] = None,
        writer_partitions: Optional[Sequence[Any]] = None,
        version: Optional[int] = None,
    ) -> List[int]: ...
    def get_tensor_with_parallelism(self, key: _Key, target: Optional[ReadTarget] = None) -> Optional[Tensor]: ...
    def batch_get_tensor_with_parallelism(
        self,
        keys: Sequence[_Key],
        targets: Optional[Sequence[Optional[ReadTarget]]] = None,
    ) -> List[Optional[Tensor]]: ...
    def get_tensor_with_parallelism_into(
        self,
        key: _Key,
        buffer_ptr: int,
        size: int,
        target: Optional[ReadTarget] = None,
    ) -> Optional[Tensor]: ...
    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Optional[Sequence[Optional[ReadTarget]]] = None,
    ) -> List[Union[Optional[Tensor], int]]: ...

class ParallelAxis:
    """One axis of parallelism: kind "dp", "tp", "ep" or "pp"; rank of size. "tp" needs split_dim, "ep" expert_id, "pp" stage_id."""

    kind: str
    rank: int
    size: int
    split_dim: Optional[int]
    expert_id: Optional[int]
    stage_id: Optional[int]
    def __init__(self) -> None: ...

class TensorParallelism:
    """Where a shard lies: one ParallelAxis for each kind of parallelism."""

    axes: List[ParallelAxis]
    def __init__(self) -> None: ...

class ReadTarget:
    """What a get of a tensor in shards returns: mode "as_stored", "shard" (of the given parallelism) or "full"."""

    mode: str
    parallelism: Optional[TensorParallelism]
    def __init__(self) -> None: ...

class BufferLease:
    """A buffer that is lent by a BufferPool. Give it back with release() or `with`."""

    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...
    def release(self) -> None: ...
    def __enter__(self) -> "BufferLease": ...
    def __exit__(self, *exception: object) -> None: ...

class BufferLeaseView:
    def __init__(self, lease: BufferLease) -> None: ...
    @property
    def buffer(self) -> memoryview: ...

class BufferPool:
    """Buffers for a store's get_into and put_from. Threads may share one."""

    def __init__(
        self,
        store: MooncakeDistributedStore,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: Optional[int] = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: Optional[float] = None,
        max_regions: Optional[int] = None,
        prewarm_size: Optional[int] = None,
        prewarm_count: int = 0,
    ) -> None: ...
    def acquire(self, size: int, block: Optional[bool] = None, timeout: Optional[float] = None) -> BufferLease: ...
    def buffer(self, size: int, block: Optional[bool] = None, timeout: Optional[float] = None) -> BufferLease: ...
    def prewarm(self, size: int, count: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> "BufferPool": ...
    def __exit__(self, *exception: object) -> None: ...

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView

def _serialize_tensor(tensor: Tensor) -> Tuple[bytes, int, int, Tensor]: ...
def _deserialize_tensor(data: bytes) -> Tensor: ...
def _tensor_metadata_size() -> int: ...
