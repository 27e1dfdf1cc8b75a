#!/usr/bin/env python3
"""Builds wheels for every system with glibc 2.17 or newer and every Python from 3.9 on, on Debian 12: one for each architecture, and one for the
free-threaded Python 3.13 of this machine's.

portable.py CACHE TARGET [ARCHITECTURE...]      x86_64, aarch64 and free-threaded, unless some are named; the wheels go to the folder TARGET
portable.py CACHE --prepare                     what is downloaded or only needed to build: compiler, sources, the free-threaded Python
portable.py CACHE --tests ARCHITECTURE WRAPPER  the unit tests for that one, in CACHE/ARCHITECTURE-tests/build; WRAPPER runs a program of it here

The compiler is zig's, from PyPI: it has the C library's headers and symbols of each version and architecture. The libraries that are linked
in are Debian 12's sources, security patches too, compiled for the same floor. CACHE keeps compiler, sources and libraries for the next time.
tests/wheel/floor.py and hardening.py then judge what came out.
"""
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
ZIG, WHEEL = "ziglang==0.15.2", "wheel>=0.40"  # from PyPI
GLIBC = (2, 17)
OLDEST_PYTHON = "cp39"
SUITE = "bookworm"
FREE_THREADED = "free-threaded"  # beside architectures: this machine's, for a Python that Debian has the source of, but no package
FREE_PYTHON, FREE_SUITE = "python3.13", "trixie"
# Zig tells clang which features are not there, each by its name, and so also functions that are compiled for more (base/checksum.c). The two of
# x86-64 that such a function cannot bring itself; without those that it does bring neither makes the compiler use an instruction.
ARCHITECTURES = {"x86_64": "x86_64+evex512+crc32", "aarch64": "generic"}
LARGEST_WHEEL = 5_000_000  # bytes
SECTIONS = ("-ffunction-sections", "-fdata-sections")  # so that the linker leaves out what nothing calls: a sixth of a wheel
FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-w", *SECTIONS,  # hidden: a shared object that they are linked into exports none of their names
         "-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2")  # as meson.build has it for ours
FLAGS_OF = {"x86_64": ("-fcf-protection=full",), "aarch64": ()}  # likewise; the compiler takes it for no other processor

# Of each source package: (pkg-config's name, what is compiled, what of that is not, flags, {where headers go: which}).
# What its configure finds for each of ARCHITECTURES and GLIBC, by the names that its sources ask for: running it takes as long as compiling it.
EVENT_HAS = ("ACCEPT4 ARPA_INET_H CLOCK_GETTIME EPOLL EPOLL_CREATE1 ERRNO_H EVENTFD FCNTL_H FD_MASK GETADDRINFO GETEGID GETEUID GETIFADDRS GETNAMEINFO "
             "GETPROTOBYNUMBER GETSERVBYNAME GETTIMEOFDAY IFADDRS_H INET_NTOP INET_PTON INTTYPES_H MMAP NANOSLEEP NETDB_H NETINET_IN_H NETINET_TCP_H PIPE "
             "PIPE2 POLL PTHREADS SA_FAMILY_T SELECT SENDFILE SETFD SIGACTION STDARG_H STDDEF_H STDINT_H STDLIB_H STRSEP STRTOK_R STRTOLL STRUCT_ADDRINFO "
             "STRUCT_IN6_ADDR STRUCT_SOCKADDR_IN6 STRUCT_SOCKADDR_STORAGE STRUCT_SOCKADDR_STORAGE_SS_FAMILY STRUCT_SOCKADDR_UN SYSCTL SYS_EVENTFD_H "
             "SYS_IOCTL_H SYS_MMAN_H SYS_PARAM_H SYS_RANDOM_H SYS_RESOURCE_H SYS_SELECT_H SYS_SENDFILE_H SYS_SOCKET_H SYS_STAT_H SYS_TIMERFD_H SYS_TIME_H "
             "SYS_TYPES_H SYS_UIO_H SYS_UN_H SYS_WAIT_H TIMERADD TIMERCLEAR TIMERFD_CREATE TIMERISSET UINT16_T UINT32_T UINT64_T UINT8_T UINTPTR_T "
             "UNISTD_H USLEEP VASPRINTF __FUNCTION__ __func__")
