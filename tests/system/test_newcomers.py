"""What newcomers stumbled over: wrong reasons, typos that pass in silence, signals, codes without a name, a node that is drained or lost and does not look so."""
import os
import socket
import subprocess
import sys
import textwrap


from cluster import Master
from ports import free_port
from service_process import run


def python(code, **variables):
    done = subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.environ["MC_PYTHONPATH"], **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == 0, done.stderr
    return done


# ---- reasons ----

def last_error(master):
    done = python(f"""
        from mooncake.store import MooncakeDistributedStore
        print(MooncakeDistributedStore().setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "{master}"))
        """, MC_RPC_TIMEOUT_MS=700)
    assert done.stdout == "-900\n"
    [line] = [line for line in done.stderr.splitlines() if line.startswith("E")]
    return line.split("RPC_FAIL: ")[1]


def test_why_no_master_answers():
    assert last_error("no-such-host.invalid:50051") == "there is no host of that name"
    port = free_port()
    assert last_error(f"127.0.0.1:{port}") == "Connection refused; check the address and that mooncake_master runs"
    assert last_error(f"etcd://127.0.0.1:{port}").startswith("it does not say who leads: is it up, and is that its address?")
    with Master() as master:
        assert last_error(f"127.0.0.1:{master.metrics_port}").startswith("what listens there does not answer as a master: is it the rpc_port (50051)")
    with socket.socket() as silent:  # takes connections, says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "does not answer as a master" in last_error(f"127.0.0.1:{silent.getsockname()[1]}")
