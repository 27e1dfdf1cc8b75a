"""docs/migration.md: its blocks are run in their order, in one shell, and so is each command of its lists; ./dev's are there."""
import os
import pathlib
import re

import pytest

from scene import Scene
from test_documents import section

TEXT = (pathlib.Path(os.environ["MC_SOURCE"]) / "docs" / "migration.md").read_text()


def commands(title):
    """What stands at "see it" below each item."""
    return re.findall(r"^  - see it: `(.*)`$", section(TEXT, title), re.M)


def blocks(text):
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


def test_blocks_and_lists(tmp_path):
    same, seen = commands("What is the same"), commands("What you will see")
    assert len(same) == 6 and len(seen) == 9 and len(blocks(TEXT)) == 7
    with Scene(tmp_path) as scene:
        if not scene.real:
            pytest.skip("the page's ports may be in use here")
        # Both lists speak of the cluster that the blocks start, so they come before the last block, which kills its master.
        *first, last = blocks(TEXT)
        lines = ["set -em", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", *first,
                 *(f"echo '# {i}' >&2\n{command}" for i, command in enumerate(same + seen) if not command.startswith("./dev")), last, "echo all of it"]
        (scene.folder / "page.sh").write_text("\n".join(lines))
        said = scene.run("timeout 55 bash -x page.sh 2>&1 || echo FAILED")
        assert said.rstrip().endswith("all of it") or "\nall of it\n" in said, said[-3000:]


def test_metrics_that_are_named():
    known = (pathlib.Path(os.environ["MC_SOURCE"]) / "docs" / "metrics.md").read_text()
    named = re.findall(r"`((?:master|mooncake)_\w+(?:_total|_bytes|_clients))`", TEXT)
    assert len(named) > 3
    for name in named:
        assert f"`{name}`" in known, name
