"""Every process restarts in turn under load; a node joins and one leaves. With everything else that a run of the harness demands.

Of one version, and from the last release to this one: masters (three, with an election), nodes and clients, each met by all the others in both
versions. And back: who is not content goes back the same way.
"""
import json
import os
import pathlib
import subprocess
import sys
import warnings

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import released  # noqa: E402

LONG = pytest.mark.skipif(not os.environ.get("MC_TEST_ALL"), reason="long: ./dev test all")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes,versions", [
    ("warm", "upgrade"), ("cold", "this"),
    pytest.param("warm", "downgrade", marks=LONG), pytest.param("cold", "upgrade", marks=LONG), pytest.param("warm", "this", marks=LONG)])
def test_a_rolling_restart(tmp_path, nodes, versions):
    if versions != "this" and released.build(pathlib.Path(os.environ["MC_BUILD"]).resolve().parent) is None:
        warnings.warn(released.WHY)
        versions = "this"  # at least what can be done
    # A process of its own: it moves into namespaces.
    done = subprocess.run([sys.executable, "-B", str(HERE / "run.py"), "--rolling", "--seed", "5", "--json", str(tmp_path / "r"), "--versions", versions] +
                          ["--cold"] * (nodes == "cold"), capture_output=True, text=True, env=os.environ)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    result = json.loads((tmp_path / "r").read_text())
    assert result["operations"] > 1000 and result["violations"] == 0 and result["late calls"] == 0
    assert result["kept keys lost"] == 0 and result["fault count"] >= 8
