# What the examples' run.sh share: start what must be there, wait for it, and end all of it with this script. Sourced, not run.
# Commands and Python come from PATH: after `pip install .` or, from a checkout, after
#   ./dev build && PATH=$PWD/.cache/build-release:$PATH PYTHONPATH=...
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$(dirname "${BASH_SOURCE[1]}")"
work=$(mktemp -d "${TMPDIR:-/tmp}/mooncake-example.XXXXXX")
pids=()

finish() {
    local rc=$?
    trap - EXIT
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
    [ $rc -eq 0 ] || tail -n 20 "$work"/*.log >&2
    rm -rf "$work"
    exit $rc
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME WORDS COMMAND...: in the background, until its log holds the words.
start() {
    local name=$1 words=$2
    shift 2
    echo "+ $*"
    : >"$work/$name.log"
    "$@" >"$work/$name.log" 2>&1 </dev/null &
    pids+=($!)
    for _ in $(seq 600); do
        if grep -q "$words" "$work/$name.log"; then return 0; fi
        if ! kill -0 "${pids[-1]}" 2>/dev/null; then break; fi
        sleep 0.1
    done
    echo "$name did not start" >&2
    return 1
}

# ask PORT PROMPT: one request to an engine or a proxy; prints how much of the prompt came from elsewhere.
ask() {
    curl -sS --fail --max-time 60 "http://127.0.0.1:$1/v1/completions" -H "Content-Type: application/json" -d "{\"model\": \"example\", \"prompt\": \"$2\", \"max_tokens\": 8}" |
        python3 -c "import json, sys
usage = json.load(sys.stdin)['usage']
print('port $1:', usage['prompt_tokens'], 'tokens of prompt,', usage['prompt_tokens_details']['cached_tokens'], 'not computed here')"
}

# ask_until PORT PROMPT TOKENS: until so many tokens need not be computed (a node lends memory a moment after it has joined).
ask_until() {
    local said
    for _ in $(seq 50); do
        said=$(ask "$1" "$2")
        case $said in *" $3 not computed here") echo "$said" && return 0 ;; esac
        sleep 0.2
    done
    echo "$said, but $3 should not be" >&2
    return 1
}
