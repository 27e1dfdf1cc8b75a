#!/usr/bin/env bash
# vLLM with MooncakeStoreConnector: two instances for prompts, two for tokens, one proxy before them; a third of each joins while they run.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
export MOONCAKE_CONFIG_PATH=$PWD/mooncake.json ADMIN_API_KEY="xxxxxxxx"

# With GPUs: VLLM_USE_V1=0 python3 -m vllm.entrypoints.openai.api_server --model ... --port 8100
#     --kv-transfer-config '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_producer"}'
instance() { start "instance$1" "engine serves" python3 "$examples/engine.py" --port "$1" --role "$2"; }
add() {
    curl -sS --fail -X POST "http://127.0.0.1:8000/instances/add" -H "Content-Type: application/json" -H "X-API-Key: $ADMIN_API_KEY" \
        -d "{\"type\": \"$1\", \"instance\": \"127.0.0.1:$2\"}"
    echo
}

start master "Master service started" mooncake_master --port 50001
instance 8100 kv_producer
instance 8101 kv_producer
instance 8200 kv_consumer
instance 8201 kv_consumer
start proxy "Proxy started" mooncake_proxy --model example --prefill localhost:8100 localhost:8101 --decode localhost:8200 localhost:8201 \
    --port 8000 --scheduling round_robin

prompt="San Francisco is a city that"
ask_until 8000 "$prompt" 28

instance 8102 kv_producer
instance 8202 kv_consumer
add prefill 8102
add decode 8202
for _ in 1 2 3; do ask_until 8000 "$prompt" 28; done
curl -sS http://127.0.0.1:8000/status
echo
