"""The last release and this tree in one cluster, each in every role: master, store node, client (docs/versions.md)."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import cluster
from etcd import Etcd
from python_cluster import wait_until
from test_engine import Peer
from test_ha import epoch_of, serves

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import released  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NEW = released.Release(cluster.BUILD, os.environ["MC_PYTHONPATH"])
SIZES = (1, 4096, 65537, 3 << 20)
VERSIONS = ("old", "new")

pytestmark = pytest.mark.timeout(600)  # the first one builds the release


@pytest.fixture(scope="module")
def release():
    """Of "old" and "new"."""
    old = released.build(pathlib.Path(cluster.BUILD).resolve().parent)
    if old is None:
        pytest.skip(released.WHY)
    return {"old": old, "new": NEW}


class Client:
    """A process with a store of that release; its calls are version_client.py's."""

    def __init__(self, release, master, segment=0, data_dir="", paths=None):
        self.log = tempfile.NamedTemporaryFile(prefix="mc-version-", suffix=".log")
        environment = {**os.environ, "MC_PYTHONPATH": str(release.python_path), "MC_LOG_LEVEL": "INFO", **({"MC_PATHS": paths} if paths else {})}
        self.process = subprocess.Popen([sys.executable, "-B", HERE / "version_client.py", master.address, str(segment), str(data_dir)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment)
        self.name = None
        code = self._line()
        assert code == 0, f"setup: {code}: {self.said()}"
        self.name = self.hostname()

    def _line(self):
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended: {self.said()}"
        return json.loads(line)

    def __getattr__(self, call):
        def ask(*arguments):
            self.process.stdin.write(json.dumps({call: arguments}).encode() + b"\n")
            self.process.stdin.flush()
            return self._line()
        return ask

    def said(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def end(self):
        """Its store is closed; it must have ended well."""
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.said()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def clients():
    """Makes clients, and ends them."""
    made = []

    def make(*arguments, **more):
        made.append(Client(*arguments, **more))
        return made[-1]

    yield make
    for client in reversed(made):
        if client.process.poll() is None:
            client.end()


def with_room(client, node):
    wait_until(lambda: client.put("warm up", "x", 1 << 20, node.name) == 0 and client.segments("warm up") == [node.name] or
               client.remove("warm up") == 1)
    client.remove("warm up")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_role(release, clients, version):
    """Masters of both versions, each with a node and with clients of both, over shared memory and over tcp: whatever one stores, all read."""
    with cluster.Master("--default_kv_lease_ttl=200ms", program=release[version].build / "mooncake_master") as master:
        nodes = [clients(release[one], master, 48 << 20) for one in VERSIONS]
        users = {(one, path): clients(release[one], master, paths=path) for one in VERSIONS for path in ("shm,tcp", "tcp")}
        for node in nodes:
            with_room(users["new", "tcp"], node)
        put = []
        for (one, path), user in users.items():
            for node in nodes:
                for size in SIZES:
                    key = f"{one} {path} {nodes.index(node)} {size}"
                    assert user.put(key, key, size, node.name) == 0 and user.segments(key) == [node.name]
                    put.append((key, size))
            key = f"{one} {path} both nodes"
            assert user.put(key, key, 70_000, "", 2) == 0 and sorted(user.segments(key)) == sorted(node.name for node in nodes)
            put.append((key, 70_000))
        for user in users.values():
            assert user.exist([key for key, _ in put] + ["none"]) == [1] * len(put) + [0]
            for key, size in put:
                assert user.same(key, key, size) is True and user.size(key) == size
            assert all(user.ranges(key, key, size, session) for key, size in put[::3] for session in (False, True))
        changes(list(users.values()), nodes, put)
        if version == "new":
            tells_who_joined(master, nodes)


def tells_who_joined(master, nodes):
    """Operators see which build each node is: a rolling upgrade is followed so. The old one does not say it."""
    builds = {one["segment_name"]: one["build"] for one in json.loads(master.get("/get_segments_detail")[1])["segments"]}
    assert builds[nodes[0].name] == "an earlier build"
    assert re.fullmatch(r"\d+\.\d+\.\d+\+c\d+( \(git [0-9a-f]{7,}\))?", builds[nodes[1].name]), builds
    joined = re.findall(r"member \S+ \(\S*\) joins: (.*)", master.log())
    assert {"an earlier build", builds[nodes[1].name]} == set(joined)
    assert f"is {builds[nodes[1].name]}; this is {builds[nodes[1].name]}" in nodes[1].said()


def changes(users, nodes, put):
    """Upserts and removals by each, seen by all."""
    for turn, user in enumerate(users):
        key, size = put[turn * 9 + 2]
        assert user.upsert(key, f"changed {turn}", size + turn, nodes[turn % 2].name) == 0
        assert all(other.same(key, f"changed {turn}", size + turn) is True for other in users)
        removed, _ = put[turn * 9 + 1]
        assert user.remove(removed) == 0
        assert all(other.same(removed, removed, 1) is None for other in users)
        wanted, _ = put[turn * 9 + 8]
        assert user.remove_by_regex(f"^{wanted}$") == 1
        assert all(other.exist([wanted]) == [0] for other in users)


def ways(first, second):
    return [(first, second), (second, first)]


@pytest.mark.parametrize("before,after", ways(*VERSIONS))
def test_a_master_is_replaced_by_the_other_version(release, clients, before, after):
    """kill -9, then the other version on the same ports: owners of both versions tell it what they hold."""
    with cluster.Master(program=release[before].build / "mooncake_master") as master:
        nodes = [clients(release[one], master, 32 << 20) for one in VERSIONS]
        users = [clients(release[one], master) for one in VERSIONS]
        for node in nodes:
            with_room(users[0], node)
        put = [(f"{node} {size}", size) for node in range(2) for size in SIZES]
        for key, size in put:
            assert users[size % 2].put(key, key, size, nodes[int(key[0])].name) == 0
        master.kill()
        master.program = release[after].build / "mooncake_master"
        master.start()
        for user in users:
            for key, size in put:
                assert wait_until(lambda: user.same(key, key, size), 20) is True
            assert wait_until(lambda: user.put(f"after {users.index(user)}", "after", 5000) == 0, 20)
        assert users[0].same("after 1", "after", 5000) is True and users[1].same("after 0", "after", 5000) is True


def test_firm_pins(release, clients):
    """Promised where all who must keep it can, and nowhere else: an earlier master or owner has a soft pin."""
    not_supported = -1012
    with cluster.Master(program=release["old"].build / "mooncake_master") as master:
        old_node, new_node = [clients(release[one], master, 32 << 20) for one in VERSIONS]
        old_user, user = [clients(release[one], master) for one in VERSIONS]
        for node in (old_node, new_node):
            with_room(user, node)
        assert user.put_firm("a", "a", 5000, new_node.name, True) == not_supported and user.exist(["a"]) == [0]
        assert user.put_firm("a", "a", 5000, new_node.name, False) == 0 and user.firm_left("a") == 0
        assert user.pin_firm("a") == [not_supported] and old_user.same("a", "a", 5000) is True
        assert user.hint("a", "drop") == [not_supported] and user.same("a", "a", 5000) is True
        master.kill()
        master.program = release["new"].build / "mooncake_master"
        master.start()
        wait_until(lambda: user.same("a", "a", 5000), 20)
        assert user.firm_left("a") == 0 and master.metrics()["master_soft_pin_key_count"] == 1
        assert user.put_firm("b", "b", 5000, old_node.name, True) == 0 and user.firm_left("b") > 0
        assert user.segments("b") == [new_node.name]
        assert user.put_firm("c", "c", 5000, new_node.name, True) == 0 and user.firm_left("c") > 0
        assert user.hint("a", "drop") == [0] and old_user.same("a", "a", 5000) is True
        assert user.pin_firm("a") == [0] and user.firm_left("a") > 0 and old_user.same("a", "a", 5000) is True
        for version, count in (("old", 0), ("new", 2)):
            master.kill()
            master.program = release[version].build / "mooncake_master"
            master.start()
            for name in ("a", "b", "c"):
                wait_until(lambda name=name: old_user.same(name, name, 5000), 20)
            assert [user.firm_left(name) > 0 for name in ("a", "b", "c")] == [count > 0] * 3
        assert old_user.upsert("c", "d", 6000, new_node.name) == 0 and user.same("c", "d", 6000) is True
        assert user.firm_left("c") == 0  # that release does not know that an upsert may leave a pin


def test_places_ahead(release, clients, monkeypatch):
    """Asked for where the master grants them; a node of an earlier release takes what goes there as anything else."""
    monkeypatch.setenv("MC_STORE_BLANK_PLACES", "1")
    with cluster.Master(program=release["old"].build / "mooncake_master") as master:
        node, old_user, user = clients(release["old"], master, 32 << 20), clients(release["old"], master), clients(release["new"], master)
        with_room(user, node)
        for turn, version in enumerate(("old", "new", "old", "new")):
            if turn > 0:
                master.kill()
                master.program = release[version].build / "mooncake_master"
                master.start()
            keys = [f"{turn}-{number}" for number in range(20)]
            for key in keys:
                wait_until(lambda key=key: user.put(key, key, 5000) == 0, 20)
            assert [user.put(key, "another", 5000) for key in keys] == [0] * 20
            for key in keys:
                assert old_user.same(key, key, 5000) is True
            assert (master.metrics().get("mooncake_blanks_bound_total", 0) > 0) == (version == "new")


@pytest.mark.parametrize("before,after", ways(*VERSIONS))
def test_a_node_takes_up_the_data_of_the_other_version(release, clients, folder, before, after):
    """Killed, then the other version with the same data directory: what lay there is read as it was."""
    with cluster.Master(program=release[after].build / "mooncake_master") as master:
        node = clients(release[before], master, 32 << 20, folder)
        user, near = clients(release[after], master, paths="tcp"), clients(release[before], master)
        with_room(user, node)
        put = [(f"kept {size}", size) for size in SIZES]
        for key, size in put:
            assert user.put(key, key, size) == 0
        node.kill()
        again = clients(release[after], master, 32 << 20, folder)
        for key, size in put:
            for reader in (user, near):
                assert wait_until(lambda: reader.same(key, key, size), 20) is True
        assert wait_until(lambda: near.put("more", "more", 1 << 20) == 0) and user.same("more", "more", 1 << 20) is True
        assert user.segments("more") == [again.name]


@pytest.mark.parametrize("old", ["master", "node", "client"])
def test_silence_of_the_other_version(release, clients, old):
    """A stopped process of either version is passed over by the other's, and taken back."""
    of = {part: release["old" if part == old else "new"] for part in ("master", "node", "client")}
    with cluster.Master(program=of["master"].build / "mooncake_master") as master:
        nodes = [clients(of["node"], master, 32 << 20) for _ in range(2)]
        user = clients(of["client"], master, paths="tcp")
        for node in nodes:
            with_room(user, node)
        for at, node in enumerate(nodes):
            assert user.put(f"at {at}", "value", 5000, node.name) == 0
        nodes[0].process.send_signal(signal.SIGSTOP)
        try:
            assert wait_until(lambda: user.same("at 0", "value", 5000) is None)
            assert user.same("at 1", "value", 5000) is True and user.put("elsewhere", "value", 5000) == 0
            assert user.segments("elsewhere") == [nodes[1].name]
        finally:
            nodes[0].process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: user.same("at 0", "value", 5000), 20) is True


@pytest.mark.parametrize("ends", ("killed", "asked to"))
def test_masters_of_both_take_turns(release, ends):
    """One election: whoever leads, the other sees it live, follows it when it has ended, and never before."""
    with Etcd(1, "--unsafe-no-fsync") as etcd:
        masters = {which: cluster.Master("--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--cluster_id=turns",
                                         program=release[which].build / "mooncake_master") for which in VERSIONS}
        try:
            last = 0
            masters["old"].start()
            for leader, other in 2 * [("old", "new"), ("new", "old")]:
                wait_until(lambda: serves(masters[leader]), 15)
                epoch = epoch_of(masters[leader])
                assert epoch > last
                last = epoch
                if masters[other].process is None:
                    masters[other].start()
                end = time.monotonic() + 4  # two times to live
                while time.monotonic() < end:
                    assert serves(masters[leader]) and not serves(masters[other])
                    time.sleep(0.05)
                assert epoch_of(masters[leader]) == epoch
                if ends == "killed":
                    masters[leader].kill()
                else:
                    assert masters[leader].stop() == 0
        finally:
            for master in masters.values():
                if master.process is not None:
                    master.stop()


@pytest.mark.parametrize("path", ["host", "tcp"])
def test_engines_with_checksums(release, path):
    """Where one of two engines knows nothing of them, bytes are moved as ever, and who wanted checksums says so, once."""
    environment = {"MC_TE_CHECKSUM": "on", "MC_LOG_LEVEL": "INFO", **({"MC_FORCE_TCP": "1"} if path == "tcp" else {})}
    with (tempfile.TemporaryFile("w+") as said, Peer(log=said, **environment) as new,
          Peer(**{**environment, "MC_PYTHONPATH": str(release["old"].python_path)}) as old):
        for asker, other in ((new, old), (old, new)):
            for size in (1, 65537, 5 << 20):
                assert asker.ask("fill", 0, size, size % 251) == "ok"
                assert asker.ask("write", other.target, other.address, size) == "0"
                assert other.ask("crc", 0, size) == asker.ask("crc", 0, size)
                assert other.ask("fill", 0, size, size % 249) == "ok"
                assert asker.ask("read", other.target, other.address, size) == "0"
                assert other.ask("crc", 0, size) == asker.ask("crc", 0, size)
        said.seek(0)
        assert said.read().count(f"{old.target} cannot compare checksums") == 1
