"""Masters that are elected by a Lease of Kubernetes, against a stand-in for its API server: one leads, whatever the server and the network do."""
import json
import os
import subprocess
import threading
import time

import pytest

from api_server import ApiServer
from certificates import Authority
from cluster import BUILD, MASTER, SANITIZED, Master, hold_still, wait_until
from python_cluster import MooncakeDistributedStore
from store_process import StoreProcess
from test_ha import epoch_of, exists, health, is_closed, role, serves
from wire import ROLE_CALL, Connection, hello

SLOW = 4 if SANITIZED else 1
LEASE = "prod/mooncake"
TTL_MS = 2000
PATIENT = "--ha_lease_ttl=15000"  # where a leadership must not end, however busy this machine is


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("lease"), "ca")


@pytest.fixture()
def api(ca, tmp_path):
    with ApiServer(tmp_path, ca) as server:
        yield server


class Pod(Master):
    """A master that thinks it runs in a pod of its own."""

    def __init__(self, api, name, *flags):
        super().__init__("--enable_ha", "--ha_backend_type=k8s", f"--ha_backend_connstring={LEASE}", f"--ha_lease_ttl={TTL_MS}", *flags)
        self.name_of_account, self.environment = name, api.account(name)
        if f"prod/{name}" in api.pods:
            self.environment.update(POD_NAME=name, POD_NAMESPACE="prod")

    def start(self):
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            return super().start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


class Pods:
    """Some masters. While they run somebody asks all of them who leads; at the end no two led at once, no epoch came twice, and no log has a token."""

    def __init__(self, api, count=3, *flags):
        self.api, self.all = api, [Pod(api, f"pod{i}", *flags) for i in range(count)]
        self.claims, self.is_over = [], False

    def __enter__(self):
        for pod in self.all:
            pod.start()
        return self

    def leader(self, among=None, timeout_s=20 * SLOW):
        return wait_until(lambda: [one for one in (among or self.all) if one.process is not None and serves(one)], timeout_s, "a leader")[0]

    def others(self, one):
        return [pod for pod in self.all if pod is not one]

    def __exit__(self, kind, *unused):
        logs = []
        for pod in self.all:
            if pod.process is not None:
                pod.process.send_signal(18)
                code = pod.stop()
                assert kind or code == 0, pod.log()[-4000:]
            logs.append(open(pod.log_file.name, errors="replace").read())
            pod.log_file.close()
            pod.state_dir.cleanup()
        if kind is None:
            assert not any(token in log for token in self.api.secrets() for log in logs)
            check_history(self.api)


def claim_of(lease):
    return lease["metadata"].get("annotations", {}).get("mooncake.io/claim", "")


def check_history(api):
    """Epochs only rise, each is one claim's, and nobody takes over from one that renews."""
    epochs, seen = [], None
    history = [lease for _, key, lease in api.history if key == LEASE]
    for lease in history:
        claim = claim_of(lease)
        if claim and claim.removesuffix(" resigned") != seen:
            seen = claim.removesuffix(" resigned")
            epochs.append(int(claim.split()[0]))
        spec = lease["spec"]
        assert spec["leaseDurationSeconds"] >= 1 and (spec["holderIdentity"] == "" or ":" in spec["holderIdentity"])
    assert epochs == sorted(set(epochs)), epochs
    by_claim = {}
    for lease in history:
        holder = lease["spec"]["holderIdentity"]
        if claim_of(lease) and not claim_of(lease).endswith("resigned") and holder == lease["metadata"]["annotations"]["mooncake.io/holder"]:
            by_claim.setdefault(int(claim_of(lease).split()[0]), set()).add(holder)
    assert all(len(holders) == 1 for holders in by_claim.values()), by_claim


def test_one_leads_and_the_lease_says_so(api):
    with Pods(api) as pods:
        leader = pods.leader()
        lease = api.leases[LEASE]
        assert lease["spec"]["holderIdentity"] == leader.address and lease["spec"]["leaseDurationSeconds"] == TTL_MS // 1000
        assert int(claim_of(lease).split()[0]) == epoch_of(leader)
        assert role(leader) == "leader" and health(leader)["view_version"] == epoch_of(leader)
        for standby in pods.others(leader):
            wait_until(lambda: (hello(standby.port) or (0, 0, ""))[2] == leader.address, 10 * SLOW, "the leader's address")
            assert role(standby) == "standby"
        version = lease["metadata"]["resourceVersion"]
        wait_until(lambda: api.leases[LEASE]["metadata"]["resourceVersion"] != version, 10 * SLOW, "a renewal")
        assert api.leases[LEASE]["spec"]["acquireTime"] == lease["spec"]["acquireTime"]


