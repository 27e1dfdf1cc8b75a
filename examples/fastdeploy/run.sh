#!/usr/bin/env bash
# Two FastDeploy instances that share one pool of KV cache.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
export MOONCAKE_CONFIG_PATH=$PWD/mooncake_config.json

start master "HTTP metadata server started" mooncake_master --port=15001 --enable_http_metadata_server=true \
    --http_metadata_server_host=0.0.0.0 --http_metadata_server_port=15002 --metrics_port=15003
# With GPUs: python -m fastdeploy.entrypoints.openai.api_server --model $MODEL_NAME --port 52700 --kvcache-storage-backend mooncake
start instance0 "engine serves" python3 "$examples/engine.py" --setup keywords --port 52700
start instance1 "engine serves" python3 "$examples/engine.py" --setup keywords --port 52800

prompt="Hello, world! What one of us has computed the other one need not."
ask_until 52700 "$prompt" 64
ask_until 52800 "$prompt" 64
curl -sS http://127.0.0.1:15003/metrics | grep -E '^(master_key_count|mem_cache_hit_nums_) '
