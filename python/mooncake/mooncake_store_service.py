# SPDX-License-Identifier: Apache-2.0
"""A store node with a REST API. As a command it is native: ``python -m mooncake.mooncake_store_service --config F --port N`` becomes
mc_store_rest_server. MooncakeStoreService is the same in a process of one's own, in which `store` may be used too.
"""

import sys

from mooncake._native import become


def sync_main() -> None:
    become("mc_store_rest_server", sys.argv[1:])


if __name__ == "__main__":
    sync_main()  # before what only the class needs is imported: that takes longer than the command does to answer

import asyncio  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from typing import Any, Dict, List, Optional  # noqa: E402

from mooncake._store_handlers import StoreHandlers, _shm_name_to_path  # noqa: E402,F401
from mooncake.mooncake_config import MooncakeConfig  # noqa: E402
from mooncake.store import MooncakeDistributedStore  # noqa: E402

__all__ = ["MooncakeStoreService"]

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_BAD_SETTING = (-600, -1906)  # stays one, however often it is tried


class MooncakeStoreService(StoreHandlers):
    """Joins a cluster with the settings of a JSON file or, without one, of the environment; `cli_config` goes before both.

        service = MooncakeStoreService("mooncake.json")
        if await service.start_store_service() and await service.start_http_service(8080):
            ...
        await service.stop()

    `auth_file` is the file of keys of this whole process, not of this store alone: it goes into MC_AUTH_FILE, which what is started from here
    inherits, and other stores of the process then have its keys, too.

    Its handle_* are the same API for an aiohttp application of one's own (_store_handlers.py).
    """

    def __init__(self, config_path: Optional[str] = None, cli_config: Optional[Dict[str, Any]] = None) -> None:
        self.store: Any = None
        self.http_port: Optional[int] = None  # where the REST API is, also of port 0
        self.current_mode = "prefill"  # "decode": a file is lent that handle_reconfigure was told of, which our store refuses
        self.mounted_segment_ids: List[str] = []
        self.last_mount_info: Dict[str, Any] = {}
        self.config = MooncakeConfig.from_file(config_path) if config_path else MooncakeConfig.load_from_env()
        for name, value in (cli_config or {}).items():
            if hasattr(self.config, name):
                setattr(self.config, name, value)
            else:
                logger.warning("%r is no setting of a store service; it is ignored", name)

    def _settings(self) -> Dict[str, Any]:
        config = self.config
        if getattr(config, "auth_file", ""):
            before = os.environ.get("MC_AUTH_FILE", "")
            if before not in ("", config.auth_file):
                logger.warning("auth_file %s takes the place of MC_AUTH_FILE=%s, for all of this process", config.auth_file, before)
            os.environ["MC_AUTH_FILE"] = config.auth_file  # a process has its keys by the environment
        stamp = getattr(config, "stamp", "")
        return {
            "local_hostname": config.local_hostname, "metadata_server": config.metadata_server,
            "global_segment_size": config.global_segment_size, "local_buffer_size": config.local_buffer_size,
            "protocol": config.protocol, "rdma_devices": config.device_name, "master_server_addr": config.master_server_address,
            "enable_ssd_offload": config.enable_ssd_offload, "ssd_offload_path": config.ssd_offload_path, "tenant_id": config.tenant_id,
            # Configurations made for former releases have none of these.
            "enable_client_http_server": getattr(config, "enable_client_http_server", False),
            "client_http_port": getattr(config, "client_http_port", 9300),
            **({"stamp": stamp} if stamp else {}),  # setup() of a stand-in knows the original's names
        }

    async def start_store_service(self, max_wait_time: float = 60, shutdown_event: Optional[asyncio.Event] = None) -> bool:
        """Joins, trying again each second for max_wait_time. False: not within that time, or the event was set, or a setting is bad."""
        until = time.monotonic() + max_wait_time
        store = MooncakeDistributedStore()
        while True:
            if shutdown_event is not None and shutdown_event.is_set():
                return False
            try:
                code = await asyncio.get_running_loop().run_in_executor(None, store.setup, self._settings())
            except (OSError, RuntimeError) as error:
                logger.warning("setup: %s", error)
                code = -1
            if code == 0:
                self.store = store
                if shutdown_event is None or not shutdown_event.is_set():
                    return True
                await self.stop()
                return False
            left = until - time.monotonic()
            if code in _BAD_SETTING or left <= 0:
                logger.error("the store did not join %s: code %d", self.config.master_server_address, code)
                return False
            logger.warning("not joined yet (code %d): trying %s again, for %.0f s more", code, self.config.master_server_address, left)
            await self._pause(min(_RETRY_S, left), shutdown_event)

    @staticmethod
    async def _pause(seconds: float, event: Optional[asyncio.Event]) -> None:
        try:
            await asyncio.wait_for((event or asyncio.Event()).wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def start_http_service(self, port: int = 8080) -> bool:
        """The REST API on every address; port 0: the kernel chooses, `http_port` says it. OSError: the port cannot be had."""
        if self.store is None:
            raise RuntimeError("start_store_service comes first")
        self.http_port = self.store._serve(port)
        return True

    async def stop(self) -> None:
        """Answers what is under way, and leaves the cluster."""
        store, self.store, self.http_port = self.store, None, None
        if store is not None:
            code = await asyncio.get_running_loop().run_in_executor(None, store.close)
            if code != 0:
                logger.warning("the store's close returned %d", code)
