"""Programs are built as their authors would do it: with the flags that pkg-config gives, and by CMake. tests/wheel does it with a wheel."""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, run

HERE = pathlib.Path(__file__).resolve().parent
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
# What is linked with, the program, the compiler. Each is also linked with --as-needed, as Ubuntu's compilers do.
PROGRAMS = {"store": ("mooncake_store", HERE / "put_get.c", ("gcc",)), "engine": ("transfer_engine", ROOT / "tests/wheel/user.c", ("gcc",)),
            "both": ("mooncake", ROOT / "tests/wheel/user.c", ("gcc",)), "client": ("mooncake_store", HERE / "put_get.cpp", ("g++", "-std=c++20"))}


def pkg_config(folder, *arguments):
    return run("pkg-config", *arguments, env={**os.environ, "PKG_CONFIG_PATH": str(folder)}).split()


def check_program(path, master):
    """As its user starts it: nothing says where the libraries lie."""
    arguments = [str(path), master.address]
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    run(*arguments, env={**environment, "MC_TCP_BIND_ADDRESS": "127.0.0.1"})


@pytest.mark.parametrize("needed", ["--as-needed", "--no-as-needed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pkg_config(installed, libraries, master, tmp_path, name, needed):
    library, source, compiler = PROGRAMS[name]
    folder = libraries / "pkgconfig"
    flags = pkg_config(folder, "--cflags", "--libs", library)
    more = [f"-I{pkg_config(folder, '--variable=includedir', library)[0]}/mooncake"] if source.suffix == ".cpp" else []
    run(*compiler, *STRICT, "-Wl,--no-undefined", f"-Wl,{needed}", "-o", tmp_path / "user", source, *more, *flags)
    check_program(tmp_path / "user", master)


def test_pkg_config_knows_the_version(libraries):
    release = run(sys.executable, "-c", "import re; print(re.search(\"version: '([^']*)'\", open('meson.build').read()).group(1))", cwd=ROOT).strip()
    for name in ("mooncake", "mooncake_store", "transfer_engine"):
        assert pkg_config(libraries / "pkgconfig", "--modversion", name) == [release]


def test_cmake(libraries, master, tmp_path):
    run("cmake", "-S", HERE, "-B", tmp_path, f"-DMooncake_DIR={libraries}/cmake/Mooncake")
    run("cmake", "--build", tmp_path)
    for name in PROGRAMS:
        check_program(tmp_path / name, master)


@pytest.mark.parametrize("wanted, fits", [("0.1", True), ("0.5.0 EXACT", True), ("99", False), ("0.999", False), ("1", False)])
def test_cmake_compares_versions(libraries, tmp_path, wanted, fits):
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.18)\nproject(user NONE)\nfind_package(Mooncake {wanted} REQUIRED)\n")
    done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DMooncake_DIR={libraries}/cmake/Mooncake"], capture_output=True, check=False)
    assert (done.returncode == 0) == fits, done.stderr.decode()


def test_what_was_installed_may_be_moved(installed, libraries, master, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(installed, moved, symlinks=True)
    folder = moved / libraries.relative_to(installed)
    run("gcc", "-o", tmp_path / "user", HERE / "put_get.c", *pkg_config(folder / "pkgconfig", "--cflags", "--libs", "mooncake_store"))
    found = [pathlib.Path(path).resolve() for path in re.findall(r"=> (\S+/libmooncake\w*\.so)", run("ldd", tmp_path / "user"))]
    assert sorted(found) == [folder / "libmooncake.so", folder / "libmooncake_store.so"]
    check_program(tmp_path / "user", master)


@pytest.mark.parametrize("name, function", [("mooncake_store", "mooncake_store_create"), ("transfer_engine", "createTransferEngine"), ("mooncake", "mc_store_open")])
def test_opened_at_run_time(libraries, name, function):
    """By its path, as the Rust crate does: libmooncake.so is found beside it."""
    assert getattr(ctypes.CDLL(str(libraries / f"lib{name}.so")), function)


def test_two_names_have_one_table_of_engines(libraries):
    """A handle of one library's is known to the other, whichever was opened first."""
    engine = ctypes.CDLL(str(libraries / "libtransfer_engine.so"))
    whole = ctypes.CDLL(str(libraries / "libmooncake.so"))
    engine.createTransferEngine.restype = whole.createTransferEngine.restype = ctypes.c_void_p
    os.environ["MC_TCP_BIND_ADDRESS"] = "127.0.0.1"
    for made_by, asked in ((engine, whole), (whole, engine)):
        handle = made_by.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"127.0.0.1", ctypes.c_uint64(0), 0)
        assert handle
        name = ctypes.create_string_buffer(64)
        assert asked.getLocalIpAndPort(ctypes.c_void_p(handle), name, 64) == 0 and name.value.startswith(b"127.0.0.1:")
        asked.destroyTransferEngine(ctypes.c_void_p(handle))
        assert made_by.getLocalIpAndPort(ctypes.c_void_p(handle), name, 64) == -1
