"""What others link and compile against, as they find it: installed as a system and as a wheel have it. And a master for them.

MC_BUILD      the build folder
MC_BINDINGS   a folder to keep things in from one run to the next
MC_FOREIGN_SOURCES   a folder with checkouts of others' repositories: mooncake (kvcache-ai/Mooncake), nixl (ai-dynamo/nixl). They are not on PyPI;
              tests of what is missing there are skipped.
"""
import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["MC_BUILD"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/system"))

from cluster import Master  # noqa: E402


def run(*command, **more):
    """Its output, standard error too; a command that fails fails the test with all that it said."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def foreign(name):
    folder = pathlib.Path(os.environ.get("MC_FOREIGN_SOURCES", "/nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"MC_FOREIGN_SOURCES has no folder {name}")
    return folder


@pytest.fixture(scope="session")
def kept():
    folder = pathlib.Path(os.environ["MC_BINDINGS"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The prefix below which `meson install` has put everything."""
    folder = tmp_path_factory.mktemp("installed")
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder)
    found = list(folder.rglob("libmooncake_store.so"))
    assert len(found) == 1, found
    prefix = next(parent for parent in found[0].parents if parent.name == "lib").parent
    return prefix


@pytest.fixture(scope="session")
def libraries(installed):
    return next(installed.rglob("libmooncake_store.so")).parent


@pytest.fixture
def master():
    """One that is there for this test alone."""
    with Master() as one:
        yield one
