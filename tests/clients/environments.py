#!/usr/bin/env python3
"""Environments of the real clients, each built once.

environments.py FOLDER NAME...     builds FOLDER/NAME for each, unless it is there as its list tests/clients/NAME.txt asks

The lists are whole: pip installs them without looking at dependencies, so that what a client is run with is what stands there. Some
are folders to import from, some the files of a source archive; the others are virtual environments. A build that does not end in time, or finds no package index, is an
error: a lane that cannot run is never a lane that passed.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = ("original", "lmcache_old", "suites", "verl")  # installed by --target, into no environment of their own
ARCHIVES = {"vllm_tests": "tests"}  # the folder of a source archive that is unpacked; nothing of it is built or run
BUILD_SECONDS_MAX = int(os.environ.get("MC_CLIENTS_BUILD_SECONDS", 1800))
PIP = ("--no-deps", "--no-input", "--disable-pip-version-check", "-q")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # where torch's builds for the CPU lie, if the configured index has none


def say(text):
    print(f"  {text}", flush=True)


def wanted_stamp(name, path):
    words = (sys.version, str(path), (HERE / f"{name}.txt").read_text())
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def folder_size(path):
    """Bytes on the disk; what is linked twice counts once."""
    seen, total = set(), 0
    for base, _, names in os.walk(path):
        for name in names:
            status = os.lstat(os.path.join(base, name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def run(command, name, path, seconds):
    """Runs the command and says every half minute how far it is; returns (exit code, output), -1 when time was up."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as child:
        output = []
        reader = threading.Thread(target=lambda: output.extend(child.stdout), daemon=True)
        reader.start()
        while True:
            try:
                child.wait(30)
                break
            except subprocess.TimeoutExpired:
                spent = time.monotonic() - start
                say(f"{name}: {spent:.0f} s, {folder_size(path) / 2**20:.0f} MiB")
                if spent > seconds:
                    child.kill()
                    child.wait()
                    return -1, f"not done after {seconds} s\n" + "".join(output[-20:])
        reader.join(5)
        return child.returncode, "".join(output)


def unpack(archive, part, path):
    """`part` of a source archive, without the folder that holds all."""
    with tarfile.open(archive) as archived:
        for member in archived.getmembers():
            place = pathlib.PurePosixPath(member.name).parts[1:]
            if member.isfile() and place[0] == part and ".." not in place:
                path.joinpath(*place).parent.mkdir(parents=True, exist_ok=True)
                path.joinpath(*place).write_bytes(archived.extractfile(member).read())


def download(name, path):
    """pip wants an archive's metadata before it keeps it: `unbuilt` gives it those, in the place of setuptools."""
    with tempfile.TemporaryDirectory(dir=path) as folder:
        command = ["env", f"PYTHONPATH={HERE / 'unbuilt'}", sys.executable, "-m", "pip", "download", *PIP, "--no-build-isolation", "--no-binary=:all:", "-d", folder]
        code, output = run([*command, "-r", str(HERE / f"{name}.txt")], name, path, BUILD_SECONDS_MAX)
        for archive in pathlib.Path(folder).glob("*.tar.gz"):
            unpack(archive, ARCHIVES[name], path)
    return code, output


def install(name, path):
    """What pip says, when everything of the list is there."""
    python = sys.executable
    command = ["-m", "pip", "install", *PIP, "-r", str(HERE / f"{name}.txt")]
    if name in FOLDERS:
        command += ["--target", str(path)]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        python = str(path / "bin/python")
    code, output = run([python, *command], name, path, BUILD_SECONDS_MAX)
    if code > 0 and "No matching distribution found for torch==" in output:
        code, output = run([python, *command, "--extra-index-url", TORCH_INDEX], name, path, BUILD_SECONDS_MAX)
    return code, output


def fill(name, path):
    """True when everything of the list is there."""
    code, output = (download if name in ARCHIVES else install)(name, path)
    if code != 0:
        print(output[-4000:], file=sys.stderr)
        reason = "is there a network to the package index?" if "Could not find a version" in output or "Max retries" in output else f"pip: {code}"
        print(f"environment {name}: cannot be built ({reason}); the list is tests/clients/{name}.txt", file=sys.stderr)
    return code == 0


def build(folder, name):
    path = folder / name
    mark = path / "stamp"
    wanted = wanted_stamp(name, path)
    if mark.exists() and mark.read_text() == wanted:
        return True
    if path.is_symlink():
        say(f"{name}: as linked by hand, unchecked: {os.readlink(path)}")
        return True
    say(f"{name}: making .cache/clients/{name}")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    start = time.monotonic()
    if not fill(name, path):
        return False
    say(f"{name}: built in {time.monotonic() - start:.0f} s, {folder_size(path) / 2**20:.0f} MiB")
    mark.write_text(wanted)
    return True


def main():
    folder = pathlib.Path(sys.argv[1])
    names = sys.argv[2:]
    unknown = [name for name in names if not (HERE / f"{name}.txt").exists()]
    if unknown:
        raise SystemExit(f"no such environment: {' '.join(unknown)}")
    if not all([build(folder, name) for name in names]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
