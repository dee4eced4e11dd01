"""Bound how much of the host a container may use through the proxy: bytes, requests, connections, seconds."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.model_services import ModelService
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.model.error_responses import ProxyRefused, busy

MIB = 1024 * 1024
MAX_REMEMBERED = 1_000
"""Turns, and addresses of containers."""
PROMPT_FIRST_BYTE_SECONDS = 90.0
"""Seconds without a byte after which a request to Anthropic's own API is given up."""
SLOW_FIRST_BYTE_SECONDS = 600.0
"""The same for every other service."""
UPLOAD_BYTES_A_SECOND = 256 * 1024
"""The slowest way up that a large request is given time for, where another service would go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProxyLimits:
    """Bounds of the proxy. Times are seconds."""

    body_bytes: int = 32 * MIB
    """The Messages API takes no more."""
    body_bytes_at_once: int = 64 * MIB
    body_bytes_a_second: int = 8 * MIB
    """Pace for the bodies of one container after its first ones. Receiving 32 MiB is 0.1 s of work."""
    held_bytes_a_group: int = 96 * MIB
    """Bytes of request bodies held for a group: each body is read whole and judged before it is passed on."""
    held_bytes: int = 256 * MIB
    reserved_bytes: int = 64 * MIB
    """The part of `held_bytes` for groups that hold at most half of it."""
    requests_a_group: int = 16
    requests: int = 256
    requests_a_turn: int = 1_000
    """Requests of every kind, refused ones too: an answer costs the host something whatever it is."""
    connections_a_peer: int = 128
    connections: int = 512

    head_seconds: float = 10.0
    """Seconds from the first byte of a request, or the connection, to the end of its headers."""
    body_seconds: float = 60.0
    """Spent waiting for a request's body; what the upstream's own slowness takes does not count."""
    stall_seconds: float = 60.0
    """Seconds that a client may leave its answer unread."""
    linger_seconds: float = 2.0
    """Seconds for a refused client to stop sending, so that it sees the refusal and not a reset."""
    keep_alive_seconds: int = 30

    connect_seconds: float = 10.0
    write_seconds: float = 60.0
    first_byte_seconds: float | None = None
    """Seconds for the upstream to begin its answer, head and body. None: by service, see `first_byte_of`."""
    moving_seconds: float = 15.0
    """Seconds for the same, and for each event after, where another service on the internet would go on.

    Those begin a stream at once and then send events or pings: silence, or bytes that never make an event,
    is a lost request.
    """
    moving_ping_seconds: float = 300.0
    """Seconds that such a stream may bring nothing but pings: it does, while a model thinks in silence."""
    life_after_seconds: float = 5.0
    """Seconds between looks whether a service of the owner's own still lives, where another would go on.

    It may read a prompt for minutes and be well: its server answers others meanwhile.
    """
    life_seconds: float = 8.0
    """Seconds that it has for that. Two misses in a row, and it is given up."""
    probe_seconds: float = 20.0
    """Seconds for an answer to the host's own question whether a service answers."""
    near_probe_seconds: float = 120.0
    """The same of a service of the owner's own, which may load its model first while its server lives."""
    slow_seconds: float = 90.0
    """Seconds for the upstream to begin before the waiting chat is notified. The request goes on."""
    ping_seconds: float = 30.0
    """Between two signs of life to a client whose answer has not begun after `slow_seconds`.

    Measured: the CLI closes a connection that has been silent for six minutes, whatever its settings.
    """
    answer_seconds: float = 600.0
    """Seconds of silence that are allowed in the upstream's answer once it has begun."""
    pool_seconds: float = 60.0
    """Seconds that an idle upstream connection stays open for the next request."""

    def first_byte_of(self, base_url: str) -> float:
        """Return how many seconds a service may take to begin its answer.

        Anthropic's own API sends the head of a stream at once and then pings, so that silence means a lost
        request. A gateway, or a model on a machine of the owner's, may read a long prompt for minutes before
        its first byte: to give that up would begin the work, and the bill, anew.
        """
        if self.first_byte_seconds is not None:
            return self.first_byte_seconds
        host = urlsplit(base_url).hostname or ""
        is_anthropic = host == "anthropic.com" or host.endswith(".anthropic.com")
        return PROMPT_FIRST_BYTE_SECONDS if is_anthropic else SLOW_FIRST_BYTE_SECONDS


def moving_seconds_of(limits: ModelProxyLimits, service: ModelService | None, base_url: str) -> float:
    """Return how long a service may be silent where another would go on with its turn."""
    if service is not None and service.first_byte_seconds is not None:
        return float(service.first_byte_seconds)
    if service is not None and service.is_near:
        return limits.first_byte_of(base_url)
    return min(limits.moving_seconds, limits.first_byte_of(base_url))


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
    last `reserved` bytes are for groups that hold little, so that no three groups shut out a fourth.
    """

    def __init__(self, *, a_group: int, overall: int, reserved: int) -> None:
        self._a_group = a_group
        self._overall = overall
        self._reserved = reserved
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
        room = self._overall if held <= self._reserved // 2 else self._overall - self._reserved
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


class BodyPace:
    """Slows down the bodies of a container that has sent many; what is not read waits in its own memory."""

    def __init__(self, limits: ModelProxyLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait_seconds(self, peer: str, count: int) -> float:
        """Count bytes that came from a container, and return for how long to read no more of it."""
        bucket = self._buckets.pop(peer, None) or TokenBucket(
            self._clock,
            at_once=self._limits.body_bytes_at_once,
            a_second=self._limits.body_bytes_a_second,
        )
        self._buckets[peer] = bucket
        if len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket.take(count)


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
