"""Every command line, configuration, environment block and expected output of the five documents that users follow: where it stands, and which test runs it.

Each is copied as it stands there (`text("fastdeploy:89")` is what stands at line 89), with the name of the tests, or why none runs it here. An engine that needs a GPU
is a stand-in under its own name (stand_ins.py), so its command lines run as they are; the real engines are run by `./dev test clients` and `./dev bench engine-e2e`.
test_document_lines.py checks that each text is taken by the test that is named, and, where the documents lie beside the checkout, that no command line of them is missing.
"""
FILES = {"fastdeploy": "000", "vllm-store": "001", "lmcache": "002", "kubernetes-rbg": "003", "vllm-connector": "004"}
WHEEL = "not here: ./dev test wheel installs our wheel of that name"
ENGINE = "not here: the engine's own installation"
RDMA = "not here: a tool of the RDMA drivers"
CLUSTER = "not here: needs a Kubernetes cluster; the pods' commands are run in test_the_roles_of_the_document"

_LINES = {
    "fastdeploy": {
        42: (ENGINE, "pip install fastdeploy-gpu"),
        44: (ENGINE, "bash build.sh\npip install ./dist/fastdeploy*.whl"),
        48: ("test_fastdeploy_instances", """{
"metadata_server": "http://0.0.0.0:15002/metadata",
"master_server_addr": "0.0.0.0:15001",
"global_segment_size": 1000000000,
"local_buffer_size": 134217728,
"protocol": "rdma",
"rdma_devices": ""
}"""),
        56: ("test_fastdeploy_instances", "export MOONCAKE_CONFIG_PATH=path/to/mooncake_config.json"),
        59: ("test_fastdeploy_parameters", "metadata_server |"),
        61: ("test_fastdeploy_parameters", "master_server_addr |"),
        63: ("test_fastdeploy_parameters", "global_segment_size |"),
        65: ("test_fastdeploy_parameters", "local_buffer_size |"),
        67: ("test_fastdeploy_parameters", "protocol |"),
        70: ("test_fastdeploy_parameters", "rdma_devices |"),
        75: ("test_fastdeploy_parameters", "MOONCAKE_MASTER_SERVER_ADDR |"),
        77: ("test_fastdeploy_parameters", "MOONCAKE_METADATA_SERVER |"),
        79: ("test_fastdeploy_parameters", "MOONCAKE_GLOBAL_SEGMENT_SIZE |"),
        81: ("test_fastdeploy_parameters", "MOONCAKE_LOCAL_BUFFER_SIZE |"),
        83: ("test_fastdeploy_parameters", "MOONCAKE_PROTOCOL |"),
        85: ("test_fastdeploy_parameters", "MOONCAKE_RDMA_DEVICES |"),
        89: ("test_fastdeploy_instances", """mooncake_master \\
--port=15001 \\
--enable_http_metadata_server=true \\
--http_metadata_server_host=0.0.0.0 \\
--http_metadata_server_port=15002 \\
--metrics_port=15003"""),
        96: ("test_fastdeploy_instances", """export MOONCAKE_CONFIG_PATH="./mooncake_config.json"
export CUDA_VISIBLE_DEVICES=0
python -m fastdeploy.entrypoints.openai.api_server \\
--model ${MODEL_NAME} \\
--port 52700 \\
--max-model-len 32768 \\
--max-num-seqs 32 \\
--kvcache-storage-backend mooncake"""),
        104: ("test_fastdeploy_instances", """export MOONCAKE_CONFIG_PATH="./mooncake_config.json"
export CUDA_VISIBLE_DEVICES=1
python -m fastdeploy.entrypoints.openai.api_server \\
--model ${MODEL_NAME} \\
--port 52800 \\
--max-model-len 32768 \\
--max-num-seqs 32 \\
--kvcache-storage-backend mooncake"""),
        114: ("test_fastdeploy_instances", """curl -X POST "http://0.0.0.0:52700/v1/chat/completions" \\
-H "Content-Type: application/json" \\
-d '{"messages": [{"role": "user", "content": "Hello, world!"}], "max_tokens": 50}'"""),
        118: ("test_fastdeploy_instances", """curl -X POST "http://0.0.0.0:52800/v1/chat/completions" \\
-H "Content-Type: application/json" \\
-d '{"messages": [{"role": "user", "content": "Hello, world!"}], "max_tokens": 50}'"""),
        145: ("test_fastdeploy_disaggregated", """mooncake_master \\
--port=15001 \\
--enable_http_metadata_server=true \\
--http_metadata_server_host=0.0.0.0 \\
--http_metadata_server_port=15002"""),
        150: ("test_fastdeploy_disaggregated", """python -m fastdeploy.router.launch \\
--port 52700 \\
--splitwise"""),
        153: ("test_fastdeploy_disaggregated", """export MOONCAKE_MASTER_SERVER_ADDR="127.0.0.1:15001"
export MOONCAKE_METADATA_SERVER="http://127.0.0.1:15002/metadata"
export MOONCAKE_PROTOCOL="rdma"
export CUDA_VISIBLE_DEVICES=0
python -m fastdeploy.entrypoints.openai.api_server \\
--model ${MODEL_NAME} \\
--port 52400 \\
--max-model-len 32768 \\
--max-num-seqs 32 \\
--splitwise-role prefill \\
--cache-transfer-protocol rdma \\
--router "0.0.0.0:52700" \\
--kvcache-storage-backend mooncake"""),
        166: ("test_fastdeploy_disaggregated", """export MOONCAKE_MASTER_SERVER_ADDR="127.0.0.1:15001"
export MOONCAKE_METADATA_SERVER="http://127.0.0.1:15002/metadata"
export MOONCAKE_PROTOCOL="rdma"
export CUDA_VISIBLE_DEVICES=1
python -m fastdeploy.entrypoints.openai.api_server \\
--model ${MODEL_NAME} \\
--port 52500 \\
--max-model-len 32768 \\
--max-num-seqs 32 \\
--splitwise-role decode \\
--cache-transfer-protocol rdma \\
--router "0.0.0.0:52700" \\
--enable-output-caching \\
--kvcache-storage-backend mooncake"""),
        180: ("test_fastdeploy_disaggregated", """curl -X POST "http://0.0.0.0:52700/v1/chat/completions" \\
-H "Content-Type: application/json" \\
-d '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50}'"""),
        196: ("test_fastdeploy_instances", 'grep -E "storage_cache_token_num" log_*/api_server.log'),
        198: ("test_fastdeploy_disaggregated", 'grep -E "storage_cache_token_num" log_prefill/api_server.log'),
        200: ("test_fastdeploy_instances", "curl http://localhost:15002/metadata"),
        202: ("test_fastdeploy_instances", "curl http://localhost:15003/metrics"),
        204: ("test_fastdeploy_troubleshooting", "ss -ltn | grep 15001"),
        206: ("test_fastdeploy_troubleshooting", "kill -9 $(lsof -t -i:15001)"),
        208: (RDMA, "ibv_devices"),
        209: (RDMA, "ibv_devinfo"),
        210: ("test_fastdeploy_troubleshooting", "MOONCAKE_PROTOCOL=tcp"),
        218: ("test_fastdeploy_clean_up", "find /dev/shm -type f -print0 | xargs -0 rm -f"),
        219: ("not here: FastDeploy's own log", "export FD_DEBUG=1"),
    },
    "vllm-store": {
        66: (WHEEL, "pip3 install mooncake-transfer-engine"),
        78: (ENGINE, "git clone git@github.com:vllm-project/vllm.git"),
        82: (ENGINE, "cd vllm\npip3 install -e ."),
        93: ("test_vllm_rdma_configuration", """{
    "local_hostname": "192.168.0.137",
    "metadata_server": "etcd://192.168.0.137:2379",
    "protocol": "rdma",
    "device_name": "erdma_0",
    "master_server_address": "192.168.0.137:50001"
}"""),
        100: ("test_vllm_rdma_configuration", "local_hostname:"),
        102: ("test_vllm_rdma_configuration", "metadata_server:"),
        104: ("test_vllm_rdma_configuration", "protocol:"),
        106: ("test_vllm_rdma_configuration", "device_name:"),
        108: ("test_vllm_rdma_configuration", "master_server_address:"),
        112: ("test_vllm_store", """{
    "local_hostname": "192.168.0.137",
    "metadata_server": "etcd://192.168.0.137:2379",
    "protocol": "tcp",
    "device_name": "",
    "master_server_address": "192.168.0.137:50001"
}"""),
        127: ("test_vllm_store", "etcd --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://localhost:2379"),
        131: ("test_vllm_store", "mooncake_master --port 50001"),
        216: ("test_vllm_store", """cd vllm
python3 examples/online_serving/disagg_examples/disagg_proxy_demo.py \\
    --model Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4 \\
    --prefill localhost:8100 localhost:8101 \\
    --decode localhost:8200 localhost:8201 \\
    --port 8000"""),
        234: ("test_vllm_store", 'export ADMIN_API_KEY="xxxxxxxx"'),
        237: ("test_vllm_store", """ADMIN_API_KEY="xxxxxxxx" python3 vllm/examples/online_serving/disagg_examples/disagg_demo.py \\
    --model Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4 \\
    --prefill localhost:8100 localhost:8101 \\
    --decode localhost:8200 localhost:8201 \\
    --port 8000 \\
    --scheduling round_robin"""),
        266: ("test_vllm_store", "curl localhost:8000/status | jq"),
        276: ("test_vllm_store", """curl -s http://localhost:8000/v1/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4",
    "prompt": "San Francisco is a",
    "max_tokens": 1000
  }'"""),
    },
    "lmcache": {
        27: (WHEEL, "pip install mooncake-transfer-engine"),
        56: ("test_lmcache", "mooncake_http_metadata_server"),
        61: ("test_lmcache", "mooncake_master"),
        65: ("test_lmcache", "Master service started on port 50051"),
        66: ("test_lmcache", "HTTP metrics server started on port 9003"),
        67: ("test_lmcache", "Master Metrics: Storage: 0.00 B / 0.00 B | Keys: 0 | ..."),
        73: ("test_lmcache", """chunk_size: 256
local_device: "cpu"
remote_url: "mooncakestore://127.0.0.1:50051/"
remote_serde: "naive"
pipelined_backend: False
local_cpu: False
max_local_cpu_size: 5

extra_config:
  local_hostname: "localhost"
  metadata_server: "http://127.0.0.1:8080/metadata"
  protocol: "tcp"
  master_server_address: "localhost:50051"
  global_segment_size: 3355443200
  local_buffer_size: 1073741824
  transfer_timeout: 1"""),
        92: ("test_lmcache", """LMCACHE_CONFIG_FILE="mooncake-config.yaml" \\
LMCACHE_USE_EXPERIMENTAL=True \\
vllm serve \\
    meta-llama/Llama-3.1-70B-Instruct \\
    --max-model-len 65536 \\
    --kv-transfer-config \\
    '{"kv_connector":"LMCacheConnectorV1", "kv_role":"kv_both"}'"""),
        104: ("test_lmcache", """curl -X POST "http://localhost:8000/v1/completions" \\
     -H "Content-Type: application/json" \\
     -d '{
       "model": "meta-llama/Llama-3.1-70B-Instruct",
       "prompt": "The future of AI is",
       "max_tokens": 100,
       "temperature": 0.7
     }'"""),
        117: ("test_lmcache_debugging", "mooncake_master -v=1"),
        122: ("test_lmcache_debugging", "ps aux | grep mooncake"),
        123: ("test_lmcache_debugging", 'netstat -tlnp | grep -E "(8080|50051)"'),
        127: ("test_lmcache_debugging", "http://localhost:9003"),
        183: ("test_lmcache_parameters", "local_hostname\n\nRequired"),
        189: ("test_lmcache_parameters", "metadata_server\n\nRequired"),
        195: ("test_lmcache_parameters", "master_server_address\n\nRequired"),
        201: ("test_lmcache_parameters", "protocol\n\n“tcp”"),
        207: ("test_lmcache_parameters", "device_name\n\n“”"),
        213: ("test_lmcache_parameters", "global_segment_size\n\n3355443200"),
        219: ("test_lmcache_parameters", "local_buffer_size\n\n1073741824"),
    },
    "kubernetes-rbg": {
        81: ("test_the_roles_of_the_document", """- name: POD_IP
valueFrom:
fieldRef:
fieldPath: status.podIP"""),
        88: ("test_the_roles_of_the_document", """mooncake_master \\
--rpc_address $(POD_IP) --rpc_port 50051 \\
--http_metadata_server_host $(POD_IP) --http_metadata_server_port 8080 \\
--metrics_port 9003"""),
        108: ("test_the_roles_of_the_document", """- name: MOONCAKE_MASTER
value: "s-sglang-demo-mooncake-master:50051"
- name: MOONCAKE_TE_META_DATA_SERVER
value: "http://s-sglang-demo-mooncake-master:8080/metadata"
- name: MOONCAKE_GLOBAL_SEGMENT_SIZE
value: "50gb"
"""),
        116: ("test_the_roles_of_the_document", """- name: MOONCAKE_LOCAL_BUFFER_SIZE
value: "4194304"
- name: MOONCAKE_PROTOCOL
value: "tcp"
- name: MOONCAKE_DEVICE
value: ""
"""),
        125: ("test_the_roles_of_the_document", "python -m mooncake.mooncake_store_service --port 8080"),
        160: ("test_the_roles_of_the_document", """- name: MOONCAKE_MASTER
value: "s-sglang-demo-mooncake-master:50051"
- name: MOONCAKE_TE_META_DATA_SERVER
value: "http://s-sglang-demo-mooncake-master:8080/metadata"
"""),
        166: ("test_the_roles_of_the_document", """- name: MOONCAKE_GLOBAL_SEGMENT_SIZE
value: "0"
- name: MOONCAKE_LOCAL_BUFFER_SIZE
value: "4194304"
- name: MOONCAKE_PROTOCOL
value: "tcp"
- name: MOONCAKE_DEVICE
value: ""
"""),
        177: ("test_the_roles_of_the_document", """python -m sglang.launch_server --model-path /models/Qwen3-32B/ \\
--host 0.0.0.0 --port 8000 \\
--enable-hierarchical-cache --hicache-storage-backend mooncake"""),
        224: ("test_kubernetes_parameters", "rpc_port (type: int32 default: 0)"),
        225: ("test_kubernetes_parameters", 'rpc_address (type: string default: "0.0.0.0")'),
        226: ("test_kubernetes_parameters", "enable_http_metadata_server (boolean, default: false)"),
        227: ("test_kubernetes_parameters", "http_metadata_server_port (integer, default: 8080)"),
        228: ("test_kubernetes_parameters", 'http_metadata_server_host (string, default: "0.0.0.0")'),
        231: ("test_kubernetes_environment", "MOONCAKE_MASTER: The network address of the master service. The default port is 50051."),
        232: ("test_kubernetes_environment", "MOONCAKE_TE_META_DATA_SERVER:"),
        233: ("test_kubernetes_environment", '"16gb"'),
        234: ("test_kubernetes_environment", "MOONCAKE_GLOBAL_SEGMENT_SIZE is set to zero"),
        235: ("test_kubernetes_environment", "MOONCAKE_LOCAL_BUFFER_SIZE:"),
        236: ("test_kubernetes_environment", "MOONCAKE_LOCAL_BUFFER_SIZE is set to zero"),
        237: ("test_kubernetes_environment", 'Supported values are "rdma" or "tcp".'),
        238: ("test_kubernetes_environment", "MOONCAKE_DEVICE:"),
        242: (CLUSTER, "kubectl logs sglang-demo-mooncake-master-0"),
        243: ("test_the_roles_of_the_document", "Master Metrics: Storage: 0 B / 30.00 GB (0.0%) | Keys: 0 (soft-pinned: 0)"),
        247: (CLUSTER, "kubectl port-forward svc/sglang-demo 8000:8000"),
        249: ("test_the_roles_of_the_document", """curl localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "/models/Qwen3-32B",
    "messages": [
    {
        "role": "user",
        "content": "Explain why Roger Federer is considered one of the greatest tennis players of all time"
    }
    ],
    "max_tokens": 30
  }'"""),
        280: ("not here: SGLang's own benchmark on a GPU; ./dev bench engine-e2e is that experiment in small",
              """python3 -m sglang.bench_serving --backend sglang-oai \\
--num-prompts 300 --random-input 2048 \\
--random-output 512 --random-range-ratio 0.5 \\
--host 0.0.0.0 --port 8000 --model /models/Qwen3-32B/ \\
--dataset-path ShareGPT_V3_unfiltered_cleaned_split.json \\
--request-rate 10 \\
--seed 43"""),
        302: (CLUSTER, "kubectl logs sglang-demo-mooncake-master-0"),
    },
    "vllm-connector": {
        15: (WHEEL, "uv pip install mooncake-transfer-engine"),
        23: ("test_vllm_connector", """vllm serve Qwen/Qwen2.5-7B-Instruct --port 8010 --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}'"""),
        27: ("test_vllm_connector", """vllm serve Qwen/Qwen2.5-7B-Instruct --port 8020 --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"}'"""),
        31: ("test_vllm_connector", "python examples/online_serving/disaggregated_serving/mooncake_connector/mooncake_connector_proxy.py "
             "--prefill http://192.168.0.2:8010 --decode http://192.168.0.3:8020"),
        37: ("test_vllm_connector", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
        39: ("test_vllm_connector", "8998"),
        43: ("test_vllm_connector", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"),
        45: ("test_vllm_connector", "480"),
        58: ("not here: read by vLLM; ./dev test clients runs its connector", "num_workers"),
        59: ("not here: read by vLLM; ./dev test clients runs its connector", "mooncake_protocol"),
    },
}

# The eight instances, which differ in device, port and role, and the four calls that add instances.
for _i, (_line, _port, _role) in enumerate(((138, 8100, "kv_producer"), (145, 8101, "kv_producer"), (152, 8102, "kv_producer"), (159, 8103, "kv_producer"),
                                            (167, 8200, "kv_consumer"), (174, 8201, "kv_consumer"), (181, 8202, "kv_consumer"), (188, 8203, "kv_consumer"))):
    _device = f"CUDA_VISIBLE_DEVICES={_i} " if _i > 0 else ""
    _LINES["vllm-store"][_line] = ("test_vllm_store", f"""{_device}MOONCAKE_CONFIG_PATH=./mooncake.json VLLM_USE_V1=0 python3 -m vllm.entrypoints.openai.api_server \\
    --model Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4 \\
    --port {_port} \\
    --max-model-len 10000 \\
    --gpu-memory-utilization 0.8 \\
    --kv-transfer-config '{{"kv_connector":"MooncakeStoreConnector","kv_role":"{_role}"}}'""")
for _line, _type, _port in ((245, "prefill", 8102), (250, "prefill", 8103), (255, "decode", 8202), (260, "decode", 8203)):
    _LINES["vllm-store"][_line] = ("test_vllm_store", f"""curl -X POST "http://localhost:8000/instances/add" \\
  -H "Content-Type: application/json" \\
  -H "X-API-Key: $ADMIN_API_KEY" \\
  -d '{{"type": "{_type}", "instance": "localhost:{_port}"}}'""")

LINES = {f"{document}:{line}": entry for document, lines in _LINES.items() for line, entry in sorted(lines.items())}


def text(name):
    """What stands in the document at that line, "fastdeploy:89"."""
    return LINES[name][1]
