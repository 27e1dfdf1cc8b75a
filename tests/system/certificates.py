"""Certificates for tests, made by the openssl command.

    ca = Authority(folder, "ca")             # ca.certificate, a file
    one = ca.sign("server", ["DNS:localhost", "IP:127.0.0.1"], days=1)
    one.certificate, one.key                 # files; days=-1: it expired yesterday; seconds=5: it expires soon
    with Front(one, port) as front:          # TLS on front.port for a server on port that has none
"""
import collections
import pathlib
import socket
import ssl
import subprocess
import threading
import time

Pair = collections.namedtuple("Pair", "certificate key")
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


def openssl(*words):
    result = subprocess.run(["openssl", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


class Authority:
    def __init__(self, folder, name):
        self.folder, self.serial = pathlib.Path(folder), 0
        self.certificate, self.key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        openssl("req", "-x509", *KEY, "-nodes", "-keyout", self.key, "-out", self.certificate, "-subj", f"/CN={name}", "-days", 2,
                "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def sign(self, name, alternatives=(), days=1, password=None, seconds=None):
        """A certificate and its key. With a password the key is encrypted."""
        certificate, key, request, more = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        hidden = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        openssl("req", *KEY, *hidden, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        self.serial += 1
        more.write_text("basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n" +
                        (f"subjectAltName={','.join(alternatives)}\n" if alternatives else ""))
        if seconds is not None:
            return self._sign_for(seconds, request, more, Pair(certificate, key))
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-set_serial", self.serial, "-days", days,
                "-extfile", more, "-out", certificate)
        return Pair(certificate, key)

    def _sign_for(self, seconds, request, more, pair):
        """By the command that knows of seconds; it wants a folder with notes."""
        notes = self.folder / f"{pair.certificate.stem}.notes"
        notes.mkdir()
        (notes / "index").touch()
        (notes / "serial").write_text(f"{self.serial:04x}\n")
        (notes / "conf").write_text(f"[ca]\ndefault_ca=it\n[it]\ndatabase={notes}/index\nserial={notes}/serial\nnew_certs_dir={notes}\n"
                                    "default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n")
        start, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + at)) for at in (-60, seconds))
        openssl("ca", "-batch", "-notext", "-config", notes / "conf", "-in", request, "-cert", self.certificate, "-keyfile", self.key,
                "-extfile", more, "-startdate", start, "-enddate", end, "-out", pair.certificate)
        return pair


class Front:
    def __init__(self, pair, target, port=0):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.target, self.port = target, port

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port, self.sockets = self.listener.getsockname()[1], []
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        return self

    def __exit__(self, *unused):
        for one in [self.listener, *self.sockets]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def _accept(self, listener):
        try:
            while True:
                threading.Thread(target=self._serve, args=(listener.accept()[0],), daemon=True).start()
        except OSError:
            pass

    def _serve(self, raw):
        """One question and its answer: metadata's clients end with it."""
        try:
            with raw, self.context.wrap_socket(raw, server_side=True) as client, socket.create_connection(("127.0.0.1", self.target)) as server:
                self.sockets.append(client)
                thread = threading.Thread(target=carry, args=(client, server), daemon=True)
                thread.start()
                carry(server, client)
                server.close()
        except OSError:
            pass


def carry(source, sink):
    try:
        while part := source.recv(65536):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
