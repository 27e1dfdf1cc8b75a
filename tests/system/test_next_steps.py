"""What cannot be done says what to do about it: one row for each command and each of its usual troubles."""
import os
import re
import subprocess
import time

import pytest

from cluster import BUILD
from ports import free_ports

PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("MC_AUTH", "MOONCAKE_"))}
NAME = "is the name right?"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").write_text("no key, no matrix and no trace\n")
    return tmp_path


@pytest.mark.parametrize("words, code, pattern", [
    ("mooncake_key list PLACE/none", 1, rf"^mooncake_key: PLACE/none: cannot be opened: No such file or directory; {re.escape(NAME)}"),
    ("mooncake_key list PLACE/words", 1, r"^mooncake_key: PLACE/words: .*; a line is ID SECRET RIGHTS"),
    ("mooncake_key new PLACE/words a read", 1, r"^mooncake_key: PLACE/words: this is no file of keys, .*name another one"),
    ("mooncake_key new PLACE/none/keys a read", 1, rf"^mooncake_key: PLACE/none/keys: cannot be written in that folder: No such file or directory; {re.escape(NAME)}"),
    ("mooncake_disk check PLACE/none", 2, r"^PLACE/none: no disk of ours: give the folder that the node has"),
    ("mooncake_disk check PLACE/empty", 2, r"^PLACE/empty: no disk of ours: give the folder that the node has"),
    ("mooncake_bench replay PLACE/none", 2, rf"PLACE/none: cannot be opened: No such file or directory; {re.escape(NAME)}"),
    ("mooncake_bench policy PLACE/none", 2, rf"PLACE/none: cannot be opened: No such file or directory; {re.escape(NAME)}"),
    ("mooncake_bench policy --synthetic=loop --capacities=64 --write=PLACE/none/trace", 3, rf"PLACE/none/trace: cannot be written: No such file or directory; {re.escape(NAME)}"),
    ("mooncake_client --flagfile=PLACE/none", 1, rf"PLACE/none: cannot be opened: No such file or directory; {re.escape(NAME)}"),
    ("mc_store_rest_server --config=PLACE/none", 1, rf"PLACE/none: cannot be opened: No such file or directory; {re.escape(NAME)}"),
    ("mc_store_rest_server --port=0 --max_wait_time=1 --master_server_address=127.0.0.1:NOBODY", 1, r"within [\d.]+ s \(max_wait_time is 1 s\): .*; mooncake_doctor --master tries it"),
    ("transfer_engine_bench --mode=initiator --segment_id=a --metadata_server=127.0.0.1:NOBODY", 3, r"no connection; is it running there\? mooncake_doctor --metadata"),
    ("transfer_engine_topology_dump --custom_topo_json=PLACE/none", 0, r"^PLACE/none cannot be used, .* sysfs .*: name a file that this user can read"),
    ("transfer_engine_topology_dump --custom_topo_json=PLACE/words", 0, r"^PLACE/words cannot be used, .* with a matrix such as"),
])
def test_trouble_names_the_next_step(place, words, code, pattern):
    nobody = str(free_ports(1)[0])
    command, *rest = (word.replace("PLACE", str(place)).replace("NOBODY", nobody) for word in words.split())
    done = subprocess.run([BUILD / command, *rest], capture_output=True, text=True, timeout=90, env=PLAIN)
    told = done.stdout + done.stderr if command == "mooncake_disk" else done.stderr
    assert done.returncode == code and re.search(pattern.replace("PLACE", re.escape(str(place))), told, re.M), done
    assert not re.search(r"keys\.\d+", told), done  # nothing of the file beside it, which is to take its place


def test_a_key_that_nobody_may_write(place):
    """Without the name of the file beside it, which takes its place when it is whole."""
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chmod(place, 0o755)
    else:
        command = []
        os.chmod(place, 0o555)
    done = subprocess.run([*command, BUILD / "mooncake_key", "new", place / "keys", "a", "read"], capture_output=True, text=True, timeout=60, env=PLAIN)
    os.chmod(place, 0o755)
    if "Permission denied" in done.stderr and "mooncake_key: " not in done.stderr:
        pytest.skip("that user does not reach the build")
    assert done.returncode == 1 and done.stderr.startswith(f"mooncake_key: {place}/keys: cannot be written in that folder: Permission denied; run this as its owner"), done


def test_the_time_that_is_told_is_the_one_it_took(place):
    began = time.monotonic()
    done = subprocess.run([BUILD / "mc_store_rest_server", "--port=0", "--max_wait_time=1", f"--master_server_address=127.0.0.1:{free_ports(1)[0]}"], capture_output=True, text=True, timeout=90, env=PLAIN)
    took = time.monotonic() - began
    told = float(re.search(r"within ([\d.]+) s", done.stderr).group(1))
    assert took - 2 < told <= took + 0.1, (told, took)
