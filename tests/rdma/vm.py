#!/usr/bin/env python3
"""Runs a command in a virtual machine that has RDMA devices: Debian's kernel in qemu, with rdma_rxe (RoCE in software) on virtual cables.

    vm.py [--nics N] [--seconds S] [--desk FOLDER] [--memory MIB] -- COMMAND...

The machine's root is this machine's own, read-only by 9p under a tmpfs: programs, libraries, Python and the checkout are where they are here, and
what the command writes is gone afterwards, except below MC_DESK (FOLDER, else a temporary one). MC_* variables and PATH go in.
What it prints is printed at once; its exit status is this one's. 125: the machine did not run it to the end (no kernel, no boot, time is up).

Kernel and first file system are made once, in .cache/rdma-vm; the kernel's package comes from apt, nothing is installed here.
qemu dies with this process, however this one ends.
"""
import argparse
import ctypes
import hashlib
import inspect
import os
import pathlib
import platform
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
CACHE = SOURCE / ".cache" / "rdma-vm"
NOT_RUN = 125
BOOT_S = 120  # until the guest has said anything; emulated on a busy machine
KVM_BOOT_S = 20
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs", "veth",
           "bridge", "sch_netem")
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """The machine could not do its part."""


def say(text):
    print(f"rdma-vm: {text}", file=sys.stderr, flush=True)


def run(*command, **more):
    """Its output; Failed with what it said when it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.decode(errors='replace').strip()[-2000:]}")
    return done.stdout


# ---- kernel and first file system, once ----

def kernel_package():
    """The package that Debian's linux-image-amd64 stands for now (the cloud kernel has no rdma_rxe)."""
    for line in run("apt-cache", "depends", "linux-image-amd64", text=True).splitlines():
        word = line.split()
        if word[:1] == ["Depends:"] and word[1].startswith("linux-image-"):
            return word[1]
    raise Failed("apt knows no linux-image-amd64: this lane needs Debian's kernel")


def as_root():
    return [] if os.getuid() == 0 else ["sudo"]


def download(folder):
    """The kernel's package, unpacked into the folder; its version."""
    for attempt in (1, 2):
        try:
            package = kernel_package()
            run("apt-get", "download", "-q", package, cwd=folder)
            break
        except Failed:
            if attempt == 2:
                raise
            say("refreshing apt's lists")  # they are missing on a fresh machine, or older than what the mirror still has
            run(*as_root(), "apt-get", "update", "-q")
    archive = next(folder.glob("*.deb"))
    tree = folder / "kernel"
    run("dpkg-deb", "-x", archive, tree)
    archive.unlink()
    return package[len("linux-image-"):], tree


def with_dependencies(modules, depends):
    """Paths of modules and what they need, each after what it needs."""
    by_name = {pathlib.Path(path).stem: path for path in depends}
    order = []

    def add(path):
        # modules.dep lists everything below a module, the deepest last.
        for each in [*reversed(depends[path]), path]:
            if each not in order:
                order.append(each)

    for name in modules:
        if name not in by_name:
            raise Failed(f"this kernel has no module {name}")
        add(by_name[name])
    return order


def make_image(folder):
    """Leaves kernel and initrd in the folder."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Failed("busybox is missing (package busybox-static)")
    version, tree = download(folder)
    run(busybox, "depmod", "-b", tree, version)
    base = tree / "lib/modules" / version
    depends = {}
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        depends[path] = needs.split()
    root = folder / "root"
    for name in ("bin", "modules", "proc", "sys", "dev", "below", "above", "system"):
        (root / name).mkdir(parents=True)
    order = with_dependencies(MODULES, depends)
    prefix = f"/lib/modules/{version}/"
    for path in order:
        shutil.copy(base / path.removeprefix(prefix), root / "modules")
    (root / "modules/order").write_text("".join(f"/modules/{pathlib.Path(path).name}\n" for path in order))
    shutil.copy(busybox, root / "bin/busybox")
    shutil.copy(HERE / "guest_init.sh", root / "init")
    (root / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    archive = subprocess.run([busybox, "cpio", "-o", "-H", "newc"], input=names.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             cwd=root, check=True).stdout
    (folder / "initrd").write_bytes(archive)
    (tree / "boot" / f"vmlinuz-{version}").rename(folder / "kernel-image")
    (folder / "version").write_text(version)
    shutil.rmtree(tree)
    shutil.rmtree(root)


def image():
    """The folder with kernel and initrd, made if it is missing. Named by what it is made from: an edit makes a new one."""
    parts = repr((MODULES, inspect.getsource(make_image), (HERE / "guest_init.sh").read_text()))
    key = hashlib.sha256(parts.encode()).hexdigest()[:16]
    folder = CACHE / f"image-{key}"
    if not (folder / "version").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="making-", dir=CACHE) as making:
            made = pathlib.Path(making) / "image"
            made.mkdir()
            make_image(made)
            for old in CACHE.glob("image-*"):
                shutil.rmtree(old, ignore_errors=True)
            try:
                made.rename(folder)
            except OSError:  # another run was quicker
                if not (folder / "version").exists():
                    raise
        say(f"kernel {(folder / 'version').read_text()} ready after {time.monotonic() - start:.0f} s")
    return folder


# ---- one run ----

def die_with(parent):
    """In the child, before exec: SIGKILL when the parent ends in whatever way."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def qemu_command(options, folder, desk, console, kvm):
    root = "local,path={},mount_tag={},security_model=none,multidevs=remap"
    line = ("console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off random.trust_cpu=on rcupdate.rcu_expedited=1 reboot=t "
            f"mc_nics={options.nics} mc_mtu={options.mtu}")
    command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none",
               "-m", str(options.memory), "-smp", str(options.processors), "-kernel", folder / "kernel-image", "-initrd", folder / "initrd",
               "-chardev", f"file,id=console,path={console}", "-serial", "chardev:console",
               "-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/proc/self/fd/1", "-device", "virtserialport,chardev=out,name=out",
               "-virtfs", root.format("/", "system") + ",readonly=on", "-virtfs", root.format(desk, "desk")]
    if kvm:
        command += ["-machine", "pc,accel=kvm,usb=off,vmport=off", "-cpu", "host"]
    else:
        command += ["-machine", "pc,usb=off,vmport=off", "-accel", "tcg,thread=multi", "-cpu", "max"]
        line += " tsc=reliable"  # the watchdog would find the emulated one too slow, and the substitutes cost more
    return command + ["-append", line]


