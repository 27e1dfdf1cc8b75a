"""Where the modules of these tests lie, and what is built."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
os.environ.setdefault("MC_BUILD", str(ROOT / ".cache" / "build-release"))
os.environ.setdefault("MC_PYTHONPATH", str(ROOT / ".cache" / "pypath-release"))
for folder in (HERE, HERE.parent / "system"):
    sys.path.insert(0, str(folder))
import subprocess  # noqa: E402

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def writer(tmp_path_factory):
    """The path of the compiled writer.c."""
    program = tmp_path_factory.mktemp("writer") / "writer"
    build = os.environ["MC_BUILD"]
    subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(HERE / "writer.c"),
                    "-o", str(program), f"-L{build}", "-lmooncake", f"-Wl,-rpath,{build}"], check=True)
    return program
