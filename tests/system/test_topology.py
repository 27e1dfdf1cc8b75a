"""transfer_engine_topology_dump and get_local_topology: flags, files, exit codes. What is made of sysfs is test_topology.c's."""
import json
import os
import subprocess
import sys

import pytest

from cluster import BUILD

COMMAND = BUILD / "transfer_engine_topology_dump"
MATRIX = {"cpu:0": [["mlx5_0"], ["mlx5_1"]], "cuda:1": [["mlx5_1"], []]}


def run(*arguments, **environment):
    values = {name: value for name, value in os.environ.items() if name not in ("MC_CUSTOM_TOPO_JSON", "MC_TE_FILTERS")}
    return subprocess.run([str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=30, env={**values, **environment})


def matrix(answer, mode):
    assert answer.returncode == 0, answer.stderr
    head, _, text = answer.stdout.partition(": ")
    assert head == f"Local topology [te/{mode}]"
    return json.loads(text)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(MATRIX))
    return path


def test_discovered():
    found = matrix(run(), "discover")
    assert set(found) == {name.replace("node", "cpu:") for name in os.listdir("/sys/devices/system/node") if name.startswith("node")}
    devices = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    assert all(device in devices for lists in found.values() for one in lists for device in one)


def test_a_file(file):
    assert matrix(run("--custom-topo-json", file), f"custom ({file})") == MATRIX
    assert matrix(run("--use-custom-topo", MC_CUSTOM_TOPO_JSON=str(file)), f"custom ({file})") == MATRIX
    assert matrix(run("--custom-topo-json", file, "--device-name=mlx5_1"), f"custom ({file})") == {"cpu:0": [[], ["mlx5_1"]], "cuda:1": [["mlx5_1"], []]}
    assert matrix(run("--custom-topo-json", file, MC_TE_FILTERS="mlx5_0"), f"custom ({file})") == {"cpu:0": [["mlx5_0"], []], "cuda:1": [[], []]}


def test_a_file_that_was_not_asked_for(file):
    assert "cuda:1" not in matrix(run(MC_CUSTOM_TOPO_JSON=str(file)), "discover")


def test_a_file_of_no_use(tmp_path):
    """As the original: what sysfs says; and a warning."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"cpu:0": [["mlx5_0"]]}')
    for path in (broken, tmp_path / "absent", tmp_path):
        answer = run("--custom-topo-json", path)
        assert "cpu:0" in matrix(answer, f"custom ({path})") and "mlx5_0" not in answer.stdout
        assert "MC_CUSTOM_TOPO_JSON" in answer.stderr


@pytest.mark.parametrize("arguments, code, words", [
    (["--use-custom-topo"], 1, "requires MC_CUSTOM_TOPO_JSON"),
    (["--backend", "tent"], 1, "one engine"),
    (["--backend", "other"], 2, "backend"),
    (["--no-such-flag"], 2, "no-such-flag"),
    (["word"], 2, "word"),
])
def test_refused(arguments, code, words):
    answer = run(*arguments)
    assert answer.returncode == code and words in answer.stderr and answer.stdout == ""


def test_the_module_of_python(file):
    """What `python -m` finds is the command beside it; the engine's method says the same."""
    program = "from mooncake.engine import TransferEngine; print(TransferEngine().get_local_topology('mlx5_1'))"
    environment = {**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], "MC_CUSTOM_TOPO_JSON": str(file), "PATH": f"{BUILD}:{os.environ['PATH']}"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=environment, check=True).stdout
    assert json.loads(said) == {"cpu:0": [[], ["mlx5_1"]], "cuda:1": [["mlx5_1"], []]}
    said = subprocess.run([sys.executable, "-m", "mooncake.transfer_engine_topology_dump", "--use-custom-topo", "--device-name", "mlx5_1"],
                          capture_output=True, text=True, timeout=30, env=environment, check=True).stdout
    assert json.loads(said.partition(": ")[2]) == {"cpu:0": [[], ["mlx5_1"]], "cuda:1": [["mlx5_1"], []]}
