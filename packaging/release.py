#!/usr/bin/env python3
"""Builds every artefact of a release from the commit that is checked out: twice, in two folders, and both times the bytes must be the same.

release.py CACHE TARGET      the artefacts, CHANGELOG.md, toolchain.txt and SHA256SUMS go to TARGET, if all went well

What a release consists of is the table STEPS. Each step runs in a clone of the commit, with SOURCE_DATE_EPOCH, and leaves files in the folder
{out}; {cache} is kept within one of both builds only. What a step is made of must be in the tree, else it is no part of this tree's release, and that
is said. The tests of the artefacts are not here but in ./dev release.
"""
import collections
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
Step = collections.namedtuple("Step", "name made_of command leaves")
PYTHON = sys.executable

# name, a path in the tree, what is run in the clone, what must be in {out} afterwards: one file for each pattern
STEPS = (
    Step("wheels", "packaging/portable.py", (PYTHON, "-B", "packaging/portable.py", "{cache}/portable", "{out}"), ("*-abi3-manylinux_*_x86_64.whl", "*-abi3-manylinux_*_aarch64.whl", "*-cp313t-manylinux_*.whl")),
    Step("sdist", "pyproject.toml", (PYTHON, "-B", "-c", "import mesonpy; mesonpy.build_sdist('{out}')"), ("*.tar.gz",)),
    Step("image", "packaging/image.py", (PYTHON, "-B", "packaging/image.py", "{cache}/portable", "{out}"), ("mooncake-*-x86_64.tar", "mooncake-*-aarch64.tar")),
    Step("deb", "packaging/deb.py", (PYTHON, "-B", "packaging/deb.py", "{cache}/portable", "{out}"), ("mooncake_*_amd64.deb", "mooncake_*_arm64.deb")),
    Step("chart", "packaging/kubernetes/mooncake", (PYTHON, "-B", "packaging/release.py", "--chart", "{out}"), ("mooncake-*.tgz",)),
    Step("monitoring", "packaging/monitoring", (PYTHON, "-B", "packaging/release.py", "--monitoring", "{out}"), ("monitoring-*.tgz",)),
    Step("parts", "packaging/parts.py", (PYTHON, "-B", "packaging/release.py", "--parts", "{out}"), ("*-abi3-*_x86_64.whl.cdx.json", "*-abi3-*_aarch64.whl.cdx.json", "*-cp313t-*.whl.cdx.json")),
    Step("changelog", "tests/released.py", (PYTHON, "-B", "packaging/release.py", "--changelog", "{out}/CHANGELOG.md"), ("CHANGELOG.md",)),
    Step("toolchain", "packaging/release.py", (PYTHON, "-B", "packaging/release.py", "--toolchain", "{out}/toolchain.txt"), ("toolchain.txt",)),
)
# The two builds have these apart, beside their folders and the time.
SURROUNDINGS = ({"TZ": "UTC", "LC_ALL": "C"}, {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8"})


def git(*words, folder=None):
    return subprocess.run(["git", "-C", str(folder or ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def released():
    """The commit of the last release (tests/released.py)."""
    return re.search(r'^COMMIT = "(\w+)"$', (ROOT / "tests/released.py").read_text(encoding="utf-8"), re.M)[1]


def version():
    return re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.M)[1]


# ---- what belongs to a release beside what compilers make ----

def changelog(title, date, subjects):
    """Commits by the word before the colon of their subject, those that say it most often first; each in the order of the work."""
    groups = collections.defaultdict(list)
    for subject in subjects:
        room, colon, what = subject.partition(": ")
        groups[room if colon else "Other"].append(what if colon else subject)
    single = [(room, lines[0]) for room, lines in groups.items() if len(lines) == 1 and room != "Other"]
    for room, line in single:
        groups["Other"].append(f"{room}: {line}")
        del groups[room]
    order = sorted(groups, key=lambda room: (room == "Other", -len(groups[room]), room))
    return f"# {title}, {date}\n" + "".join(f"\n## {room}\n" + "".join(f"- {line}\n" for line in groups[room]) for room in order)


def write_changelog(path):
    try:
        subjects = git("log", "--reverse", "--no-merges", "--format=%s", f"{released()}..HEAD").splitlines()
    except subprocess.CalledProcessError:
        sys.exit(f"release.py: {released()}, the last release, is not in this repository: the changelog needs its whole history")
    text = changelog(version(), git("log", "-1", "--format=%cd", "--date=short"), subjects)
    pathlib.Path(path).write_text(text, encoding="utf-8")


def write_parts(folder):
    """Beside each wheel the list of what is linked into it, which it has inside, too."""
    for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            pathlib.Path(f"{wheel}.cdx.json").write_bytes(archive.read("mooncake/sbom.cdx.json"))


def pack(source, paths, target, name):
    """An archive of these files of a folder, below a folder of that name; the same bytes at any time."""
    time = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
    with open(target, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(paths):
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(source)}")
            entry.size, entry.mtime = path.stat().st_size, time
            archive.addfile(entry, io.BytesIO(path.read_bytes()))


def write_chart(folder):
    """Helm's archive of the chart, whose name has its own version, not ours."""
    chart = ROOT / "packaging/kubernetes/mooncake"
    number = re.search(r"^version: (\S+)$", (chart / "Chart.yaml").read_text(encoding="utf-8"), re.M)[1]
    pack(chart, (path for path in chart.rglob("*") if path.is_file()), pathlib.Path(folder) / f"mooncake-{number}.tgz", "mooncake")


def write_monitoring(folder):
    """What a Prometheus and a Grafana are given."""
    source = ROOT / "packaging/monitoring"
    paths = [path for pattern in ("*.yml", "dashboards/*.json") for path in source.glob(pattern)]
    pack(source, paths, pathlib.Path(folder) / f"monitoring-{version()}.tgz", "monitoring")


def write_toolchain(path):
    """With other versions of these the bytes may be others."""
    listed = subprocess.run([PYTHON, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True).stdout.splitlines()
    tools = [line for line in listed if re.match(r"(meson|meson-python|ninja|packaging|pyproject-metadata)==", line)]
    zig, wheel = (re.search(rf'"({name}[^"]*)"', (ROOT / "packaging/portable.py").read_text(encoding="utf-8"))[1] for name in ("ziglang==", "wheel[>=]"))
    system = re.search('^PRETTY_NAME="(.*)"$', pathlib.Path("/etc/os-release").read_text(encoding="utf-8"), re.M)[1]
    lines = [f"commit {git('rev-parse', 'HEAD')}", system, "Python " + ".".join(map(str, sys.version_info[:3])), *tools, zig, wheel]
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- building, comparing ----

def build(steps, place, commit, surroundings, keep):
    """Runs all steps in a clone that did not exist before; returns the folder with what they left. keep: what may be there already in {cache}."""
    shutil.rmtree(place, ignore_errors=True)
    out, tree, cache = place / "out", place / "tree", place / "cache"
    out.mkdir(parents=True)
    git("clone", "--quiet", "--no-checkout", str(ROOT), str(tree))
    git("checkout", "--quiet", "--detach", commit, folder=tree)
    for name, found in keep.items():
        if found.exists():
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            (cache / name).symlink_to(found)
    environment = {**os.environ, **surroundings, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct", folder=tree)}
    for step in steps:
        is_there = (tree / step.made_of).exists()
        print(f"{place.name}: {step.name}{'' if is_there else f': left out, {step.made_of} is not in this tree'}", flush=True)
        if not is_there:
            continue
        command = [word.format(out=out, cache=cache) for word in step.command]
        subprocess.run(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, check=True)
        for pattern in step.leaves:
            found = list(out.glob(pattern))
            if len(found) != 1:
                sys.exit(f"release.py: {step.name} should have left one {pattern}, not {len(found)}")
    return out


def sums(folder):
    """{name: SHA-256} of all that lies there."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def differences(first, second):
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def make(steps, cache, target, keep):
    """0, or 1 when both builds are not the same: then nothing is released, and both lie in the cache."""
    if git("status", "--porcelain"):
        sys.exit("release.py: there are changes that are not committed; a release is made of a commit")
    os.umask(0o022)
    commit = git("rev-parse", "HEAD")
    places = (cache / "first", cache / "the-second-one-elsewhere")
    built = [build(steps, place, commit, surroundings, keep) for place, surroundings in zip(places, SURROUNDINGS)]
    found, again = map(sums, built)
    for name in differences(found, again):
        print(f"release.py: {name} is not the same in both builds: {places[0]}, {places[1]}")
    if found != again:
        return 1
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built[0], target)
    (target / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()), encoding="utf-8")
    print(f"{len(found)} files, built twice, the same bytes: {target}")
    return 0


def main(words):
    small = {"--changelog": write_changelog, "--parts": write_parts, "--toolchain": write_toolchain, "--chart": write_chart, "--monitoring": write_monitoring}
    if len(words) == 2 and words[0] in small:
        small[words[0]](words[1])
        return 0
    if len(words) != 2 or words[0].startswith("-"):
        sys.exit("usage: release.py CACHE TARGET")
    cache, target = (pathlib.Path(word).resolve() for word in words)
    # What was downloaded, whose sums pip and apt have checked, and what builds and is not in an artefact, are the same for both.
    portable = cache.parent / "portable"
    subprocess.run([PYTHON, "-B", ROOT / "packaging/portable.py", portable, "--prepare"], check=True, stdin=subprocess.DEVNULL)
    keep = {f"portable/{name}": portable / name for name in ("tools", "source", "free-python")}
    return make(STEPS, cache, target, keep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
