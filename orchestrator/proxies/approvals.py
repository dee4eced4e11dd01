"""Ask the owner before an agent does what a rule of its group names, and take the owner's decision.

The proxies ask: a container cannot get around them. A request waits `WAIT_SECONDS` for an answer; then the
agent is told that the owner was asked, and what is decided later holds for its next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.base.terminal_escaping import quoted, ticked
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.groups import changes, owner, settings
from orchestrator.store import approvals, audit, groups, host_events
from orchestrator.store.approvals import Approval, ApprovalKind, ApprovalRequest, ApprovalState
from orchestrator.store.database import Database, Tx

log = structlog.get_logger(__name__)

MINUTE_MS = 60_000
WAIT_SECONDS = 45.0
"""Shorter than what clients wait for a proxy or an MCP server, so that they are told and do not give up."""
SWEEP_SECONDS = 2.0
"""Seconds between a waiting request's checks of the store: the command line decides in another process."""
LAPSE_MS = 60 * MINUTE_MS
"""Milliseconds that the owner may take to decide."""
HOLD_MS = 15 * MINUTE_MS
"""Milliseconds that a single permission or a refusal lasts before the owner is asked again."""
MAX_WAITING = 10
"""Requests of one group that may wait at a time: a container may ask for anything."""
MAX_DETAIL_CHARS, MAX_TOLD_CHARS, MAX_SUBJECT_CHARS = 4_000, 500, 300
MAX_ASKED_AN_HOUR = 20
"""Questions to the owner about one group."""
MAX_REFUSED_AN_HOUR = 3
"""So many refusals, and the owner is asked nothing of this group for an hour after the last."""
HOUR_MS = 60 * MINUTE_MS

Decision = Literal["allow", "always", "refuse"]
_STATES: dict[Decision, ApprovalState] = {
    "allow": ApprovalState.ONCE,
    "always": ApprovalState.ALWAYS,
    "refuse": ApprovalState.REFUSED,
}


Verdict = Literal["once", "group", "never"]
"""The owner's word on a place that was refused: for a while, for the group from now on, or never again."""


class UnknownApproval(BadRequest):
    """There is no such request."""

    code = "unknown_approval"
    http_status = 404


class ApprovalIsOver(BadRequest):
    """The request has lapsed, or was decided already."""

    code = "approval_is_over"
    http_status = 409


