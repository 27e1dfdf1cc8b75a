"""The document for SGLang on Kubernetes: its roles as processes in network namespaces, with its commands."""
import os
import pathlib
import subprocess
import sys

import pytest


def test_the_roles_of_the_document():
    program = pathlib.Path(__file__).resolve().parent / "kubernetes.py"
    # A process of its own: it moves into namespaces.
    done = subprocess.run([sys.executable, "-B", str(program)], capture_output=True, text=True, timeout=200, env=os.environ)
    print(done.stdout[-12000:], done.stderr[-3000:])
    if done.returncode == 77:
        pytest.skip("network namespaces are not allowed here")
    assert done.returncode == 0
    assert "the second turn comes from the stores" in done.stdout and "has left at once" in done.stdout
