#!/usr/bin/env bash
# fresh.sh WHEEL FOLDER SUITE [TAG]: installs the wheel into a bare Debian of that name that has nothing but Python, and uses it there; or, with a
# platform tag that is beyond that system, sees that pip refuses the same file under that tag. Needs root. FOLDER keeps the bare system for the next time. pip comes from outside, run from its own wheel: the
# bare system has none. A wheel for another processor is used in a system for that one, by qemu (qemu-user-static, mmdebstrap).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheel=$1 suite=$3 tag=${4:-}
[[ $wheel =~ _(x86_64|aarch64)\.whl$ ]] || { echo "for which processor is $wheel?"; exit 1; }
architecture=${BASH_REMATCH[1]}
folder=$2/$suite-$architecture
base=$folder/base system=$folder/system

mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
mirror=${mirror:-http://deb.debian.org/debian}
if [ ! -e "$base/.done" ]; then
    rm -rf --one-file-system "$base"
    mkdir -p "$base"
    include=python3
    [ "$suite" != bullseye ] || include+=,python3-distutils # what pip needs of Python beside it in Debian 11
    if [ "$architecture" = "$(uname -m)" ]; then
        debootstrap --variant=minbase --include=$include "$suite" "$base" "$mirror"
    else # unpacked alone: nothing of it is run
        mmdebstrap --variant=extract --architectures="${architecture/aarch64/arm64}" --include=$include,base-files,bash,coreutils,dash,grep,libc-bin \
            "$suite" "$base" "$mirror"
        mkdir -p "$base"/{proc,dev,tmp,root}
    fi
    touch "$base/.done"
fi
rm -rf --one-file-system "$system"
cp -a "$base" "$system"
mkdir "$system/wheels"
cp "$here/smoke.py" "$system/wheels/"
cp "$wheel" "$system/wheels/$(basename "$wheel" | sed "s/manylinux_[0-9]*_[0-9]*/${tag:-&}/")"
pip=$(find "$(python3 -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')" /usr/share/python-wheels -name 'pip-*.whl' 2>/dev/null | head -n 1)
[ -n "$pip" ] || { echo "no wheel of pip found"; exit 1; }
cp "$pip" "$system/pip.whl"

# A mount namespace of its own: what is mounted is gone with it, however this ends. For another processor a user namespace too: since Linux 6.7 such
# a one has its own table of which files are run by what.
emulate=() table=''
if [ "$architecture" != "$(uname -m)" ]; then
    emulate=(--user --map-root-user)
    [ "$architecture" = aarch64 ] # the only one whose magic is here
    table=':aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F'
fi
unshare ${emulate[@]+"${emulate[@]}"} --mount bash -euc '
    mount --make-rprivate /
    if [ -n "$3" ]; then
        mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
        printf %s "$3" >/proc/sys/fs/binfmt_misc/register
    fi
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
        python3 -I /wheels/smoke.py"' bash "$system" "$tag" "$table"
rm -rf --one-file-system "$system"
