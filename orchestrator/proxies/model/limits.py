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
    kept_bytes: int = 64 * MIB
    """The part of `held_bytes` for groups that hold at most half of it."""
    requests_a_group: int = 16
    requests: int = 256
    requests_a_turn: int = 1_000
    """Requests of every kind, refused ones too: an answer costs the host something whatever it is."""
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


class HeldBytes:
    """Bounds the bytes of bodies that are in memory, for each group and over all, as they come.

    Nothing is reserved ahead: a request without a body, or one whose body does not come, holds nothing. The
    last `kept` bytes are for groups that hold little, so that no three groups shut out a fourth.
    """

    def __init__(self, *, a_group: int, overall: int, kept: int) -> None:
        self._a_group = a_group
        self._overall = overall
        self._kept = kept
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def growing(self, folder: Folder) -> Iterator[BodyBytes]:
        """Count the bytes of one body while the block runs, at most."""
        body = BodyBytes(self, folder)
        try:
            yield body
        finally:
            body.release()

    def take(self, folder: Folder, count: int) -> None:
        """Hold `count` more bytes of a group. Raises `ProxyRefused` (429) where there is no room for them."""
        held = self._held[folder] + count
        if held > self._a_group:
            raise ProxyRefused(busy(self._a_group, "bytes"))
        room = self._overall if held <= self._kept // 2 else self._overall - self._kept
        if self._held.total() + count > room:
            raise ProxyRefused(busy(room, "bytes"))
        self._held[folder] = held

    def give_back(self, folder: Folder, count: int) -> None:
        self._held[folder] -= count
        self._held += Counter()  # forgets groups that hold none


class BodyBytes:
    """The bytes of one body in memory."""

    def __init__(self, held: HeldBytes, folder: Folder) -> None:
        self._held = held
        self._folder = folder
        self._count = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes. Raises `ProxyRefused` (429) where there is no room for them."""
        self._held.take(self._folder, count)
        self._count += count

    def release(self) -> None:
        """Give all of it back: the body has gone up. Safe to call twice."""
        count, self._count = self._count, 0
        self._held.give_back(self._folder, count)


class RequestSlots:
    """Bounds how many requests are under way, for each group and over all."""

    def __init__(self, *, a_group: int, overall: int) -> None:
        self._a_group = a_group
        self._overall = overall
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def hold(self, folder: Folder, count: int = 1) -> Iterator[None]:
        """Hold `count` slots of `folder`. Raises `ProxyRefused` (429) when there are not as many."""
        if self._held[folder] + count > self._a_group:
            raise ProxyRefused(busy(self._a_group))
        if self._held.total() + count > self._overall:
            raise ProxyRefused(busy(self._overall))
        self._held[folder] += count
        try:
            yield
        finally:
            self._held[folder] -= count
            self._held += Counter()  # forgets groups that hold none