class Approvals:
    """Asks the owner of one host. A request that is made again joins the one that waits."""

    def __init__(
        self,
        database: Database,
        reader: Database,
        *,
        clock: Clock,
        bus: EventBus,
        outbox: Wakeup,
        redact: Callable[[str], str],
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """`redact` may block; `outbox` wakes who sends the question."""
        self._database = database
        self._reader = reader
        self._clock = clock
        self._bus = bus
        self._outbox = outbox
        self._redact = redact
        self._wait_seconds = wait_seconds

    async def ask(self, request: ApprovalRequest) -> str | None:
        """Wait for the owner's decision; return None when it is allowed, else the reason for the agent."""
        redacted = await asyncio.to_thread(self._redact, request.detail)
        # Its own length counts, too: a long text that is taken for a secret would hide what follows it.
        is_too_long = max(len(ticked(one)) for one in (request.detail, redacted)) > MAX_DETAIL_CHARS
        request = replace(request, detail=redacted)
        # Listened to from before the first look. A decision in the chat is known by its message.
        with self._bus.listening("approval.decided", "message.queued") as events:
            found = await self._take(request, is_too_long=is_too_long)
            try:
                async with asyncio.timeout(self._wait_seconds):
                    while isinstance(found, Approval) and found.state is ApprovalState.WAITING:
                        await _until_news(events)
                        if await self._is_decided(found):
                            found = await self._take(request, is_too_long=is_too_long)
            except TimeoutError:
                pass
        return _refusal(found)

    async def _is_decided(self, approval: Approval) -> bool:
        now = await self._reader.read(lambda tx: approvals.get(tx, approval.id))
        return now is None or now.state is not ApprovalState.WAITING

    async def _take(self, request: ApprovalRequest, *, is_too_long: bool) -> Approval | str:
        """Return what holds of a request, which is asked if nothing does, or why it is not asked."""
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            found = await approvals.standing(tx, request, now_ms=now_ms)
            if found is not None:
                if found.state is ApprovalState.ONCE and found.kind is ApprovalKind.MCP:
                    await approvals.use(tx, found.id)
                return found
            if is_too_long:
                return f"it is too long to be asked about: at most {MAX_DETAIL_CHARS:,} characters"
            if (why_not := await _why_unasked(tx, request.folder, now_ms=now_ms)) is not None:
                return why_not
            asked = await approvals.add(tx, request, now_ms=now_ms, expires_ms=now_ms + LAPSE_MS)
            await _note(tx, asked, "approval.asked", now_ms=now_ms)
            waiting = await approvals.waiting(tx, request.folder, now_ms=now_ms)
            await owner.notify_anew(
                tx, question(waiting), about=f"{owner.ASKED}approvals:{asked.folder}", now_ms=now_ms
            )
        self._bus.publish("approval.asked", group=asked.folder, turn=asked.turn_id, detail=str(asked.id))
        self._outbox.set()
        log.info("approval.asked", group=asked.folder, kind=asked.kind.value, approval=asked.id)
        return asked


async def settle_refused(
    tx: Tx,
    folder: Folder,
    target: NetworkTarget,
    verdict: Verdict,
    *,
    run_id: RunId,
    turn_id: TurnId | None,
    by: str,
    now_ms: int,
) -> None:
    """Allow a place that a group's agent was refused, or refuse it for good, without asking and telling.

    "once" holds for `HOLD_MS`, as an answer to a request does; "group" puts it on the group's list.

    Raises:
        UnknownGroup: there is none.
        BadRequest: the group's network is closed, so that only its settings can open it, or open anyway.
    """
    group = await groups.known(tx, folder)
    config = settings.of(group)
    if config.egress == "open":
        raise BadRequest(f"'{folder}' reaches all of the internet already.")
    subject = str(target)
    await approvals.end_standing(tx, group.folder, ApprovalKind.EGRESS, subject, now_ms=now_ms)
    if verdict == "group":
        listed = sorted({*map(str, config.targets), subject})
        await changes.configure(tx, folder, {"egress": {"allowlist": listed}}, by=by, now_ms=now_ms)
        return
    if verdict == "once" and config.egress == "none" and not config.asks_egress:
        raise BadRequest(f"The network of '{folder}' is closed: allow the place for the group.")
    request = ApprovalRequest(
        folder=group.folder, kind=ApprovalKind.EGRESS, subject=subject, run_id=run_id, turn_id=turn_id
    )
    until_ms = approvals.FOR_EVER_MS if verdict == "never" else now_ms + HOLD_MS
    state = ApprovalState.REFUSED if verdict == "never" else ApprovalState.ONCE
    asked = await approvals.add(tx, request, now_ms=now_ms, expires_ms=until_ms)
    await approvals.decide(tx, asked.id, state, by=by, expires_ms=until_ms, now_ms=now_ms)
    kind = "approval.denied" if verdict == "never" else "approval.allowed"
    await _note(tx, asked, kind, now_ms=now_ms, by=by, decision=verdict)


async def decide(tx: Tx, approval_id: int, decision: Decision, *, by: str, now_ms: int) -> Approval:
    """Record what the owner decided of a request that waits; `refuse` also takes back what holds already.

    The agent is told in its next turn.

    Raises:
        UnknownApproval, ApprovalIsOver
    """
    found = await approvals.get(tx, approval_id)
    if found is None:
        raise UnknownApproval(f"There is no request {approval_id}: see 'andy approvals list'.")
    is_allowed = found.state in (ApprovalState.ONCE, ApprovalState.ALWAYS)
    is_taken_back = decision == "refuse" and (is_allowed or found.is_for_ever)
    if not (found.is_waiting(now_ms) or is_taken_back):
        was = "lapsed" if found.state is ApprovalState.WAITING else f"decided already ({found.state.value})"
        raise ApprovalIsOver(f"Request {approval_id} has {was}: the agent asks again when it needs it.")
    # What is taken back is asked anew at the next try.
    holds_ms = 0 if is_taken_back else HOLD_MS
    await approvals.decide(
        tx, approval_id, _STATES[decision], by=by, expires_ms=now_ms + holds_ms, now_ms=now_ms
    )
    decided = replace(found, state=_STATES[decision], decided_by=by, decided_ms=now_ms)
    word = "refused" if decision == "refuse" else "allowed"
    if found.is_for_ever:
        # It is asked about again, if its group asks; nothing is refused by that.
        await _note(tx, decided, "approval.withdrawn", now_ms=now_ms, by=by)
        return decided
    await _note(tx, decided, f"approval.{word}", now_ms=now_ms, by=by, decision=decision)
    if await groups.by_folder(tx, found.folder) is not None:
        text = f"{outcome(decided)}: {_what(decided)}"
        await host_events.approval_decided(tx, found.folder, text, now_ms=now_ms)
    return decided


def question(waiting: Sequence[Approval]) -> str:
    """Return what the owner reads in main of the requests of one group that wait. Pure.

    Who asks stands first. Whatever the agent has chosen is bounded, quoted and written out, so that it can
    neither pass for words of Andy's nor push them out of sight.
    """
    folder, *_ = {one.folder for one in waiting}
    lapse = f"Without an answer in {LAPSE_MS // MINUTE_MS} minutes it is refused."
    if len(waiting) == 1:
        (one,) = waiting
        answers = f"Answer here: allow {one.id}, always allow {one.id}, or refuse {one.id}."
        return f"🔐 The agent of '{folder}' asks to {_line(one)}\n{answers} {lapse}"
    lines = [
        f"🔐 The agent of '{folder}' asks for {len(waiting)} things:",
        *(f"• to {_line(one)}" for one in waiting),
    ]
    answers = f"Answer each here, such as: allow {waiting[0].id}, or all at once: refuse all {folder}."
    return "\n".join([*lines, f"{answers} {lapse}"])


def _line(asked: Approval) -> str:
    detail = f" with {quoted(asked.detail, MAX_TOLD_CHARS)}" if asked.detail else ""
    is_cut = len(ticked(asked.detail)) > MAX_TOLD_CHARS
    rest = " Read all of it on the console's page Safety before you allow it." if is_cut else ""
    return f"{_what(asked)} (request {asked.id}){detail}.{rest}"


def subject_of(asked: Approval) -> str:
    """Return what a request is about, as people may read it. Pure."""
    return quoted(asked.subject, MAX_SUBJECT_CHARS)


def outcome(decided: Approval) -> str:
    """Return in a few words what a decision means. Pure."""
    match decided.state:
        case ApprovalState.ALWAYS:
            return "Allowed from now on"
        case ApprovalState.ONCE | ApprovalState.USED if decided.kind is ApprovalKind.MCP:
            return "Allowed for this one call"
        case ApprovalState.ONCE | ApprovalState.USED:
            return f"Allowed for {HOLD_MS // MINUTE_MS} minutes"
        case ApprovalState.REFUSED:
            return "Refused"
        case ApprovalState.WAITING:
            return "Waits for the owner"


def _what(asked: Approval) -> str:
    if asked.kind is ApprovalKind.EGRESS:
        return f"reach {quoted(asked.subject, MAX_SUBJECT_CHARS)}"
    server, _, tool = asked.subject.partition("/")
    named = quoted(tool, MAX_SUBJECT_CHARS)
    return f"call {named} of the MCP server {quoted(server, MAX_SUBJECT_CHARS)}"


async def _why_unasked(tx: Tx, folder: Folder, *, now_ms: int) -> str | None:
    """Return why the owner is not asked about a group now, or None. Refusing must not make room for more."""
    if await approvals.count_waiting(tx, folder, now_ms=now_ms) >= MAX_WAITING:
        return f"{MAX_WAITING} requests of this group wait for the owner already, who was not asked again"
    counts = await approvals.counts_since(tx, folder, since_ms=now_ms - HOUR_MS)
    if counts.refused >= MAX_REFUSED_AN_HOUR:
        return (
            f"the owner has refused {counts.refused} requests of this group within an hour and is not asked"
            " again for an hour: go on without it"
        )
    if counts.asked >= MAX_ASKED_AN_HOUR:
        return f"the owner was asked {counts.asked} times within an hour: go on without it, or try later"
    return None


def _refusal(found: Approval | str) -> str | None:
    if isinstance(found, str):
        return found
    match found.state:
        case ApprovalState.WAITING:
            return (
                f"the owner was asked (request {found.id}) and has not answered yet: say so in the chat, and"
                " try the very same again once it is allowed"
            )
        case ApprovalState.REFUSED:
            return f"the owner has refused it (request {found.id}): do not try it again"
        case _:
            return None


async def _until_news(events: asyncio.Queue[HostEvent]) -> None:
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


async def _note(tx: Tx, approval: Approval, kind: str, *, now_ms: int, **more: str) -> None:
    detail = {"request": approval.id, "what": approval.kind.value, "target": approval.subject, **more}
    event = audit.AuditEvent(
        at_ms=now_ms,
        kind=kind,
        folder=approval.folder,
        run_id=approval.run_id,
        turn_id=approval.turn_id,
        detail=detail,
    )
    await audit.append(tx, event)
