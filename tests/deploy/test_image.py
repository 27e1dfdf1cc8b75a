"""The container image: the same bytes each time, what is in it, whether its commands run there as its user, and whether other tools read it."""
import json
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import urllib.request

import pytest

import image
import kubelet

LIMIT = 60_000_000
ROOT = pathlib.Path(image.ROOT)


@pytest.fixture(scope="module", name="archive")
def make_archive(cache, machine, tmp_path_factory):
    target = tmp_path_factory.mktemp("archive")
    image.main(str(cache), str(target), machine)
    [path] = target.iterdir()
    return path


def test_the_same_bytes_each_time(archive, cache, machine, tmp_path):
    """In another folder, by another process with other umask, hash seed, time zone and name of the machine's user."""
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "HOME": str(tmp_path), "SOURCE_DATE_EPOCH": str(image.epoch())}
    words = [sys.executable, "-B", ROOT / "packaging/image.py", cache, tmp_path, machine]
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *words], check=True, env=environment, capture_output=True)
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


def test_another_time_is_another_image(archive, cache, machine, tmp_path):
    subprocess.run([sys.executable, "-B", ROOT / "packaging/image.py", cache, tmp_path, machine], check=True, capture_output=True,
                   env={**os.environ, "SOURCE_DATE_EPOCH": "1"})
    assert (tmp_path / archive.name).read_bytes() != archive.read_bytes()


def test_it_is_small(archive, root):
    assert archive.stat().st_size < LIMIT
    unpacked = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"\ndeploy: image {archive.stat().st_size / 1e6:.1f} MB, its files {unpacked / 1e6:.1f} MB, of them OpenSSL "
          f"{sum(path.stat().st_size for name in ('libssl', 'libcrypto') for path in root.rglob(name + '.so.*')) / 1e6:.1f} MB")
    commands = {path.name for path in (root / "usr/bin").iterdir()}
    assert commands == {*image.COMMANDS, *image.APPLETS, "busybox", "openssl", "health"}
    privileged = [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000]
    assert not privileged
    owned = {str(path.relative_to(root)) for path in root.rglob("*") if path.lstat().st_uid != 0}
    assert owned == {image.STATE}, "its user may write elsewhere"


def test_every_command_runs_as_its_user(inside):
    for name in image.COMMANDS:
        done = inside(name, "--help")
        assert done.returncode == 0, (name, done.stderr)
    assert image.version() in inside("mooncake_master", "--version").stdout
    assert inside("id", "-u").stdout == f"{image.USER}\n"
    for name in image.APPLETS:
        assert "applet not found" not in inside(name, "--help").stderr, name


class Started:
    """A command of the image, as its user, until it answers /health at the port that its log names; ended by SIGTERM."""

    def __init__(self, root, *words, **environment):
        self.began = time.monotonic()
        self.process = subprocess.Popen([shutil.which("chroot"), f"--userspec={image.USER}:{image.USER}", str(root), *words], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/bin", **environment})

    def port(self, pattern):
        for line in self.process.stderr:
            found = re.search(pattern + r" port (\d+)", line)
            if found:
                return int(found[1])
        raise AssertionError(f"{self.process.args} has ended")

    def answers(self, pattern):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port(pattern)}/health", timeout=20) as answer:
            assert answer.status == 200
        return 1000 * (time.monotonic() - self.began)

    def end(self):
        self.process.terminate()
        for _ in self.process.stderr:
            pass
        assert self.process.wait(60) == 0


def test_its_first_answer(root):
    """How soon is printed, not judged."""
    found = {"master": [], "store": []}
    for _ in range(5):
        master = Started(root, "mooncake_master", "--rpc_port=0", "--metrics_port=0")
        port = master.port("Master service started on")
        found["master"].append(master.answers("HTTP metrics server started on"))
        store = Started(root, "mc_store_rest_server", "--port=0", MOONCAKE_MASTER=f"127.0.0.1:{port}", MOONCAKE_LOCAL_HOSTNAME="127.0.0.1",
                        MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb", MOONCAKE_LOCAL_BUFFER_SIZE="16mb")
        found["store"].append(store.answers("REST API started on"))
        store.end()
        master.end()
    print("\ndeploy: image, start to first answer: " + ", ".join(f"{name} {statistics.median(times):.0f} ms" for name, times in found.items()))


def test_every_library_finds_what_it_needs(root):
    """RDMA's are opened at run time; what one of them lacks would be noticed on a machine with devices only."""
    there = {path.name for path in root.rglob("*")}
    looked_at = 0
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        done = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True)
        needed = set(re.findall(r"\(NEEDED\) .*\[(.*)\]", done.stdout))
        assert needed <= there, (path, needed - there)
        looked_at += 1
    assert looked_at > 30


