"""The documents that users follow, run line by line: documents.py lists what stands in them and which test here takes it.

Command lines are run as they are, with their own ports and addresses where a namespace allows it (scene.py); only sizes are smaller. Engines that need a GPU are
stand-ins under their own names (stand_ins.py) that keep their cache in the store by the same calls. The roles for Kubernetes are in ../faults/kubernetes.py.
"""
import ast
import json
import os
import pathlib
import re
import signal

import pytest

import stand_ins
from cluster import BUILD, MASTER, says, wait_until
from documents import LINES, text
from scene import Scene
from service_process import run
from test_documents import flags_of_help

SIZES = [("1000000000", "33554432"), ("134217728", "16777216")]


@pytest.fixture
def made(tmp_path):
    """What every scene needs: the stand-ins."""
    return {"folder": tmp_path, **stand_ins.install(tmp_path)}


def reply(scene, name, **variables):
    """The answer to a document's curl."""
    return json.loads(scene.run(scene.text(text(name)), **variables))


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def until_cached(scene, name, tokens, **variables):
    """The same curl again until all that can come from the store does: room for objects comes a moment after an instance does."""
    return wait_until(lambda: (answer := reply(scene, name, **variables)) and cached(answer) == tokens and answer, 30, f"{tokens} tokens from the store")


def words_of(answer):
    return answer["choices"][0]["message"]["content"] if "message" in answer["choices"][0] else answer["choices"][0]["text"]


# ---- FastDeploy ----

def fastdeploy_master(scene, name):
    master = scene.start(scene.text(text(name)), "HTTP metadata server started")
    says(master, "HTTP metadata server started on 0.0.0.0:")
    return master


def test_fastdeploy_instances(made):
    with Scene(**made, ports=[15001, 15002, 15003, 52700, 52800]) as scene:
        fastdeploy_master(scene, "fastdeploy:89")
        config = scene.text(text("fastdeploy:48"), SIZES)
        (scene.folder / "mooncake_config.json").write_text(config)
        first = scene.start(scene.text(text("fastdeploy:96")), "engine serves", MODEL_NAME="m", FD_LOG_DIR="log_0")
        scene.start(scene.text(text("fastdeploy:104")), "engine serves", MODEL_NAME="m", FD_LOG_DIR="log_1")
        assert "rdma" in first.log()  # there is none here: it says that it takes tcp
        # What instance 0 has computed instance 1 need not: both know the same 30 tokens, seven whole blocks.
        again = until_cached(scene, "fastdeploy:114", 28)
        other = reply(scene, "fastdeploy:118")
        assert cached(other) == 28 and words_of(other) == words_of(again) and len(words_of(other).split()) == 50
        found = scene.run(scene.text(text("fastdeploy:196"))).splitlines()
        assert re.match(r"log_0/.*storage_cache_token_num 0$", found[0]) and re.match(r"log_1/.*storage_cache_token_num 28$", found[-1]), found
        assert "key" in scene.run(scene.text(text("fastdeploy:200")))  # the server answers what it misses
        metrics = scene.run(scene.text(text("fastdeploy:202")))
        assert re.search(r"^master_key_count 7$", metrics, re.M) and re.search(rf"^master_total_capacity_bytes {2 * 33554432}$", metrics, re.M), metrics
        # The other way to name the file.
        (scene.folder / "path" / "to").mkdir(parents=True)
        (scene.folder / "path" / "to" / "mooncake_config.json").write_text(config)
        scene.start(text("fastdeploy:56") + "\nmc_store_rest_server --port 0", "REST API started", MOONCAKE_LOCAL_HOSTNAME="127.0.0.1")


