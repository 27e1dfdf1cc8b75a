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
    case $extension in */lib*.so) continue ;; esac
    exports=$(nm -D --defined-only "$extension" | awk '{print $3}' | grep -v '^PyInit_' || true)
    [ -z "$exports" ] || fail "$extension exports more than its init function: $exports"
    nm -D --defined-only "$extension" | grep -q ' PyInit_' || fail "$extension has no init function"
done
library=$(find "$package" -name 'libmooncake.so*' | head -n 1)
[ -n "$library" ] || fail "the wheel holds no libmooncake"
# Its own names, and the original's C interfaces: all that their headers declare, and nothing else.
declared() { # HEADER: the functions that it declares
    sed -n 's/.*MC_ORIGINAL_[A-Z_]*API .*[ *]\([a-zA-Z_]*\)(.*/\1/p' "$package/include/$1" | sort
}
defined() { nm -D --defined-only "$1" | awk '{print $3}' | grep -vE "$2" | sort; } # LIBRARY PATTERN: what it exports but for those
check_names() { # HEADER LIBRARY PATTERN
    [ "$(declared "$1" | wc -l)" -gt 20 ] || fail "$1 is not understood: $(declared "$1")"
    diff <(declared "$1") <(defined "$package/$2" "$3") || fail "$2 exports what $1 does not declare (>), or not all of it (<)"
}
check_names transfer_engine_c.h libmooncake.so '^mc_'
check_names transfer_engine_c.h libtransfer_engine.so '^$'
check_names store_c.h libmooncake_store.so '^$'

# A program in C that was written for the original, built against what the wheel holds, by the flags that the package says: all of its libraries, then
# one, by pkg-config.
config() { "$venv/bin/python" -I -m mooncake.config "$@"; }
strict=(-Wall -Wextra -Wpedantic -Werror -Wl,--no-undefined)
gcc "${strict[@]}" $(config --cflags) -o "$venv/user" "$here/user.c" $(config --libs)
MC_TCP_BIND_ADDRESS=127.0.0.1 "$venv/user"
for name in transfer_engine mooncake; do
    gcc "${strict[@]}" -Wl,--as-needed -o "$venv/user" "$here/user.c" $(PKG_CONFIG_PATH=$(config --pkgconfigdir) pkg-config --cflags --libs $name)
    readelf -d "$venv/user" | grep -q "NEEDED.*lib$name\.so" || fail "what is linked with $name does not need it"
    MC_TCP_BIND_ADDRESS=127.0.0.1 "$venv/user"
done
[ -f "$(config --cmakedir)/MooncakeConfig.cmake" ] && [ -f "$(config --includedir)/mooncake/real_client.h" ] && [ -f "$(config --libdir)/libmooncake_store.so" ] ||
    fail "mooncake.config names what is not there"
"$venv/bin/python" -I -c 'import ctypes, sys; print(bool(ctypes.CDLL(sys.argv[1] + "/libmooncake_store.so").mooncake_store_create))' "$(config --libdir)"

# Far from the checkout, so that nothing of it can be imported by chance.
cd /
"$venv/bin/python" -I "$here/smoke.py"
"$venv/bin/python" -B "$here/threads.py"
