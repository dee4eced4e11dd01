"""Limit the host's resources that a container may use through the proxy: bytes, requests,
connections, time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.domain.model_services import ModelService
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.proxies.model.error_responses import NO_SEARCH, ProxyRefused, busy, too_many_searches

MIB = 1024 * 1024
MAX_REMEMBERED = 1_000
"""Turns whose counts are stored; the least recently counted are forgotten."""
QUICK_FIRST_BYTE_SECONDS = 90.0
"""Seconds without a byte after which a request to Anthropic's own API is given up."""
SLOW_FIRST_BYTE_SECONDS = 600.0
"""Seconds without a byte after which a request to any other service is given up."""
UPLOAD_BYTES_A_SECOND = 256 * 1024
"""Slowest upload in bytes per second that a large request is given time for, if
another service could continue.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProxyLimits:
    """Limits of the proxy. Times are in seconds."""

    body_bytes: int = 32 * MIB
    """Bytes of a request's body; the Messages API accepts no more."""
    body_bytes_at_once: int = 64 * MIB
    """Bytes of bodies that a run may send before `body_bytes_a_second` slows it down."""
    body_bytes_a_second: int = 8 * MIB
    """Bytes per second for the bodies of one run after its first ones, and for those that an address sends
    without a valid token. Receiving 32 MiB is 0.1 s of work.
    """
    request_bytes: int = 64 * 1024
    """Bytes that a request counts for beside its body, whether it is refused or not.

    So a run sends 1,024 requests at once, and then 128 a second.
    """
    stranger_bytes: int = 512 * 1024
    """Bytes that a request without a valid token, or to an unknown path, counts for beside its body.

    So an address sends 128 of them at once, and then 16 a second.
    """
    held_bytes_a_group: int = 96 * MIB
    """Bytes of request bodies held for a group: each body is read whole and judged before it is passed on."""
    held_bytes: int = 256 * MIB
    """Bytes of request bodies held for all groups together."""
    reserved_bytes: int = 64 * MIB
    """Bytes of `held_bytes` that are left for groups which hold at most half of this number."""
    requests_a_group: int = 16
    """Requests of one group that are under way at once."""
    requests: int = 256
    """Requests of all groups that are under way at once."""
    requests_a_turn: int = 1_000
    """Requests of every kind, also refused ones: each answer costs the host some work."""
    connections_a_peer: int = 128
    """Connections that one container may have open."""
    connections: int = 512
    """Connections of all containers together."""

    head_seconds: float = 10.0
    """Seconds from the first byte of a request, or the connection, to the end of its headers."""
    body_seconds: float = 60.0
    """Seconds of waiting for a request's body, without the time that the upstream takes to accept it."""
    stall_seconds: float = 60.0
    """Seconds that a client may leave its answer unread."""
    linger_seconds: float = 2.0
    """Seconds that a refused client gets to stop sending, so that it reads the refusal instead of a reset."""
    keep_alive_seconds: int = 30
    """Seconds that an idle connection of a container stays open."""

    connect_seconds: float = 10.0
    """Seconds for connecting to the model service."""
    write_seconds: float = 60.0
    """Seconds for which the model service may take no further byte of a request."""
    first_byte_seconds: float | None = None
    """Seconds for the upstream to start its answer, head and body. None: by service, see `first_byte_of`."""
    moving_seconds: float = 15.0
    """Seconds for an internet service to start its answer, and for each later event, if another service could
    continue. Internet services start a stream at once and then send events or pings: silence, or bytes that
    never complete an event, mean a lost request.
    """
    moving_ping_seconds: float = 300.0
    """Seconds that a stream which `moving_seconds` limits may bring only pings, as it does while a model
    thinks.
    """
    life_after_seconds: float = 5.0
    """Seconds between checks that a service of the owner's own still works, if another could continue. It may
    read a prompt for minutes and be fine: its server answers other requests meanwhile.
    """
    life_seconds: float = 8.0
    """Seconds for the answer to such a check. After two misses in a row, the service is given up."""
    probe_seconds: float = 20.0
    """Seconds for an answer to the host's own test of a service."""
    near_probe_seconds: float = 120.0
    """Seconds for an answer to the host's own test of a service on the owner's machines, which may have to
    load its model first.
    """
    slow_seconds: float = 90.0
    """Seconds for the upstream to start before the waiting chat is notified. The request continues."""
    ping_seconds: float = 30.0
    """Seconds between two pings to a client whose answer has not started after `slow_seconds`. Measured: the
    CLI closes a connection that has been silent for six minutes, whatever its settings.
    """
    answer_seconds: float = 600.0
    """Seconds of silence that are allowed in the upstream's answer once it has started."""
    pool_seconds: float = 60.0
    """Seconds that an idle upstream connection stays open for the next request."""

    def first_byte_of(self, base_url: str) -> float:
        """Return how many seconds a service may take to start its answer.

        Anthropic's own API sends the head of a stream at once and then pings, so silence means a lost
        request. A gateway, or a model on the owner's machine, may read a long prompt for minutes before its
        first byte: giving up would start the work, and the bill, again.
        """
        if self.first_byte_seconds is not None:
            return self.first_byte_seconds
        host = urlsplit(base_url).hostname or ""
        is_anthropic = host == "anthropic.com" or host.endswith(".anthropic.com")
        return QUICK_FIRST_BYTE_SECONDS if is_anthropic else SLOW_FIRST_BYTE_SECONDS


