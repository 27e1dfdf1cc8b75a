"""The roles of the document for SGLang on Kubernetes, each in a network namespace of its own, with the document's commands, environment and ports; only the
sizes are smaller. The stores begin before the master, as pods may. Prints what went well; exits 0, 1, or 77 where namespaces are not allowed."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "system"):
    sys.path.insert(0, str(folder))
from cluster import request, wait_until  # noqa: E402
from network import Network, call, unshare  # noqa: E402

CLONE_NEWNS = 0x20000
SERVICE = "s-sglang-demo-mooncake-master"
MASTER_COMMAND = ("mooncake_master --rpc_address $POD_IP --rpc_port 50051 --http_metadata_server_host $POD_IP --http_metadata_server_port 8080 "
                  "--metrics_port 9003")
STORE_COMMAND = "python -m mooncake.mooncake_store_service --port 8080"
ENGINE_ENVIRONMENT = {"MOONCAKE_MASTER": f"{SERVICE}:50051", "MOONCAKE_TE_META_DATA_SERVER": f"http://{SERVICE}:8080/metadata",
                      "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0", "MOONCAKE_LOCAL_BUFFER_SIZE": "4194304", "MOONCAKE_PROTOCOL": "tcp", "MOONCAKE_DEVICE": ""}
STORE_ENVIRONMENT = {**ENGINE_ENVIRONMENT, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0.0625gb"}
ENGINE = """
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore
config = MooncakeConfig.load_from_env()
store = MooncakeDistributedStore()
assert store.setup(config.local_hostname, config.metadata_server, config.global_segment_size, config.local_buffer_size, config.protocol,
                   config.device_name, config.master_server_address, None) == 0
value = bytes(range(256)) * 4096
assert store.put("engine", value) == 0 and store.get("engine") == value and store.is_exist("engine") == 1
"""


def name_the_service(address, folder):
    """What cluster DNS does: /etc/hosts, in a mount namespace of our own."""
    unshare(CLONE_NEWNS)
    call("mount", "--make-rprivate", "/")
    hosts = pathlib.Path(folder) / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{address} {SERVICE}\n")
    call("mount", "--bind", hosts, "/etc/hosts")


def pod(host, command, log, environment):
    build, packages = os.environ["MC_BUILD"], os.environ["MC_PYTHONPATH"]
    path = f"{build}:{pathlib.Path(sys.executable).parent}:/usr/bin:/bin"
    with open(log, "ab") as out:
        return host.popen(["sh", "-c", "exec " + command], env={"PATH": path, "PYTHONPATH": packages, "POD_IP": host.address, **environment},
                          stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def is_ready(address):
    try:
        socket.create_connection((address, 8080), timeout=1).close()
        return True
    except OSError:
        return False


def segments(master):
    return request(9003, "GET", "/get_all_segments", host=master.address)[1].decode().split()


def play(network, folder):
    master = network.host("master")
    name_the_service(master.address, folder)
    stores = [network.host(f"store{i}") for i in range(3)]
    engine = network.host("engine")
    running = [pod(store, STORE_COMMAND, f"{folder}/{store.name}.log", STORE_ENVIRONMENT) for store in stores]
    time.sleep(2)
    assert not any(is_ready(store.address) for store in stores), "ready without a master"
    assert all(process.poll() is None for process in running), "a store did not wait for its master"
    pod(master, MASTER_COMMAND, f"{folder}/master.log", {})
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
    done = pod(engine, f"python -c '{ENGINE}'", f"{folder}/engine.log", ENGINE_ENVIRONMENT).wait(timeout=60)
    assert done == 0, pathlib.Path(f"{folder}/engine.log").read_text()
    print("objects cross the hosts")
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
