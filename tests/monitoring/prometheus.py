"""Debian's promtool and prometheus, in the folder MC_PROMETHEUS or on the PATH."""
import os
import shutil
import subprocess

FOLDER = os.environ.get("MC_PROMETHEUS")
PROMTOOL, PROMETHEUS = (shutil.which(name, path=FOLDER) for name in ("promtool", "prometheus"))


def promtool(*words, text=""):
    """(exit code, what it says)"""
    done = subprocess.run([PROMTOOL, *map(str, words)], input=text, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr
