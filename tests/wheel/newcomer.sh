#!/usr/bin/env bash
# newcomer.sh SUITE FOLDER [WHEEL]: README.md's way to a put and a get, and nothing beside it, in a bare Debian of that name, as root.
# Without a wheel: in a clean checkout, on a system that has not even Python. With one: as in an engine's image, which has Python, pip and torch, and in
# which engines are installed by pip beside the system's packages. Needs root. FOLDER keeps the bare system for the next time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
suite=$1 kind=checkout include=ca-certificates wheel=${3:-}
[ -z "$wheel" ] || kind=engine include=ca-certificates,python3,python3-pip
folder=$2/newcomer-$kind-$suite
base=$folder/base system=$folder/system

# How this machine reaches the mirror and PyPI: the same from inside.
settings=()
while IFS= read -r line; do settings+=("$line"); done < <(env | grep -iE '^(pip_(index_url|extra_index_url|find_links|trusted_host|default_timeout)|https?_proxy|no_proxy)=' || true)
[ -z "${PIP_CERT:-}" ] || settings+=(PIP_CERT=/certificates.pem)

# apart NAMESPACES SYSTEM FOLDER COMMAND: in a mount namespace of its own; what is mounted is gone with it, however this ends.
apart() {
    local namespaces=$1
    shift
    [ -z "${PIP_CERT:-}" ] || cp "$PIP_CERT" "$1/certificates.pem"
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    grep -qs localhost "$1/etc/hosts" || echo 127.0.0.1 localhost >"$1/etc/hosts" # every machine and container has it
    unshare $namespaces bash -euc '
        ip link set lo up
        mount --make-rprivate /
        mount --rbind /proc "$1/proc"
        mount --rbind /dev "$1/dev"
        links=${PIP_FIND_LINKS:-}
        if [ -d "$links" ]; then mkdir -p "$1/$links" && mount --bind "$links" "$1/$links"; fi
        exec chroot "$1" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${@:4}" \
            bash -euc "cd $2; $3"' bash "$1" "$2" "$3" ${settings[@]+"${settings[@]}"}
}

bash "$here/base.sh" "$suite" "$(uname -m)" "$folder" "$include"
if [ $kind = engine ] && [ ! -e "$base/.torch" ]; then
    rm -f "$base"/usr/lib/python3*/EXTERNALLY-MANAGED
    torch="pip install --quiet --root-user-action=ignore torch==2.13.0+cpu"
    apart --mount "$base" / "$torch || $torch --extra-index-url https://download.pytorch.org/whl/cpu" # the configured index may have it
    touch "$base/.torch"
fi
rm -rf --one-file-system "$system"
cp -a "$base" "$system"
if [ $kind = checkout ]; then
    place=/mooncake
    mkdir "$system$place"
    git -C "$source" archive HEAD | tar -x -C "$system$place"
else
    place=/root
    cp "$wheel" "$system$place/"
fi
python3 -B "$here/newcomer.py" "$source/README.md" $kind "$system"
if [ $kind = engine ]; then sed -i "s/^from mooncake.store/import torch\n&/" "$system/use.sh"; fi
apart --mount "$system" $place "bash /install.sh"
apart "--mount --net" "$system" $place "bash /use.sh" # nobody else has the port of README's master there
rm -rf --one-file-system "$system"
