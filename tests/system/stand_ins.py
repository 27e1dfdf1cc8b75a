"""Engines that need a GPU, by the names and with the flags of the documents' command lines: each is examples/engine.py or examples/connector.py below.

`install(folder)` writes the modules `fastdeploy`, `vllm` and `sglang`, the command `vllm` and the proxy scripts of vLLM's repository; what a document's command names is
found there. The flags that only concern a GPU are accepted as the engines accept them, an unknown one is an error.
"""
import argparse
import http.client
import http.server
import json
import logging
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {"fastdeploy.entrypoints.openai.api_server": "fastdeploy", "fastdeploy.router.launch": "fastdeploy_router",
           "vllm.entrypoints.openai.api_server": "vllm_v0", "sglang.launch_server": "sglang"}
PROXIES = ("vllm/examples/online_serving/disagg_examples/disagg_proxy_demo.py", "vllm/examples/online_serving/disagg_examples/disagg_demo.py",
           "examples/online_serving/disaggregated_serving/mooncake_connector/mooncake_connector_proxy.py")


def install(folder):
    """What must be on PATH, and on PYTHONPATH."""
    packages, commands = folder / "packages", folder / "commands"
    start = f"import sys\nsys.path[:0] = [{str(ROOT / 'tests' / 'system')!r}, {str(ROOT / 'examples')!r}]\nimport stand_ins\nsys.exit(stand_ins.{{}}())\n"
    for module, function in MODULES.items():
        path = packages / (module.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(start.format(function))
    commands.mkdir()
    (commands / "vllm").write_text(f"#!{sys.executable} -B\n" + start.format("vllm_v1"))
    (commands / "vllm").chmod(0o755)
    for name in PROXIES:  # our proxy takes the same arguments
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("import os, sys\nos.execvp('mooncake_proxy', ['mooncake_proxy', *sys.argv[1:]])\n")
    return {"path": [commands], "python_path": [packages]}


def flags(*names, **defaults):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in names:
        parser.add_argument(name)
    for name, default in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), default=default, type=type(default))
    return parser


def of_environment():
    """As the engines read it: a file, or single variables."""
    from mooncake.mooncake_config import MooncakeConfig
    return MooncakeConfig.load_from_env()


def run(config, port, model, role="kv_both", call="positional", saves_output=False, log=None):
    import engine
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    if log is not None:
        logging.getLogger().addHandler(logging.FileHandler(log))
    store = engine.store_of(config, call)
    engine.serve(engine.Engine(engine.Cache(store, model, role), model, saves_output), "0.0.0.0", port)
    return store.close()


# ---- FastDeploy ----

def fastdeploy():
    parser = flags("--model", "--splitwise-role", "--cache-transfer-protocol", "--router", "--kvcache-storage-backend", port=8188, max_model_len=0, max_num_seqs=0)
    parser.add_argument("--enable-output-caching", action="store_true")
    given = parser.parse_args()
    assert given.kvcache_storage_backend == "mooncake"
    if given.router:
        host, port = given.router.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("POST", "/register", json.dumps({"role": given.splitwise_role, "instance": f"127.0.0.1:{given.port}"}))
        assert connection.getresponse().status == 200
    folder = pathlib.Path(os.environ["FD_LOG_DIR"])
    folder.mkdir(exist_ok=True)
    return run(of_environment(), given.port, given.model, call="keywords", saves_output=given.enable_output_caching, log=folder / "api_server.log")


class Router(http.server.BaseHTTPRequestHandler):
    """Prefill first, then decode; both have told where they are."""
    instances = {}

    def log_message(self, *unused):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/register":
            self.instances[body["role"]] = body["instance"]
            status, answer = 200, b"{}"
        else:
            self.forward("prefill", {**body, "max_tokens": 1})
            status, answer = self.forward("decode", body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def forward(self, role, body):
        connection = http.client.HTTPConnection(self.instances[role], timeout=30)
        connection.request("POST", self.path, json.dumps(body))
        reply = connection.getresponse()
        return reply.status, reply.read()


def fastdeploy_router():
    import engine
    parser = flags(port=9000)
    parser.add_argument("--splitwise", action="store_true")
    given = parser.parse_args()
    assert given.splitwise
    server = engine.Server(("0.0.0.0", given.port), Router)
    print("router serves", flush=True)
    server.serve_forever()


# ---- vLLM ----

def vllm_v0():
    given = flags("--model", "--kv-transfer-config", port=8000, max_model_len=0, gpu_memory_utilization=0.9).parse_args()
    transfer = json.loads(given.kv_transfer_config)
    assert os.environ["VLLM_USE_V1"] == "0" and transfer["kv_connector"] == "MooncakeStoreConnector"
    return run(of_environment(), given.port, given.model, transfer["kv_role"])


def vllm_v1():
    parser = flags("--kv-transfer-config", port=8000, max_model_len=0)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    given = parser.parse_args()
    transfer = json.loads(given.kv_transfer_config)
    if transfer["kv_connector"] == "MooncakeConnector":
        import connector
        import engine
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        cache = connector.Cache(os.environ.get("VLLM_HOST_IP", "127.0.0.1"), transfer["kv_role"])
        return engine.serve(connector.Engine(cache, given.model), "0.0.0.0", given.port)
    assert transfer["kv_connector"] == "LMCacheConnectorV1"
    import engine
    config = engine.read_yaml(os.environ["LMCACHE_CONFIG_FILE"])
    assert config["remote_url"].startswith("mooncakestore://") and config["local_cpu"] is False and config["extra_config"]["transfer_timeout"] == 1
    return run(argparse.Namespace(**{"device_name": "", **config["extra_config"]}), given.port, given.model, transfer["kv_role"], "dict")


# ---- SGLang ----

def sglang():
    parser = flags("--model-path", "--host", "--hicache-storage-backend", "--disaggregation-mode", "--disaggregation-transfer-backend", port=30000,
                   disaggregation_bootstrap_port=8998)
    parser.add_argument("--enable-hierarchical-cache", action="store_true")
    given = parser.parse_args()
    # In pairs the bytes go from engine to engine; this one's go through the store, so a decode instance reads there, too.
    assert given.disaggregation_mode == "decode" or (given.enable_hierarchical_cache and given.hicache_storage_backend == "mooncake")
    assert given.disaggregation_mode in (None, "prefill", "decode") and given.disaggregation_transfer_backend in (None, "mooncake")
    config = of_environment()
    assert config.global_segment_size == 0  # a client without memory of its own
    return run(config, given.port, given.model_path.rstrip("/"))
