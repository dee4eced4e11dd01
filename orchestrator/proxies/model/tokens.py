"""Tokens of runs: what a container shows the proxy in place of a key."""

from __future__ import annotations

import hashlib
import secrets


def new_token() -> str:
    """Make a token of 256 random bits, printable, for one run."""
    return f"andy-{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """SHA-256 in hex: all that the store keeps. A random token needs no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token_and_hash() -> tuple[str, str]:
    """Make a token; what a container gets of it, and what the store keeps."""
    token = new_token()
    return token, token_hash(token)
