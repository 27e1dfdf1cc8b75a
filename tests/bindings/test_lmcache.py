"""LMCache's connector for its multi-process mode (csrc/storage_backends/mooncake), compiled from the sources that PyPI has, and LMCache's own tests of it,
in the environment of the lane `clients`. The original's wheel has neither headers nor a library for it."""
import os
import re
import shutil
import tarfile

from conftest import run

TEST = "tests/v1/distributed/test_mooncake_store_l2_adapter.py"
WHERE = "import sys, sysconfig, torch; print(torch.__path__[0] + '/include', sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'), sep='\\n')"
BUILDERS = ("setuptools>=77.0.3,<81", "setuptools_scm>=8", "packaging>=24.2", "wheel", "pytest>=7")  # what pip asks for before it gives a source


def sources_of(kept, python):
    """The source package of the version that the environment has, unpacked; and a Python that has pytest."""
    version = run(python, "-c", "import importlib.metadata as m; print(m.version('lmcache'))").strip()
    builder = kept / "builder"
    if not (builder / "done").exists():
        shutil.rmtree(builder, ignore_errors=True)
        run("python3", "-m", "venv", builder)
        run(builder / "bin/python", "-m", "pip", "install", "--quiet", *BUILDERS)
        (builder / "done").touch()
    archive = kept / f"lmcache-{version}.tar.gz"
    if not archive.exists():
        run(builder / "bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "lmcache", "-d", kept,
            f"lmcache=={version}", env={**os.environ, "NO_NATIVE_EXT": "1"})
    folder = kept / f"lmcache-{version}"
    if not folder.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(kept)
    return folder, next(builder.glob("lib/python3*/site-packages"))


def test_its_own_tests(kept, installed, libraries, master, tmp_path):
    python = os.environ["MC_LMCACHE_PYTHON"]
    sources, packages = sources_of(kept, python)
    torch, headers, suffix = run(python, "-c", WHERE).split()
    folder = sources / "csrc/storage_backends"
    run("g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", tmp_path / f"lmcache_mooncake{suffix}", folder / "mooncake/pybind.cpp", folder / "mooncake/connector.cpp",
        f"-I{folder}", f"-I{folder}/mooncake", f"-I{installed}/include/mooncake", f"-I{torch}", f"-I{headers}", "-DYLT_ENABLE_IBV",
        f"-L{libraries}", "-Wl,--as-needed", "-lmooncake_store", f"-Wl,-rpath,{libraries}")
    shutil.copy(sources / TEST, tmp_path)
    # The environment's lmcache has no such extension: ours lies in a folder beside it.
    (tmp_path / "conftest.py").write_text(f"import lmcache\nlmcache.__path__.append({str(tmp_path)!r})\n")
    said = run(python, "-B", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path, cwd=tmp_path,
               env={**os.environ, "PYTHONPATH": str(packages), "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1", "MOONCAKE_METADATA_SERVER": "P2PHANDSHAKE",
                    "MOONCAKE_MASTER_SERVER_ADDRESS": master.address})
    counts = dict(reversed(pair.split()) for pair in re.findall(r"\d+ (?:passed|skipped|failed|error)", said))
    # Skipped: one that wants no extension, one that wants RDMA.
    assert int(counts["passed"]) >= 35 and int(counts.get("skipped", 0)) <= 2, said
