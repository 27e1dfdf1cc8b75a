#!/usr/bin/env bash
# emulate.sh COMMAND...: runs it where programs for aarch64 are run by qemu: in a user namespace, which since Linux 6.7 has a table of its own of which
# files are run by what, so that the machine's stays as it is. The namespace has all users of the machine, so that root in it can become another one.
# Without a command it says by its exit status whether that can be. Needs root.
set -euo pipefail
[ $# -gt 0 ] || set -- true
go=$(mktemp -u)
mkfifo "$go"
# Waits until it has users, and is root by the exec that follows. What a shell starts behind itself ignores two signals; COMMAND does not.
unshare --user bash -c 'read -r _ <"$0"; exec unshare --mount bash -euc '\''
    mount --make-rprivate /
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    printf %s ":aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F" \
        >/proc/sys/fs/binfmt_misc/register
    exec env --default-signal=INT,QUIT "$@"'\'' bash "$@"' "$go" "$@" &
inner=$!
trap 'rm -f "$go"' EXIT
until [ "$(readlink /proc/$inner/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.02; done
for kind in uid gid; do
    echo "0 0 65536" >/proc/$inner/${kind}_map || { kill $inner; exit 1; }
done
echo >"$go"
wait $inner
