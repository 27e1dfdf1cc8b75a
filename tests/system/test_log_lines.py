"""Where log lines go: a reader that stands still stops nobody; Python's logging can have them."""
import fcntl
import os
import re
import subprocess
import sys
import time

import pytest

from cluster import MASTER, SANITIZED, Master, request, wait_until
from ports import free_ports
from wire import ROLE_CALL, Connection

F_SETPIPE_SZ = 1031
STATE = ("--state_dir=none",)


def is_well(port):
    try:
        return request(port, "GET", "/health")[0] == 200
    except ConnectionRefusedError:  # it does not listen yet
        return False


def test_a_master_whose_stderr_nobody_reads_goes_on():
    """As under a service manager that is stuck. What is lost is counted, and said to who reads again."""
    port, metrics_port = free_ports(2)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    with subprocess.Popen([MASTER, "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics_port}", *STATE],
                          stdin=subprocess.DEVNULL, stderr=writer) as master:
        os.close(writer)
        try:
            wait_until(lambda: is_well(metrics_port), 30, "the master")
            for _ in range(20):  # a line each, that says who joins
                Connection(port, ROLE_CALL, os.urandom(16)).socket.close()
            assert is_well(metrics_port)
            said = b""
            while b"lines are lost" not in said:
                said += os.read(reader, 65536)
                Connection(port, ROLE_CALL, os.urandom(16)).socket.close()
            assert int(re.search(rb"\nW[^\n]*\] (\d+) lines are lost: nobody has read them\n", said)[1]) > 1
        finally:
            master.terminate()
            os.close(reader)
    assert master.returncode == 0


# A file system that takes nothing while TEST_HANGS is there.
HANGS = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int fd, const void *bytes, size_t length)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    while (getenv("TEST_HANGS") != NULL && access(getenv("TEST_HANGS"), F_OK) == 0 && readlink(link, path, sizeof(path) - 1) > 4
           && strcmp(path + strlen(path) - 4, ".log") == 0)
        usleep(10000);
    return syscall(SYS_write, fd, bytes, length);
}
"""


@pytest.mark.skipif(SANITIZED, reason="a sanitizer has calls of its own in between")
def test_a_master_whose_log_is_on_a_file_system_that_hangs_goes_on(tmp_path):
    """stderr and --log_dir both; it leads, answers and ends as ever. Afterwards the file has what there was room for."""
    (tmp_path / "hangs.c").write_text(HANGS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "hangs.so", tmp_path / "hangs.c"], check=True)
    flag = tmp_path / "hangs"
    master = Master(f"--log_dir={tmp_path}", *STATE, environment={"LD_PRELOAD": str(tmp_path / "hangs.so"), "TEST_HANGS": str(flag)})

    def joins():  # a line, that says who does
        Connection(master.port, ROLE_CALL, os.urandom(16)).socket.close()
    with master:
        path = tmp_path / f"mooncake_master.{master.pid}.log"
        flag.touch()
        for _ in range(20):
            began = time.monotonic()
            joins()
            assert is_well(master.metrics_port) and time.monotonic() - began < 5
        assert " joins" not in path.read_text() + master.log()
        flag.unlink()
        wait_until(lambda: path.read_text().count(" joins") == 20, 20, "the lines")
        joins()
        wait_until(lambda: master.log() in path.read_text(), 20, "the same in both")
        flag.touch()
        joins()
        began = time.monotonic()
        assert master.stop() == 0 and time.monotonic() - began < 20
        flag.unlink()


LOGGING = """
import logging, sys
seen = []
class Keep(logging.Handler):
    def emit(self, record):
        seen.append(record)
logging.getLogger("mooncake").addHandler(Keep())
logging.getLogger("mooncake").setLevel(logging.INFO)
from mooncake import logs
from mooncake.store import MooncakeDistributedStore
from mooncake.engine import TransferEngine
{body}
for record in seen:
    print(record.levelname, record.name, record.filename, record.lineno > 0, record.getMessage())
"""


def run(body, **environment):
    done = subprocess.run([sys.executable, "-c", LOGGING.format(body=body)], capture_output=True, text=True, timeout=60 * (4 if SANITIZED else 1),
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_loggings_handlers_have_the_lines_of_both_modules():
    """With level, file and line; until they are given back to stderr."""
    out, err = run("""
with logs.to_logging():
    MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:70001")
    TransferEngine().initialize("127.0.0.1", "nonsense://", "tcp", "")
MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:70002")
""")
    assert any(re.fullmatch(r"ERROR mooncake \S+\.c True .*127.0.0.1:70001.*", line) for line in out), out
    assert any(re.fullmatch(r"ERROR mooncake \S+\.c True .*nonsense.*", line) for line in out), out
    assert not any("127.0.0.1:70002" in line for line in out) and "127.0.0.1:70002" in err and "127.0.0.1:70001" not in err


def test_the_last_lines_come_at_the_end_of_the_process():
    """Also with a handler that is slow."""
    out, err = run("""
import time
Keep.emit = lambda self, record: (time.sleep(0.2), print("said:", record.getMessage(), flush=True))
logs.to_logging()
MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:70001")
print("the last statement", flush=True)
""")
    last = out.index("the last statement")
    assert any("127.0.0.1:70001" in line for line in out[last:]) and "127.0.0.1:70001" not in err, (out, err)


def test_a_child_says_its_own_on_stderr():
    """After a fork there is nobody who reads for it."""
    out, err = run("""
import os
logs.to_logging()
child = os.fork()
if child == 0:
    MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:70003")
    os._exit(0)
os.waitpid(child, 0)
""")
    assert "127.0.0.1:70003" in err and not any("127.0.0.1:70003" in line for line in out)