def test_rdma_opens_its_libraries(root, inside):
    """What dlopen wants is found in the image's own folders."""
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        library = next(root.glob(f"usr/lib/*/{name}")).relative_to(root)
        loader = next(path for path in root.glob("usr/lib/*/ld-linux*")).relative_to(root)
        done = inside(f"/{loader}", "--list", f"/{library}")
        assert done.returncode == 0 and "not found" not in done.stdout, done.stdout + done.stderr


def test_other_tools_read_it(archive, machine):
    """As an OCI layout and as an archive of Docker's."""
    for kind in ("oci-archive", "docker-archive"):
        done = subprocess.run(["skopeo", "inspect", "--config", f"{kind}:{archive}"], capture_output=True, text=True, check=True)
        config = json.loads(done.stdout)
        assert config["architecture"] == image.PLATFORMS[machine] and config["config"]["User"] == f"{image.USER}:{image.USER}"
        assert config["config"]["Cmd"] == ["mooncake_master"] and config["created"].startswith("20")


def test_copied_it_is_whole(archive, tmp_path):
    """skopeo compares the sum of every part."""
    subprocess.run(["skopeo", "--insecure-policy", "copy", f"oci-archive:{archive}", f"dir:{tmp_path}/copy"], check=True, capture_output=True)
    manifest = json.loads((tmp_path / "copy/manifest.json").read_text())
    [layer] = manifest["layers"]
    with tarfile.open(tmp_path / "copy" / layer["digest"].removeprefix("sha256:")) as found:
        assert "usr/bin/mooncake_master" in found.getnames()


def instructions(path):
    """[(instruction, rest)] of a Dockerfile's last stage."""
    found = []
    for line in path.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found = []
        if word and word != "#":
            found.append((word, rest))
    return found


def test_the_dockerfile_says_the_same():
    said = instructions(ROOT / "packaging/image/Dockerfile")
    one = dict(said)
    assert shlex.split(one["ENV"]) == image.CONFIG["Env"] and one["USER"] == image.CONFIG["User"] and one["WORKDIR"] == image.CONFIG["WorkingDir"]
    assert json.loads(one["CMD"]) == image.CONFIG["Cmd"] and set(one["EXPOSE"].split()) == set(image.CONFIG["ExposedPorts"])
    assert one["STOPSIGNAL"] == image.CONFIG["StopSignal"] and one["FROM"] == "scratch"
    health = image.CONFIG["Healthcheck"]
    flags, _, command = one["HEALTHCHECK"].partition(" CMD ")
    assert ["CMD", *json.loads(command)] == health["Test"]
    given = dict(re.findall(r"--([a-z-]+)=(\w+)", flags))
    assert given == {"interval": f"{health['Interval'] // 10**9}s", "timeout": f"{health['Timeout'] // 10**9}s", "retries": str(health["Retries"]),
                     "start-period": f"{health['StartPeriod'] // 10**9}s"}
    assert ("COPY", f"--from=build --chown={image.CONFIG['User']} /rootfs/{image.STATE} /{image.STATE}") in said


def test_its_last_stage_builds(root, tmp_path):
    """By buildah, with the first stage's result put in its place: no registry is at hand for debian:bookworm."""
    (tmp_path / "rootfs").mkdir()
    subprocess.run(["cp", "-a", f"{root}/.", tmp_path / "rootfs"], check=True)
    lines = [f"{word} {rest}" for word, rest in instructions(ROOT / "packaging/image/Dockerfile")]
    (tmp_path / "Dockerfile").write_text("FROM scratch AS build\nCOPY rootfs /rootfs\n" + "\n".join(lines) + "\n")
    storage = ["--storage-driver", "vfs", "--root", tmp_path / "storage", "--runroot", tmp_path / "run"]
    done = subprocess.run(["buildah", *storage, "bud", "--isolation", "chroot", "--format", "docker", "-t", "mooncake", tmp_path], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(subprocess.run(["buildah", *storage, "inspect", "--type", "image", "mooncake"], capture_output=True, text=True, check=True).stdout)
    config = found["Docker"]["config"]
    assert config["User"] == image.CONFIG["User"] and config["Cmd"] == image.CONFIG["Cmd"] and config["Healthcheck"] == image.CONFIG["Healthcheck"]
    assert set(image.CONFIG["Env"]) <= set(config["Env"])


def test_its_health_check(root, tmp_path):
    """In a container: a master that runs is well, one that stands still is not; nobody has told the check who runs."""
    done = subprocess.run([sys.executable, "-B", str(pathlib.Path(kubelet.__file__).parent / "health.py"), str(root), str(tmp_path)], capture_output=True,
                          text=True, timeout=120, check=False)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["well", "ill", "well", "ended", "0"]
