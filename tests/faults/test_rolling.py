"""Every process restarts in turn under load; a node joins and one leaves. With everything else that a run of the harness demands."""
import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", ["warm", "cold"])
def test_a_rolling_restart(tmp_path, nodes):
    run = pathlib.Path(__file__).resolve().parent / "run.py"
    # A process of its own: it moves into namespaces.
    done = subprocess.run([sys.executable, "-B", str(run), "--rolling", "--seed", "5", "--json", str(tmp_path / "r")] + ["--cold"] * (nodes == "cold"),
                          capture_output=True, text=True, env=os.environ)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    result = json.loads((tmp_path / "r").read_text())
    assert result["operations"] > 1000 and result["violations"] == 0 and result["late calls"] == 0
    assert result["fault count"] >= 8
