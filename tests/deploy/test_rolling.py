"""The chart's cluster in namespaces, every pod of it replaced under load, with a disk and without."""
import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
DISK = {"store": {"disk": {"enabled": True, "bytes": 1 << 40}}}


def roll(manifest, root, folder, *words):
    done = subprocess.run([sys.executable, "-B", str(HERE / "rolling.py"), str(manifest), str(root), str(folder), *words], capture_output=True, text=True,
                          timeout=550, check=False)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-12000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"\ndeploy: {manifest.parent.name} {json.dumps(result)}")
    return result


@pytest.mark.parametrize("values, ends", [({}, "at other nodes"), (DISK, "on the disk")], ids=["memory", "disk"])
def test_an_update_under_load(rendered, root, tmp_path, values, ends):
    result = roll(rendered(**values), root, tmp_path)
    assert {name: count for name, (count, _) in result["phases"].items()} == {"mooncake-store": 6, "mooncake-master": 3, "mooncake-etcd": 3}
    assert result["calls"] > 1000 and result["objects"] > 200
    assert result["failed"] == [] and result["wrong"] == 0 and result["lost"] == 0, result
    assert [line for line in result["leaving"] if line.startswith("all")] == [f"all that lay in memory is {ends}"], result["leaving"]
    assert result["hit_ratio"] > 0.8


def test_without_a_grace_it_loses(rendered, root, tmp_path):
    """The same measure, of stores that end at once: the test above can fail."""
    manifest = rendered()
    manifest.write_text(manifest.read_text().replace(", --drain_on_exit, --exit_grace_s=100]", ", --exit_grace_s=0]"))
    result = roll(manifest, root, tmp_path, "mooncake-store", "2")
    assert result["phases"]["mooncake-store"][0] == 2
    assert result["lost"] > 0 and result["wrong"] == 0 and result["failed"] == [], result


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_containers_are_started_again(rendered, root, tmp_path, how):
    """The next container of the same pod takes up the memory that it finds; the one before has saved nothing elsewhere."""
    manifest = rendered()
    manifest.write_text(manifest.read_text().replace(", --drain_on_exit", ""))
    result = roll(manifest, root, tmp_path, "mooncake-store", "2", how)
    assert result["phases"]["mooncake-store"][0] == 2 and result["leaving"] == []
    assert result["lost"] == 0 and result["wrong"] == 0 and result["failed"] == [], result
