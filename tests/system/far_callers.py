"""A network of its own, in which callers are far, near or the host itself: `inside` runs one of the scenes below there, and gives what it printed as JSON.

    answers = inside("store_service", "no")     # with MC_PROTECTED_MODE=no

HOST serves. FAR and OTHER are of no private network, NEAR is."""
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading

from cluster import BUILD, wait_until

HOST, FAR, OTHER, NEAR = "198.51.100.8", "198.51.100.7", "203.0.113.9", "10.9.9.9"
SETUP = "ip link set lo up && " + " && ".join(f"ip address add {one}/32 dev lo" for one in (HOST, FAR, OTHER, NEAR)) + ' && exec "$@"'


def inside(scene, *arguments):
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MC_AUTH_", "MC_TLS_", "MC_PROTECTED_", "MOONCAKE_"))}
    done = subprocess.run(["unshare", "--net", *user, "--", "sh", "-c", SETUP, "sh", sys.executable, "-B", __file__, scene, *arguments],
                          capture_output=True, text=True, timeout=120, env=kept)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Process:
    """A command of ours, ready when its log matches; port: the number in that line."""

    def __init__(self, ready, *words, **variables):
        self.lines, self.port = [], None
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **variables})
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()
        self.port = int(wait_until(lambda: re.search(ready, "".join(self.lines)), 60, ready).group(1))

    def warned(self):
        """The ports that it says are open to everybody, after its end."""
        self.process.terminate()
        self.process.wait(60)
        self.reader.join()
        return [int(found.group(1)) for line in self.lines if line[0] == "W" and (found := re.search(r"has no keys: whoever reaches its port (\d+) may ", line))]


def ask(source, port, method, path, body=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=30, source_address=(source, 0))
    connection.request(method, path, body=body)
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]


def mode_of(mode):
    return {"MC_PROTECTED_MODE": mode} if mode else {}


def metadata(host, mode):
    """Who may change what in a metadata server; and what its log says of callers."""
    server = Process(r"metadata server started on \S*:(\d+)", str(BUILD / "mooncake_http_metadata_server"), "--port=0", f"--host={host}", **mode_of(mode))
    document = json.dumps({"ip_or_host_name": OTHER, "rpc_port": 15999})  # nobody is there, who is refused at once
    steps = [(FAR, "PUT", "a", "1"), (FAR, "PUT", "a", "2"), (OTHER, "PUT", "a", "3"), (OTHER, "DELETE", "a", None), (OTHER, "GET", "a", None),
             (OTHER, "PUT", "b", "4"), (OTHER, "DELETE", "b", None), (NEAR, "PUT", "a", "5"), (FAR, "PUT", "a", "6"), (FAR, "DELETE", "a", None),
             (HOST, "DELETE", "a", None), (OTHER, "DELETE", "a", None), (OTHER, "PUT", "a", "7"),
             (FAR, "PUT", "mooncake/rpc_meta/x", document), (OTHER, "PUT", "mooncake/rpc_meta/x", "{}"), (FAR, "PUT", "mooncake/rpc_meta/x", "{}")]
    answers = [ask(source, server.port, method, f"/metadata?key={key}", value) for source, method, key, value in steps]
    return {"port": server.port, "answers": answers, "warned": server.warned(), "log": "".join(server.lines)}


def is_called(port):
    """Does somebody call that port of the host, and is not answered yet?"""
    with open("/proc/net/tcp", encoding="ascii") as file:
        wanted = f"{int.from_bytes(socket.inet_aton(HOST), 'little'):08X}:{port:04X}"
        return any(line.split()[2:4] == [wanted, "02"] for line in file)


def metadata_meanwhile():
    """While a metadata server looks whether anybody is at a far caller's old address, another far one writes the same document: what is the first one told?"""
    server = Process(r"metadata server started on \S*:(\d+)", str(BUILD / "mooncake_http_metadata_server"), "--port=0", f"--host={HOST}")
    path = "/metadata?key=mooncake/rpc_meta/x"
    with socket.create_server((HOST, 0), backlog=0) as silent, socket.create_connection(silent.getsockname()):  # which fills its queue: others hear nothing
        port = silent.getsockname()[1]
        document = json.dumps({"ip_or_host_name": HOST, "rpc_port": port})
        for _ in range(10):
            told = [ask(FAR, server.port, "PUT", path, document)[0]]
            asking = threading.Thread(target=lambda: told.append(ask(FAR, server.port, "PUT", path, "{}")[0]))
            asking.start()
            wait_until(lambda: is_called(port), 60, "the look")
            told += [ask(NEAR, server.port, "DELETE", path)[0], ask(OTHER, server.port, "PUT", path, document)[0]]
            is_meanwhile = is_called(port)
            asking.join()
            if is_meanwhile:
                break
            ask(NEAR, server.port, "DELETE", path)
    server.warned()
    return {"is_meanwhile": is_meanwhile, "told": told}


