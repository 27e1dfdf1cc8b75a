# SPDX-License-Identifier: Apache-2.0
"""The store service's REST API as handlers for an aiohttp application of one's own, beside its other routes:

    application.router.add_put("/api/put", service.handle_put)
    application.router.add_get("/api/get/{key}", service.handle_get)

Routes, answers and codes are those of mc_store_rest_server, which needs no aiohttp; this module imports it when a request is answered. Calls of
the store run on the event loop's executor.
"""

import asyncio
import functools
import json
import logging
from typing import Any, Awaitable, Callable, Dict, List, Optional

__all__ = ["StoreHandlers"]

logger = logging.getLogger(__name__)

_GRACE_MAX_S = 3600


class _Refused(Exception):
    def __init__(self, status: int, error: str, /, **more: Any) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, **more}


def _reply(status: int, /, **body: Any) -> Any:
    from aiohttp import web

    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def _answered(handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """What is refused, and whatever a store raises, is an answer too."""

    @functools.wraps(handle)
    async def answer(self: "StoreHandlers", request: Any) -> Any:
        try:
            return await handle(self, request)
        except _Refused as refused:
            return _reply(refused.status, **refused.body)
        except Exception as error:
            logger.error("%s: %s", handle.__name__, error)
            return _reply(500, error=str(error))

    return answer


async def _object(request: Any) -> Dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise _Refused(400, f"Malformed JSON body: {error}") from None
    if not isinstance(body, dict):
        raise _Refused(400, "Request body must be a JSON object")
    return body


def _grace_of(body: Dict[str, Any]) -> int:
    grace = body.get("grace_period_seconds", 0)
    if type(grace) is not int or not 0 <= grace <= _GRACE_MAX_S:
        raise _Refused(400, f"Invalid grace_period_seconds, must be a non-negative integer no greater than {_GRACE_MAX_S}")
    return grace


def _ids_of(body: Dict[str, Any]) -> List[str]:
    ids = body.get("segment_ids") or []
    ids = [ids] if isinstance(ids, str) else ids
    if not ids:
        raise _Refused(400, "Missing segment_ids")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise _Refused(400, "Invalid segment_ids, must be strings")
    return ids


def _check(code: int, error: str) -> None:
    if code != 0:
        raise _Refused(500, error, code=code)


def _shm_name_to_path(name: Any) -> Optional[str]:
    """The file of a name of shared memory, with or without a slash before it; None: it is no such name."""
    if not isinstance(name, str):
        return None
    plain = name[1:] if name.startswith("/") else name
    return None if plain in ("", ".", "..") or "/" in plain else f"/dev/shm/{plain}"


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


class StoreHandlers:
    """What MooncakeStoreService answers; `store` and `config` are its own."""

    store: Any
    config: Any
    current_mode: str
    mounted_segment_ids: List[str]
    last_mount_info: Dict[str, Any]
    _state_lock: Optional[asyncio.Lock] = None

    def _state(self) -> asyncio.Lock:
        """Guards the three above; made by the loop that uses it."""
        if self._state_lock is None:
            self._state_lock = asyncio.Lock()
        return self._state_lock

    # ---- objects ----

    @_answered
    async def handle_put(self, request: Any) -> Any:
        body = await _object(request)
        key, value = body.get("key"), body.get("value")
        if not key or value is None:
            raise _Refused(400, "Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str):
            raise _Refused(400, "key and value must be strings")
        _check(await _call(self.store.put, key, value.encode()), "PUT operation failed")
        return _reply(200, status="success")

    async def _exists(self, request: Any) -> bool:
        found = await _call(self.store.is_exist, request.match_info["key"])
        if found < 0:
            raise _Refused(500, "Exist check failed")
        return found > 0

    async def _must_exist(self, request: Any) -> None:
        if not await self._exists(request):
            raise _Refused(404, "Key not found")

    @_answered
    async def handle_get(self, request: Any) -> Any:
        await self._must_exist(request)
        value = await _call(self.store.get, request.match_info["key"])
        if value is None:
            raise _Refused(500, "GET operation failed")
        if not value:
            await self._must_exist(request)  # no bytes may mean that it is gone meanwhile
        from aiohttp import web

        return web.Response(status=200, body=value, content_type="application/octet-stream")

    @_answered
    async def handle_exist(self, request: Any) -> Any:
        return _reply(200, exists=await self._exists(request))

    @_answered
    async def handle_remove(self, request: Any) -> Any:
        _check(await _call(self.store.remove, request.match_info["key"]), "Remove operation failed")
        return _reply(200, status="success")

    @_answered
    async def handle_remove_all(self, request: Any) -> Any:
        count = await _call(self.store.remove_all)
        if count < 0:
            raise _Refused(500, "RemoveAll operation failed", code=count)
        return _reply(200, status=f"success removed {count} keys")

    # ---- memory ----

    @_answered
    async def handle_mount(self, request: Any) -> Any:
        body = await _object(request)
        size = body.get("size")
        if type(size) is not int or size <= 0:
            raise _Refused(400, "Invalid size, must be a positive integer")
        made = await _call(self.store.allocate_and_mount_segment, size, body.get("protocol", self.config.protocol), body.get("location", ""))
        _check(made["ret"], f"Allocate and mount failed, ret={made['ret']}")
        return _reply(200, status="success", segment_ids=list(made["segment_ids"]), allocated_size=made["allocated_size"])

    @_answered
    async def handle_unmount(self, request: Any) -> Any:
        body = await _object(request)
        code = await _call(self.store.unmount_and_free_segment, _ids_of(body), _grace_of(body))
        _check(code, f"Unmount and free failed, ret={code}")
        return _reply(200, status="success")

    @_answered
    async def handle_unmount_local_disk(self, request: Any) -> Any:
        code = await _call(self.store.unmount_local_disk_segment, _grace_of(await _object(request)))
        _check(code, f"Unmount local disk failed, ret={code}")
        return _reply(200, status="success")

    # ---- memory of others: of a store that takes it (ours refuses, with code -1012) ----

    async def _mount_file(self, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        place = {"path": path, "offset": body.get("offset", 0), "size": body["size"],
                 "protocol": body.get("protocol", self.config.protocol), "location": body.get("location", "")}
        made = await _call(self.store.mount_segment, path, place["size"], place["offset"], place["protocol"], place["location"])
        return {"code": made["ret"], "ids": list(made["segment_ids"]), "place": place}

    async def _unmount_each(self, ids: List[str], grace_s: int) -> List[str]:
        """One by one, so that each has a code of its own. Those that stay."""
        return [one for one in ids if await _call(self.store.unmount_segment, [one], grace_s) != 0]

    @_answered
    async def handle_mount_shm(self, request: Any) -> Any:
        body = await _object(request)
        path = _shm_name_to_path(body.get("name"))
        if path is None or body.get("size") is None:
            raise _Refused(400, "Missing or invalid name or size")
        made = await self._mount_file(path, body)
        _check(made["code"], f"Mount failed, ret={made['code']}")
        return _reply(200, status="success", segment_ids=made["ids"])

    @_answered
    async def handle_unmount_shm(self, request: Any) -> Any:
        body = await _object(request)
        ids, grace_s = _ids_of(body), _grace_of(body)
        async with self._state():
            failed = await self._unmount_each(ids, grace_s)
            self.mounted_segment_ids = [one for one in self.mounted_segment_ids if one not in ids or one in failed]
            if not self.mounted_segment_ids:
                self.current_mode = "prefill"
        if failed:
            raise _Refused(500, "Unmount failed for one or more segments", failed_segment_ids=failed)
        return _reply(200, status="success")

    @_answered
    async def handle_reconfigure(self, request: Any) -> Any:
        body = await _object(request)
        mode = str(body.get("mode", "")).lower()
        if mode not in ("decode", "prefill"):
            raise _Refused(400, "Invalid mode. Use 'decode' or 'prefill'")
        if mode == "decode" and (not body.get("path") or body.get("size") is None):
            raise _Refused(400, "Missing path or size for decode mode")
        async with self._state():
            return await (self._lend(body) if mode == "decode" else self._lend_nothing())

    async def _lend(self, body: Dict[str, Any]) -> Any:
        """A file in the place of the one before, which is lent until the new one is."""
        made = await self._mount_file(body["path"], body)
        if made["code"] != 0:
            if not self.mounted_segment_ids:
                self.current_mode, self.last_mount_info = "prefill", {}
            kept = "keeping previous decode segments" if self.mounted_segment_ids else "rolled back to prefill"
            raise _Refused(500, f"Mount failed, ret={made['code']}; {kept}", mode=self.current_mode)
        stayed = await self._unmount_each(self.mounted_segment_ids, 0)
        self.mounted_segment_ids, self.current_mode, self.last_mount_info = made["ids"] + stayed, "decode", made["place"]
        return _reply(200, status="success", mode=self.current_mode, segment_ids=self.mounted_segment_ids)

    async def _lend_nothing(self) -> Any:
        if self.mounted_segment_ids:
            code = await _call(self.store.unmount_segment, self.mounted_segment_ids)
            _check(code, f"Unmount failed, ret={code}")
        self.mounted_segment_ids, self.current_mode, self.last_mount_info = [], "prefill", {}
        return _reply(200, status="success", mode=self.current_mode)
