"""This tree: its wheel in an environment of its own, or with --ours-build what a build directory holds."""

import os
import subprocess

from .base import ROOT, Contestant, make_venv


def tree_state():
    """Changes whenever a file that goes into the wheel does."""
    newest = 0.0
    count = 0
    for top in ("src", "bench/tool", "include", "python", "meson.build", "pyproject.toml"):
        path = ROOT / top
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file() and "__pycache__" not in item.parts]
        for item in files:
            newest = max(newest, item.stat().st_mtime)
            count += 1
    return f"{newest} {count}"


def build_wheel():
    """The wheel of this tree, as `./dev wheel` builds it."""
    done = subprocess.run([ROOT / "dev", "wheel"], cwd=ROOT, capture_output=True, text=True)
    wheels = sorted((ROOT / ".cache/wheel").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode != 0 or not wheels:
        raise SystemExit(f"./dev wheel failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return ["--no-index", "--no-deps", str(wheels[-1])]


class Ours(Contestant):
    name = "ours"
    title = "ours"
    keeps_files = True  # where a bench gives its nodes a place for them

    def __init__(self, tcp=False, keeps_files=True):
        if not keeps_files:
            self.name, self.title, self.keeps_files = "ours-plain", "ours, without data directories", False
        if tcp:
            self.name = "ours-tcp"
            self.title = "ours, TCP only"
            self.env = {"MC_PATHS": "tcp"}

    def prepare(self, cache):
        path = cache / "bench-ours"
        make_venv(path, build_wheel, tree_state())
        self.python = path / "bin/python"
        self.master = path / "bin/mooncake_master"
        self.bench = path / "bin/mooncake_bench"

    def use_build(self, python, pythonpath, master, bench):
        """Takes the parts of a build directory instead of an installed wheel."""
        self.python, self.master, self.bench = python, master, bench
        if pythonpath:
            self.env = {**self.env, "PYTHONPATH": os.pathsep.join([str(pythonpath), os.environ.get("PYTHONPATH", "")])}

    def version(self):
        done = subprocess.run([self.master, "--version"], capture_output=True, text=True, env={**os.environ, **self.env})
        return done.stdout.strip() or done.stderr.strip()
