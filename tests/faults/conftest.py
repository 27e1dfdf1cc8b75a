"""Where the modules of these tests lie, and what is built."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import places  # noqa: E402

places.use("faults", "system")


@pytest.fixture(scope="session")
def writer(tmp_path_factory):
    """The path of the compiled writer.c."""
    program, source = tmp_path_factory.mktemp("writer") / "writer", places.TESTS / "faults" / "writer.c"
    build = os.environ["MC_BUILD"]
    subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{places.ROOT}/include", str(source),
                    "-o", str(program), f"-L{build}", "-lmooncake", f"-Wl,-rpath,{build}"], check=True)
    return program