def test_a_leader_that_is_killed_is_followed_and_its_epoch_is_gone(api):
    """Again and again, by kill and by SIGTERM; store nodes and clients find who leads by k8s://."""
    with Pods(api) as pods:
        os.environ.update(api.environment)
        node, store = StoreProcess("k8s://" + LEASE).start(), MooncakeDistributedStore()
        try:
            leader, epochs = pods.leader(), []
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "k8s://" + LEASE) == 0
            wait_until(lambda: store.put("key", b"value") == 0, 30 * SLOW, "a put")
            for number in range(4):
                epochs.append(epoch_of(leader))
                leader.kill() if number % 2 == 0 else leader.stop()
                after = pods.leader(pods.others(leader))
                leader.start()
                leader = after
                wait_until(lambda: store.get("key") == b"value", 30 * SLOW, "the value under the next leader")
            epochs.append(epoch_of(leader))
            assert epochs == sorted(set(epochs))
            assert api.leases[LEASE]["spec"]["leaseTransitions"] >= 4
        finally:
            store.close()
            node.stop()
            for name in api.environment:
                os.environ.pop(name)


def labelled(api):
    """Which pods a Service that chooses by the label would send calls to."""
    return [pod.removeprefix("prod/") for pod, labels in sorted(api.pods.items()) if labels.get("mooncake.io/store-role") == "leader"]


def is_chosen(api, pod):
    wait_until(lambda: labelled(api) == [pod.name_of_account], 20 * SLOW, "the label of the leader's pod alone")


def test_another_clusters_master_at_a_dead_holders_address(api):
    """The Lease names it still, and nobody renews it: who belongs to the dead one's cluster does not take the other for its leader."""
    with Pods(api, 1, "--cluster_uuid=" + "aa" * 16) as pods, Master("--cluster_uuid=" + "bb" * 16) as other:
        leader = pods.leader()
        wait_until(lambda: "this is cluster aa" in leader.log(), 30 * SLOW, "its cluster")
        port, pod = leader.port, pods.all[0]
        with StoreProcess(f"k8s://{LEASE}", size=0, **api.environment) as client:
            time.sleep(2)  # heartbeats have told which cluster that is
            pod.kill()
            other.stop()
            other.port = port
            other.start()
            wait_until(lambda: "is known when its name is looked up anew" in client.log(), 30 * SLOW, "the refusal")
            time.sleep(8)  # longer than between two tries
            assert "goes there" not in client.log()
        other.port = 0


def test_the_leaders_pod_has_the_label_and_no_other(api):
    """Through an end, a kill, a restart in the same pod; other labels stay. A leader that is cut off cannot take its label away: it does later."""
    api.pods.update({f"prod/pod{number}": {"app": "mooncake"} for number in range(3)})
    api.pods["prod/pod0"]["mooncake.io/store-role"] = "leader"  # of a process before it in the same pod
    with Pods(api) as pods:
        leader = pods.leader()
        is_chosen(api, leader)
        assert leader.stop() == 0
        assert leader.name_of_account not in labelled(api)
        leader.start()
        is_chosen(api, pods.leader())
        leader = pods.leader()
        leader.kill()
        after = pods.leader(pods.others(leader))
        wait_until(lambda: after.name_of_account in labelled(api), 20 * SLOW, "the label of the next leader")
        leader.start()
        is_chosen(api, after)
        api.cut_off.add(after.name_of_account)
        other = pods.leader(pods.others(after))
        wait_until(lambda: other.name_of_account in labelled(api), 20 * SLOW, "the label of the next leader")
        api.cut_off.clear()
        is_chosen(api, other)
    assert labelled(api) == [] and all(labels == {"app": "mooncake"} for labels in api.pods.values())


