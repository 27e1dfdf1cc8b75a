#!/usr/bin/env bash
# free.sh WHEEL VENV PYTHON: installs the wheel for a free-threaded Python into a new environment of that one, and uses it from many threads.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheel=$1 venv=$2 python=$3
python3 -B "$here/floor.py" "$wheel"
rm -rf "$venv"
mkdir -p "$venv"
# This Python yields 40 times before it takes a lock that its own thread has already, thousands of times while it starts: on a machine with 50 processes
# that is minutes. Spinning instead costs nothing.
echo 'int sched_yield(void) { return 0; }' | gcc -shared -fPIC -x c -o "$venv/yield.so" -
export LD_PRELOAD=$venv/yield.so
"$python" -m venv --without-pip "$venv"
# Debian's site.py looks for packages without the "t" of such a Python, where neither venv nor pip puts them.
for folder in "$venv"/lib/python*t; do ln -s "${folder##*/}" "${folder%t}"; done
# The first pip that knows such a Python's tag; that of Python 3.11 does not.
python3 -m pip download --quiet --no-deps --dest "$venv" 'pip>=24.1'
pip=$(find "$venv" -maxdepth 1 -name "pip-*.whl")
"$venv/bin/python" "$pip/pip" install --quiet --no-index --no-deps "$wheel"
cd /
"$venv/bin/python" -c 'import sys; print(sys.version)'
"$venv/bin/python" -B -W error "$here/smoke.py"
"$venv/bin/python" -B -W error "$here/threads.py"
