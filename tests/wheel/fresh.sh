#!/usr/bin/env bash
# fresh.sh WHEEL FOLDER SUITE [TAG]: installs the wheel into a bare Debian of that name that has nothing but Python, and uses it there; or, with a
# platform tag that is beyond that system, sees that pip refuses the same file under that tag. Needs root. FOLDER keeps the bare system for the next
# time. pip comes from outside, run from its own wheel: the bare system has none. A wheel for another processor is used in a system for that one, by
# qemu (qemu-user-static, mmdebstrap).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheel=$1 suite=$3 tag=${4:-}
[[ $wheel =~ _(x86_64|aarch64)\.whl$ ]] || { echo "for which processor is $wheel?"; exit 1; }
architecture=${BASH_REMATCH[1]}
folder=$2/$suite-$architecture
base=$folder/base system=$folder/system

bash "$here/base.sh" "$suite" "$architecture" "$folder"
rm -rf --one-file-system "$system"
cp -a "$base" "$system"
mkdir "$system/wheels"
cp "$here/smoke.py" "$system/wheels/"
cp "$wheel" "$system/wheels/$(basename "$wheel" | sed "s/manylinux_[0-9]*_[0-9]*/${tag:-&}/")"
pip=$(find "$(python3 -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')" /usr/share/python-wheels -name 'pip-*.whl' 2>/dev/null | head -n 1)
[ -n "$pip" ] || { echo "no wheel of pip found"; exit 1; }
cp "$pip" "$system/pip.whl"

# A mount namespace of its own: what is mounted is gone with it, however this ends.
apart=(unshare --mount)
[ "$architecture" = "$(uname -m)" ] || apart=(bash "$here/emulate.sh")
"${apart[@]}" bash -euc '
    mount --make-rprivate /
    mount --rbind /proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TAG="$2" bash -euc "
        ldd --version | head -n 1
        python3 -c \"import platform; print(platform.machine(), platform.python_version())\"
        rc=0
        python3 /pip.whl/pip install --quiet --no-index --no-deps --break-system-packages --root-user-action=ignore /wheels/*.whl >/said 2>&1 || rc=\$?
        cat /said
        if [ -n \"\$TAG\" ]; then
            [ \$rc != 0 ] && grep -q \"not a supported wheel on this platform\" /said
            exit
        fi
        [ \$rc = 0 ]
        cd /
        command -v mooncake_master
        python3 -I /wheels/smoke.py"' bash "$system" "$tag"
rm -rf --one-file-system "$system"
