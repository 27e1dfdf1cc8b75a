"""Each directory of examples/ runs, says what its README says, ends what it started, and fails when something does not start."""
import os
import pathlib
import re

import pytest

from scene import Scene
from test_service_documents import has_transfer_engine

EXAMPLES = pathlib.Path(os.environ["MC_SOURCE"]) / "examples"
LOADED = re.compile(r"^port (\d+): (\d+) tokens of prompt, (\d+) not computed here$", re.M)
# Requests whose prompt came from elsewhere, by port; and what else is said.
WANTED = {
    "fastdeploy": ({52700: 1, 52800: 1}, "master_key_count 16"),
    "vllm-store": ({8000: 4}, '"prefill_node_count":3,"decode_node_count":3'),
    "lmcache": ({8000: 1, 8001: 1}, "Keys: 9 "),
    "kubernetes-rbg": ({8000: 1}, "mooncake_disks 3"),
    "vllm-connector": ({8000: 1}, '"decode_node_count":1'),
}


@pytest.fixture
def scene(tmp_path):
    with Scene(tmp_path) as made:
        if not made.real:
            pytest.skip("the examples' ports may be in use here")
        yield made


def test_each_is_known():
    assert {path.parent.name for path in EXAMPLES.glob("*/run.sh")} == set(WANTED) == {path.parent.name for path in EXAMPLES.glob("*/README.md")}


@pytest.mark.parametrize("name", WANTED)
def test_runs(scene, name):
    if name == "vllm-connector" and not has_transfer_engine():
        pytest.skip("mooncake.engine is not built")
    said = scene.run(str(EXAMPLES / name / "run.sh"), TMPDIR=scene.folder)
    ports, words = WANTED[name]
    loaded = [(int(port), int(all_tokens), int(tokens)) for port, all_tokens, tokens in LOADED.findall(said)]
    assert {port: sum(1 for one in loaded if one[0] == port) for port in {one[0] for one in loaded}} == ports, said
    assert all(tokens == all_tokens // 4 * 4 > 0 for _, all_tokens, tokens in loaded), said
    assert words in said
    assert scene.run("ss -Hltn") == "" and not list(scene.folder.glob("mooncake-example.*"))  # nothing is left


def test_fails_when_a_port_is_taken(scene):
    scene.start("mooncake_master --port=15001", "Master service started")
    scene.run(str(EXAMPLES / "fastdeploy" / "run.sh"), code=1, TMPDIR=scene.folder)
    assert scene.run("ss -Hltn | grep -cE ':(15002|52700|52800) '", code=1).strip() == "0"
