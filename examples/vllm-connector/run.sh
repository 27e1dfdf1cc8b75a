#!/usr/bin/env bash
# vLLM with MooncakeConnector: prefill writes the KV cache straight into decode's memory. No master, no store.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# With GPUs: vllm serve Qwen/Qwen2.5-7B-Instruct --port 8010 --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}'
start prefill "engine serves" env VLLM_MOONCAKE_BOOTSTRAP_PORT=8998 python3 "$examples/connector.py" --port 8010 --role kv_producer
start decode "engine serves" python3 "$examples/connector.py" --port 8020 --role kv_consumer
start proxy "Proxy started" mooncake_proxy --prefill http://127.0.0.1:8010 8998 --decode http://127.0.0.1:8020 --port 8000

ask_until 8000 "San Francisco is a city that" 28
curl -sS http://127.0.0.1:8000/status
echo
