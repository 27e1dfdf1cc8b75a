"""Debian's package: the same bytes each time, installed into bare systems, its units verified and their commands run; removed and purged."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import deb
import image

HERE = pathlib.Path(__file__).resolve().parent
UNITS = sorted(path.name for path in (pathlib.Path(image.ROOT) / "packaging/systemd").glob("*.service"))
MIRROR = "http://deb.debian.org/debian"


@pytest.fixture(name="package", scope="module")
def make_package(cache, machine, tmp_path_factory):
    return deb.build(cache, tmp_path_factory.mktemp("deb"), machine)


def bare(suite):
    """A system of nothing but what each has; kept for the next time."""
    base = pathlib.Path(os.environ["MC_DEPLOY"]) / f"bare-{suite}"
    if not (base / ".done").exists():
        shutil.rmtree(base, ignore_errors=True)
        sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
        found = re.search(r"^URIs: (\S+)", sources.read_text(), re.M) if sources.exists() else None
        subprocess.run(["debootstrap", "--variant=minbase", suite, base, found[1] if found else MIRROR], check=True, capture_output=True)
        (base / ".done").touch()
    return base


def inside(root, *words):
    return subprocess.run([shutil.which("chroot"), str(root), *words], capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})


@pytest.fixture(name="system", scope="module", params=["bookworm", "bullseye"])
def install(request, package, tmp_path_factory):
    root = tmp_path_factory.mktemp("system") / "root"
    subprocess.run(["cp", "-a", bare(request.param), root], check=True)
    root.parent.chmod(0o755)
    shutil.copy(package, root / "mooncake.deb")
    done = inside(root, "dpkg", "--install", "/mooncake.deb")
    assert done.returncode == 0, done.stdout + done.stderr
    yield root
    shutil.rmtree(root, ignore_errors=True)


def test_the_same_bytes_each_time(package, cache, machine, tmp_path):
    words = [sys.executable, "-B", pathlib.Path(image.ROOT) / "packaging/deb.py", cache, tmp_path, machine]
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *words], check=True, capture_output=True, env={**os.environ, "TZ": "Asia/Tokyo"})
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


def test_its_commands_run(system):
    assert inside(system, "mooncake_master", "--version").stdout.strip() == f"mooncake_master {image.version()}"
    for name in image.COMMANDS:
        assert inside(system, name, "--help").returncode == 0, name


def test_its_user_may_not_log_in(system):
    [line] = [line for line in (system / "etc/passwd").read_text().splitlines() if line.startswith("mooncake:")]
    assert line.endswith(":/usr/sbin/nologin")
    assert (system / "etc/mooncake/store.env").stat().st_mode & 0o777 == 0o640


def test_its_units(system):
    """By systemd itself: every setting is one that it knows, and what is started is there. A bare system has no systemd: its targets are this machine's."""
    for path in pathlib.Path("/usr/lib/systemd/system").glob("*.target"):
        if not (system / path.relative_to("/")).exists():
            shutil.copy(path, system / path.relative_to("/"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--root={system}", *UNITS], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "mooncake" in line]
    assert done.returncode == 0 and not complaints, done.stderr
    unit = system / "usr/lib/systemd/system" / UNITS[0]
    right = unit.read_text()
    unit.write_text(right.replace("ProtectSystem=", "ProtectSistem="))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--root={system}", *UNITS], capture_output=True, text=True, check=False)
    unit.write_text(right)
    assert "ProtectSistem" in done.stderr, "that would not have been noticed"


def test_they_are_confined(system):
    for name in UNITS:
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=30", str(system / "usr/lib/systemd/system" / name)],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stdout.splitlines()[-1])


def test_what_the_store_has_to_do_fits_its_stop(system):
    unit = (system / "usr/lib/systemd/system/mooncake-store.service").read_text()
    grace = int(re.search(r"^--exit_grace_s=(\d+)$", (system / "etc/mooncake/store.flags").read_text(), re.M)[1])
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1]) >= grace + 10


def test_what_they_start(system, tmp_path):
    done = subprocess.run([sys.executable, "-B", str(HERE / "units.py"), str(system), str(tmp_path)], capture_output=True, text=True, timeout=200, check=False)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert done.stdout.split("\n")[0] == "all serve"
    assert sorted(done.stdout.splitlines()[1:]) == sorted(f"ended {name.removesuffix('.service')} 0" for name in UNITS)


def test_an_update_keeps_settings_and_removal_leaves_nothing(system):
    flags = system / "etc/mooncake/master.flags"
    flags.write_text(flags.read_text() + "--default_kv_lease_ttl=5000\n")
    assert inside(system, "dpkg", "--install", "/mooncake.deb").returncode == 0
    assert "--default_kv_lease_ttl=5000" in flags.read_text()
    assert inside(system, "dpkg", "--remove", "mooncake").returncode == 0
    assert flags.exists() and not (system / "usr/bin/mooncake_master").exists()
    assert inside(system, "dpkg", "--purge", "mooncake").returncode == 0
    assert not flags.exists() and not (system / "usr/lib/systemd/system/mooncake-master.service").exists()
