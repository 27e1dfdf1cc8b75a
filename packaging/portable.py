#!/usr/bin/env python3
"""Builds wheels for every system with glibc 2.28 or newer and every Python from 3.9 on, on Debian 12: one for each architecture.

portable.py CACHE TARGET [ARCHITECTURE...]      x86_64 and aarch64, unless some are named; the wheels go to the folder TARGET

The compiler is zig's, from PyPI: it has the C library's headers and symbols of each version and architecture. The libraries that are linked
in are Debian 12's sources, security patches too, compiled for the same floor. CACHE keeps compiler, sources and libraries for the next time.
tests/wheel/floor.py then judges what came out.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ZIG, WHEEL = "ziglang==0.15.2", "wheel>=0.40"  # from PyPI
GLIBC = (2, 28)
OLDEST_PYTHON = "cp39"
SUITE = "bookworm"
# Zig tells clang which features are not there, each by its name, and so also functions that are compiled for more (base/checksum.c). The two of
# x86-64 that such a function cannot bring itself; without those that it does bring neither makes the compiler use an instruction.
ARCHITECTURES = {"x86_64": "x86_64+evex512+crc32", "aarch64": "generic"}
FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-w")  # hidden: a shared object that they are linked into exports none of their names

# Of each source package: (pkg-config's name, what is compiled, what of that is not, flags, {where headers go: which}).
EVENT_FLAGS = ("-DHAVE_CONFIG_H", "-I.", "-Iinclude", "-Icompat", "-D_GNU_SOURCE")
LIBRARIES = {
    "libevent": (
        ("libevent_core", "buffer.c bufferevent.c bufferevent_filter.c bufferevent_pair.c bufferevent_ratelim.c bufferevent_sock.c epoll.c event.c evmap.c "
         "evthread.c evutil.c evutil_rand.c evutil_time.c listener.c log.c poll.c select.c signal.c strlcpy.c", "", EVENT_FLAGS,
         {".": "include/*.h", "event2": "include/event2/*.h"}),
        ("libevent_extra", "evdns.c event_tagging.c evrpc.c http.c", "", EVENT_FLAGS, {}),
        ("libevent_pthreads", "evthread_pthread.c", "", EVENT_FLAGS, {})),
    "libyaml": (
        ("yaml-0.1", "src/*.c", "", ("-Iinclude", "-DYAML_VERSION_MAJOR=0", "-DYAML_VERSION_MINOR=2", "-DYAML_VERSION_PATCH=5", '-DYAML_VERSION_STRING="0.2.5"'),
         {".": "include/*.h"}),),
    "pcre2": (  # as its NON-AUTOTOOLS-BUILD says; without just-in-time compilation, which nothing here asks for
        ("libpcre2-8", "src/pcre2_*.c", "pcre2_dftables.c pcre2_fuzzsupport.c pcre2_jit_match.c pcre2_jit_misc.c pcre2_jit_test.c pcre2_printint.c pcre2_ucptables.c",
         ("-Isrc", "-DHAVE_CONFIG_H", "-DPCRE2_CODE_UNIT_WIDTH=8", "-DSUPPORT_PCRE2_8", "-DSUPPORT_UNICODE", "-DHAVE_MEMMOVE", "-DHAVE_STDINT_H"),
         {".": "src/pcre2.h"}),),
    "zlib": (("zlib", "*.c", "", ("-D_LARGEFILE64_SOURCE=1", "-DHAVE_UNISTD_H"), {".": "z*.h"}),),
    "hiredis": (("hiredis", "alloc.c read.c sds.c", "", (), {"hiredis": "*.h"}),),  # its reader
}


def run(*command, **options):
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, **options)


def is_made(path, what):
    """Is that there, made from the same? A step that was broken off left no stamp."""
    return path.exists() and path.read_text(encoding="utf-8") == what


def need_tools(cache):
    """Zig's compiler, and what renames wheels, in an environment of their own."""
    venv, wanted = cache / "tools", f"{ZIG} {WHEEL} {os.path.realpath(sys.executable)}"
    if not is_made(venv / "stamp", wanted):
        shutil.rmtree(venv, ignore_errors=True)
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile", ZIG, WHEEL)
        (venv / "stamp").write_text(wanted, encoding="utf-8")
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = os.environ["ZIG_LOCAL_CACHE_DIR"] = str(cache / "zig")
    return next(venv.glob("lib/python*/site-packages/ziglang")) / "zig", venv / "bin/python"


