#!/usr/bin/env bash
# fresh.sh WHEELS FOLDER: installs the wheel into a bare Debian 12 that has nothing but Python, and uses it there. Needs root.
# FOLDER keeps the bare system for the next time. pip comes from outside, run from its own wheel: the bare system has none.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheels=$1 folder=$2
base=$folder/base system=$folder/system

mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
if [ ! -e "$base/.done" ]; then
    rm -rf --one-file-system "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=python3 bookworm "$base" "${mirror:-http://deb.debian.org/debian}"
    touch "$base/.done"
fi
rm -rf --one-file-system "$system"
cp -a "$base" "$system"
mkdir "$system/wheels"
cp "$wheels"/*.whl "$here/smoke.py" "$system/wheels/"
pip=$(find "$(python3 -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')" /usr/share/python-wheels -name 'pip-*.whl' 2>/dev/null | head -n 1)
[ -n "$pip" ] || { echo "no wheel of pip found"; exit 1; }
cp "$pip" "$system/pip.whl"

# A mount namespace of its own: what is mounted is gone with it, however this ends.
unshare --mount bash -euc '
    mount --make-rprivate /
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 bash -euc "
        python3 /pip.whl/pip install --quiet --no-index --no-deps --break-system-packages --root-user-action=ignore /wheels/*.whl
        cd /
        command -v mooncake_master
        python3 -I /wheels/smoke.py"' bash "$system"
rm -rf --one-file-system "$system"
