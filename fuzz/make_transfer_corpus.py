#!/usr/bin/env python3
"""Writes the seed inputs of fuzz_transfer. Usage: python3 fuzz/make_transfer_corpus.py (from anywhere). Deterministic."""
import base64
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus" / "fuzz_transfer"
BASE = 1 << 20
DOCUMENT = {
    "buffers": [{"addr": 4096, "length": 4096, "name": "n"}, {"addr": 8192, "length": 1, "name": "n"}],
    "mooncake_c": {"host": "0" * 31 + "1", "id": "f" * 32, "unix": "@mooncake"},
    "name": "127.0.0.1:16059", "protocol": "tcp", "rdma_server_name": "", "tcp_data_host": "::1", "tcp_data_port": 16102,
    "tcp_proto_version": 2, "timestamp": "2026-11-21 10:07:41.295204", "unknown": [1, {"a": None}, "\u00e4\n"],
}
OK = struct.pack("<Q", 0x4D435456 << 32)


def frame(kind, body):
    return struct.pack("<QB", len(body) + 1, kind) + body


def preface(port, name):
    return struct.pack("<8sQB7x32s64s", b"mc-auth1", 0, ord(port), bytes(range(32)), name)


def header(length, offset, opcode):
    return b"\x18" + struct.pack("<QQB7x", length, BASE + offset, opcode)


def etcd(value):
    return json.dumps({"header": {"revision": "7"}, "kvs": [{"key": "YQ==", "value": base64.b64encode(value).decode()}], "count": "1"}).encode()


def main():
    text = json.dumps(DOCUMENT).encode()
    note = json.dumps({"name": "a\"", "notify_msg": "\ud83d\ude00"}).encode()
    rdma = {"name": "r", "protocol": ["rdma", "tcp"], "devices": [{"name": "mlx5_0", "lid": 0, "gid": "fe80"}],
            "buffers": [{"addr": 1, "length": 2, "name": "cpu:0", "rkey": [1], "lkey": [2]}]}
    seeds = {
        "document": b"\0" + text, "document_rdma": b"\0" + json.dumps(rdma).encode(), "document_cut": b"\0" + text[:100],
        "handshake_metadata": b"\1" + frame(1, text), "handshake_note": b"\1" + frame(2, note), "handshake_probe": b"\1" + frame(3, b"{}"),
        "handshake_old": b"\1" + struct.pack("<Q", 2) + b"{}", "handshake_http": b"\1GET / HTTP/1.1\r\n\r\n",
        "note": b"\2" + note, "rpc_meta": b"\3" + b'{"ip_or_host_name":"10.0.0.1","rpc_port":15234}',
        "data_write": b"\4" + header(10, 5, 0x81) + b"\x0a0123456789" + header(3, 0, 0x01) + b"\x03abc",
        "data_read": b"\4" + header(100, 900, 0x80) + header(3000, 1000, 0x00) + header(1, 0, 0x80),
        "data_pieces": b"\4" + header(200, 1500, 0x81) + b"".join(b"\x14" + bytes(20) for _ in range(10)) + header(1, 4095, 0x80),
        "data_refused": b"\4" + header(101, 900, 0x80), "data_overflow": b"\4" + header(2**64 - 1, 5, 0x81), "data_nonsense": b"\4" + header(1, 1, 0x42),
        "data_who": b"\4" + header(7, 0, 0x40) + header(10, 5, 0x81) + b"\x0a0123456789", "data_who_else": b"\4" + header(1, 1, 0x40) + header(3, 0, 0x80),
        "answers_read": b"\5" + OK + bytes(100) + OK + bytes(7) + OK + bytes(1000), "answers_write": b"\5" + OK * 3 + b"\0",
        "answers_refused": b"\5" + OK + bytes(100) + struct.pack("<Q", 0x4D435456 << 32 | 1), "answers_lie": b"\5" + bytes(30),
        "preface": b"\7D\x27" + preface("D", b"me") + b"mc-prof1" + bytes(32), "preface_unknown": b"\7H\xff" + preface("H", b"you"),
        "preface_other_port": b"\7U\0" + preface("D", b"me"), "preface_none": b"\7H\0" + frame(3, b"{}"),
        "etcd": b"\6" + etcd(text), "etcd_meta": b"\6" + etcd(b'{"ip_or_host_name":"10.0.0.1","rpc_port":15234}'), "etcd_nothing": b'\6{"header":{}}',
    }
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
