#!/usr/bin/env bash
# LMCache with its Mooncake backend: a metadata server, a master, two engines.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

start metadata "HTTP metadata server started" mooncake_http_metadata_server --port 8080
start master "HTTP metrics server started" mooncake_master
# With a GPU: LMCACHE_CONFIG_FILE="mooncake-config.yaml" LMCACHE_USE_EXPERIMENTAL=True vllm serve MODEL
#     --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1", "kv_role":"kv_both"}'
start engine0 "engine serves" python3 "$examples/engine.py" --setup dict --lmcache-config mooncake-config.yaml --port 8000
start engine1 "engine serves" python3 "$examples/engine.py" --setup dict --lmcache-config mooncake-config.yaml --port 8001

prompt="The future of AI is what this is about."
ask_until 8000 "$prompt" 36
ask_until 8001 "$prompt" 36
curl -sS http://127.0.0.1:9003/metrics/summary
echo
