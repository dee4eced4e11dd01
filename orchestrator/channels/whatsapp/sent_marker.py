"""The host's mark in a message's secret: what tells the host's own messages, whatever id they got. Pure."""

from __future__ import annotations

import secrets

SECRET_BYTES = 32
SECRET_PREFIX = b"andy:"
MAX_MARK_BYTES = SECRET_BYTES - len(SECRET_PREFIX) - 1


def secret_of(mark: str) -> bytes:
    """A message secret that tells the mark to who may read the library's store. Raises `ValueError`."""
    told = marked(mark)
    return told + secrets.token_bytes(SECRET_BYTES - len(told))


def marked(mark: str) -> bytes:
    """What the secret of `mark` begins with."""
    told = SECRET_PREFIX + mark.encode("ascii") + b"\0"
    if len(told) > SECRET_BYTES or "\0" in mark:
        raise ValueError(f"a mark has at most {MAX_MARK_BYTES} ASCII characters")
    return told


def mark_in(secret: bytes) -> str | None:
    """The mark in a secret; None when it is somebody else's."""
    if not secret.startswith(SECRET_PREFIX) or b"\0" not in secret:
        return None
    return secret[len(SECRET_PREFIX) :].split(b"\0")[0].decode("ascii", "replace")
