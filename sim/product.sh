#!/bin/sh
# product.sh OUT SYMBOLS LIBRARY...: one object of the product's libraries in which the C library's and libevent's
# functions are called by their simulated names and all variables lie in one section (mc_vars), so that each simulated
# process can have its own (but space.c's `hole` and the limits of the log, which nobody writes). Fails when the product calls something that is neither simulated nor known to be harmless.
set -eu
out=$1 symbols=$2
shift 2
wraps=$(sed -n 's/^w \([^ ]*\).*/--wrap=\1/p' "$symbols")
# shellcheck disable=SC2086
ld -r -o "$out.all.o" $wraps --whole-archive "$@"
grep '^s ' "$symbols" | while read -r _ name target; do echo "$name ${target:-sim_$name}"; done >"$out.names"
grep '^w ' "$symbols" | while read -r _ name target; do echo "__wrap_$name $target"; done >>"$out.names"
objcopy --redefine-syms="$out.names" "$out.all.o" "$out.named.o"
renames=$(objdump -h "$out.named.o" | awk '$2 ~ /^\.(data|bss)/ && $2 !~ /^\.data\.rel\.ro/ && $2 != ".bss.hole" && $2 !~ /^\.bss\.limit_/ { print $2 }' | sort -u |
    sed 's/.*/--rename-section &=mc_vars,alloc,load,data,contents/' | tr '\n' ' ')
# shellcheck disable=SC2086
objcopy $renames "$out.named.o" "$out"
if objdump -h "$out" | grep -E '\.(tdata|tbss)'; then
    echo "the product has thread-local variables, which fibers would share" >&2
    exit 1
fi
unknown=$(nm -u "$out" | awk '{ print $NF }' | sort -u | grep -v '^sim_' | grep -v -e '^pcre2_' -e '^json' | while read -r name; do
    grep -qx "h $name" "$symbols" || echo "$name"
done)
if [ -n "$unknown" ]; then
    echo "neither simulated nor known to be harmless (see sim/symbols.txt):" $unknown >&2
    exit 1
fi
rm -f "$out.all.o" "$out.named.o"