def test_a_leader_without_the_right_to_its_label_leads_all_the_same(api):
    """And says which verb it lacks; with the right, or when the pod is there, the label comes. Without a name of a pod nothing is asked."""
    api.verbs.remove("patch")
    api.pods["prod/pod0"] = {}
    with Pods(api, 2) as pods:
        named, nameless = pods.all
        pods.leader()
        said = wait_until(lambda: [line for line in named.log().splitlines() if " refuses PATCH " in line], 20 * SLOW, "what is missing")
        assert "(403)" in said[0] and "verb patch for pods" in said[0]
        del api.pods["prod/pod0"]
        api.verbs.add("patch")
        wait_until(lambda: "no pod has the path /api/v1/namespaces/prod/pods/pod0" in named.log(), 30 * SLOW, "that there is no such pod")
        api.pods["prod/pod0"] = {}
        if pods.leader() is nameless:
            assert nameless.stop() == 0
            pods.leader([named])
        is_chosen(api, named)
        assert "PATCH" not in nameless.log() and {pod for pod, _ in api.patches} == {"prod/pod0"}


def test_a_name_that_no_pod_can_have_is_refused(api):
    pod = Pod(api, "pod", "--pod_name=a/b", "--pod_namespace=prod")
    done = subprocess.run([BUILD / "mooncake_master", "--rpc_address=127.0.0.1", *pod.flags, "--check_config"], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "--pod_name=a/b" in done.stderr


def test_a_resigned_leader_is_followed_at_once(api):
    with Pods(api, 2) as pods:
        leader = pods.leader()
        other = pods.others(leader)[0]
        wait_until(lambda: health(other)["leader_address"] == leader.address, 10 * SLOW, "that the standby knows it")
        began = len(api.history)
        assert leader.stop() == 0
        pods.leader([other])
        since = [(at, one) for at, key, one in api.history[began:] if key == LEASE]
        resigned = [(at, one) for at, one in since if one["spec"]["holderIdentity"] == ""]
        after = [at for at, one in since if one["spec"]["holderIdentity"] == other.address]
        assert len(resigned) == 1 and claim_of(resigned[0][1]).endswith(" resigned")
        assert after[0] - resigned[0][0] < TTL_MS / 1000 * SLOW  # it need not wait for the time to live


def test_a_leader_that_is_cut_off_stops_before_another_begins(api):
    """Its requests are lost; and one that stands still loses the leadership, too. Who asks a leader of before gets no answer from it."""
    with Pods(api) as pods:
        for number in range(2):
            leader = pods.leader()
            epoch = epoch_of(leader)
            connection = Connection(leader.port, ROLE_CALL, os.urandom(16))
            assert exists(connection)
            if number == 0:
                api.cut_off.add(leader.name_of_account)
            else:
                hold_still(leader.pid)
            after = pods.leader(pods.others(leader))
            assert epoch_of(after) > epoch
            if number == 1:
                leader.process.send_signal(18)
            assert is_closed(connection, 20 * SLOW)[0]
            assert not serves(leader)
            api.cut_off.clear()
            wait_until(lambda: (hello(leader.port) or (0, 0, ""))[2] == after.address, 20 * SLOW, "that it knows its follower")


def test_nobody_leads_without_an_answer_and_the_same_may_go_on(api):
    """The API server answers 500, 503 or 429, hangs, refuses connections, or is slow: nobody serves for longer than was granted; then somebody leads."""
    with Pods(api, 2) as pods:
        def fail(code):
            api.fail = code

        troubles = [(lambda: fail(500), lambda: fail(None)), (lambda: fail(429), lambda: fail(None)),
                    (lambda: setattr(api, "is_mute", True), lambda: setattr(api, "is_mute", False)), (api.stop, api.start)]
        last = 0
        for begin, end in troubles:
            pods.leader()
            begin()
            wait_until(lambda: not any(serves(pod) for pod in pods.all), 20 * SLOW, "the end of every leadership")
            end()
            epoch = epoch_of(pods.leader(timeout_s=40 * SLOW))
            assert epoch > last
            last = epoch


def test_a_slow_api_server_is_not_absent(api):
    """Each answer takes a tenth of the time to live."""
    with Pods(api, 1, PATIENT) as pods:
        leader = pods.leader(timeout_s=60 * SLOW)
        epoch, version, api.late_s = epoch_of(leader), api.version, 1.5
        wait_until(lambda: api.version > version + 3, 60 * SLOW, "renewals")
        assert epoch_of(leader) == epoch
        api.late_s = 0


def test_tokens_that_are_rotated_and_answers_that_are_lost_cost_no_leadership(api):
    with Pods(api, 1, PATIENT) as pods:
        epoch = epoch_of(pods.leader(timeout_s=60 * SLOW))
        for _ in range(3):
            api.rotate()
            version = api.version
            wait_until(lambda: api.version > version + 1, 30 * SLOW, "renewals with the new token")
        for _ in range(3):
            api.lost_answers = 1
            wait_until(lambda: api.lost_answers == 0, 30 * SLOW, "a write whose answer is lost")
            version = api.version
            wait_until(lambda: api.version > version, 30 * SLOW, "another renewal")
        assert epoch_of(pods.leader()) == epoch


def test_what_others_write_there_stays_and_conflicts_are_no_end(api):
    """Labels, annotations and owners of other people are kept by every write; an edit between two renewals is a conflict that costs nothing."""
    with Pods(api, 1, PATIENT) as pods:
        leader = pods.leader(timeout_s=60 * SLOW)
        epoch = epoch_of(leader)

        def mark(number):
            def change(body):
                body["metadata"]["labels"] = {"app": "mooncake", "n\"o": str(number)}
                body["metadata"]["annotations"]["example.org/note"] = f"ü \\ {number}"
                body["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "mooncake", "uid": "1"}]
            return change
        for number in range(4):
            api.edit(LEASE, mark(number))
            version = api.version
            wait_until(lambda: api.version > version, 20 * SLOW, "a renewal upon it")
        version = api.version
        wait_until(lambda: api.version > version + 1, 30 * SLOW, "renewals")
        metadata = api.leases[LEASE]["metadata"]
        assert metadata["labels"] == {"app": "mooncake", "n\"o": "3"} and metadata["annotations"]["example.org/note"] == "ü \\ 3"
        assert metadata["ownerReferences"][0]["kind"] == "StatefulSet"
        assert epoch_of(leader) == epoch and serves(leader)


def test_a_lease_that_is_deleted_or_taken_ends_the_leadership(api):
    """kubectl delete lease; and another program that takes the Lease is left alone as long as it renews."""
    with Pods(api, 2) as pods:
        leader = pods.leader()
        epoch = epoch_of(leader)
        with api.lock:
            claim = claim_of(api.leases.pop(LEASE))  # perhaps before the standby has seen it
        wait_until(lambda: LEASE in api.leases and claim_of(api.leases[LEASE]) not in ("", claim), 20 * SLOW, "the next claim")
        after = pods.leader()
        assert epoch_of(after) > epoch
        epoch = epoch_of(after)

        def take(body):
            body["spec"].update(holderIdentity="stranger:1", leaseDurationSeconds=3)
        api.edit(LEASE, take)
        wait_until(lambda: not serves(after), 20 * SLOW, "its end")
        end = time.monotonic() + 4
        while time.monotonic() < end:  # it renews
            api.edit(LEASE, take)
            assert api.leases[LEASE]["spec"]["holderIdentity"] == "stranger:1" and not any(serves(pod) for pod in pods.all)
            time.sleep(0.2)
        last = time.monotonic()
        assert epoch_of(pods.leader()) > epoch
        assert time.monotonic() - last >= 2.5  # it had promised three seconds


def test_storms(api):
    """Kills, cuts, rotations, 5xx and edits at random, with somebody who looks all the time for two that serve at once."""
    import random
    chance, seen, stop = random.Random(7), [], threading.Event()
    with Pods(api) as pods:
        def look():
            while not stop.is_set():
                leading = []
                for pod in pods.all:
                    before = time.monotonic()
                    answer = hello(pod.port, 0.3) if pod.process is not None else None
                    if answer and answer[0] == 0:
                        leading.append((answer[1], before, time.monotonic()))
                seen.extend(leading)
        watcher = threading.Thread(target=look, daemon=True)
        pods.leader()
        watcher.start()
        for _ in range(8):
            victim = chance.choice(pods.all)
            what = chance.randrange(5)
            if what == 0:
                victim.kill()
                victim.start()
            elif what == 1:
                api.cut_off.add(victim.name_of_account)
                time.sleep(chance.random() * 4)
                api.cut_off.clear()
            elif what == 2:
                api.fail = 503
                time.sleep(chance.random() * 3)
                api.fail = None
            elif what == 3:
                api.rotate()
            else:
                api.lost_answers = 2
            time.sleep(chance.random())
        api.lost_answers = 0
        pods.leader(timeout_s=40 * SLOW)
        stop.set()
        watcher.join()
    first, last = {}, {}
    for epoch, begun, ended in seen:
        first[epoch], last[epoch] = min(first.get(epoch, ended), ended), max(last.get(epoch, begun), begun)
    for epoch in first:  # an answer under a later epoch came before an earlier one was asked for again
        for later in first:
            assert later <= epoch or first[later] >= last[epoch], (epoch, later, first[later], last[epoch])


# ---- what is wrong is said ----


def refused(environment, *flags):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    result = subprocess.run([str(MASTER), "--enable_ha", "--ha_backend_type=k8s", "--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0", *flags],
                            capture_output=True, text=True, timeout=60, env={**kept, **environment})
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result
    return result.stderr


def test_a_master_that_cannot_be_elected_does_not_start(api, tmp_path):
    good, bare = f"--ha_backend_connstring={LEASE}", dict(api.environment)
    empty = tmp_path / "empty"
    empty.mkdir()
    no_token = tmp_path / "no_token"
    no_token.mkdir()
    (no_token / "ca.crt").write_bytes((api.folder / "ca.crt").read_bytes())
    for environment, flags, words in (
            ({}, [good], "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server"),
            (bare, [], "--ha_backend_type=k8s needs --ha_backend_connstring"),
            (bare, ["--ha_backend_connstring=a/b/c"], "'a/b/c' is no Lease"),
            (bare, ["--ha_backend_connstring=/b"], "is no Lease"),
            (bare, ["--ha_backend_connstring=Prod/b"], "is no Lease"),
            (bare, [good, "--rpc_address=0.0.0.0"], "--rpc_address"),
            ({**bare, "MC_K8S_SERVICE_ACCOUNT_DIR": str(empty)}, [good], "ca.crt"),
            ({**bare, "MC_K8S_SERVICE_ACCOUNT_DIR": str(no_token)}, [good], "give the pod a service account")):
        assert words in refused(environment, *flags), (words, refused(environment, *flags))


def test_rights_tokens_and_certificates_that_are_wrong_are_named(api, ca, tmp_path):
    other = Authority(tmp_path, "other")
    for spoil, words in ((lambda: api.verbs.difference_update({"create", "update"}), "bind the pod's service account to a Role with the verbs get, create and update"),
                         (lambda: api.tokens.clear(), "does not know the token of this pod's service account (401)"),
                         (lambda: (api.accounts["pod"] / "ca.crt").write_bytes(other.certificate.read_bytes()), "set ca.crt to the certificate of the authority")):
        api.verbs.update({"create", "update"})
        api.accounts.pop("pod", None)
        pod = None
        folder = api.folder / "pod"
        if folder.exists():
            folder.rename(api.folder / f"pod-{time.monotonic_ns()}")
        pod = Pod(api, "pod")
        spoil()
        try:
            pod.start()
            wait_until(lambda: words in pod.log(), 20 * SLOW, words)
            assert not serves(pod)
        finally:
            log = pod.log()
            assert pod.stop() == 0
            pod.log_file.close()
            assert not any(token in log for token in api.secrets())


def test_the_doctor_finds_the_leader(api):
    with Pods(api, 1) as pods:
        leader = pods.leader()
        kept = {**os.environ, **api.environment}
        result = subprocess.run([str(BUILD / "mooncake_doctor"), "--master=k8s://" + LEASE, "--json"], capture_output=True, text=True, timeout=120, env=kept)
        said = json.dumps(json.loads(result.stdout))
        assert f"k8s://{LEASE}: {leader.address}" in said, said
        result = subprocess.run([str(BUILD / "mooncake_doctor"), "--master=k8s://prod/other"], capture_output=True, text=True, timeout=120, env=kept)
        assert "nobody leads that cluster" in result.stdout, result.stdout
