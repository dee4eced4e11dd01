"""Ask the owner before an agent does what a rule of its group names, and apply the decision.

The proxies ask, so a container cannot get around it. A request waits `WAIT_SECONDS` for an answer; then the
agent reads that the owner was asked, and a later decision applies to its next attempt.
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
from orchestrator.store import audit
from orchestrator.store.access import approvals
from orchestrator.store.access.approvals import Approval, ApprovalKind, ApprovalRequest, ApprovalState
from orchestrator.store.database import Database, Tx, announce
from orchestrator.store.groups import groups
from orchestrator.store.notices import host_events

log = structlog.get_logger(__name__)

MINUTE_MS = 60_000
# The Claude CLI gives up a request to an MCP server after a minute, and a turn that waits holds up its group.
WAIT_SECONDS = 45.0
"""Seconds that a request waits: less than clients wait for a proxy or an MCP
server, so that they get a reason.
"""
SWEEP_SECONDS = 2.0
"""Seconds between two looks of a waiting request at the store: the command line decides in another process.
"""
LAPSE_MS = 60 * MINUTE_MS
"""Milliseconds until an undecided request lapses."""
HOLD_MS = 15 * MINUTE_MS
"""Milliseconds that a single permission or a refusal lasts before the owner is asked again."""
MAX_WAITING = 10
"""Waiting requests of one group at a time: a container may request anything, any number of times."""
MAX_DETAIL_CHARS = 4_000
"""Characters of a request's arguments, escaped; one with longer ones is refused without a question."""
MAX_SHOWN_CHARS = 500
"""Characters of the arguments that the question in the chat shows."""
MAX_SUBJECT_CHARS = 300
"""Characters that are shown of an address, or of the name of a server or tool."""
MAX_QUESTIONS_AN_HOUR = 20
"""Most questions to the owner about one group in an hour."""
MAX_REFUSED_AN_HOUR = 3
"""Refusals of a group in an hour after which the owner is not asked about it for an hour."""
HOUR_MS = 60 * MINUTE_MS

Decision = Literal["allow", "always", "refuse"]
_STATES: dict[Decision, ApprovalState] = {
    "allow": ApprovalState.ONCE,
    "always": ApprovalState.ALWAYS,
    "refuse": ApprovalState.REFUSED,
}


Verdict = Literal["once", "group", "never"]
"""The owner's decision about a refused address: allowed for a while, on the
group's list, or refused for good.
"""


class UnknownApproval(BadRequest):
    """There is no such request."""

    code = "unknown_approval"
    http_status = 404


class ApprovalIsOver(BadRequest):
    """The request has lapsed, or is decided already."""

    code = "approval_is_over"
    http_status = 409


