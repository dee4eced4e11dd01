"""How much of the host a container may use through the proxy."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProxyLimits:
    """Bounds of the proxy. Times are seconds."""

    body_bytes: int = 32 * MIB
    """The Messages API takes no more."""
    requests_a_group: int = 16
    requests: int = 256
    connections_a_peer: int = 128
    connections: int = 512

    head_seconds: float = 10.0
    """From the first byte of a request, or the connection, to the end of its headers."""
    body_seconds: float = 60.0
    """Spent waiting for a request's body; what the upstream's own slowness takes does not count."""
    stall_seconds: float = 60.0
    """For a client that does not read its answer."""
    linger_seconds: float = 2.0
    """For a refused client to stop sending, so that it sees the refusal and not a reset."""
    keep_alive_seconds: int = 30

    connect_seconds: float = 10.0
    write_seconds: float = 60.0
    first_byte_seconds: float = 90.0
    """For the upstream to begin its answer, head and body."""
    answer_seconds: float = 600.0
    """Of silence from the upstream once it has begun."""
    pool_seconds: float = 60.0
    """How long an idle upstream connection is kept for the next request."""
