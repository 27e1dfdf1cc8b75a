"""docs/security.md: its quick start as it is written, on a machine of its own, which has the default ports."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from cluster import BUILD

PAGE = pathlib.Path(os.environ["MC_SOURCE"]) / "docs" / "security.md"
ENGINE = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "127.0.0.1:50051")
end = time.monotonic() + 60
while code == 0 and store.put("k", b"value") != 0 and time.monotonic() < end:  # until the node lends its memory
    time.sleep(0.1)
print(code, store.get("k") if code == 0 else b"")
"""
# curl hangs with a sanitizer's runtime.
RUN = """set -eu
ip link set lo up
{made}
{master} >master.log 2>&1 & pids=$!
i=0
until LD_PRELOAD= curl -fs http://127.0.0.1:9003/health >/dev/null || [ $i -ge 300 ]; do sleep 0.1; i=$((i + 1)); done
{node} >node.log 2>&1 & pids="$pids $!"
{engine}
python your_engine.py || true
kill $pids
wait
"""


def commands():
    block = re.search(r"## Keys in six commands\n```\n(.*?)```", PAGE.read_text(), re.S).group(1)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of its own need root")
def test_the_six_commands(tmp_path):
    *made, master, node, engine = lines = commands()
    assert len(lines) == 6 and [line.split()[0] for line in made] == ["mooncake_key"] * 3
    (tmp_path / "your_engine.py").write_text(ENGINE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(shutil.which("python3"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MC_AUTH", "MC_TCP"))}
    environment |= {"PATH": f"{tmp_path / 'bin'}:{BUILD}:{os.environ['PATH']}", "PYTHONPATH": os.environ["MC_PYTHONPATH"], "TMPDIR": str(tmp_path)}
    done = subprocess.run(["unshare", "--net", "sh", "-c", RUN.format(made="\n".join(made), master=master, node=node, engine=engine)],
                          capture_output=True, text=True, timeout=150, cwd=tmp_path, env=environment)
    assert done.returncode in (0, 143), done.stderr
    printed = done.stdout.splitlines()
    assert [line.split(":")[0] for line in printed[:3]] == ["nodes", "engines", "operators"]
    assert printed[3] == "0 b'value'", (done.stderr, (tmp_path / "master.log").read_text(), (tmp_path / "node.log").read_text())
    assert printed[4].startswith("-"), "without a key it is not let in"
