# SPDX-License-Identifier: Apache-2.0
"""Types of mooncake.engine. Addresses are ints, lengths are bytes; a negative result is a code of mooncake_engine.h."""

from enum import IntEnum
from typing import Any, List, Optional, Sequence, SupportsIndex, Union, final

__version__: str
SUPPORT_CUDA: bool
SUPPORT_EFA: bool
SUPPORT_HIP: bool
SUPPORT_INTRA_NVLINK: bool
SUPPORT_MNNVL: bool
SUPPORT_MUSA: bool

def metrics() -> str: ...

class TransferOpcode(IntEnum):
    Read = 0
    Write = 1
    READ = 0
    WRITE = 1

Read: TransferOpcode
Write: TransferOpcode

@final
class TransferNotify:
    name: str
    msg: str
    def __init__(self, name: str = "", msg: str = "") -> None: ...

@final
class InnerTransferEngine: ...

class TransferEngine:
    TransferOpcode: type
    def __init__(self) -> None: ...
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int: ...
    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str) -> int: ...
    def get_rpc_port(self) -> int: ...
    def register_memory(self, buffer_addr: SupportsIndex, capacity: SupportsIndex, location: str = "*") -> int: ...
    def unregister_memory(self, buffer_addr: SupportsIndex) -> int: ...
    def batch_register_memory(
        self, buffer_addresses: Sequence[SupportsIndex], capacities: Sequence[SupportsIndex], location: str = "*"
    ) -> int: ...
    def batch_unregister_memory(self, buffer_addresses: Sequence[SupportsIndex]) -> int: ...
    def allocate_managed_buffer(self, length: SupportsIndex, /) -> int: ...
    def free_managed_buffer(self, buffer_addr: SupportsIndex, length: SupportsIndex) -> int: ...
    def write_bytes_to_buffer(self, dest_address: SupportsIndex, src_ptr: Union[str, bytes, bytearray, memoryview], length: SupportsIndex) -> int: ...
    def read_bytes_from_buffer(self, source_address: SupportsIndex, length: SupportsIndex) -> bytes: ...
    def transfer_sync(
        self,
        target_hostname: str,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        opcode: int,
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int: ...
    def transfer_sync_write(
        self, target_hostname: str, buffer: SupportsIndex, peer_buffer_address: SupportsIndex, length: SupportsIndex, transport_hint: str = ""
    ) -> int: ...
    def transfer_sync_read(
        self, target_hostname: str, buffer: SupportsIndex, peer_buffer_address: SupportsIndex, length: SupportsIndex, transport_hint: str = ""
    ) -> int: ...
    def transfer_submit_write(
        self, target_hostname: str, buffer: SupportsIndex, peer_buffer_address: SupportsIndex, length: SupportsIndex, transport_hint: str = ""
    ) -> int: ...
    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        opcode: int,
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        opcode: int,
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[SupportsIndex],
        peer_buffer_addresses: Sequence[SupportsIndex],
        lengths: Sequence[SupportsIndex],
        transport_hint: str = "",
    ) -> int: ...
    def transfer_check_status(self, batch_id: SupportsIndex) -> int: ...
    def get_batch_transfer_status(self, batch_ids: Sequence[SupportsIndex]) -> int: ...
    def send_probe(self, peer_server_name: str, /) -> int: ...
    def get_first_buffer_address(self, segment_name: str, /) -> int: ...
    def get_notifies(self) -> List[TransferNotify]: ...
    def get_metrics(self) -> str: ...
    def get_local_topology(self, device_name: Optional[str] = None) -> str: ...
    def get_engine(self) -> InnerTransferEngine: ...
    def get_engine_ptr(self) -> int: ...
    def warmup_efa_segment(self, segment_name: str) -> int: ...
    def transfer_write_on_cuda(self, *args: Any, **kwargs: Any) -> None: ...
    def transfer_read_on_cuda(self, *args: Any, **kwargs: Any) -> None: ...
    def batch_transfer_write_on_cuda(self, *args: Any, **kwargs: Any) -> None: ...
    def batch_transfer_read_on_cuda(self, *args: Any, **kwargs: Any) -> None: ...

def create_rpc_client(*args: Any, **kwargs: Any) -> Any: ...
def create_rpc_server(*args: Any, **kwargs: Any) -> Any: ...
