"""The last look at what goes back to a container."""

from __future__ import annotations


class LeakCheck:
    """Notices a secret in a stream of chunks, also one cut across them, before its last byte passes."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._tail = b""

    def quotes_secret(self, chunk: bytes) -> bool:
        """Tell whether `chunk` completes the secret. Call once a chunk, in order."""
        seen = self._tail + chunk
        self._tail = seen[-(len(self._secret) - 1) :] if len(self._secret) > 1 else b""
        return self._secret in seen
