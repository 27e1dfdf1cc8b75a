"""NIXL's Mooncake plugin and its test, unchanged. They need a newer Abseil than Debian 12 has, so they are compiled and run in a bare Debian 13, on our
libraries of this machine."""
import os
import pathlib
import shutil

import pytest

from conftest import foreign, run

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = "g++,libabsl-dev,libtomlplusplus-dev,libasio-dev,pkg-config"
# A mount namespace of its own: what is mounted is gone with it, however this ends.
INSIDE = 'mount --make-rprivate /; mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
TRANSFERS = 5 * 4 * 10  # of 64 MiB: pairs of agents, kinds of operation, times; with notes half of them


@pytest.fixture
def debian(kept):
    if os.getuid() != 0:
        pytest.skip("a chroot needs root")
    folder = kept / "debian13"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", folder, "http://deb.debian.org/debian")
        (folder / "done").touch()
    return folder


def test_its_backend_test(debian, installed, libraries):
    sources = foreign("nixl")
    for name, copied in (("nixl/src", sources / "src"), ("nixl/test", sources / "test/unit/plugins/mooncake"), ("headers", installed / "include")):
        target = debian / name if name != "nixl/test" else debian / "nixl/test/unit/plugins/mooncake"
        shutil.copytree(copied, target, dirs_exist_ok=True)  # with its times: nothing is compiled twice
    (debian / "libraries").mkdir(exist_ok=True)
    for name in ("libmooncake.so", "libtransfer_engine.so"):
        shutil.copy2(libraries / name, debian / "libraries")
    shutil.copy2(HERE / "nixl.sh", debian)

    def inside(*command):
        return run("unshare", "--mount", "bash", "-euc", INSIDE, "bash", debian, "/usr/bin/env", "-i", "PATH=/usr/bin:/bin", *command)

    inside("bash", "/nixl.sh", "/nixl", "/out", "/headers", "/libraries")
    said = inside("NIXL_MOONCAKE_IP_ADDR=127.0.0.1", "MC_TCP_BIND_ADDRESS=127.0.0.1", "/out/mooncake_backend_test")
    assert said.count("Data verification: OK") == TRANSFERS and said.count("notification flow: OK") == TRANSFERS // 2, said
