"""The original's Rust crates, their sources and tests unchanged. Their manifests ask for newer crates than Debian has, and crates.io may not be there:
these manifests name the same files, and Debian's crates."""
import os
import re
import subprocess

from conftest import foreign, run

REGISTRY = "/usr/share/cargo/registry"  # of Debian's librust-*-dev
CARGO = f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{REGISTRY}"\n'
STORE = """
[package]
name = "mooncake_store"
version = "0.1.0"
edition = "2021"
[lib]
path = "{crate}/src/lib.rs"
[[test]]
name = "minimal_smoke"
path = "{crate}/tests/minimal_smoke.rs"
[[example]]
name = "store_benchmark"
path = "{crate}/examples/store_benchmark.rs"
[features]
link = []
dlopen = []
[dependencies]
thiserror = "1"
libc = "0.2"
libloading = "0.7"
"""
ENGINE = """
[package]
name = "transfer_engine_rust"
version = "0.1.0"
edition = "2021"
build = "{crate}/build.rs"
[lib]
path = "{crate}/src/lib.rs"
[[test]]
name = "minimal_smoke"
path = "{crate}/tests/minimal_smoke.rs"
[dependencies]
thiserror = "1"
[build-dependencies]
bindgen = {{ path = "bindgen" }}
"""
# Debian's bindgen with what newer ones do by themselves: size_t is usize.
BINDGEN = """
[package]
name = "bindgen"
version = "0.70.0"
edition = "2021"
[dependencies]
older = { package = "bindgen", version = "0.60", default-features = false, features = ["runtime"] }
"""
BINDGEN_SOURCE = """
#[derive(Default)]
pub struct Builder;
impl Builder {
    pub fn header<T: Into<String>>(self, header: T) -> older::Builder {
        older::Builder::default().size_t_is_usize(true).header(header)
    }
}
"""


def cargo(kept, folder, manifest, *arguments, **environment):
    (folder / ".cargo").mkdir()
    (folder / ".cargo/config.toml").write_text(CARGO)
    (folder / "Cargo.toml").write_text(manifest)
    return run("cargo", *arguments, "--offline", cwd=folder, env={**os.environ, "CARGO_TARGET_DIR": str(kept / "rust"), **environment})


def passed(said):
    assert not re.search(r"[1-9]\d* (failed|ignored)", re.sub(r"Doc-tests.*", "", said, flags=re.S)), said
    return sum(int(count) for count in re.findall(r"(\d+) passed", said))


def test_store(kept, libraries, master, tmp_path):
    """The way that opens the library at run time."""
    crate = foreign("mooncake") / "mooncake-store/rust"
    environment = {"MOONCAKE_STORE_LIBRARY": str(libraries / "libmooncake_store.so"), "MC_RUST_STORE_RUN_INTEGRATION": "1",
                   "MC_RUST_STORE_MASTER_ADDR": master.address, "MC_RUST_STORE_LOCAL_HOSTNAME": "127.0.0.1"}
    said = cargo(kept, tmp_path, STORE.format(crate=crate), "test", "--features", "dlopen", **environment)
    assert passed(said) >= 8 and "smoke_round_trip ... ok" in said, said
    small = {"MC_RUST_BENCH_ITERATIONS": "4", "MC_RUST_BENCH_VALUE_SIZE": "4096", "MC_RUST_BENCH_WARMUP": "1"}
    run("cargo", "run", "--offline", "--features", "dlopen", "--example", "store_benchmark", cwd=tmp_path,
        env={**os.environ, "CARGO_TARGET_DIR": str(kept / "rust"), **environment, **small})


def test_transfer_engine(kept, installed, libraries, tmp_path):
    """Linked by its own build script. What that names besides, the original's C++ libraries, is empty here."""
    crate = foreign("mooncake") / "mooncake-transfer-engine/rust"
    empty = tmp_path / "empty"
    (tmp_path / "bindgen/src").mkdir(parents=True)
    empty.mkdir()
    (tmp_path / "bindgen/Cargo.toml").write_text(BINDGEN)
    (tmp_path / "bindgen/src/lib.rs").write_text(BINDGEN_SOURCE)
    for name in ("base", "tent", "asio", "glog", "gflags", "jsoncpp", "numa", "curl", "ibverbs"):
        subprocess.run(["ar", "rc", str(empty / f"lib{name}.a")], check=True)
    said = cargo(kept, tmp_path, ENGINE.format(crate=crate), "test", MOONCAKE_WITH_TENT="1", MOONCAKE_WITHOUT_LIBFABRIC="1", MOONCAKE_TE_LIB_DIR=str(empty),
                 MOONCAKE_TE_INCLUDE_DIR=f"{installed}/include", RUSTFLAGS=f"-L native={libraries} -C link-arg=-Wl,-rpath,{libraries}",
                 MC_RUST_TE_RUN_INTEGRATION="1", MC_TCP_BIND_ADDRESS="127.0.0.1", LIBCLANG_PATH="/usr/lib/llvm-14/lib")
    assert passed(said) >= 10 and "tcp_loopback_write_and_read ... ok" in said, said