EVENT_SIZES = ("INT 4", "LONG 8", "LONG_LONG 8", "OFF_T 8", "PTHREAD_T 8", "SHORT 2", "SIZE_T 8", "VOID_P 8")
EVENT_FLAGS = ("-I.", "-Iinclude", "-Icompat", "-D_GNU_SOURCE")
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

LIBRARIES_OF_TESTS = {
    "cmocka": (("cmocka", "src/cmocka.c", "", ("-Iinclude", *(f"-DHAVE_{what}" for what in (
        "MALLOC_H", "INTTYPES_H", "SIGNAL_H", "STRINGS_H", "GCC_THREAD_LOCAL_STORAGE", "CLOCK_REALTIME", "SIGLONGJMP", "STRSIGNAL", "STRUCT_TIMESPEC"))),
                {".": "include/*.h"}),),
    "jansson": (("jansson", "src/*.c", "", ("-DHAVE_CONFIG_H", "-Iandroid", "-Isrc"), {".": "src/jansson.h android/jansson_config.h"}),),
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


def apt_options(cache, kind="deb-src", suite=SUITE):
    """A configuration of apt's own, which knows sources only (or packages: "deb"); the machine's is left alone."""
    folder = cache / f"apt-{kind}-{suite}"
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    found = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
    uris = re.findall(r"^URIs: (\S+)", found.read_text(encoding="utf-8") if found.exists() else "", re.M)
    main = next((uri for uri in uris if "security" not in uri), "http://deb.debian.org/debian")
    security = next((uri for uri in uris if "security" in uri), "http://deb.debian.org/debian-security")
    key = "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    (folder / "parts/debian.sources").write_text(f"Types: {kind}\nURIs: {main}\nSuites: {suite} {suite}-updates\n{key}\n"
                                                 f"Types: {kind}\nURIs: {security}\nSuites: {suite}-security\n{key}", encoding="utf-8")
    return [word for name, value in (("Dir::Etc::sourcelist", "/dev/null"), ("Dir::Etc::sourceparts", folder / "parts"), ("Dir::State::lists", folder / "lists"),
                                     ("Dir::Cache", folder / "cache"), ("APT::Sandbox::User", "root")) for word in ("-o", f"{name}={value}")]


def need_sources(cache, packages, suite=SUITE):
    """{source package: its folder, unpacked and patched}. Apt checks signatures and sums."""
    folder, options = cache / "source" / f"{suite}-{'-'.join(packages)}", apt_options(cache, suite=suite)
    stamp = folder / "stamp"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run("apt-get", *options, "-q", "update")
        said = ""
        for package in packages:
            try:
                run("apt-get", *options, "-q", "source", package, cwd=folder)
            except subprocess.CalledProcessError:  # a mirror whose list is ahead of its files
                run("apt-get", *options, "-q", "source", f"{package}/{suite}", cwd=folder)
                said += f"WARNING: the mirror lists a newer {package} and has not got it: this one is without the last security update\n"
            said += next(folder.glob(f"{package}_*.dsc")).stem + "\n"
        stamp.write_text(said, encoding="utf-8")
    print(stamp.read_text(encoding="utf-8"), end="")  # each time: what is linked in, and what is wrong with it
    return {package: next(path for path in folder.glob(f"{package}-*") if path.is_dir()) for package in packages}


def need_free_python(cache):
    """The interpreter, without pip and the libraries that need others; for this machine."""
    source = need_sources(cache, (FREE_PYTHON,), FREE_SUITE)[FREE_PYTHON]
    place, stamp = cache / "free-python", cache / "free-python/stamp"
    if not is_made(stamp, source.name):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place / "build", symlinks=True)
        run("./configure", "--quiet", "--disable-gil", "--disable-test-modules", "--without-ensurepip", f"--prefix={place}", cwd=place / "build")
        run("make", "--silent", f"-j{len(os.sched_getaffinity(0))}", "install", cwd=place / "build", stdout=subprocess.DEVNULL)
        shutil.rmtree(place / "build")
        stamp.write_text(source.name, encoding="utf-8")
    return place / f"bin/{FREE_PYTHON}t"