class Approvals:
    """Asks the owner of one host. A repeated request joins the waiting one."""

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
        """Set up the requests for approval of one host, and the questions to its owner about them.

        Args:
            database: stores the requests.
            reader: a second connection, for reading only.
            bus: carries the events of requests that were stored or decided.
            outbox: wakes the loop that sends the question to the owner.
            redact: removes secrets from a text; it may block.
            wait_seconds: for how long a request waits for an answer.
        """
        self._database = database
        self._reader = reader
        self._clock = clock
        self._bus = bus
        self._outbox = outbox
        self._redact = redact
        self._wait_seconds = wait_seconds

    async def ask(self, request: ApprovalRequest) -> str | None:
        """Ask the owner about a request, unless they have decided it, and wait for the decision.

        Return None when it is allowed, else the reason for the agent, such as that no answer came in time.
        The request is stored without secrets, and stays open for a later answer if none comes in time. A
        permission for a single call of a tool is used up.
        """
        redacted = await asyncio.to_thread(self._redact, request.detail)
        # Both texts have to be short. Redaction replaces a secret with a short mark, so a long text that is
        # taken for a secret would pass if only the redacted text counted. A beginning is enough to measure:
        # `ticked` escapes characters, which never shortens a text.
        beginnings = [text[: MAX_DETAIL_CHARS + 1] for text in (request.detail, redacted)]
        is_too_long = max(len(ticked(text)) for text in beginnings) > MAX_DETAIL_CHARS
        request = replace(request, detail=redacted)
        # Subscribed before the first look at the store, so that no decision is missed between the two. An
        # answer that the owner writes in the chat is published as `message.queued`.
        with self._bus.listening("approval.decided", "message.queued") as events:
            decision = await self._decision_or_question(request, is_too_long=is_too_long)
            deadline = asyncio.get_running_loop().time() + self._wait_seconds
            while isinstance(decision, Approval) and decision.state is ApprovalState.WAITING:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._wait_until_decided(decision, events)
                except TimeoutError:
                    break
                # The decision is read again by the transaction that also uses up a single permission. This
                # is outside of the time limit, so that no permission is spent without a call: a transaction
                # that the limit cancels may still be committed.
                decision = await self._decision_or_question(request, is_too_long=is_too_long)
        return _refusal_reason(decision)

    async def _wait_until_decided(self, approval: Approval, events: asyncio.Queue[HostEvent]) -> None:
        """Wait until somebody has decided on a waiting request, or the request is gone.

        A request that lapses meanwhile still counts as waiting: the caller has to limit the time. `events`
        receives the host's events, which only make the next look at the store come sooner.
        """
        while True:
            await _wait_for_event(events)
            if await self._is_decided(approval):
                return

    async def _is_decided(self, approval: Approval) -> bool:
        """Return whether a request no longer waits: somebody has decided on it, or it was deleted."""
        current = await self._reader.read(lambda tx: approvals.get(tx, approval.id))
        return current is None or current.state is not ApprovalState.WAITING

    async def _decision_or_question(self, request: ApprovalRequest, *, is_too_long: bool) -> Approval | str:
        """Return the decision in force or the waiting request, or the reason why the owner is not asked.

        A new request is stored, and the owner is asked. A permission for a single call of a tool is used up.
        `is_too_long` says whether the arguments are too long to be shown to the owner.
        """
        now_ms = self._clock.now_ms()
        # Look and ask in one transaction: of two equal requests at once, the second finds the question of the
        # first.
        async with self._database.transaction() as tx:
            # The decision in force, or else the equal request that waits.
            stored = await approvals.applicable(tx, request, now_ms=now_ms)
            if stored is not None:
                # A single permission is used up by one call of a tool; for an address it lasts `HOLD_MS`.
                if stored.state is ApprovalState.ONCE and stored.kind is ApprovalKind.MCP:
                    await approvals.note_used(tx, stored.id)
                return stored
            if is_too_long:
                return f"it is too long to be asked about: at most {MAX_DETAIL_CHARS:,} characters"
            if (reason_not_to_ask := await _reason_not_to_ask(tx, request.folder, now_ms=now_ms)) is not None:
                return reason_not_to_ask
            new_request = await approvals.add(tx, request, now_ms=now_ms, expires_ms=now_ms + LAPSE_MS)
            await _append_to_audit(tx, new_request, "approval.asked", now_ms=now_ms)
            # One question lists all waiting requests of the group, and replaces the last one if it is unsent.
            waiting = await approvals.waiting(tx, request.folder, now_ms=now_ms)
            await owner.notify_replacing_unsent(
                tx, question(waiting), about=f"{owner.ASKED}approvals:{new_request.folder}", now_ms=now_ms
            )
        self._bus.publish(
            "approval.asked", group=new_request.folder, turn=new_request.turn_id, detail=str(new_request.id)
        )
        self._outbox.set()
        log.info(
            "approval.asked", group=new_request.folder, kind=new_request.kind.value, approval=new_request.id
        )
        return new_request


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
    """Record the owner's `verdict` about an address that a group's agent could not reach, nobody being asked.

    "once" allows the address for `HOLD_MS`, like an answer to a request; "group" adds it to the group's list;
    "never" refuses it for good. An earlier temporary decision about the address, or a refusal for good, ends;
    a permission for good stays. `run_id` and `turn_id` are the run and the turn in which the address was
    refused, `turn_id` None if it is not known; `by` says who decides.

    Raises:
        UnknownGroup: there is no such group.
        BadRequest: the group reaches all of the internet anyway; or the verdict is "once", and the group
            reaches nothing and its owner is not asked about addresses; or it is "group", and the group's
            settings cannot be read.
    """
    group = await groups.known(tx, folder)
    config = settings.of(group)
    if config.egress == "open":
        raise BadRequest(f"'{folder}' reaches all of the internet already.")
    subject = str(target)
    await approvals.end_decisions(tx, group.folder, ApprovalKind.EGRESS, subject, now_ms=now_ms)
    if verdict == "group":
        targets = sorted({*map(str, settings.to_change(group).targets), subject})
        # `configure` also appends the change to the audit.
        await changes.configure(tx, folder, {"egress": {"allowlist": targets}}, by=by, now_ms=now_ms)
        announce(tx, "approval.decided", group=group.folder)
        return
    # A permission for a while extends the group's list or answers its next request. A closed network has no
    # list, and without questions there is no request.
    if verdict == "once" and config.egress == "none" and not config.asks_egress:
        raise BadRequest(f"The network of '{folder}' is closed: allow the place for the group.")
    # Stored like a request of the agent that the owner decides at once.
    request = ApprovalRequest(
        folder=group.folder, kind=ApprovalKind.EGRESS, subject=subject, run_id=run_id, turn_id=turn_id
    )
    until_ms = approvals.NEVER_EXPIRES_MS if verdict == "never" else now_ms + HOLD_MS
    state = ApprovalState.REFUSED if verdict == "never" else ApprovalState.ONCE
    approval = await approvals.add(tx, request, now_ms=now_ms, expires_ms=until_ms)
    await approvals.decide(tx, approval.id, state, by=by, expires_ms=until_ms, now_ms=now_ms)
    kind = "approval.denied" if verdict == "never" else "approval.allowed"
    await _append_to_audit(tx, approval, kind, now_ms=now_ms, by=by, decision=verdict)
    announce(tx, "approval.decided", group=group.folder, detail=str(approval.id))


