# SPDX-License-Identifier: Apache-2.0
"""Where this package's C and C++ headers and libraries lie, for builds: `cc $(python -m mooncake.config --cflags) ... $(python -m mooncake.config --libs)`."""

import argparse
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
LIBRARIES = ("mooncake_store", "transfer_engine", "mooncake")


def main(arguments=None):
    """Prints what is asked for, a line each. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mooncake.config", description="Where the C and C++ headers and libraries of mooncake lie.")
    answers = (("cflags", f"-I{FOLDER / 'include'}", "flags of the compiler"),
               ("libs", " ".join([f"-L{FOLDER}", f"-Wl,-rpath,{FOLDER}", *(f"-l{name}" for name in LIBRARIES)]), "flags of the linker"),
               ("includedir", str(FOLDER / "include"), "the headers; in C++ those of its folder mooncake, too"),
               ("libdir", str(FOLDER), "libmooncake_store.so, libtransfer_engine.so, libmooncake.so"),
               ("pkgconfigdir", str(FOLDER / "pkgconfig"), "for PKG_CONFIG_PATH: mooncake_store, transfer_engine, mooncake"),
               ("cmakedir", str(FOLDER / "cmake"), "for -DMooncake_DIR=: find_package(Mooncake)"))
    for name, _, text in answers:
        parser.add_argument(f"--{name}", action="store_true", help=text)
    asked = parser.parse_args(arguments)
    lines = [answer for name, answer, _ in answers if getattr(asked, name)]
    if not lines:
        parser.print_help()
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
