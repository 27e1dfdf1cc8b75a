"""A master with --harden: it has given up what it does not need, and does its work all the same."""
import os
import pathlib
import pwd
import re
import subprocess

import pytest

import cluster
from etcd import Etcd
from python_cluster import MISSING, joined, wait_until
from store_process import StoreProcess

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")  # of capabilities
UID = 64321  # of the user mooncake, whom a mount namespace of the test's own has


@pytest.fixture(scope="module")
def with_user(tmp_path_factory):
    """A program that runs the master where there is a user mooncake."""
    folder = tmp_path_factory.mktemp("user")
    people = folder / "passwd"
    people.write_text(pathlib.Path("/etc/passwd").read_text(encoding="utf-8") + f"mooncake:x:{UID}:{UID}::/nonexistent:/usr/sbin/nologin\n", encoding="utf-8")
    program = folder / "master"
    program.write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'mount --bind {people} /etc/passwd && exec "$@"\' - {cluster.MASTER} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


def hardened(program, *flags, **more):
    master = cluster.Master("--harden", *flags, program=program, **more)
    os.chown(master.state_dir.name, UID, UID)
    return master


def standing(master):
    text = pathlib.Path(f"/proc/{master.pid}/status").read_text(encoding="utf-8")
    return {name: re.search(rf"^{name}:[ \t]*(.*)$", text, re.M).group(1).split() for name in ("Uid", "Gid", *SETS, "NoNewPrivs", "Seccomp", "Groups")}


def test_what_it_is(with_user):
    with hardened(with_user) as master:
        found = standing(master)
        assert set(found["Uid"] + found["Gid"]) == {str(UID)} and found["Groups"] == []
        assert {name: int(found[name][0], 16) for name in SETS} == dict.fromkeys(SETS, 0)
        assert found["NoNewPrivs"] == ["1"] and found["Seccomp"] == ["2"]
        for thread in pathlib.Path(f"/proc/{master.pid}/task").iterdir():
            status = (thread / "status").read_text(encoding="utf-8")
            assert re.search(r"^Seccomp:\s+2$", status, re.M) and len(re.findall(r"^Cap\w+:\s+0+$", status, re.M)) == len(SETS)
        assert f"hardened: user {UID}" in master.log()


def test_what_another_user_has_been_given():
    """A service manager may give one who is not root a capability: it goes, too. The set of what could be gained stays his, and is of no use."""
    given = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw"]
    status = subprocess.run([*given, "cat", "/proc/self/status"], capture_output=True, text=True, timeout=20).stdout
    assert int(re.search(r"^CapEff:\s+(\w+)$", status, re.M).group(1), 16) == 1 << 13  # so it has one
    master = cluster.Master("--harden", before=given)
    os.chown(master.state_dir.name, UID, UID)
    with master:
        found = standing(master)
        assert set(found["Uid"]) == {str(UID)} and found["NoNewPrivs"] == ["1"]
        assert {name: int(found[name][0], 16) for name in SETS if name != "CapBnd"} == dict.fromkeys(set(SETS) - {"CapBnd"}, 0)


def test_what_it_does(with_user, tmp_path):
    """Values, removals (which wait for the note on the disk), metrics, the metadata server, a restart, a log of its own."""
    tmp_path.chmod(0o755)
    logs = tmp_path / "log"
    logs.mkdir()
    os.chown(logs, UID, UID)
    with hardened(with_user, f"--log_dir={logs}", metadata=True) as master, StoreProcess(master.address):
        client = joined(master, 0)
        wait_until(lambda: client.put("kept", b"value" * 1000) == 0)
        assert client.put("gone", b"value") == 0 and client.remove("gone", True) == 0
        master.kill()
        master.start()
        wait_until(lambda: client.get("kept") == b"value" * 1000, 20)
        wait_until(lambda: client.remove_by_regex("^gone$", True) == 0, 20)
        assert client.get_size("gone") == MISSING
        assert master.get("/health")[0] == 200 and master.metrics()["master_put_start_requests_total"] >= 0
        put = cluster.request(master.metadata_port, "PUT", "/metadata?key=a", b"{}", host=master.bound)
        assert put[0] == 200
        note = next(pathlib.Path(master.state_dir.name).glob("*.note"))
        assert note.stat().st_uid == UID
        assert [path.stat().st_uid for path in logs.iterdir()]
        client.close()


def test_it_is_elected(with_user):
    with Etcd() as etcd, hardened(with_user, "--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--cluster_id=hard") as master:
        with StoreProcess(master.address):
            client = joined(master, 0)
            wait_until(lambda: client.put("k", b"value") == 0, 20)
            assert client.get("k") == b"value"
            client.close()


def test_without_such_a_user():
    with pytest.raises(KeyError):
        pwd.getpwnam("mooncake")
    ran = subprocess.run([cluster.MASTER, "--harden", "--rpc_port=0", "--metrics_port=0"], capture_output=True, text=True, timeout=20)
    assert ran.returncode == 1 and "there is no user mooncake: make one" in ran.stderr


def test_keys_that_the_user_cannot_read(with_user, tmp_path):
    """Found out at the start, and not when they are read again."""
    keys = tmp_path / "keys"
    keys.write_text("# none\n", encoding="utf-8")
    keys.chmod(0o600)
    ran = subprocess.run([with_user, "--harden", "--rpc_port=0", "--metrics_port=0", f"--auth_file={keys}"], capture_output=True, text=True, timeout=20)
    assert ran.returncode == 1 and str(keys) in ran.stderr and "Permission denied" in ran.stderr


def test_it_writes_its_quotas(with_user, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quotas")
    for place in (folder, *folder.parents[:2]):
        place.chmod(0o755)
    file = folder / "quotas.yaml"
    file.write_text("version: 1\ntenants: []\n", encoding="utf-8")
    os.chown(folder, UID, UID)
    with hardened(with_user, "--enable_multi_tenants", f"--tenant_quota_connector_uri={file}") as master:
        status, _answer = cluster.request(master.metrics_port, "PUT", "/api/v1/tenant_quotas?tenant_id=blue", b'{"requested_quota_bytes": 5}')
        assert status == 200 and "quota: 5" in file.read_text(encoding="utf-8")
