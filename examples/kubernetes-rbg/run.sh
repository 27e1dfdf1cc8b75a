#!/usr/bin/env bash
# The pods of cluster.yaml as processes of one machine: commands and environment are read from the manifest, only ports, sizes and the master's name are other ones.
# The stores begin before the master, as pods may.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# role NAME: that role's part of the manifest.
role() {
    local line inside=false
    while IFS= read -r line; do
        case $line in
            "    - name: $1") inside=true ;;
            "    - name: "* | ---*) inside=false ;;
        esac
        ! $inside || printf '%s\n' "$line"
    done <cluster.yaml
}

# environment NAME: its variables, as env(1) takes them.
environment() {
    role "$1" | sed -n '/- name: MOONCAKE_/ { s/.*- name: //; N; s/"//g; s/\n *value: /=/p; }' |
        sed "s/s-sglang-demo-mooncake-master/127.0.0.1/; s/=48gb/=64mb/; s,=/disk,=$work/disk,; s/=1099511627776/=268435456/"
}

# command NAME PORT: its command in a pod whose address is 127.0.0.1, on another port than the other pods of this machine.
command_of() {
    role "$1" | sed -n '/initContainers: &install/,/volumeMounts:/d; s/^ *command: \["sh", "-c", "exec \(.*\)"\]$/\1/p' |
        sed "s/\$(POD_IP)/127.0.0.1/g; s,/mooncake/bin/,,; s/^python /python3 /; s/--port [0-9]*/--port $2/"
}

pod() { # LOG WORDS ROLE PORT
    local variables words
    mapfile -t variables < <(environment "$3")
    read -ra words <<<"$(command_of "$3" "$4")"
    start "$1" "$2" env ${variables[@]+"${variables[@]}"} "${words[@]}"
}

mkdir "$work/disk"
for i in 1 2 3; do pod "store$i" "" mooncake-store $((8080 + i)); done
pod master "HTTP metadata server started" mooncake-master 0
for i in 1 2 3; do
    for _ in $(seq 300); do curl -sf -o "$work/health" "http://127.0.0.1:$((8080 + i))/health" && break || sleep 0.2; done
    echo "store$i: $(cat "$work/health")"
done
# In a pod with a GPU this is: python -m sglang.launch_server ... --enable-hierarchical-cache --hicache-storage-backend mooncake
mapfile -t variables < <(environment sglang-backend)
start engine "engine serves" env "${variables[@]}" python3 "$examples/engine.py" --port 8000

for _ in $(seq 100); do
    curl -s http://127.0.0.1:9003/metrics | grep -x "mooncake_disks 3" && break || sleep 0.2
done
prompt="Explain why Roger Federer is one of the greatest."
ask_until 8000 "$prompt" 48
curl -sS http://127.0.0.1:9003/get_all_segments
curl -sS http://127.0.0.1:9003/metrics/summary
echo
