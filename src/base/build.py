"""Writes the C file of src/base/build.h: build.py SOURCE OUTPUT [COMMIT]. In an archive, or in somebody else's repository, there is no commit.
With OUTPUT "-" it prints the file that changes when another commit is checked out, or nothing."""
import os
import subprocess
import sys


def git(source, *words):
    try:
        return subprocess.run(["git", "-C", source, *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main(source, output, commit=None):
    if commit is None:
        top = git(source, "rev-parse", "--show-toplevel")
        commit = git(source, "rev-parse", "--short=7", "HEAD") if top and os.path.realpath(top) == os.path.realpath(source) else ""
    if output == "-":
        log = git(source, "rev-parse", "--git-path", "logs/HEAD") if commit else ""
        path = os.path.join(source, log)
        print(path if log and os.path.isfile(path) else "")
        return
    name = f'MC_VERSION " (git {commit})"' if commit else "MC_VERSION"
    with open(output, "w", encoding="ascii") as file:
        file.write(f'#include "base/build.h"\n\nconst char *mc_build(void)\n{{\n    return {name};\n}}\n')


main(*sys.argv[1:])
