"""Pods of a manifest as containers on this machine: commands, environment, volumes, users, probes, hooks and grace are read from it, and only what is
told to `Cluster` is replaced (sizes, images). What a pod asks of the machine (cpu, memory) is not enforced.

    cluster = Cluster(folder, network, images={"mooncake:0.5.0-c1": root}, environment={"MOONCAKE_GLOBAL_SEGMENT_SIZE": "64mb"})
    cluster.apply(documents)         # starts what Deployments and StatefulSets say, waits until all are ready
    cluster.roll("store")            # the update that Kubernetes makes of it, by its strategy

There are no threads: `wait` looks at every probe that is due.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "faults", HERE.parent / "lab"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from resolver import Resolver  # noqa: E402

NAMESPACE, ZONE, OBSERVER = "default", "default.svc.cluster.local", "10.77.0.254"


def expand(text, variables):
    """$(NAME) as the kubelet replaces it: only what is known, and $$(NAME) is $(NAME)."""
    return re.sub(r"\$(\$\([^)]*\))|\$\((\w+)\)", lambda found: found[1] or variables.get(found[2], found[0]), str(text))


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Probe:
    """One probe of a container: is_well() after so many answers of a kind."""

    def __init__(self, pod, said, ports, at_first):
        self.pod, self.said, self.ports, self.is_good = pod, said, ports, at_first
        self.failures = self.successes = 0
        self.due = time.monotonic() + said.get("initialDelaySeconds", 0)

    def ask(self):
        timeout = self.said.get("timeoutSeconds", 1)
        if "exec" in self.said:
            return self.pod.execute(self.said["exec"]["command"], timeout) == 0
        kind = "httpGet" if "httpGet" in self.said else "tcpSocket"
        port = self.said[kind]["port"]
        port = self.ports.get(port, port)
        try:
            if kind == "tcpSocket":
                socket.create_connection((self.pod.address, port), timeout).close()
                return True
            connection = http.client.HTTPConnection(self.pod.address, port, timeout=timeout)
            connection.request("GET", self.said[kind]["path"])
            status = connection.getresponse().status
            connection.close()
            return 200 <= status < 400
        except (OSError, http.client.HTTPException):
            return False

    def look(self):
        if time.monotonic() < self.due:
            return
        good = self.ask()
        self.due = time.monotonic() + self.said.get("periodSeconds", 10)
        self.successes, self.failures = (self.successes + 1, 0) if good else (0, self.failures + 1)
        if good and self.successes >= self.said.get("successThreshold", 1):
            self.is_good = True
        if self.failures >= self.said.get("failureThreshold", 3):
            self.is_good = False


class Pod:
    def __init__(self, cluster, name, template, claims=(), domain=None, host=None):
        self.cluster, self.name, self.template, self.claims, self.domain = cluster, name, template, claims, domain
        self.label = f"{name}.{cluster.started}"
        self.host = host or cluster.network.host(self.label)
        self.has_own_host = host is None
        cluster.started += 1
        self.address = self.host.address
        self.folder = cluster.folder / self.label
        self.process = None
        self.ready_since, self.restarts = None, 0
        [self.main] = template["spec"]["containers"]
        self.container = self.main
        self.log = cluster.folder / f"{self.label}.log"

    # -- what it is told --

    def field(self, path):
        found = {"status.podIP": self.address, "metadata.name": self.name, "metadata.namespace": NAMESPACE, "spec.nodeName": "node-" + self.name}
        return found[path]

    def variables(self):
        found = {}
        for one in self.container.get("env", ()):
            value = self.field(one["valueFrom"]["fieldRef"]["fieldPath"]) if "valueFrom" in one else expand(one.get("value", ""), found)
            found[one["name"]] = value if value == "0" else self.cluster.environment.get(one["name"], value)
        return found

    def security(self, name, default=None):
        return self.container.get("securityContext", {}).get(name, self.template["spec"].get("securityContext", {}).get(name, default))

    def mounts(self):
        """[(source, target, read only)]; emptyDir and hostPath as the kubelet makes them, a claim for each pod of a StatefulSet."""
        sources = {}
        group = self.template["spec"].get("securityContext", {}).get("fsGroup", 0)
        for volume in self.template["spec"].get("volumes", ()):
            if "emptyDir" in volume:
                in_memory = volume["emptyDir"].get("medium") == "Memory"
                path = (self.cluster.memory if in_memory else self.folder) / f"{self.label}-{volume['name']}"
            elif "hostPath" in volume:
                path = self.cluster.folder / "node" / volume["hostPath"]["path"].lstrip("/")
            else:
                path = self.cluster.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            sources[volume["name"]] = path
        for claim in self.claims:
            sources[claim["metadata"]["name"]] = self.cluster.folder / "claims" / f"{claim['metadata']['name']}-{self.name}"
        for path in sources.values():
            path.mkdir(parents=True, exist_ok=True)
            if group or path.parent in (self.cluster.memory, self.folder):
                os.chown(path, -1, group)
                path.chmod(0o2777)
        found = [(str(sources[one["name"]]), one["mountPath"], one.get("readOnly", False)) for one in self.container.get("volumeMounts", ())]
        return found + [(str(self.cluster.folder / pathlib.Path(path).name), path, True) for path in self.cluster.files]

    def spec(self):
        image = self.cluster.images[self.container["image"]]
        variables = self.variables()
        user = self.security("runAsUser", image.user)
        assert user != 0 or not self.security("runAsNonRoot"), f"{self.name}: the image's user is root, and it may not be"
        words = list(self.container.get("command", ())) + list(self.container.get("args", ()))
        if "command" not in self.container and not self.container.get("args"):
            words = image.command
        place = self.folder / f"{self.container.get('name', 'main')}.{self.restarts}"
        at = place / "root"
        at.mkdir(parents=True)
        root = image.root
        if root != pathlib.Path("/"):
            root = place / "copy"
            subprocess.run(["cp", "-al", image.root, root], check=True)
            for path in self.cluster.files:
                (root / path.lstrip("/")).touch()
        drops = "ALL" in self.container.get("securityContext", {}).get("capabilities", {}).get("drop", ())
        return {"root": str(root), "at": str(at), "mounts": self.mounts(), "read_only": bool(self.security("readOnlyRootFilesystem")), "hostname": self.name,
                "folder": image.folder, "user": user, "group": self.security("runAsGroup", user), "groups": [self.security("fsGroup", user)],
                "capabilities": [] if drops else list(range(64)), "no_new_privileges": self.security("allowPrivilegeEscalation", True) is False,
                "command": [expand(word, variables) for word in words], "environment": {**image.environment, **self.cluster.extra, **variables}}

    # -- life --

    def start(self):
        self.folder.mkdir()
        for self.container in self.template["spec"].get("initContainers", ()):
            self.run()
            assert self.process.wait(60) == 0, f"{self.name}: {self.container['name']} failed: {self.said()[-3000:]}"
        self.container = self.main
        self.run()
        self.probe()
        return self

    def probe(self):
        ports = {one["name"]: one["containerPort"] for one in self.container.get("ports", ()) if "name" in one}
        self.probes = {kind: Probe(self, self.container[kind], ports, kind == "livenessProbe")
                       for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in self.container}

    def crash(self, number=signal.SIGKILL):
        """Its process gets that signal and ends; another container follows in the same pod, as restartPolicy says by default."""
        assert self.template["spec"].get("restartPolicy", "Always") == "Always"
        os.kill(self.pid, number)
        self.process.wait()
        self.ready_since, self.restarts = None, self.restarts + 1
        self.run()
        self.probe()

    def run(self):
        spec = self.spec()
        with open(self.log, "ab") as log:
            self.process = self.host.popen([sys.executable, "-B", HERE / "container.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.process.stdin.write(json.dumps(spec) + "\n")
        self.process.stdin.close()
        self.pid = int(self.process.stdout.readline() or 0)
        assert self.pid, f"{self.name} did not start: {self.said()}"
        self.user, self.group, self.environment = spec["user"], spec["group"], spec["environment"]

    def said(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def look(self):
        """Its probes, in Kubernetes' order: the others wait for startupProbe."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.said()[-3000:]}"
        startup = self.probes.get("startupProbe")
        if startup is not None and not startup.is_good:
            startup.look()
            assert startup.failures < startup.said.get("failureThreshold", 3), f"{self.name}: startupProbe failed: {self.said()[-3000:]}"
            return
        for kind in ("readinessProbe", "livenessProbe"):
            if kind in self.probes:
                self.probes[kind].look()
        assert "livenessProbe" not in self.probes or self.probes["livenessProbe"].is_good, f"{self.name}: livenessProbe failed: {self.said()[-3000:]}"
        ready = "readinessProbe" not in self.probes or self.probes["readinessProbe"].is_good
        if ready != (self.ready_since is not None) and not self.cluster.publishes_at_once(self):
            self.cluster.publish(self, self.address if ready else None)
        self.ready_since = (self.ready_since or time.monotonic()) if ready else None

    def is_ready(self, for_s=0):
        return self.ready_since is not None and time.monotonic() - self.ready_since >= for_s

    def execute(self, command, timeout=60):
        """`kubectl exec`; its exit code."""
        words = ["nsenter", "--target", self.pid, "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd", "--setuid", self.user, "--setgid", self.group,
                 "--", *command]
        with open(self.log, "ab") as log:
            try:
                return subprocess.run([str(word) for word in words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      timeout=timeout).returncode
            except subprocess.TimeoutExpired:
                return 124

    def terminate(self):
        """As the kubelet ends a pod: hook, SIGTERM, and SIGKILL when the grace is over, which is a failure here."""
        end = time.monotonic() + self.template["spec"].get("terminationGracePeriodSeconds", 30)
        self.cluster.pods.remove(self)
        self.cluster.publish(self, None)
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook:
            assert self.execute(hook["exec"]["command"], end - time.monotonic()) == 0, f"{self.name}: preStop failed: {self.said()[-2000:]}"
        os.kill(self.pid, signal.SIGTERM)
        self.cluster.wait(lambda: self.process.poll() is not None, end - time.monotonic(), f"an end of {self.name} within its grace")
        code = self.process.returncode
        self.end()
        return code

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            deadline = time.monotonic() + 30
            while is_running(self.pid):
                assert time.monotonic() < deadline, f"{self.name}: process {self.pid} outlives its container"
                time.sleep(0.01)
        if self.has_own_host:
            self.host.end()
            self.cluster.network.hosts.pop(self.host.name, None)
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self.cluster.memory.glob(f"{self.label}-*"):
            shutil.rmtree(path, ignore_errors=True)


class Image:
    def __init__(self, root, environment=None, user=0, command=(), folder="/"):
        self.root, self.environment, self.user, self.command, self.folder = pathlib.Path(root), environment or {}, user, list(command), folder


class Cluster:
    def __init__(self, folder, network, images, environment=None, extra=None):
        self.folder, self.network, self.images, self.environment, self.extra = pathlib.Path(folder), network, images, environment or {}, extra or {}
        self.memory = pathlib.Path("/dev/shm") / f"mc-pods-{os.getpid()}"
        self.memory.mkdir()
        self.resolver = Resolver(OBSERVER)
        self.files = {"/etc/resolv.conf": f"search {ZONE}\nnameserver {OBSERVER}\noptions ndots:5\n", "/etc/hosts": "127.0.0.1 localhost\n"}
        for name, text in self.files.items():
            (self.folder / pathlib.Path(name).name).write_text(text, encoding="ascii")
        self.pods, self.workloads, self.services, self.started = [], {}, [], 0

    def publish(self, pod, address):
        """What cluster DNS says of a pod of a StatefulSet; None: nothing. A service of Compose has its bare name."""
        if pod.domain is not None:
            self.resolver.name(f"{pod.name}.{pod.domain}.{ZONE}" if pod.domain else pod.name, address)

    def publishes_at_once(self, pod):
        """Compose's network knows a container's name from its start on, cluster DNS that of a pod when it is ready, or as its service says."""
        return pod.domain == "" or any(one["metadata"]["name"] == pod.domain and one["spec"].get("publishNotReadyAddresses") for one in self.services)

    def wait(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not come within {seconds:.0f} s"
            for pod in list(self.pods):
                pod.look()
            time.sleep(0.05)

    def pod_of(self, workload, name):
        claims = workload["spec"].get("volumeClaimTemplates", ())
        pod = Pod(self, name, workload["spec"]["template"], claims, workload["spec"].get("serviceName"))
        pod.workload = workload["metadata"]["name"]
        self.pods.append(pod)
        if self.publishes_at_once(pod):
            self.publish(pod, pod.address)
        return pod.start()

    def of(self, workload):
        return [pod for pod in self.pods if pod.workload == workload]

    def apply(self, documents, seconds=120):
        self.services += [one for one in documents if one["kind"] == "Service"]
        for one in documents:
            if one["kind"] in ("StatefulSet", "Deployment"):
                self.workloads[one["metadata"]["name"]] = one
                for i in range(one["spec"]["replicas"]):
                    self.pod_of(one, f"{one['metadata']['name']}-{i}")
        self.wait(lambda: all(pod.is_ready() for pod in self.pods), seconds, "readiness of all pods")

    def roll(self, name, most=99, seconds=120):
        """Every pod, or so many, is replaced by one of the manifest, as its strategy says. Returns the exit codes of those that were there."""
        workload = self.workloads[name]
        spec, codes = workload["spec"], []
        settle = spec.get("minReadySeconds", 0)
        if workload["kind"] == "Deployment":
            limits = spec["strategy"]["rollingUpdate"]
            assert limits == {"maxSurge": 1, "maxUnavailable": 0}, limits  # what is played here
            for number, old in enumerate(self.of(name)[:most]):
                new = self.pod_of(workload, f"{name}-new{number}")
                self.wait(lambda new=new: new.is_ready(settle), seconds, f"readiness of {new.name}")
                codes.append(old.terminate())
        else:
            assert spec.get("updateStrategy", {"type": "RollingUpdate"})["type"] == "RollingUpdate"
            for old in sorted(self.of(name), key=lambda pod: -int(pod.name.rsplit("-", 1)[1]))[:most]:
                codes.append(old.terminate())
                new = self.pod_of(workload, old.name)
                self.wait(lambda new=new: new.is_ready(settle), seconds, f"readiness of {new.name}")
        return codes

    def end(self):
        for pod in list(self.pods):
            pod.end()
        self.resolver.end()
        shutil.rmtree(self.memory, ignore_errors=True)