async def decide(tx: Tx, approval_id: int, decision: Decision, *, by: str, now_ms: int) -> Approval:
    """Record the owner's decision about a waiting request, and return the decided request.

    `by` says who decides. For a request that was decided before, "refuse" withdraws that decision, so that
    the owner is asked again. Two decisions can be withdrawn: a permission that was not used up, even if its
    time is over, and a refusal for good. The group's agent reads about the decision in its next turn, except
    when a refusal for good was withdrawn or the group is gone.

    Raises:
        UnknownApproval: no request has this id.
        ApprovalIsOver: it has lapsed, or was decided already and the decision cannot be withdrawn so.
    """
    approval = await approvals.get(tx, approval_id)
    if approval is None:
        raise UnknownApproval(f"There is no request {approval_id}: see 'andy approvals list'.")
    is_allowed = approval.state in (ApprovalState.ONCE, ApprovalState.ALWAYS)
    is_withdrawal = decision == "refuse" and (is_allowed or approval.is_refused_permanently)
    if not (approval.is_waiting(now_ms) or is_withdrawal):
        state_text = (
            "has lapsed"
            if approval.state is ApprovalState.WAITING
            else f"was decided already ({approval.state.value})"
        )
        raise ApprovalIsOver(f"Request {approval_id} {state_text}: the agent asks again when it needs it.")
    # After a withdrawal, the next attempt asks again. A permission "from now on" has no end: its expiry is
    # ignored.
    lasts_ms = 0 if is_withdrawal else HOLD_MS
    await approvals.decide(
        tx, approval_id, _STATES[decision], by=by, expires_ms=now_ms + lasts_ms, now_ms=now_ms
    )
    announce(tx, "approval.decided", group=approval.folder, detail=str(approval.id))
    decided = replace(approval, state=_STATES[decision], decided_by=by, decided_ms=now_ms)
    verb = "refused" if decision == "refuse" else "allowed"
    if approval.is_refused_permanently:
        # A refusal for good was withdrawn: the owner is asked again at the next attempt.
        await _append_to_audit(tx, decided, "approval.withdrawn", now_ms=now_ms, by=by)
        return decided
    await _append_to_audit(tx, decided, f"approval.{verb}", now_ms=now_ms, by=by, decision=decision)
    if await groups.by_folder(tx, approval.folder) is not None:
        text = f"{outcome(decided)}: {_action_text(decided)}"
        await host_events.approval_decided(tx, approval.folder, text, now_ms=now_ms)
    return decided


