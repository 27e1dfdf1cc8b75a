"""What the tests of the lane `deploy` share: the image's files, the rendered chart, the tools that came from PyPI. MC_DEPLOY is the lane's folder."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "packaging")]

import image  # noqa: E402
import render  # noqa: E402


@pytest.fixture(scope="session")
def cache():
    return pathlib.Path(os.environ["MC_PORTABLE"])


@pytest.fixture(scope="session")
def machine():
    return os.uname().machine


@pytest.fixture(scope="session")
def root(cache, machine, tmp_path_factory):
    """The image's files, unpacked."""
    folder = tmp_path_factory.mktemp("image")
    image.unpack(image.root_of(cache, machine).tar(), folder)
    return folder


@pytest.fixture(scope="session")
def rendered(tmp_path_factory):
    """rendered(values): the chart's documents by Helm, and the file that they stand in."""
    def make(**values):
        path = tmp_path_factory.mktemp("chart") / "rendered.yaml"
        path.write_text(render.manifest(values), encoding="utf-8")
        return path
    return make


@pytest.fixture(scope="session")
def inside(root):
    """inside(words...): runs that in the image's files, as its user."""
    def run(*words, **more):
        return subprocess.run([shutil.which("chroot"), f"--userspec={image.USER}:{image.USER}", str(root), *words], capture_output=True, text=True, env={"PATH": "/usr/bin"},
                              timeout=60, check=False, **more)
    return run
