"""One process as a container engine runs it: in mount, process, host name and IPC namespaces of its own, its image as root, by its user, without
capabilities. The network namespace is the one it is started in. What to run comes on stdin as JSON; the first line of stdout is its process id as
those outside see it; its exit code is ours. It dies with us."""
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
SPACES = 0x20000 | 0x20000000 | 0x4000000 | 0x8000000  # mount, process, host name, IPC
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


def show_machine(root):
    """What the machine has, in a root of its own, so that there may be other places to mount at."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root)
    for path in pathlib.Path("/").iterdir():
        if path.name in ("proc", "dev", "sys"):
            continue
        if path.is_symlink():
            (root / path.name).symlink_to(os.readlink(path))
        elif path.is_dir():
            (root / path.name).mkdir()
            mount("--rbind", path, root / path.name)


def arrange(spec):
    """The files that it sees; its folder is its own copy, so that there may be places to mount at."""
    root = pathlib.Path(spec["at"])
    mount("--make-rprivate", "/")
    if spec["root"] == "/":
        show_machine(root)
    else:
        mount("--bind", spec["root"], root)
    for target in ("/proc", "/dev", *(target for _, target, _ in spec["mounts"])):
        path = root / target.lstrip("/")
        if not path.exists():
            path.mkdir(parents=True)
    for source, target, _ in spec["mounts"]:
        mount("--bind", source, root / target.lstrip("/"))
    mount("-t", "proc", "proc", root / "proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "dev")
    for name in ("null", "zero", "random", "urandom", "full"):
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    (root / "dev/shm").mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777,size=64m", "tmpfs", root / "dev/shm")
    if spec["read_only"]:
        mount("-o", "remount,bind,ro", root)
    return root


def begin(spec):
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    root = arrange(spec)
    name = spec["hostname"].encode()
    LIBC.sethostname(name, len(name))
    os.chroot(root)
    os.chdir(spec["folder"])
    for number in range(64):
        if number not in spec["capabilities"]:
            LIBC.prctl(PR_CAPBSET_DROP, number)
    os.setgroups(spec["groups"])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not before: who changes its user has no such signal
    if spec["no_new_privileges"]:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


def main():
    spec = json.loads(sys.stdin.readline())
    if LIBC.unshare(SPACES) != 0:
        sys.exit("container.py: no namespaces here")
    child = os.fork()
    if child == 0:
        try:
            begin(spec)
        except BaseException as error:  # pylint: disable=broad-except
            print(f"container.py: {error!r}", file=sys.stderr, flush=True)
        os._exit(127)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xff)


if __name__ == "__main__":
    main()