def configure(package, folder):
    """What a source package must be told before it is compiled."""
    if package == "pcre2":
        for name, given in (("config.h", "config.h.generic"), ("pcre2.h", "pcre2.h.generic"), ("pcre2_chartables.c", "pcre2_chartables.c.dist")):
            shutil.copyfile(folder / "src" / given, folder / "src" / name)
    if package == "jansson":
        (folder / "src/jansson_private_config.h").write_text("#define HAVE_STDINT_H 1\n", encoding="ascii")
    if package == "libevent":
        version = folder.name.partition("-")[2]
        number = "".join(f"{int(part):02x}" for part in version.partition("-")[0].split("."))
        defined = [*(f"HAVE_{what} 1" for what in EVENT_HAS.split()), *(f"SIZEOF_{what}" for what in EVENT_SIZES), f'VERSION "{version}"', f"NUMERIC_VERSION 0x{number}00"]
        (folder / "include/event2/event-config.h").write_text("".join(f"#define EVENT__{line}\n" for line in defined), encoding="ascii")
        (folder / "evconfig-private.h").touch()  # what it would define is among EVENT_FLAGS


def compile_library(library, version, folder, prefix, zig, compiler):
    """One static archive with its headers, and the file by which pkg-config finds it, with Debian's version."""
    name, sources, unwanted, flags, headers = library
    files = [path for pattern in sources.split() for path in sorted(folder.glob(pattern)) if path.name not in unwanted.split()]
    objects = [path.with_suffix(".o") for path in files]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda pair: run(*compiler, *FLAGS, *flags, "-c", pair[0], "-o", pair[1], cwd=folder), zip(files, objects)))
    (prefix / "lib").mkdir(parents=True, exist_ok=True)
    archive = prefix / "lib" / f"lib{name.removeprefix('lib')}.a"
    archive.unlink(missing_ok=True)
    run(zig, "ar", "rcs", archive, *objects)
    for place, patterns in headers.items():
        (prefix / "include" / place).mkdir(parents=True, exist_ok=True)
        for header in (path for pattern in patterns.split() for path in folder.glob(pattern)):
            shutil.copy(header, prefix / "include" / place)
    (prefix / f"{name}.pc").write_text(f"debian_release={SUITE}\nName: {name}\nDescription: {name}\nVersion: {version}\nLibs: -L{prefix}/lib -l{name.removeprefix('lib')}\n"
                                       f"Cflags: -I{prefix}/include\n", encoding="utf-8")


def need_libraries(cache, architecture, zig, compiler, sources, libraries):
    """The folder with archives, headers and files for pkg-config."""
    prefix = cache / architecture / "prefix"
    for package, source in sources.items():
        version = next(source.parent.glob(f"{package}_*.dsc")).stem.partition("_")[2]
        stamp, wanted = prefix / f"{package}.stamp", f"{ZIG} {GLIBC} {version} {FLAGS} {FLAGS_OF[architecture]} {EVENT_HAS} {libraries[package]}"
        if not is_made(stamp, wanted):
            folder = cache / architecture / source.name
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder, symlinks=True)
            configure(package, folder)
            for library in libraries[package]:
                compile_library(library, version, folder, prefix, zig, [*compiler, *FLAGS_OF[architecture]])
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


def cross_file(prefix, architecture, archiver, compiler, wrapper, builder):
    words = ", ".join(f"'{word}'" for word in compiler)
    return f"""[binaries]
c = [{words}]
ar = '{archiver}'
pkg-config = 'pkg-config'
strip = 'true'
python = '{builder}'
{f"exe_wrapper = '{wrapper}'" if wrapper else ''}
[built-in options]
c_args = ['-isystem', '{prefix}/include', '-include', '{ROOT}/packaging/older_libc.h', {", ".join(f"'{flag}'" for flag in SECTIONS)}]
c_link_args = ['-s', '-Wl,--gc-sections', '-Wl,--hash-style=gnu']
[properties]
pkg_config_libdir = '{prefix}'
[host_machine]
system = 'linux'
cpu_family = '{architecture}'
cpu = '{architecture}'
endian = 'little'
"""