def seconds_before_moving(limits: ModelProxyLimits, service: ModelService | None, base_url: str) -> float:
    """Return how many seconds a service may take to start its answer before the turn moves to another.

    `service` is None for the service of `.env`; `base_url` is the service's URL in either case. A time that
    the owner set for the service counts as it is, and a service of the owner's own (`is_near`) gets its usual
    time.
    """
    if service is not None and service.first_byte_seconds is not None:
        return float(service.first_byte_seconds)
    if service is not None and service.is_near:
        return limits.first_byte_of(base_url)
    return min(limits.moving_seconds, limits.first_byte_of(base_url))


class TurnCounts:
    """Counts something for each turn of a run; the least recently counted turns are forgotten."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[RunId, TurnId | None], int] = OrderedDict()
        """The count of each turn; the one that was changed last is the last."""

    def of(self, run_id: RunId, turn_id: TurnId | None) -> int:
        """Return the count of a run's turn; 0 if it is not known.

        A `turn_id` of None means outside of turns.
        """
        return self._counts.get((run_id, turn_id), 0)

    def add(self, run_id: RunId, turn_id: TurnId | None, count: int) -> int:
        """Add `count` to the count of a run's turn, and return the sum.

        A `turn_id` of None means outside of turns.
        """
        key = (run_id, turn_id)
        # Removed and set again, so that the latest key comes last.
        total = self._counts[key] = self._counts.pop(key, 0) + count
        if len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)
        return total


class SearchCounts:
    """Limits the web searches of a turn: those made, and those that requests under way may still make."""

    def __init__(self, a_turn: int) -> None:
        """`a_turn` is the most searches of one turn."""
        self._a_turn = a_turn
        self._made = TurnCounts()
        self._under_way = TurnCounts()

    def remaining(self, run_id: RunId, turn_id: TurnId | None) -> int:
        """Return how many searches a turn may still make; reserved searches are not subtracted."""
        return max(0, self._a_turn - self._made.of(run_id, turn_id))

    def add(self, run_id: RunId, turn_id: TurnId | None, count: int) -> None:
        """Count searches that a turn has made."""
        self._made.add(run_id, turn_id, count)

    def begin(self, run_id: RunId, turn_id: TurnId | None, count: int) -> None:
        """Reserve the searches that one request may make, until `end` is called.

        Raises `ProxyRefused`: with 403 if the turn has fewer than `count` left, or with 429 if other requests
        under way have reserved them.
        """
        remaining = self.remaining(run_id, turn_id)
        under_way = self._under_way.of(run_id, turn_id)
        if count > remaining:
            raise ProxyRefused(too_many_searches(remaining) if remaining else NO_SEARCH)
        if count > remaining - under_way:
            raise ProxyRefused(busy(under_way, "web searches"))
        self._under_way.add(run_id, turn_id, count)

    def end(self, run_id: RunId, turn_id: TurnId | None, count: int) -> None:
        """Release the searches that `begin` has reserved. Call `add` first for those that were made."""
        self._under_way.add(run_id, turn_id, -count)


class HeldBytes:
    """Limits the bytes of bodies in memory, for each group and in all, as they come.

    Nothing is reserved ahead: a request without a body, or one whose body does not come, holds nothing. The
    last `reserved` bytes are for groups that hold little, so that three groups cannot shut out a fourth.
    """

    def __init__(self, *, a_group: int, overall: int, reserved: int) -> None:
        """Start with no bytes held.

        Args:
            a_group: the most bytes of one group.
            overall: the most bytes of all groups.
            reserved: the last bytes of `overall`. Only groups that hold at most half of `reserved` may use
                them.
        """
        self._max_of_group = a_group
        self._max_of_all = overall
        self._reserved = reserved
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def growing(self, folder: Folder) -> Iterator[BodyBytes]:
        """Yield a counter for the bytes of one body of a group, which are released when the block ends."""
        body = BodyBytes(self, folder)
        try:
            yield body
        finally:
            body.release()

    def take(self, folder: Folder, count: int) -> None:
        """Hold `count` more bytes of a group. Raises `ProxyRefused` (429) if there is no room for them.

        The last `reserved` bytes of all are only for groups that hold at most half of `reserved`.
        """
        group_bytes = self._held[folder] + count
        if group_bytes > self._max_of_group:
            raise ProxyRefused(busy(self._max_of_group, "bytes"))
        allowed_bytes = (
            self._max_of_all if group_bytes <= self._reserved // 2 else self._max_of_all - self._reserved
        )
        if self._held.total() + count > allowed_bytes:
            raise ProxyRefused(busy(allowed_bytes, "bytes"))
        self._held[folder] = group_bytes

    def release(self, folder: Folder, count: int) -> None:
        """Subtract `count` from the bytes that a group holds."""
        self._held[folder] -= count
        self._held += Counter()  # this addition drops groups that hold nothing


class BodyBytes:
    """Counts the bytes of one body in memory."""

    def __init__(self, held: HeldBytes, folder: Folder) -> None:
        """`held` counts the bytes of all bodies, with limits; `folder` is the group that sends this body."""
        self._held = held
        self._folder = folder
        self._count = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes. Raises `ProxyRefused` (429) if there is no room for them."""
        self._held.take(self._folder, count)
        self._count += count

    def release(self) -> None:
        """Release all counted bytes: the body was sent, or its request has ended. May be called twice."""
        count, self._count = self._count, 0
        self._held.release(self._folder, count)


class RequestSlots:
    """Limits how many requests run at once, for each group and in all."""

    def __init__(self, *, a_group: int, overall: int) -> None:
        """`a_group` is the most requests of one group, `overall` of all groups together."""
        self._max_of_group = a_group
        self._max_of_all = overall
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def hold(self, folder: Folder, count: int = 1) -> Iterator[None]:
        """Hold the right of a group to run `count` requests, while the block runs.

        Raises `ProxyRefused` (429) if so many would be above a limit.
        """
        if self._held[folder] + count > self._max_of_group:
            raise ProxyRefused(busy(self._max_of_group))
        if self._held.total() + count > self._max_of_all:
            raise ProxyRefused(busy(self._max_of_all))
        self._held[folder] += count
        try:
            yield
        finally:
            self._held[folder] -= count
            self._held += Counter()  # this addition drops groups that hold none
