"""The same tests with TLS: where MC_TEST_TLS is set, all that a test starts has certificates and shows them to all, and so has what it says by hand.

    MC_TEST_TLS=1 python no_unix.py python -m pytest test_failover.py

`no_unix.py` has what stays within a machine otherwise go by TCP. Tests that are about TLS themselves say in the environment what they need.
"""
import atexit
import functools
import http.client
import os
import pathlib
import shutil
import socket
import ssl
import tempfile

import pytest

ON = bool(os.environ.get("MC_TEST_TLS"))
by_hand = pytest.mark.skipif(ON, reason="what it says by hand goes without TLS")
within_a_machine = pytest.mark.skipif(ON, reason="what it is about stays within a machine")
HOSTS = ["DNS:localhost", "IP:127.0.0.1", "IP:::1", f"DNS:{socket.gethostname()}"]


def begin():
    """Once, before anything is started."""
    from certificates import Authority
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-secured-"))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder))
    authority = Authority(folder, "ca")
    pair = authority.sign("all", HOSTS)
    folder.chmod(0o755)  # some tests start processes of other users
    pair.key.chmod(0o644)
    os.environ.update({"MC_TLS_CA_CERT": str(authority.certificate), "MC_TLS_CLIENT_CA_CERT": str(authority.certificate),
                       "MC_TLS_CERT": str(pair.certificate), "MC_TLS_KEY": str(pair.key)})


@functools.cache
def context():
    made = ssl.create_default_context(cafile=os.environ["MC_TLS_CA_CERT"])
    made.load_cert_chain(os.environ["MC_TLS_CERT"], os.environ["MC_TLS_KEY"])
    return made


def http_connection(host, port, timeout):
    if not ON:
        return http.client.HTTPConnection(host, port, timeout=timeout)
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context())


def connection(host, port, timeout):
    """To a port of a master, a node or an engine."""
    plain = socket.create_connection((host, port), timeout=timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not ON:
        return plain
    try:
        return context().wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise


if ON and "MC_TLS_CERT" not in os.environ:
    begin()
