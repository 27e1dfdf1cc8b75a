"""Building without what the build needs: one line says which packages are missing, and with which command they come."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])


def packages_of_dev():
    """What ./dev installs before it builds, the compiler's own, Python's and what only tests need left out."""
    text = re.search(r"packages_build=\((.*?)\)", (SOURCE / "dev").read_text(encoding="utf-8"), re.S).group(1)
    return {name for name in text.split() if name.startswith(("lib", "zlib"))} - {"libc6-dev", "libcmocka-dev", "libjansson-dev"}


def configure(folder, **environment):
    done = subprocess.run(["meson", "setup", str(folder), str(SOURCE), "-Dtests=false"], env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode, [line for line in done.stdout.splitlines() if "apt-get install" in line]


@pytest.fixture
def meson():
    if shutil.which("meson") is None:
        pytest.skip("no meson")


def test_what_is_missing_is_said_in_one_line(meson, tmp_path):
    code, lines = configure(tmp_path / "build", PKG_CONFIG_LIBDIR="/nonexistent")
    assert code != 0 and len(lines) == 1
    named = set(lines[0].rpartition("apt-get install ")[2].split())
    assert {"libevent-dev", "libyaml-dev", "libhiredis-dev"} <= named <= packages_of_dev()


def test_without_a_compiler_all_is_named(meson, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3", "ninja", "meson"):
        (tools / name).symlink_to(shutil.which(name))
    environment = {"PATH": str(tools), "CC": ""}
    code, lines = configure(tmp_path / "build", **environment)
    assert code != 0 and len(lines) == 1
    assert {"gcc", "pkg-config", *packages_of_dev()} <= set(lines[0].rpartition("apt-get install ")[2].split())


def test_every_file_of_the_package_is_installed():
    """A new one that meson.build does not name would work here, and be missing in the wheel."""
    places = json.loads((pathlib.Path(os.environ["MC_BUILD"]) / "meson-info/intro-installed.json").read_text(encoding="utf-8"))
    package = SOURCE / "python/mooncake"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wrong = [str(path) for path in files
             if not any(pathlib.Path(source) == path and target.endswith(f"/mooncake/{path.relative_to(package)}") for source, target in places.items())]
    assert wrong == [] and len(files) > 40
