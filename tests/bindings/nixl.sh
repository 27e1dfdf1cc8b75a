#!/usr/bin/env bash
# nixl.sh SOURCES OUT HEADERS LIBRARIES: compiles NIXL's Mooncake plugin and its test from NIXL's sources, as its own build would with nothing else
# enabled, against our headers and libtransfer_engine. Objects stay in OUT for the next time.
set -euo pipefail
sources=$1 out=$2 headers=$3 libraries=$4
absl=(absl_log absl_log_initialize absl_flat_hash_map absl_strings absl_status absl_statusor absl_synchronization)
flags=(-std=c++20 -O1 -fPIC -I"$headers" -DNIXL_VERSION='"0"' -DNIXL_GIT_HASH='"0"')
for folder in api/cpp api/cpp/backend infra core core/telemetry utils utils/common plugins/mooncake; do flags+=(-I"$sources/src/$folder"); done
shared=(infra/nixl_descriptors infra/nixl_memory_section utils/serdes/serdes utils/common/nixl_log utils/common/configuration utils/common/hw_info
    utils/common/nixl_duration utils/common/uuid_v4)
mkdir -p "$out"
objects=()
for file in "${shared[@]/#/src/}" src/plugins/mooncake/mooncake_{backend,plugin} test/unit/plugins/mooncake/mooncake_backend_test; do
    object=$out/${file##*/}.o
    if [ ! "$object" -nt "$sources/$file.cpp" ] || [ "$headers/transfer_engine_c.h" -nt "$object" ]; then
        g++ "${flags[@]}" -c "$sources/$file.cpp" -o "$object"
    fi
    [[ $file == test/* ]] || objects+=("$object")
done
plugin=$out/libplugin_Mooncake.so
g++ -shared -o "$plugin" "${objects[@]}" -L"$libraries" -Wl,-rpath,"$libraries" -Wl,--as-needed -Wl,--no-undefined -ltransfer_engine \
    $(pkg-config --libs "${absl[@]}") -ltomlplusplus -lpthread
g++ -o "$out/mooncake_backend_test" "$out/mooncake_backend_test.o" "$plugin" -Wl,-rpath,"$out" $(pkg-config --libs "${absl[@]}") \
    -L"$libraries" -ltransfer_engine -lpthread
