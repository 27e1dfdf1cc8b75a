"""Finds the native commands of this package and becomes one of them."""
import os
import pathlib
import sys
import sysconfig


def _folders():
    """Where an installer may have put the package's scripts, nearest first."""
    package = pathlib.Path(__file__).resolve().parent
    yield package.parent / "bin"  # pip install --target
    yield pathlib.Path(sysconfig.get_path("scripts"))
    try:
        yield pathlib.Path(sysconfig.get_path("scripts", f"{os.name}_user"))
    except KeyError:
        pass
    yield pathlib.Path(sys.executable).parent
    import importlib.metadata  # here, and shutil below: the command answers sooner than these are imported

    try:  # Debian 11's pip puts them where its Python does not say
        recorded = importlib.metadata.files("mooncake-transfer-engine") or ()
    except importlib.metadata.PackageNotFoundError:
        return
    yield from {pathlib.Path(file.locate()).parent for file in recorded if file.name == "mooncake_master"}


def _is_native(path):
    """Not a script: the package that ours replaces has scripts of these names that would call us again."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def find(name):
    """Path of a native command. FileNotFoundError when it is nowhere."""
    for folder in _folders():
        if _is_native(folder / name):
            return str(folder / name)
    import shutil

    found = shutil.which(name)
    if found is not None and _is_native(found):
        return found
    raise FileNotFoundError(f"the command {name} of the package mooncake-transfer-engine is neither beside Python nor on PATH")


def become(name, arguments):
    """Replaces this process, so that its id and its signals are the command's."""
    try:
        path = find(name)
    except FileNotFoundError as error:
        sys.exit(f"{name}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [path, *arguments])
