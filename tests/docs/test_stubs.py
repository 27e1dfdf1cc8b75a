"""A type checker takes what users write, and refuses what is wrong."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
GOOD = """
import numpy
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import BufferPool, MooncakeDistributedStore, error_name, error_text

with MooncakeDistributedStore() as store:
    code: int = store.put("k", numpy.zeros(3))
    store.put("k", b"x")
    store.put("k", bytearray(3))
    store.put_parts("k", numpy.zeros(3), memoryview(b""))
    store.put_batch(["a", b"b"], [numpy.zeros(3), b"x"])
    store.upsert("k", numpy.zeros(3))
    store.upsert_batch(["a"], [numpy.zeros(3)])
    words: str = error_name(code) + error_text(code)
    with BufferPool(store) as pool, pool.acquire(3) as lease:
        lease.release()


async def awaited() -> bytes:
    async with MooncakeDistributedStoreAsync() as store:
        done: int = await store.async_put("k", numpy.zeros(3))
        return await store.async_get("k")


async def mistaken(store: MooncakeDistributedStoreAsync) -> str:
    return await store.async_get("k")  # of bytes
"""
BAD = {'store.put("k", 3)': "arg-type", 'store.put("k", "text")': "arg-type", "store.put(3, b'')": "arg-type", "error_name('x')": "arg-type", "store.no_such_call()": "attr-defined"}


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_what_users_write(tmp_path, version):
    """One program: its first part is right, each line of its second is wrong in the way that stands beside it."""
    program, first = tmp_path / "used.py", len(GOOD.splitlines()) + 1
    mistaken = GOOD.splitlines().index('    return await store.async_get("k")  # of bytes') + 1
    program.write_text(GOOD + "\n".join(BAD) + "\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--python-version", version, "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache"), str(program)],
                          capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(SOURCE / "python")})
    errors = re.findall(r"used\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    assert [(int(line), kind) for line, kind in errors] == [(mistaken, "return-value"), *enumerate(BAD.values(), start=first)], done.stdout
