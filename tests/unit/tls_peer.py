#!/usr/bin/env python3
"""The other end of TLS for tests/unit/test_tls.c: makes certificates in FOLDER (tests/system/certificates.py) and takes connections until its input ends.

tls_peer.py FOLDER. Prints "KIND PORT" for each kind of peer, then "ready". Files in FOLDER: ca.pem, other.pem (another authority), client.pem,
client.key, locked.pem, locked.key (with a password).
"""
import pathlib
import socket
import ssl
import struct
import sys
import threading
import time
import warnings

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "system"))

from certificates import Authority  # noqa: E402

warnings.simplefilter("ignore", DeprecationWarning)  # old versions are what is tested
HELLO_BYTES = 200  # so much of what a server sends first is less than the whole


def context_of(pair, least=ssl.TLSVersion.TLSv1_2, most=ssl.TLSVersion.TLSv1_3, wants=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if most < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = least, most
    if wants:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(wants)
    return context


def echo(stream):
    while part := stream.recv(65536):
        stream.sendall(part)


def say_and_leave(stream):
    """The end of what it says is announced."""
    stream.recv(1)
    stream.sendall(b"hello")
    stream.unwrap()


def talk(context, behave):
    def serve(connection):
        with context.wrap_socket(connection, server_side=True) as stream:
            behave(stream)
    return serve


def late(serve, delay_s):
    """The handshake and all answers come after a while."""
    def wait(connection):
        time.sleep(delay_s)
        serve(connection)
    return wait


def through(serve, carry):
    """What the server sends passes through carry(bytes) -> pieces, which may raise EOFError to cut it off."""
    def relay(connection):
        inner, outer = socket.socketpair()
        threading.Thread(target=guarded(serve), args=(inner,), daemon=True).start()

        def inward():
            try:
                while part := connection.recv(65536):
                    outer.sendall(part)
                outer.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        threading.Thread(target=inward, daemon=True).start()
        pieces = carry()
        try:
            while part := outer.recv(65536):
                for piece in pieces(part):
                    connection.sendall(piece)
        finally:
            connection.shutdown(socket.SHUT_RDWR)  # which the other thread waits at
            outer.shutdown(socket.SHUT_RDWR)
    return relay


def byte_by_byte():
    return lambda part: (part[at:at + 1] for at in range(len(part)))


def only(count):
    """Nothing after so many bytes."""
    def make():
        sent = 0

        def pieces(part):
            nonlocal sent
            if sent >= count:
                raise EOFError
            part = part[:count - sent]
            sent += len(part)
            yield part
            if sent >= count:
                raise EOFError
        return pieces
    return make


def half_a_record(stream_context):
    """Says a word, begins a record and leaves without a word."""
    def serve(connection):
        with stream_context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(1)
            stream.sendall(b"hello")
            raw = socket.socket(fileno=socket.dup(stream.fileno()))
            raw.sendall(b"\x17\x03\x03\x00\x40half")
            raw.shutdown(socket.SHUT_RDWR)
            raw.close()
            stream.detach()
    return serve


def hang(connection):
    connection.recv(65536)
    time.sleep(60)


def plain(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def leave(connection):
    connection.recv(65536)


def reset(connection):
    connection.recv(65536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def garbage(context):
    """A good handshake, then bytes that no key has made."""
    def serve(connection):
        with context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(1)
            raw = socket.socket(fileno=socket.dup(stream.fileno()))
            raw.sendall(b"\x17\x03\x03\x00\x20" + b"\x5a" * 32)
            raw.close()
            stream.recv(1)
    return serve


def guarded(serve):
    def run(connection):
        with connection:
            try:
                serve(connection)
            except (OSError, EOFError, ValueError):
                pass
    return run


def listen(kind, serve):
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            threading.Thread(target=guarded(serve), args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    print(kind, listener.getsockname()[1], flush=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    ca, other = Authority(folder, "ca"), Authority(folder, "other")
    good = ca.sign("server", ["DNS:localhost", "IP:127.0.0.1"])
    ca.sign("client")
    ca.sign("locked", password="secret")
    context, echoing = context_of(good), None
    echoing = talk(context, echo)
    listen("echo", echoing)
    listen("echo12", talk(context_of(good, most=ssl.TLSVersion.TLSv1_2), echo))
    listen("old", talk(context_of(good, ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1), echo))
    listen("expired", talk(context_of(ca.sign("expired", ["IP:127.0.0.1"], days=-1)), echo))
    listen("unknown", talk(context_of(other.sign("unknown", ["IP:127.0.0.1"])), echo))
    listen("named", talk(context_of(ca.sign("named", ["DNS:localhost", "DNS:*.example.org", "IP:127.0.0.2"])), echo))
    listen("subject", talk(context_of(ca.sign("127.0.0.1")), echo))  # the address is in the subject alone, which nobody believes any more
    listen("mutual", talk(context_of(good, wants=ca.certificate), echo))
    listen("mutual12", talk(context_of(good, most=ssl.TLSVersion.TLSv1_2, wants=ca.certificate), echo))
    listen("bytes", through(echoing, byte_by_byte))
    listen("cut", through(echoing, only(HELLO_BYTES)))
    listen("late", late(echoing, 0.5))
    listen("bye", talk(context, say_and_leave))
    listen("half", half_a_record(context))
    listen("garbage", garbage(context))
    for one in (hang, plain, leave, reset):
        listen(one.__name__, one)
    print("ready", flush=True)
    sys.stdin.read()


main()
