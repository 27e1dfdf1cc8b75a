#!/usr/bin/env bash
# use.sh WHEELS VENV PYTHON: installs WHEELS, or the one wheel in the folder WHEELS, into a new environment and uses it; looks at whether its tag is true, and at what its binaries export.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheels=$1 venv=$2 python=$3

fail() {
    echo "FAILED: $*"
    exit 1
}

files=("$wheels")
[ ! -d "$wheels" ] || files=("$wheels"/*.whl)
[ ${#files[@]} -eq 1 ] && [ -f "${files[0]}" ] || fail "not exactly one wheel in $wheels"
echo "$(basename "${files[0]}"): $(stat -c %s "${files[0]}") bytes"
python3 -B "$here/floor.py" "${files[0]}" || fail "its tag is not true"
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --no-index --no-deps "${files[0]}"
package=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/mooncake

for extension in "$package"/*.so; do
    case $extension in */libmooncake.so*) continue ;; esac
    exports=$(nm -D --defined-only "$extension" | awk '{print $3}' | grep -v '^PyInit_' || true)
    [ -z "$exports" ] || fail "$extension exports more than its init function: $exports"
    nm -D --defined-only "$extension" | grep -q ' PyInit_' || fail "$extension has no init function"
done
library=$(find "$package" -name 'libmooncake.so*' | head -n 1)
[ -n "$library" ] || fail "the wheel holds no libmooncake"
# Its own names, and the original's C interface: all that its header declares, and nothing else.
original=$(sed -n 's/.*MC_ORIGINAL_API .*[ *]\([a-zA-Z]*\)(.*/\1/p' "$package/include/transfer_engine_c.h" | sort)
[ "$(wc -l <<<"$original")" -gt 20 ] || fail "transfer_engine_c.h is not understood: $original"
exports=$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^mc_' | sort)
[ "$exports" = "$original" ] || fail "libmooncake exports what is not of its API, or not all of it: $(diff <(echo "$exports") <(echo "$original"))"

# A program in C that was written for the original, built against what the wheel holds.
gcc -Wall -Wextra -Wpedantic -Werror -I "$package/include" -o "$venv/user" "$here/user.c" -L "$package" -lmooncake -Wl,-rpath,"$package"
MC_TCP_BIND_ADDRESS=127.0.0.1 "$venv/user"

# Far from the checkout, so that nothing of it can be imported by chance.
cd /
"$venv/bin/python" -I "$here/smoke.py"
"$venv/bin/python" -B "$here/threads.py"