def store_service(mode):
    """What callers may remove by a store service's port; and of which ports the processes warn."""
    master = Process(r"HTTP metrics server started on port (\d+)", str(BUILD / "mooncake_master"), "--rpc_port=0", "--metrics_port=0", "--default_kv_lease_ttl=0",
                     "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1")
    address = re.search(r"Master service started on port (\d+)", "".join(master.lines)).group(1)
    service = Process(r"REST API started on port (\d+)[^\0]*is running", str(BUILD / "mc_store_rest_server"), "--port=0", MOONCAKE_MASTER=f"127.0.0.1:{address}",
                      LOCAL_HOSTNAME=f"{HOST}:17001", MOONCAKE_GLOBAL_SEGMENT_SIZE=str(64 << 20), MOONCAKE_ENABLE_CLIENT_HTTP_SERVER="true",
                      MOONCAKE_CLIENT_HTTP_PORT="17002", **mode_of(mode))

    def put(key):
        body = json.dumps({"key": key, "value": "v"})
        wait_until(lambda: ask(FAR, service.port, "PUT", "/api/put", body)[0] == 200, 60, "room")

    put("a")
    put("b")
    answers = [ask(FAR, service.port, "GET", "/api/get/a"), ask(FAR, service.port, "DELETE", "/api/remove/a"), ask(FAR, service.port, "DELETE", "/api/remove_all"),
               ask(NEAR, service.port, "DELETE", "/api/remove_all"), ask(HOST, service.port, "DELETE", "/api/remove_all")]
    return {"port": service.port, "answers": answers, "warned": service.warned(), "quiet": master.warned()}


def listeners(host):
    """Of which ports a master, a proxy and two transfer engines of one process warn, and which they have."""
    master = Process(r"HTTP metadata server started on \S*:(\d+)", str(BUILD / "mooncake_master"), "--rpc_port=0", "--metrics_port=0", f"--rpc_address={host}",
                     f"--metrics_host={host}", "--enable_http_metadata_server=true", "--http_metadata_server_port=0", f"--http_metadata_server_host={host}",
                     "--enable_kv_events=true", f"--kv_events_bind_endpoint=tcp://{host}:0")
    proxy = Process(r"Proxy started on port (\d+)", str(BUILD / "mooncake_proxy"), f"--host={host}", "--port=0", "--prefill", "127.0.0.1:9", "--decode", "127.0.0.1:9")
    # A loopback address is listened to alone, any other by all.
    name = "127.0.0.1" if host == "127.0.0.1" else HOST
    program = ("import sys, os; sys.path.insert(0, os.environ['MC_PYTHONPATH']); from mooncake.engine import TransferEngine as T; one, two = T(), T()\n"
               f"print([e.initialize('{name}', 'P2PHANDSHAKE', 'tcp', '') for e in (one, two)])")
    engines = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ, "MC_TCP_BIND_ADDRESS": ""})
    log = "".join(master.lines)
    has = [int(number) for words in (r"KV events are published on tcp://\S*:(\d+)", r"Master service started on port (\d+)", r"HTTP metrics server started on port (\d+)",
                                     r"HTTP metadata server started on \S*:(\d+)") for number in re.findall(words, log)]
    return {"master": sorted(has), "master warned": sorted(master.warned()), "proxy": proxy.port, "proxy warned": proxy.warned(), "engines": engines.stdout,
            "engines warned": [line for line in engines.stderr.splitlines() if "has no keys" in line]}


if __name__ == "__main__":
    print(json.dumps({"metadata": metadata, "metadata_meanwhile": metadata_meanwhile, "store_service": store_service, "listeners": listeners}[sys.argv[1]](*sys.argv[2:])))