def apt_options(cache):
    """A configuration of apt's own, which knows sources only; the machine's is left alone."""
    folder = cache / "apt"
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    found = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
    uris = re.findall(r"^URIs: (\S+)", found.read_text(encoding="utf-8") if found.exists() else "", re.M)
    main = next((uri for uri in uris if "security" not in uri), "http://deb.debian.org/debian")
    security = next((uri for uri in uris if "security" in uri), "http://deb.debian.org/debian-security")
    key = "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    (folder / "parts/debian.sources").write_text(f"Types: deb-src\nURIs: {main}\nSuites: {SUITE} {SUITE}-updates\n{key}\n"
                                                 f"Types: deb-src\nURIs: {security}\nSuites: {SUITE}-security\n{key}", encoding="utf-8")
    return [word for name, value in (("Dir::Etc::sourcelist", "/dev/null"), ("Dir::Etc::sourceparts", folder / "parts"), ("Dir::State::lists", folder / "lists"),
                                     ("Dir::Cache", folder / "cache"), ("APT::Sandbox::User", "root")) for word in ("-o", f"{name}={value}")]


def need_sources(cache):
    """{source package: its folder, unpacked and patched}. Apt checks signatures and sums."""
    folder, options = cache / "source", apt_options(cache)
    stamp = folder / f"of-{SUITE}"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run("apt-get", *options, "-q", "update")
        said = ""
        for package in LIBRARIES:
            try:
                run("apt-get", *options, "-q", "source", package, cwd=folder)
            except subprocess.CalledProcessError:  # a mirror whose list is ahead of its files
                run("apt-get", *options, "-q", "source", f"{package}/{SUITE}", cwd=folder)
                said += f"WARNING: the mirror lists a newer {package} and has not got it: this one is without the last security update\n"
            said += next(folder.glob(f"{package}_*.dsc")).stem + "\n"
        stamp.write_text(said, encoding="utf-8")
    print(stamp.read_text(encoding="utf-8"), end="")  # each time: what is linked in, and what is wrong with it
    return {package: next(path for path in folder.glob(f"{package}-*") if path.is_dir()) for package in LIBRARIES}


def configure(package, folder, compiler, architecture):
    """What a source package must be told before it is compiled."""
    if package == "pcre2":
        for name, given in (("config.h", "config.h.generic"), ("pcre2.h", "pcre2.h.generic"), ("pcre2_chartables.c", "pcre2_chartables.c.dist")):
            shutil.copyfile(folder / "src" / given, folder / "src" / name)
    if package == "libevent":
        run("./configure", f"--host={architecture}-linux-gnu", "--disable-openssl", "--disable-samples", "--disable-libevent-regress", "--disable-shared",
            "--disable-dependency-tracking", f"CC={' '.join(compiler)}", f"CFLAGS={' '.join(FLAGS)}", cwd=folder, stdout=subprocess.DEVNULL)
        with open(folder / "include/event2/event-config.h", "wb") as target:
            run("sed", "-f", "make-event-config.sed", "config.h", cwd=folder, stdout=target)


def compile_library(library, folder, prefix, zig, compiler):
    """One static archive with its headers, and the file by which pkg-config finds it."""
    name, sources, unwanted, flags, headers = library
    files = [path for pattern in sources.split() for path in sorted(folder.glob(pattern)) if path.name not in unwanted.split()]
    objects = [path.with_suffix(".o") for path in files]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda pair: run(*compiler, *FLAGS, *flags, "-c", pair[0], "-o", pair[1], cwd=folder), zip(files, objects)))
    (prefix / "lib").mkdir(parents=True, exist_ok=True)
    archive = prefix / "lib" / f"lib{name.removeprefix('lib')}.a"
    archive.unlink(missing_ok=True)
    run(zig, "ar", "rcs", archive, *objects)
    for place, pattern in headers.items():
        (prefix / "include" / place).mkdir(parents=True, exist_ok=True)
        for header in folder.glob(pattern):
            shutil.copy(header, prefix / "include" / place)
    (prefix / f"{name}.pc").write_text(f"Name: {name}\nDescription: {name}\nVersion: 0\nLibs: -L{prefix}/lib -l{name.removeprefix('lib')}\n"
                                       f"Cflags: -I{prefix}/include\n", encoding="utf-8")