def setup_build(cache, architecture, name, wrapper=None, *more, builder=sys.executable):
    """(Python with `wheel`, cross file, build folder): all that a build of that name needs; its folder is empty if it was for another. more: libraries
    beside those of a wheel. builder: the Python that extensions are for: building for another system, Meson takes it from its cross file or its own."""
    zig, python = need_tools(cache)
    compiler = [str(zig), "cc", "-target", f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}", f"-mcpu={ARCHITECTURES[architecture]}", "-fno-sanitize=undefined"]
    for libraries in (LIBRARIES, *more):
        prefix = need_libraries(cache, architecture, zig, compiler, need_sources(cache, tuple(libraries)), libraries)
    cross, build = cache / name / "cross.ini", cache / name / "build"
    # Meson makes thin archives where `ar -h` offers them, which zig's linker does not read.
    archiver = cache / "ar"
    archiver.write_text(f"#!/bin/sh\n[ \"$1\" = -h ] || exec {zig} ar \"$@\"\n", encoding="ascii")
    archiver.chmod(0o755)
    wanted = cross_file(prefix, architecture, archiver, compiler, wrapper, builder)
    if not is_made(cross, wanted):
        shutil.rmtree(build, ignore_errors=True)
        cross.parent.mkdir(exist_ok=True)
        cross.write_text(wanted, encoding="utf-8")
    return python, cross, build


def build_wheel(cache, target, name):
    """name: an architecture, or FREE_THREADED."""
    architecture = platform.machine() if name == FREE_THREADED else name
    builder, tags = sys.executable, ["--python-tag", OLDEST_PYTHON]
    if name == FREE_THREADED:  # it has no stable interface, so its own tag stays
        builder, tags = need_free_python(cache), []
    python, cross, build = setup_build(cache, architecture, name, builder=builder)
    made, settings = cache / name / "wheel", [f"--cross-file={cross}"]
    if name == FREE_THREADED:
        settings.append("-Dpython.allow_limited_api=false")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    # By the running Python's packages, which are written in Python.
    run(builder, "-c", f"import mesonpy; mesonpy.build_wheel({str(made)!r}, {{'build-dir': {str(build)!r}, 'setup-args': {settings!r}}})", cwd=ROOT,
        env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONDONTWRITEBYTECODE": "1"})
    # The build's own tag names this machine's Python and no floor.
    run(python, "-m", "wheel", "tags", "--remove", *tags, "--platform-tag", f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{architecture}",
        *made.glob("*.whl"), stdout=subprocess.DEVNULL)
    wheel = next(made.glob("*.whl"))
    for judge in ("floor.py", "hardening.py"):
        run(sys.executable, "-B", ROOT / "tests/wheel" / judge, wheel)
    if wheel.stat().st_size > LARGEST_WHEEL:
        sys.exit(f"portable.py: {wheel.name} has {wheel.stat().st_size} bytes, and {LARGEST_WHEEL} are the most; `unzip -lv` says of what")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, target)


def build_tests(cache, architecture, wrapper):
    """The folder with the unit tests, not run."""
    name = f"{architecture}-tests"
    _, cross, build = setup_build(cache, architecture, name, wrapper, LIBRARIES_OF_TESTS)
    if not (build / "build.ninja").exists():
        run("meson", "setup", build, ROOT, f"--cross-file={cross}", "-Dbuildtype=release", "-Dwerror=false")
    run("ninja", "-C", build)


def main(cache, target, *words):
    if sys.version_info < (3, 11):
        sys.exit("portable.py: Python 3.11 or newer is needed: the first whose stable interface has buffers")
    cache, known = pathlib.Path(cache).resolve(), [*ARCHITECTURES, FREE_THREADED]
    if target == "--prepare":
        need_tools(cache)
        need_sources(cache, tuple(LIBRARIES))
        need_free_python(cache)
    elif target == "--tests":
        build_tests(cache, *words)
    elif set(words) - set(known):
        sys.exit(f"portable.py: architectures: {' '.join(known)}")
    else:
        for name in words or known:
            build_wheel(cache, pathlib.Path(target).resolve(), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
