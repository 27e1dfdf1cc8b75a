#!/usr/bin/env bash
# base.sh SUITE ARCHITECTURE FOLDER [PACKAGES]: a bare Debian with nothing but Python, or but PACKAGES, in FOLDER/base, if it is not there yet. Needs root.
set -euo pipefail
suite=$1 architecture=$2 base=$3/base
[ ! -e "$base/.done" ] || exit 0
mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
mirror=${mirror:-http://deb.debian.org/debian}
rm -rf --one-file-system "$base"
mkdir -p "$base"
include=${4:-python3}
[ "$suite" != bullseye ] || include+=,python3-distutils # what pip needs of Python beside it in Debian 11
if [ "$architecture" = "$(uname -m)" ]; then
    debootstrap --variant=minbase --include=$include "$suite" "$base" "$mirror"
else # unpacked alone: nothing of it is run
    mmdebstrap --variant=extract --architectures="${architecture/aarch64/arm64}" --include=$include,base-files,bash,coreutils,dash,grep,libc-bin \
        "$suite" "$base" "$mirror"
    mkdir -p "$base"/{proc,dev,tmp,root}
fi
touch "$base/.done"