def question(waiting: Sequence[Approval]) -> str:
    """Return the text that asks the owner, in the group `main`, about the waiting requests of a group. Pure.

    `waiting` has at least one request. The text begins with the group. The agent's own text is shortened,
    quoted and escaped, so that it can neither look like Andy's text nor push that out of sight.
    """
    folder = waiting[0].folder
    lapse = f"Without an answer in {LAPSE_MS // MINUTE_MS} minutes it is refused."
    if len(waiting) == 1:
        (request,) = waiting
        answers = f"Answer here: allow {request.id}, always allow {request.id}, or refuse {request.id}."
        return f"🔐 The agent of '{folder}' asks to {_request_line(request)}\n{answers} {lapse}"
    lines = [
        f"🔐 The agent of '{folder}' asks for {len(waiting)} things:",
        *(f"• to {_request_line(request)}" for request in waiting),
    ]
    answers = f"Answer each here, such as: allow {waiting[0].id}, or all at once: refuse all {folder}."
    return "\n".join([*lines, f"{answers} {lapse}"])


def _request_line(request: Approval) -> str:
    """Return what the agent wants to do with which arguments, on one line; long arguments are cut."""
    detail = f" with {quoted(request.detail, MAX_SHOWN_CHARS)}" if request.detail else ""
    is_cut = len(ticked(request.detail)) > MAX_SHOWN_CHARS  # `quoted` cuts this escaped text
    hint = " Read all of it on the console's page Safety before you allow it." if is_cut else ""
    return f"{_action_text(request)} (request {request.id}){detail}.{hint}"


def subject_of(request: Approval) -> str:
    """Return the subject of a request for people: quoted, escaped and shortened. Pure."""
    return quoted(request.subject, MAX_SUBJECT_CHARS)


def outcome(decided: Approval) -> str:
    """Return a short text about how a request was decided, or that it waits. Pure."""
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


def _action_text(request: Approval) -> str:
    """Return what an agent requests to do, as a verb with its object: "reach …" or "call …"."""
    if request.kind is ApprovalKind.EGRESS:
        return f"reach {quoted(request.subject, MAX_SUBJECT_CHARS)}"
    server, _, tool = request.subject.partition("/")  # such as "calendar/delete_event"
    tool_name = quoted(tool, MAX_SUBJECT_CHARS)
    return f"call {tool_name} of the MCP server {quoted(server, MAX_SUBJECT_CHARS)}"


async def _reason_not_to_ask(tx: Tx, folder: Folder, *, now_ms: int) -> str | None:
    """Return the reason not to ask the owner about a group now, or None if they may be asked.

    Refused requests are limited, too: each refusal ends a waiting request, and so makes room for another
    question.
    """
    if await approvals.count_waiting(tx, folder, now_ms=now_ms) >= MAX_WAITING:
        return f"{MAX_WAITING} requests of this group wait for the owner already, who was not asked again"
    counts = await approvals.counts_since(tx, folder, since_ms=now_ms - HOUR_MS, now_ms=now_ms)
    if counts.refused >= MAX_REFUSED_AN_HOUR:
        return (
            f"the owner has refused {counts.refused} requests of this group within an hour and is not asked"
            " again for an hour: go on without it"
        )
    if counts.asked >= MAX_QUESTIONS_AN_HOUR:
        return f"the owner was asked {counts.asked} times within an hour: go on without it, or try later"
    return None


def _refusal_reason(decision: Approval | str) -> str | None:
    """Return the text for the agent on why its request is refused; None if it is allowed.

    `decision` is that text itself if the owner was not asked.
    """
    if isinstance(decision, str):
        return decision
    match decision.state:
        case ApprovalState.WAITING:
            return (
                f"the owner was asked (request {decision.id}) and has not answered yet: say so in the chat,"
                " and try the very same again once it is allowed"
            )
        case ApprovalState.REFUSED:
            return f"the owner has refused it (request {decision.id}): do not try it again"
        case _:
            return None


async def _wait_for_event(events: asyncio.Queue[HostEvent]) -> None:
    """Wait for the next event, at most `SWEEP_SECONDS`."""
    try:
        async with asyncio.timeout(SWEEP_SECONDS):
            await events.get()
    except TimeoutError:
        return


async def _append_to_audit(tx: Tx, approval: Approval, kind: str, *, now_ms: int, **more: str) -> None:
    """Append an event about a request to the audit.

    `kind` is the event's name, such as "approval.asked"; `more` is added to its details.
    """
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
