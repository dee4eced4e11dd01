"""Make TLS ClientHello messages with OpenSSL, and variants of them."""

from __future__ import annotations

import ssl


def client_hello(name: str | None) -> bytes:
    """Return the first record of a TLS connection to `name`, or of one that names no host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no certificate is looked at, so none is loaded
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake ended without its other side")


def message_of(record: bytes) -> bytes:
    return record[5:]


def in_records(message: bytes, *, size: int) -> bytes:
    """Write a handshake message into records of `size` bytes each."""
    parts = (message[at : at + size] for at in range(0, len(message), size))
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts)


def with_extension(record: bytes, kind: int, data: bytes) -> bytes:
    """Return the hello with one more extension at its end."""
    body = message_of(record)[4:]
    at = 2 + 32
    for length_bytes in (1, 2, 1):
        at += length_bytes + int.from_bytes(body[at : at + length_bytes])
    extensions = body[at + 2 :] + kind.to_bytes(2) + len(data).to_bytes(2) + data
    body = body[:at] + len(extensions).to_bytes(2) + extensions
    return in_records(b"\x01" + len(body).to_bytes(3) + body, size=2**14)


def server_names(*names: bytes, kind: int = 0) -> bytes:
    """Return the data of a server_name extension."""
    listed = b"".join(bytes([kind]) + len(name).to_bytes(2) + name for name in names)
    return len(listed).to_bytes(2) + listed


ECH = 0xFE0D
GREASE_ECH = b"\x00\x00\x01\x00\x01\x2a\x00\x20" + b"k" * 32 + b"\x00\x90" + b"p" * 144
"""encrypted_client_hello as a browser without a key of the server sends it: nobody on the way can tell."""
