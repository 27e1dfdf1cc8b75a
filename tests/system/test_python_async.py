"""mooncake.async_store: every call of the store can be awaited, and the loop goes on meanwhile."""
import asyncio
import os
import signal

import pytest

from cluster import hold_still
from python_cluster import arguments, master, pattern, wait_until  # noqa: F401
from mooncake.async_store import MooncakeDistributedStoreAsync


@pytest.fixture
def store(master):
    made = MooncakeDistributedStoreAsync()
    assert asyncio.run(made.async_setup(*arguments(master))) == 0
    wait_until(lambda: made.put("warm up", b"1") == 0)
    yield made
    assert asyncio.run(made.async_close()) == 0


def test_calls_are_awaited_side_by_side(store):
    async def work():
        codes = await asyncio.gather(*(store.async_put(f"key{i}", pattern(100, i)) for i in range(20)))
        values = await asyncio.gather(*(store.async_get(key=f"key{i}") for i in range(20)))
        return codes, values, await store.async_batch_is_exist(["key1", "none"])

    codes, values, there = asyncio.run(work())
    assert codes == [0] * 20 and values == [pattern(100, i) for i in range(20)] and there == [1, 0]


def test_the_plain_calls_are_there_too(store):
    assert store.put("plain", b"v") == 0 and asyncio.run(store.async_get("plain")) == b"v"


def test_the_loop_goes_on(store, master):
    async def work():
        hold_still(master.pid)
        try:
            call = asyncio.ensure_future(store.async_put("slow", b"v"))
            turns = 0
            while not call.done() and turns < 20:
                await asyncio.sleep(0.01)
                turns += 1
        finally:
            os.kill(master.pid, signal.SIGCONT)
        return await call, turns

    code, turns = asyncio.run(work())
    assert code == 0 and turns == 20


def test_errors_come_to_who_awaits(store):
    with pytest.raises(TypeError):
        asyncio.run(store.async_put(5, b"v"))
    assert asyncio.run(store.async_get_size("none")) == -704


def test_only_methods_have_a_form(store):
    assert store.async_get.__name__ == "get" and asyncio.iscoroutinefunction(store.async_get)
    for name in ("async_nothing", "async_", "async___init__", "async__made_up", "nothing"):
        assert not hasattr(store, name)
