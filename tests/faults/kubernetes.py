"""The roles of the document for SGLang on Kubernetes, each in a network namespace of its own, with the document's commands, environment and ports
(all from ../system/documents.py); only the sizes are smaller, and SGLang is a stand-in under its name. The stores begin before the master, as pods
may. Prints what went well; exits 0, 1, or 77 where namespaces are not allowed."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "system"):
    sys.path.insert(0, str(folder))
import stand_ins  # noqa: E402
from cluster import request, wait_until  # noqa: E402
from documents import text  # noqa: E402
from network import Network, call, unshare  # noqa: E402

CLONE_NEWNS = 0x20000
SERVICE = "s-sglang-demo-mooncake-master"
MODEL = "/models/Qwen3-32B"


def variables(*blocks):
    """A container's `env:` as Kubernetes reads it."""
    return dict(re.findall(r'- name: (\w+)\nvalue: "(.*)"', "\n".join(text(block) for block in blocks)))


def expanded(command, address):
    """What the kubelet does to a command before a shell sees it; the fold of YAML's double-quoted text before that."""
    return command.replace("\\\n", "").replace("$(POD_IP)", address)


def name_the_service(address, folder):
    """What cluster DNS does: /etc/hosts, in a mount namespace of our own."""
    unshare(CLONE_NEWNS)
    call("mount", "--make-rprivate", "/")
    hosts = pathlib.Path(folder) / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{address} {SERVICE}\n")
    call("mount", "--bind", hosts, "/etc/hosts")


def pod(host, command, log, environment, packages=""):
    path = f"{os.environ['MC_BUILD']}:{pathlib.Path(sys.executable).parent}:/usr/bin:/bin"
    with open(log, "ab") as out:
        return host.popen(["sh", "-c", "exec " + expanded(command, host.address)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                          env={"PATH": path, "PYTHONPATH": f"{packages}:{os.environ['MC_PYTHONPATH']}", "POD_IP": host.address, **environment})


def is_ready(address):
    try:
        socket.create_connection((address, 8080), timeout=1).close()
        return True
    except OSError:
        return False


def segments(master):
    return request(9003, "GET", "/get_all_segments", host=master.address)[1].decode().split()


def logs(path):
    """The line by which the document finds the stores in the master's log; here 192 MiB of them and one key."""
    shape = re.escape(text("kubernetes-rbg:243"))
    for old, new in ((r"30\.00\ GB", r"192\.00 MB"), (r"0\ B\ /", r"[\d.]+ K?B /"), ("Keys:\\ 0", "Keys: 1")):
        assert old in shape, (old, shape)
        shape = shape.replace(old, new)
    wait_until(lambda: re.search(shape, pathlib.Path(path).read_text()), 30, shape)
    print("the master's log tells of all three")


def serve(engine, folder):
    """The role sglang-backend, and the document's curl, which comes by a forwarded port: from the same host."""
    packages = stand_ins.install(pathlib.Path(folder))["python_path"][0]
    backend = pod(engine, text("kubernetes-rbg:177"), f"{folder}/sglang.log", variables("kubernetes-rbg:160", "kubernetes-rbg:166"), packages)
    wait_until(lambda: "engine serves on port 8000" in pathlib.Path(f"{folder}/sglang.log").read_text(), 30, "the engine")
    for turn in range(2):
        answer = json.loads(engine.run(["sh", "-c", text("kubernetes-rbg:249").replace("curl ", "curl -s ", 1)]).stdout)
        tokens = answer["usage"]
        assert answer["model"] == MODEL and tokens["completion_tokens"] == 30
        assert tokens["prompt_tokens_details"]["cached_tokens"] == (tokens["prompt_tokens"] // 4 * 4 if turn else 0), answer
    backend.send_signal(signal.SIGTERM)
    assert backend.wait(timeout=20) == 0
    print("the second turn comes from the stores")


def play(network, folder):
    master = network.host("master")
    name_the_service(master.address, folder)
    stores = [network.host(f"store{i}") for i in range(3)]
    engine = network.host("engine")
    lends = variables("kubernetes-rbg:108", "kubernetes-rbg:116")
    assert lends.pop("MOONCAKE_GLOBAL_SEGMENT_SIZE") == "50gb" and len(lends) == 5
    running = [pod(store, text("kubernetes-rbg:125"), f"{folder}/{store.name}.log", {**lends, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0.0625gb"}) for store in stores]
    time.sleep(2)
    assert not any(is_ready(store.address) for store in stores), "ready without a master"
    assert all(process.poll() is None for process in running), "a store did not wait for its master"
    assert "status.podIP" in text("kubernetes-rbg:81")  # what POD_IP is; see pod()
    pod(master, text("kubernetes-rbg:88"), f"{folder}/master.log", {})
    wait_until(lambda: is_ready(master.address), 20, "the master's readiness")
    for store in stores:
        wait_until(lambda: is_ready(store.address), 20, f"readiness of {store.name}")
    print("ready: the stores waited for the master")
    wait_until(lambda: len(segments(master)) == 3, 20, "three segments")
    assert sorted(name.rsplit(":", 1)[0] for name in segments(master)) == sorted(store.address for store in stores), segments(master)
    print("routable:", *segments(master))
    wait_until(lambda: request(8080, "PUT", "/api/put", b'{"key": "k", "value": "v"}', host=stores[0].address)[0] == 200, 20, "room")
    for store in stores:
        assert request(8080, "GET", "/api/get/k", host=store.address) == (200, b"v")
    assert request(8080, "PUT", "/metadata?key=a", b"1", host=master.address)[0] == 200  # served without enable_http_metadata_server
    print("objects cross the hosts")
    logs(f"{folder}/master.log")
    serve(engine, folder)
    running[0].send_signal(signal.SIGTERM)
    assert running[0].wait(timeout=20) == 0
    assert len(segments(master)) == 2
    print("a store that is told to end has left at once")


def main():
    network = Network.make()
    if not network.real:
        print("no namespaces here")
        return 77
    with tempfile.TemporaryDirectory(prefix="mc-pods-") as folder:
        try:
            play(network, folder)
        except BaseException:
            for log in sorted(pathlib.Path(folder).glob("*.log")):
                print(f"---- {log.name}\n{log.read_text()[-3000:]}")
            raise
        finally:
            network.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