def copy_output(source, desk, options, boot_s):
    """Prints what comes until the machine has ended; False when time is up, or nothing has started within boot_s."""
    start = time.monotonic()
    started = False
    while True:
        now = time.monotonic() - start
        started = started or (desk / "up").exists()
        if now > options.seconds or (not started and now > boot_s):
            say(f"time is up after {now:.0f} s{'' if started else ', the machine has not started'}")
            return False
        if not select.select([source], [], [], 0.2)[0]:
            continue
        data = os.read(source, 65536)
        if not data:
            return True
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def boot(options, folder, desk, kvm):
    """One machine from power on to its end: the command's status, or None if it did not get that far."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=CACHE) as own:
        console = pathlib.Path(own) / "console"
        parent = os.getpid()
        qemu = subprocess.Popen(qemu_command(options, folder, desk, console, kvm), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                preexec_fn=lambda: die_with(parent))
        try:
            copy_output(qemu.stdout.fileno(), desk, options, KVM_BOOT_S if kvm else BOOT_S)
        finally:
            qemu.kill()
            qemu.wait()
        status = desk / "status"
        if status.exists():
            return int(status.read_text())
        said = console.read_text(errors="replace") if console.exists() else ""
        sys.stderr.write(said[-6000:])
        return None


def use_kvm():
    """Whether to try, and the file that remembers how it went: a /dev/kvm that opens may still run no unmodified kernel."""
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    able = os.access("/dev/kvm", os.R_OK | os.W_OK) and any(flag in processor.split() for flag in ("vmx", "svm"))
    mark = CACHE / f"no-kvm-{platform.release()}"
    return able and not mark.exists(), mark


def write_job(desk, command):
    for name in ("up", "status"):
        (desk / name).unlink(missing_ok=True)
    values = {name: value for name, value in os.environ.items() if name.startswith("MC_") or name == "PATH"}
    values["MC_DESK"] = "/desk"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(values.items()))
    (desk / "job").write_text(f"{exports}cd {shlex.quote(os.getcwd())} || exit 1\nexec {shlex.join(command)}\n")
    shutil.copy(HERE / "guest_system.sh", desk)
    (desk / "guest_system.sh").chmod(0o755)


def run_in(options, desk):
    folder = image()
    write_job(desk, options.command)
    kvm, mark = use_kvm()
    start = time.monotonic()
    status = boot(options, folder, desk, kvm)
    if status is None and kvm and not (desk / "up").exists():
        mark.touch()
        kvm = False
        status = boot(options, folder, desk, kvm)
    up = (desk / "up").read_text().strip() if (desk / "up").exists() else "never"
    say(f"{'kvm' if kvm else 'emulated'}, {options.nics} devices, ready after {up} s of its own; {time.monotonic() - start:.0f} s in all")
    return NOT_RUN if status is None else status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nics", type=int, default=4, choices=range(1, 9))
    parser.add_argument("--mtu", type=int, default=9000, help="of the cables; 9000 allows RoCE's largest, 4096")
    parser.add_argument("--memory", type=int, default=3072, help="MiB")
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for boot and command")
    parser.add_argument("--desk", type=pathlib.Path, help="a folder of this machine that the command can write to")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    # An exception on the way out, so that the temporary folders go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(NOT_RUN))
    try:
        if options.desk is not None:
            options.desk.mkdir(parents=True, exist_ok=True)
            return run_in(options, options.desk.resolve())
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="desk-", dir=CACHE) as desk:
            return run_in(options, pathlib.Path(desk))
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(error)
        return NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