def test_fastdeploy_disaggregated(made):
    with Scene(**made, ports=[15001, 15002, 9003, 52400, 52500, 52700]) as scene:
        fastdeploy_master(scene, "fastdeploy:145")
        scene.start(scene.text(text("fastdeploy:150")), "router serves")
        small = {"MODEL_NAME": "m", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "33554432", "MOONCAKE_LOCAL_BUFFER_SIZE": "16777216"}
        scene.start(scene.text(text("fastdeploy:153")), "engine serves", FD_LOG_DIR="log_prefill", **small)
        scene.start(scene.text(text("fastdeploy:166")), "engine serves", FD_LOG_DIR="log_decode", **small)
        answer = until_cached(scene, "fastdeploy:180", 20)
        # The next turn: prefill reads what decode has saved of its own output.
        turn = f"<user>Hello!<assistant>{words_of(answer)}"
        curl = scene.text(text("fastdeploy:180")).replace('{"role": "user", "content": "Hello!"}', json.dumps({"role": "user", "content": "Hello!"}) + ", " + json.dumps(
            {"role": "assistant", "content": words_of(answer)}) + ', {"role": "user", "content": "And?"}')
        wait_until(lambda: cached(json.loads(scene.run(curl))) >= len(turn) // 4 * 4, 20, "the whole conversation from the store")
        hits = [int(line.rsplit(" ", 1)[1]) for line in scene.run(scene.text(text("fastdeploy:198"))).splitlines()]
        assert hits[0] == 0 and max(hits) >= len(turn) // 4 * 4 > 100, hits


def test_fastdeploy_parameters(tmp_path):
    """Every key of the file and every variable arrives. Their defaults are FastDeploy's own, which gives every value to setup(); ours are LMCache's, below."""
    keys = [entry.split()[0] for name, (test, entry) in LINES.items() if test == "test_fastdeploy_parameters" and int(name.split(":")[1]) < 75]
    variables = [entry.split()[0] for name, (test, entry) in LINES.items() if test == "test_fastdeploy_parameters" and int(name.split(":")[1]) >= 75]
    # The two tables: ("fastdeploy", 59, 71), ("fastdeploy", 75, 86).
    values = {"metadata_server": "http://10.0.0.1:15002/metadata", "master_server_addr": "10.0.0.1:15001", "global_segment_size": 12345678, "local_buffer_size": 7654321,
              "protocol": "tcp", "rdma_devices": "mlx5_0"}
    assert keys == list(values) and {"MOONCAKE_" + key.upper() for key in keys} == set(variables)
    path = tmp_path / "mooncake_config.json"
    path.write_text(json.dumps(values))
    script = "from mooncake.mooncake_config import MooncakeConfig as C\nc = C.load_from_env()\nprint(c.metadata_server, c.master_server_address, " \
             "c.global_segment_size, c.local_buffer_size, c.protocol, c.device_name)"
    expected = " ".join(str(value) for value in values.values())
    for given in ({"MOONCAKE_CONFIG_PATH": path}, {"MOONCAKE_" + key.upper(): value for key, value in values.items()}):
        assert run(["python3", "-c", script], **given).stdout.strip() == expected, given
        native = run([str(BUILD / "mc_store_rest_server"), "--print_config"], **given)
        assert native.returncode == 0 and all(str(value) in native.stdout for value in values.values()), native.stdout + native.stderr
    for key in ("metadata_server", "master_server_addr"):  # "Required"
        path.write_text(json.dumps({name: value for name, value in values.items() if name != key}))
        assert run(["python3", "-c", script], MOONCAKE_CONFIG_PATH=path).returncode == 1


def test_fastdeploy_troubleshooting(made):
    with Scene(**made, ports=[15001, 15002, 15003]) as scene:
        master = fastdeploy_master(scene, "fastdeploy:89")
        port = scene.ports[15001]
        assert scene.run(scene.text(text("fastdeploy:204"))).count(f":{port} ") == 1
        # A second one says which port is in use, in one line, and ends.
        scene.run(scene.text(text("fastdeploy:89")), code=1)
        # With tcp nothing is said about rdma.
        variable, value = text("fastdeploy:210").split("=")
        store = scene.start("mc_store_rest_server --port 0", "REST API started", MOONCAKE_MASTER=f"127.0.0.1:{port}", MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb",
                            **{variable: value})
        assert "rdma" not in store.log()
        scene.stop(store)
        kill = scene.text(text("fastdeploy:206"))
        [holder] = scene.run(re.search(r"\$\((.*)\)", kill).group(1)).split()
        assert int(holder) == master.process.pid  # nobody else's
        scene.run(kill)
        assert master.process.wait(timeout=20) == -signal.SIGKILL
        scene.running.remove(master)
        fastdeploy_master(scene, "fastdeploy:89")


def test_fastdeploy_clean_up(made):
    """That command may be run while the cluster serves: of us nothing lies in /dev/shm but what MC_DATA_DIR puts there, and that is in use by its memory map."""
    with Scene(**made) as scene:
        if not scene.real:
            pytest.skip("needs an own /dev/shm")
        scene.start("mooncake_master --metrics_port 9003", "Master service started")
        store = scene.start("mc_store_rest_server --port 8080", "REST API started", MOONCAKE_MASTER="127.0.0.1:50051", MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb",
                            MC_DATA_DIR="/dev/shm/pool")
        put = "curl -s -X PUT http://127.0.0.1:8080/api/put -d '{\"key\": \"k\", \"value\": \"v\"}'"
        wait_until(lambda: "success" in scene.run(put), 20, "room")
        assert scene.run("ls /dev/shm/pool | wc -l").strip() != "0"
        scene.run(text("fastdeploy:218"))
        assert scene.run("find /dev/shm -type f") == ""
        assert scene.run("curl -s http://127.0.0.1:8080/api/get/k") == "v"
        scene.stop(store)
        # And a store node without that directory leaves nothing there, however it ends.
        store = scene.start("mc_store_rest_server --port 8080", "REST API started", MOONCAKE_MASTER="127.0.0.1:50051", MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb")
        store.process.kill()
        store.process.wait()
        scene.running.remove(store)
        assert scene.run("find /dev/shm -type f") == ""


# ---- vLLM with the store ----

V0_ADDRESS = ["192.168.0.137"]
V0_PORTS = [2379, 50001, 9003, 8000, 8100, 8101, 8102, 8103, 8200, 8201, 8202, 8203]


def with_sizes(config):
    """The file names no sizes: each of eight instances would lend 3.1 GB."""
    return json.dumps({**json.loads(config), "global_segment_size": 16 << 20, "local_buffer_size": 16 << 20})


def test_vllm_rdma_configuration(made):
    """Without the hardware it is understood, says so, and works over tcp."""
    with Scene(**made, ports=[50001, 9003], addresses=V0_ADDRESS) as scene:
        (scene.folder / "mooncake.json").write_text(with_sizes(scene.text(text("vllm-store:93"))))
        scene.start(scene.text("mooncake_master --port 50001"), "Master service started")
        store = scene.start("mc_store_rest_server --config mooncake.json --port 0", "REST API started")
        assert re.search(r"rdma.*tcp", store.log()), store.log()
        plain = run(["python3", "-c", "from mooncake.mooncake_config import MooncakeConfig as C; c = C.load_from_env(); "
                     "print(c.global_segment_size, c.local_buffer_size, c.device_name)"], MOONCAKE_CONFIG_PATH=_written(made["folder"], text("vllm-store:93")))
        assert plain.stdout.split() == ["3355443200", "1073741824", "erdma_0"], plain.stderr
        # ("vllm-store", 100, 108): several devices, and each kind of metadata server, which the store does not ask.
        for metadata in ("etcd://192.168.0.137:2379", "redis://192.168.0.137:6379", "http://192.168.0.137:8080/metadata"):
            other = {**json.loads(with_sizes(scene.text(text("vllm-store:93")))), "metadata_server": metadata, "device_name": "erdma_0,erdma_1"}
            (scene.folder / "mooncake.json").write_text(json.dumps(other))
            scene.stop(scene.start("mc_store_rest_server --config mooncake.json --port 0", "REST API started"))


def _written(folder, content):
    path = folder / "plain.json"
    path.write_text(content)
    return path


def start_vllm(scene, line):
    return scene.start(scene.text(text(f"vllm-store:{line}")), "engine serves")


def test_vllm_store(made):
    with Scene(**made, ports=V0_PORTS, addresses=V0_ADDRESS) as scene:
        scene.start(scene.text(text("vllm-store:127")), "ready to serve client requests",
                    **({} if scene.real else {"ETCD_LISTEN_PEER_URLS": "http://127.0.0.1:0"}))
        scene.start(scene.text(text("vllm-store:131")), "Master service started on port " + str(scene.ports[50001]))
        (scene.folder / "mooncake.json").write_text(with_sizes(scene.text(text("vllm-store:112"))))
        # ("vllm-store", 138, 193): the eight instances, four of which are added later.
        instances = {line: start_vllm(scene, line) for line in (138, 145, 167, 174)}
        proxy = scene.start(scene.text(text("vllm-store:216")), "Proxy started on port")
        complete = scene.text(text("vllm-store:276"))
        answer = wait_until(lambda: _answer(scene, complete, 16), 30, "an answer whose prompt came from the store")
        assert answer["model"] == "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4" and len(words_of(answer).split()) == 1000
        # The demo's status has lists of all instances.
        assert len(json.loads(scene.run(scene.text(text("vllm-store:266"))))["prefill_nodes"]) == 2
        scene.stop(proxy)
        scene.start(scene.text(text("vllm-store:237")), "Proxy started on port")
        instances.update({line: start_vllm(scene, line) for line in (152, 159, 181, 188)})
        # ("vllm-store", 245, 263): with the key they are added, without it not.
        add = scene.text(text("vllm-store:245"))
        assert "200" not in scene.run(add + " -s -o /dev/null -w '%{http_code}'", ADMIN_API_KEY="wrong")
        for line in (245, 250, 255, 260):
            added = scene.run(text("vllm-store:234") + "\n" + scene.text(text(f"vllm-store:{line}")))
            assert "error" not in added.lower(), added
        status = json.loads(scene.run(scene.text(text("vllm-store:266"))))
        assert len(status["prefill_nodes"]) == len(status["decode_nodes"]) == 4, status
        for _ in range(8):  # round robin: each has its turn, and each finds it in the store
            assert _answer(scene, complete, 16)
        # An instance that dies takes nothing along that cannot be computed again, and the master need not be restarted.
        os.killpg(instances[145].process.pid, signal.SIGKILL)
        for _ in range(8):
            assert scene.run(complete + " -o /dev/null -w '%{http_code}'") == "200"
        wait_until(lambda: _answer(scene, complete, 16), 30, "answers from the store after a death")


def _answer(scene, curl, tokens):
    """The answer, when at least so many tokens of its prompt came from the store."""
    answer = json.loads(scene.run(curl))
    return answer if "usage" in answer and cached(answer) >= tokens else None


# ---- LMCache ----

def test_lmcache(made):
    with Scene(**made, ports=[8080, 50051, 9003, 8000]) as scene:
        scene.start(scene.text(text("lmcache:56")), "HTTP metadata server started")
        master = scene.start(scene.text(text("lmcache:61")), "HTTP metrics server started")
        assert scene.text(text("lmcache:65")) in master.log() and scene.text(text("lmcache:66")) in master.log()
        shape = re.escape(text("lmcache:67")).replace(r"0\.00\ B", r"0(\.00)? B").replace(r"\ \|\ Keys", r"[^|]*\| Keys").replace(r"0\ \|\ \.\.\.", r"0\b.*\|").replace(r"\ ", " ")
        wait_until(lambda: re.search(shape, master.log()), 30, f"{shape} in the log")
        config = scene.text(text("lmcache:73"), [("3355443200", "33554432"), ("1073741824", "33554432")])
        (scene.folder / "mooncake-config.yaml").write_text(config)
        scene.start(scene.text(text("lmcache:92")), "engine serves")
        answer = until_cached(scene, "lmcache:104", 16)
        assert len(words_of(answer).split()) == 100
        assert scene.run(f"curl -s -X PUT 'http://127.0.0.1:{scene.ports[8080]}/metadata?key=k' -d v") == "metadata updated"


def test_lmcache_debugging(made):
    with Scene(**made, ports=[8080, 50051, 9003]) as scene:
        scene.start(scene.text(text("lmcache:56")), "HTTP metadata server started")
        quiet = scene.start(scene.text("mooncake_master"), "HTTP metrics server started")
        before = len(quiet.log().splitlines())
        scene.stop(quiet)
        loud = scene.start(scene.text(text("lmcache:117")), "HTTP metrics server started")
        assert len(loud.log().splitlines()) >= before
        seen = scene.run(text("lmcache:122"))
        assert str(loud.process.pid) in seen and "mooncake_http_metadata_server" in seen
        listening = scene.run(scene.text(text("lmcache:123")))
        assert all(f":{scene.ports[port]} " in listening for port in (8080, 50051)) and "mooncake_" in listening, listening
        assert "<html" in scene.run("curl -s " + scene.text(text("lmcache:127"))).lower()


SHOW = "from mooncake.mooncake_config import MooncakeConfig as C; c = C.load_from_env(); print(vars(c))"


def shown(**variables):
    """The settings in Python, and as the native service would use them."""
    python = run(["python3", "-c", SHOW], **variables)
    native = run([str(BUILD / "mc_store_rest_server"), "--print_config"], **variables)
    assert python.returncode == native.returncode, python.stderr + native.stderr
    return ast.literal_eval(python.stdout) if python.returncode == 0 else None, native.stdout


def test_lmcache_parameters(tmp_path):
    """The table of what goes through extra_config: ("lmcache", 183, 219)."""
    table = {name: default.strip("“”") for name, default in (LINES[key][1].split("\n\n") for key, (test, _) in LINES.items() if test == "test_lmcache_parameters")}
    needed = {name: "127.0.0.1:1" for name, default in table.items() if default == "Required"}
    assert len(table) == 7 and len(needed) == 3
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps(needed))
    python, native = shown(MOONCAKE_CONFIG_PATH=path)
    for name, default in table.items():
        assert str(python[name]) == needed.get(name, default), name
        assert re.search(rf"{name}\W+{needed.get(name, default)}", native), (name, native)
    for name in needed:
        path.write_text(json.dumps({key: value for key, value in needed.items() if key != name}))
        assert shown(MOONCAKE_CONFIG_PATH=path)[0] is None, name


# ---- Kubernetes ----

def test_kubernetes_environment(made):
    """What the variables mean: ("kubernetes-rbg", 231, 238)."""
    python, native = shown(MOONCAKE_MASTER="m:50051", MOONCAKE_GLOBAL_SEGMENT_SIZE=text("kubernetes-rbg:233").strip('"'), MOONCAKE_PROTOCOL="rdma",
                           MOONCAKE_DEVICE="mlx5_0,mlx5_1", MOONCAKE_TE_META_DATA_SERVER="http://m:8080/metadata", MOONCAKE_LOCAL_BUFFER_SIZE="4194304")
    assert (python["global_segment_size"], python["protocol"], python["device_name"], python["metadata_server"], python["local_buffer_size"]) == (
        16 << 30, "rdma", "mlx5_0,mlx5_1", "http://m:8080/metadata", 4 << 20)
    assert str(16 << 30) in native
    with Scene(**made, ports=[50051, 9003, 8080, 8081]) as scene:
        scene.start(scene.text("mooncake_master"), "Master service started")
        # Without a port it is 50051, where the document's ports are free.
        where = "127.0.0.1" if scene.real else f"127.0.0.1:{scene.ports[50051]}"
        common = {"MOONCAKE_MASTER": where, "MOONCAKE_PROTOCOL": "tcp", "MOONCAKE_DEVICE": ""}
        scene.start(scene.text("mc_store_rest_server --port 8080"), "REST API started", **common, MOONCAKE_GLOBAL_SEGMENT_SIZE="16mb", MOONCAKE_LOCAL_BUFFER_SIZE="0")
        scene.start(scene.text("mc_store_rest_server --port 8081"), "REST API started", **common, MOONCAKE_GLOBAL_SEGMENT_SIZE="0", MOONCAKE_LOCAL_BUFFER_SIZE="4194304")
        put = "curl -s -X PUT http://127.0.0.1:8081/api/put -d '{\"key\": \"k\", \"value\": \"v\"}'"
        wait_until(lambda: "success" in scene.run(scene.text(put)), 20, "a put by the pure client")
        assert "error" in scene.run(scene.text(put.replace("8081", "8080")))  # a pure server puts nothing
        assert scene.run(scene.text("curl -s http://127.0.0.1:9003/get_all_segments")).count("\n") <= 1
        assert re.search(r"^mooncake_segments 1$", scene.run(scene.text("curl -s http://127.0.0.1:9003/metrics")), re.M)


def test_kubernetes_parameters():
    """The defaults of the flags: ("kubernetes-rbg", 224, 228). The document's rpc_port of 0 is an old release's; its own 50051 is ours."""
    flags = flags_of_help(MASTER)
    documented = {entry.split()[0]: re.search(r'default: "?([\w.]+)', entry).group(1) for name, (test, entry) in LINES.items() if test == "test_kubernetes_parameters"}
    assert documented.pop("rpc_port") == "0" and flags["rpc_port"][0] == "50051"
    assert len(documented) == 4
    for name, default in documented.items():
        assert flags[name][0].split()[0] == default, name


# ---- vLLM's P2P connector ----

def has_transfer_engine():
    return bool(list((pathlib.Path(os.environ["MC_PYTHONPATH"]) / "mooncake").glob("engine*.so")) or
                list((pathlib.Path(os.environ["MC_PYTHONPATH"]) / "mooncake").glob("engine.py")))


@pytest.mark.skipif(not has_transfer_engine(), reason="mooncake.engine is not built")
def test_vllm_connector(made):
    with Scene(**made, addresses=["192.168.0.2", "192.168.0.3"]) as scene:
        if not scene.real:
            pytest.skip("needs the document's addresses: the bootstrap port of both hosts is one")
        port, default, timeout = text("vllm-connector:37"), text("vllm-connector:39"), text("vllm-connector:43")
        assert f'"{timeout}", "{text("vllm-connector:45")}"' in (stand_ins.ROOT / "examples" / "connector.py").read_text()
        scene.start(text("vllm-connector:23"), "engine serves", VLLM_HOST_IP="192.168.0.2", **{timeout: "2"})
        scene.start(text("vllm-connector:27"), "engine serves", VLLM_HOST_IP="192.168.0.3")
        scene.start(text("vllm-connector:31"), "Proxy started on port 8000")
        body = json.dumps({"model": "Qwen/Qwen2.5-7B-Instruct", "prompt": "San Francisco is a"})
        curl = f"curl -s http://localhost:8000/v1/completions -d '{body}' -H 'Content-Type: application/json'"
        answer = wait_until(lambda: _answer(scene, curl, 16), 30, "an answer whose prompt came from prefill")
        assert answer["usage"]["prompt_tokens"] == 18
        # A request that prefill never gets is given up after the timeout.
        body = json.dumps({"transfer_id": "x", "session": "a", "address": 0})
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' http://192.168.0.2:{default}/send -d '{body}'"
        assert scene.run(ask) == "404"
        # Another bootstrap port, which each instance of a host needs.
        scene.start(text("vllm-connector:23").replace("8010", "8011"), "engine serves", VLLM_HOST_IP="192.168.0.2", **{port: "9998"})
        scene.start("mooncake_proxy --prefill http://192.168.0.2:8011 9998 --decode http://192.168.0.3:8020 --port 8001", "Proxy started on port 8001")
        wait_until(lambda: _answer(scene, curl.replace(":8000", ":8001"), 16), 30, "an answer by the other port")


def test_commands_of_the_package(made):
    with Scene(**made) as scene:
        for name in ("mooncake_master", "mooncake_client", "mooncake_http_metadata_server", "mc_store_rest_server"):
            assert (BUILD / name).exists()
            assert scene.run(f"{name} --version").startswith(name)
