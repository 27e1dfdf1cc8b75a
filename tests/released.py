"""The release before this tree, built from the repository's own history, so that tests can run both versions in one cluster.

    old = released.build(cache)      # None where git does not know the commit (a shallow clone, a tarball): released.WHY says so
    old = released.build(cache, commit)     # another tree than the last release
    released.unpack(cache, wheel)   # what a wheel holds instead
    released.measurement(old, "bench_core") # one of its C measurements, built when asked for
    old.build                        # as MC_BUILD: mooncake_master, mooncake_bench, ...
    old.python_path                  # as MC_PYTHONPATH

It is built once into `cache` (a quarter of a minute to two), nothing is downloaded. COMMIT moves when a release is made: docs/versions.md.
"""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import zipfile
from collections import namedtuple

COMMIT = "3f6ce5a"
ROOT = pathlib.Path(__file__).resolve().parent.parent
WHY = f"git does not have {COMMIT}, the last release, or what was asked for in its place: this needs the whole history of the repository"
PROGRAMS = ("mooncake_master", "mooncake_bench")  # these and the Python package's extensions; what nobody runs of it is not built
OPTIONS = ("-Dtests=false", "-Dbuildtype=release", "-Db_ndebug=false", "-Dwerror=false")

Release = namedtuple("Release", "build python_path")


def has_history(commit=COMMIT):
    asked = ["git", "-C", str(ROOT), "cat-file", "-e", commit + "^{commit}"]
    return shutil.which("git") is not None and subprocess.run(asked, capture_output=True).returncode == 0


def environment():
    """A sanitizer that the tests run under is nothing for the compiler."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def run(log, *words):
    with open(log, "ab") as out:
        if subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment()).returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))} failed: {pathlib.Path(log).read_text(errors='replace')[-4000:]}")


def make(folder, commit):
    source, build = folder / "source", folder / "build"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    run(folder / "log", "meson", "setup", build, source, *OPTIONS)
    run(folder / "log", "ninja", "-C", build, *outputs(build))


def outputs(build):
    asked = subprocess.run(["meson", "introspect", "--targets", str(build)], capture_output=True, check=True, env=environment()).stdout
    wanted = [target for target in json.loads(asked) if target["name"] in PROGRAMS or target["type"] == "shared module"]
    return [os.path.relpath(name, build) for target in wanted for name in target["filename"]]


def build(cache, commit=COMMIT):
    folder = pathlib.Path(cache).resolve() / f"released-{commit}"
    release = Release(folder / "build", folder / "python")
    if not has_history(commit):
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists() or done.read_text(encoding="utf-8") != str(folder):  # a checkout that was moved
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, commit)
            package = release.python_path / "mooncake"
            package.mkdir(parents=True)
            for part in [*(folder / "source" / "python" / "mooncake").iterdir(), *(release.build / "src" / "python").glob("*.so")]:
                (package / part.name).symlink_to(part)
            done.write_text(str(folder), encoding="utf-8")
    return release


def unpack(cache, wheel):
    """Without an installation: the package, and its commands where a build would have them. For one reader at a time."""
    folder = pathlib.Path(cache).resolve() / "released-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    scripts = next(folder.glob("*.data/scripts"))
    for script in scripts.iterdir():
        script.chmod(0o755)
    return Release(scripts, folder)


def measurement(release, name):
    """The path of one of its measurements in C (bench/NAME.c): such a program is the one of its own tree."""
    folder, build = release.build.parent, release.build.parent / "build-bench"
    if not build.exists():
        run(folder / "log", "meson", "setup", build, folder / "source", "-Dtests=true", *OPTIONS[1:])
    run(folder / "log", "ninja", "-C", build, f"bench/{name}")
    return build / "bench" / name
