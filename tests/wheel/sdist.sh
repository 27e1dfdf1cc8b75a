#!/usr/bin/env bash
# sdist.sh ARCHIVE VENV PYTHON: installs a source distribution as pip does it, with what pip fetches, and uses it; then sees that where a package of
# the system is missing, one line says which.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
archive=$1 venv=$2 python=$3
rm -rf "$venv"
"$python" -m venv "$venv"
cd /
if PKG_CONFIG_LIBDIR=/nowhere "$venv/bin/python" -m pip install --no-deps "$archive" >"$venv/said" 2>&1; then
    echo "FAILED: it was built without any library"
    exit 1
fi
lines=$(grep -cE 'ERROR: .*install them: apt-get install .*libevent-dev.*libyaml-dev' "$venv/said" || true)
[ "$lines" = 1 ] || {
    tail -n 30 "$venv/said"
    echo "FAILED: no line, or more than one, says what is missing"
    exit 1
}
"$venv/bin/python" -m pip install --no-deps --quiet "$archive"
"$venv/bin/python" -I "$here/smoke.py"