def need_libraries(cache, architecture, zig, compiler, sources):
    """The folder with archives, headers and files for pkg-config."""
    prefix = cache / architecture / "prefix"
    for package, source in sources.items():
        stamp, wanted = prefix / f"{package}.stamp", f"{ZIG} {GLIBC} {source.name} {FLAGS} {LIBRARIES[package]}"
        if not is_made(stamp, wanted):
            folder = cache / architecture / source.name
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder, symlinks=True)
            configure(package, folder, compiler, architecture)
            for library in LIBRARIES[package]:
                compile_library(library, folder, prefix, zig, compiler)
            stamp.write_text(wanted, encoding="utf-8")
    copy_headers(prefix / "include", architecture)
    return prefix


def copy_headers(include, architecture):
    """Of what is used by its headers alone: the machine's own, which are the same for every architecture (Python's for 64 bits)."""
    shutil.copy2("/usr/include/xxhash.h", include)  # its age too: nothing is compiled anew for it
    for name in ("infiniband", "rdma"):
        shutil.copytree(f"/usr/include/{name}", include / name, dirs_exist_ok=True)
    version = f"python3.{sys.version_info.minor}"
    for found in pathlib.Path("/usr/include").glob(f"*-linux-gnu/{version}/pyconfig.h"):
        target = include / f"{architecture}-linux-gnu" / version
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(found, target)


def cross_file(prefix, architecture, archiver, compiler):
    words = ", ".join(f"'{word}'" for word in compiler)
    return f"""[binaries]
c = [{words}]
ar = '{archiver}'
pkg-config = 'pkg-config'
strip = 'true'
[built-in options]
c_args = ['-isystem', '{prefix}/include']
c_link_args = ['-s']
[properties]
pkg_config_libdir = '{prefix}'
[host_machine]
system = 'linux'
cpu_family = '{architecture}'
cpu = '{architecture}'
endian = 'little'
"""


def build_wheel(cache, target, architecture):
    zig, python = need_tools(cache)
    compiler = [str(zig), "cc", "-target", f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}", f"-mcpu={ARCHITECTURES[architecture]}", "-fno-sanitize=undefined"]
    prefix = need_libraries(cache, architecture, zig, compiler, need_sources(cache))
    cross, build, made = (cache / architecture / name for name in ("cross.ini", "build", "wheel"))
    # Meson makes thin archives where `ar -h` offers them, which zig's linker does not read.
    archiver = cache / "ar"
    archiver.write_text(f"#!/bin/sh\n[ \"$1\" = -h ] || exec {zig} ar \"$@\"\n", encoding="ascii")
    archiver.chmod(0o755)
    wanted = cross_file(prefix, architecture, archiver, compiler)
    if not is_made(cross, wanted):
        shutil.rmtree(build, ignore_errors=True)
        cross.write_text(wanted, encoding="utf-8")
    shutil.rmtree(made, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made,
        f"--config-settings=build-dir={build}", f"--config-settings=setup-args=--cross-file={cross}")
    # The build's own tag names this machine's Python and no floor.
    run(python, "-m", "wheel", "tags", "--remove", "--python-tag", OLDEST_PYTHON, "--platform-tag", f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{architecture}",
        *made.glob("*.whl"), stdout=subprocess.DEVNULL)
    wheel = next(made.glob("*.whl"))
    run(sys.executable, "-B", ROOT / "tests/wheel/floor.py", wheel)
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, target)


def main(cache, target, *architectures):
    if sys.version_info < (3, 11):
        sys.exit("portable.py: Python 3.11 or newer is needed: the first whose stable interface has buffers")
    if set(architectures) - set(ARCHITECTURES):
        sys.exit(f"portable.py: architectures: {' '.join(ARCHITECTURES)}")
    for architecture in architectures or ARCHITECTURES:
        build_wheel(pathlib.Path(cache).resolve(), pathlib.Path(target).resolve(), architecture)


if __name__ == "__main__":
    main(*sys.argv[1:])
