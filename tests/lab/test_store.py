"""The store's own tests (tests/system) with their processes spread over a laboratory's hosts."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

SYSTEM = pathlib.Path(__file__).resolve().parent.parent / "system"
# Of a store that lends the memory which it uses: in the laboratory that memory is on another host.
OWN_MEMORY = ("describe", "descriptors", "preferred_segment_and", "copy_task", "move_task", "refused_tasks", "survives_a_move", "moves_against", "replica_clear")


def run(mc_lab, files, seconds, least=6):
    # A process session that hangs is killed by the outer limit; the inner one would be judged by clocks that the laboratory moves.
    done = subprocess.run([sys.executable, "-B", "-m", "pytest", *(SYSTEM / name for name in files), "-q", "-p", "no:cacheprovider", "--rootdir", SYSTEM.parent,
                           "--timeout", "120", "-k", f"not ({' or '.join(OWN_MEMORY)})"],
                          env={**os.environ, "MC_LAB": mc_lab, "MC_SOURCE": str(SYSTEM.parent.parent)}, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= least


@pytest.mark.timeout(120)
def test_upserts_and_batches_over_a_network():
    run("0 1", ["test_python_upsert.py", "test_python_async.py"], 110)


@pytest.mark.timeout(120)
def test_what_is_read_often_from_another_host():
    run("0 1", ["test_hot.py"], 110, least=5)


@pytest.mark.skipif(not os.environ.get("MC_TEST_ALL"), reason="long: MC_TEST_ALL")
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("mc_lab", ["0 5", "0.001 1", "0.01 1"])
def test_the_stores_tests_over_a_network(mc_lab):
    run(mc_lab, ["test_python_store.py", "test_python_upsert.py", "test_python_session.py", "test_python_async.py", "test_python_replicas.py",
                 "test_python_names.py", "test_buffer_pool.py"], 900)
