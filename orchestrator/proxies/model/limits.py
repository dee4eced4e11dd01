"""Bound how much of the host a container may use through the proxy: bytes, requests, connections, seconds."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.model.error_responses import ProxyRefused, busy

MIB = 1024 * 1024
MAX_REMEMBERED = 1_000
"""Turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProxyLimits:
    """Bounds of the proxy. Times are seconds."""

    body_bytes: int = 32 * MIB
    """The Messages API takes no more."""
    held_bytes_a_group: int = 96 * MIB
    """Of bodies: each is read whole, and judged, before it is passed on."""
    held_bytes: int = 256 * MIB
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


class TurnCounts:
    """Counts what the turns of runs do; those that were counted longest ago are forgotten."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[RunId, TurnId | None], int] = OrderedDict()

    def of(self, run_id: RunId, turn_id: TurnId | None) -> int:
        return self._counts.get((run_id, turn_id), 0)

    def add(self, run_id: RunId, turn_id: TurnId | None, more: int) -> int:
        """Add to a turn's count and return it."""
        key = (run_id, turn_id)
        count = self._counts[key] = self._counts.pop(key, 0) + more
        if len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)
        return count


class RequestSlots:
    """Bounds how many requests, or bytes of them, are under way, for each group and over all."""

    def __init__(self, *, a_group: int, overall: int, unit: str = "requests") -> None:
        self._unit = unit
        self._a_group = a_group
        self._overall = overall
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def hold(self, folder: Folder, count: int = 1) -> Iterator[None]:
        """Hold `count` slots of `folder`. Raises `ProxyRefused` (429) when there are not as many."""
        if self._held[folder] + count > self._a_group:
            raise ProxyRefused(busy(self._a_group, self._unit))
        if self._held.total() + count > self._overall:
            raise ProxyRefused(busy(self._overall, self._unit))
        self._held[folder] += count
        try:
            yield
        finally:
            self._held[folder] -= count
            self._held += Counter()  # forgets groups that hold none
