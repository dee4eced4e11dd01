"""Reports the history of one message, from its arrival to its reply, from the store and the logs of runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second, utc_stamp
from orchestrator.base.tables import short
from orchestrator.containers.logs import files
from orchestrator.containers.logs.files import LoggedEvent
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, Group, Message, MessageId, Outgoing, Turn, TurnState
from orchestrator.reports import turn_work
from orchestrator.reports.audit import detail_text
from orchestrator.reports.costs import UsageCountsView, sums_row
from orchestrator.reports.turn_work import ToolCallView
from orchestrator.store import audit
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import usage
from orchestrator.store.runs import runs, turns

STARTED = ("turn.started", "turn.handed_over")
ENDED = ("turn.answered", "turn.put_back", "turn.failed")
LATE_MS = 1_000
"""Milliseconds that a log may be written after what it records."""
LOG_LINES = 200
"""Log lines that are shown for one message, the newest ones."""
STAMP_CHARS = len("2026-11-22T03:15:01.123Z")


class TimelineMessageView(TypedDict):
    """The message itself; `ignored_reason` says why it got no turn."""

    seq: int
    sender: str
    text: str
    sent_ms: int
    received_ms: int
    ignored_reason: str | None


class TimelineTurnPart(TypedDict):
    """The turn that has the message, and its run."""

    id: int
    kind: str
    state: str
    reason: str | None
    attempt: int
    place: int | None
    queued_ms: int
    not_before_ms: int
    started_ms: int | None
    acked_ms: int | None
    ended_ms: int | None
    run: str | None
    run_ended_ms: int | None
    run_exit: str | None
    run_frames: int | None


class AttemptPart(TypedDict):
    """One attempt of a run at the turn; `outcome` is None while it goes on, or where no log tells its end."""

    attempt: int
    run: str
    started_ms: int
    acked_ms: int | None
    ended_ms: int | None
    outcome: str | None
    reason: str | None


class TurnRequestPart(TypedDict):
    """A row of the audit about the turn: a request to the host, the model or the network."""

    at_ms: int
    kind: str
    run: str | None
    detail: dict[str, object]


class ReplyPart(TypedDict):
    """A message of Andy's in the outbox, from the turn."""

    outbox: int
    id: str
    text: str
    state: str
    created_ms: int
    tries: int
    next_try_ms: int | None
    sent_ms: int | None
    error: str | None
    file: str | None


class TurnCostPart(UsageCountsView):
    """The usage of the whole turn; `subagents` is the part of its subagents."""

    models: list[str]
    subagents: UsageCountsView


class TimelineStepView(TypedDict):
    """One step of the history; `at_ms` is null if the step is a state and not an event."""

    at_ms: int | None
    step: str
    text: str


class StoredTimeline(TypedDict):
    """The history of a message as far as it is stored; `with_logs` adds what logs have."""

    id: str
    group: Folder
    chat: str
    message: TimelineMessageView | None
    turn: TimelineTurnPart | None
    attempts: list[AttemptPart]
    work: list[TurnRequestPart]
    tools: list[ToolCallView]
    replies: list[ReplyPart]
    cost: TurnCostPart | None
    log: list[str]


class TimelineDocumentView(StoredTimeline):
    """The history of one message, from its arrival to its reply."""

    steps: list[TimelineStepView]


class NoMessage(BadRequest):
    """There is no such message."""

    code = "unknown_message"
    http_status = 404


async def sent_file(tx: Tx, folder: str, message_id: str) -> Outgoing:
    """Return the message with this id that Andy sent with a file to a chat of a group.

    Raises:
        UnknownGroup: there is no such group.
        NoMessage: the group's chats have no such message with a file.
    """
    group = await groups.known(tx, folder)
    outgoing = await outbox.by_message_id(tx, MessageId(message_id))
    if outgoing is None or outgoing.chat_jid not in group.chats or outgoing.attachment is None:
        raise NoMessage(f"There is no message '{message_id[:80]}' with a file in '{folder}'.")
    return outgoing


async def find(tx: Tx, folder: str, id_or_number: str) -> StoredTimeline:
    """Return the stored history of a message of a group: its turn, its replies and what they cost.

    It is found by its id or number, and may be one that Andy sent. `attempts` and `log` of the result are
    empty: `with_logs` fills them.

    Raises:
        UnknownGroup: there is no such group.
        NoMessage: the group has no such message.
    """
    group = await groups.known(tx, folder)
    message = await _message(tx, group, id_or_number)
    outgoing = await outbox.by_message_id(tx, message.id if message else MessageId(id_or_number))
    if message is None and (outgoing is None or outgoing.chat_jid not in group.chats):
        raise NoMessage(
            f"There is no message '{id_or_number}' in '{folder}': see 'andy messages {folder}'. What is said"
            " in a chat that is not registered is not stored."
        )
    turn_id = message.turn_id if message else None
    if not turn_id and outgoing is not None:
        turn_id = outgoing.turn_id  # of what Andy sent, the turn that sent it
    turn = await turns.get(tx, turn_id) if turn_id is not None else None
    chat_jid = group.jid
    if message is not None:
        chat_jid = message.chat_jid
    elif outgoing is not None:
        chat_jid = outgoing.chat_jid
    return {
        "id": message.id if message else id_or_number,
        "group": group.folder,
        "chat": chat_jid,
        "message": _message_part(message),
        "turn": await _turn_part(tx, turn) if turn else None,
        "attempts": [],
        "work": await _work(tx, turn) if turn else [],
        "tools": await turn_work.tool_rows(tx, turn) if turn else [],
        "replies": [_reply_part(reply) for reply in await _replies(tx, turn, outgoing)],
        "cost": await _cost(tx, turn) if turn else None,
        "log": [],
    }


def with_logs(timeline: StoredTimeline, logs: Path) -> TimelineDocumentView:
    """Return a message's stored history with what the logs of containers add, and with all its steps. Blocks.

    `logs` is the directory of the logs. They add earlier attempts at the turn, and the lines that were
    written during the attempts. Of attempts whose logs are gone, only the last one is known.
    """
    turn = timeline["turn"]
    if turn is not None:
        last_attempt = _last_attempt(turn)
        # The last attempt is taken from the store, which has all of it: its log may lack the end.
        earlier = [
            attempt
            for attempt in _attempts(logs, timeline["group"], turn)
            if not _is_same(attempt, last_attempt)
        ]
        attempts = [*earlier, *([last_attempt] if last_attempt else [])]
        timeline = {**timeline, "attempts": attempts, "log": _log_lines(logs, timeline["group"], attempts)}
    return {**timeline, "steps": steps(timeline)}


async def _message(tx: Tx, group: Group, id_or_number: str) -> Message | None:
    """Return the message of a group with this id in one of its chats, or else with this number; or None."""
    for jid in group.chats:
        if (message := await messages.find(tx, jid, MessageId(id_or_number))) is not None:
            return message
    # 18 digits are the most that always fit SQLite's integers.
    is_number = id_or_number.isascii() and id_or_number.isdigit() and len(id_or_number) < 19
    return await messages.by_seq(tx, group.folder, int(id_or_number)) if is_number else None


def _message_part(message: Message | None) -> TimelineMessageView | None:
    """Return a message as the history shows it; None for None, that is, if it is only in the outbox."""
    if message is None:
        return None
    return {
        "seq": message.seq,
        "sender": message.sender_name,
        "text": message.text,
        "sent_ms": message.sent_ms,
        "received_ms": message.received_ms,
        "ignored_reason": message.ignored_reason,
    }


async def _turn_part(tx: Tx, turn: Turn) -> TimelineTurnPart:
    """Return a turn as a message's history shows it, with its place in the queue and its container."""
    run = await runs.get(tx, turn.run_id) if turn.run_id else None
    return {
        "id": turn.id,
        "kind": turn.kind.value,
        "state": turn.state.value,
        "reason": turn.reason,
        "attempt": turn.attempt,
        "place": (await turns.queue_positions(tx)).get(turn.id),
        "queued_ms": turn.queued_ms,
        "not_before_ms": turn.not_before_ms,
        "started_ms": turn.started_ms,
        "acked_ms": await turns.acked_ms(tx, turn.id),
        "ended_ms": turn.ended_ms,
        "run": turn.run_id,
        "run_ended_ms": run.ended_ms if run else None,
        "run_exit": run.exit_kind if run else None,
        "run_frames": run.last_frame if run else None,
    }


async def _replies(tx: Tx, turn: Turn | None, outgoing: Outgoing | None) -> Sequence[Outgoing]:
    """Return all messages that a turn sent; without a turn, only `outgoing`, a message that Andy sent."""
    if turn is not None:
        return await outbox.of_turn(tx, turn.id)
    return [outgoing] if outgoing else []


def _reply_part(reply: Outgoing) -> ReplyPart:
    """Return a reply as a message's history shows it; `next_try_ms` is None once it is sent."""
    return {
        "outbox": reply.id,
        "id": reply.message_id,
        "text": reply.text,
        "state": reply.state.value,
        "created_ms": reply.created_ms,
        "tries": reply.attempts,
        "next_try_ms": reply.next_attempt_ms if reply.sent_ms is None else None,
        "sent_ms": reply.sent_ms,
        "error": reply.error,
        "file": reply.attachment.name if reply.attachment else None,
    }


async def _work(tx: Tx, turn: Turn) -> list[TurnRequestPart]:
    """Return the rows of the audit about a turn: its agent's requests to the host, model and network."""
    rows = await audit.of_turn(tx, turn.id, since_ms=turn.queued_ms)
    return [
        {"at_ms": row["at_ms"], "kind": row["kind"], "run": row["run"], "detail": row["detail"]}
        for row in rows
    ]


async def _cost(tx: Tx, turn: Turn) -> TurnCostPart:
    """Return what a turn used of the model; `subagents` is the part of it that its subagents used."""
    shares = await usage.summed_of_turn(tx, turn.id, since_ms=turn.queued_ms)
    of_subagents = (sums for share, sums in shares.items() if share.is_subagent)
    return {
        **sums_row(sum(shares.values(), start=usage.Sums())),
        "models": sorted({share.model for share in shares if share.model}),
        "subagents": sums_row(sum(of_subagents, start=usage.Sums())),
    }


# What the logs tell


def _attempts(logs: Path, folder: str, turn: TimelineTurnPart) -> Iterator[AttemptPart]:
    """Yield each attempt at a turn that the logs of a group's containers record, in the order of the logs.

    `logs` is the directory of the logs. Blocks.
    """
    for file in files.of_group(logs, folder):
        try:
            # A log that was written last before the turn was queued cannot have it.
            if file.path.stat().st_mtime_ns // 1_000_000 + LATE_MS < turn["queued_ms"]:
                continue
            with file.path.open(encoding="utf-8", errors="replace") as lines:
                events = [event for line in lines if (event := files.read_event(line))]
        except FileNotFoundError:
            continue  # removed meanwhile, because it is old
        yield from _attempts_of_run(file.run, events, str(turn["id"]))


def _attempts_of_run(run: str, events: Sequence[LoggedEvent], turn_id: str) -> Iterator[AttemptPart]:
    """Yield the attempts at a turn that one container made, as its log records them: usually one.

    `run` is the container's id, and `events` are the events in its log, of all turns. An attempt whose start
    is not in the log is left out.
    """
    current: AttemptPart | None = None
    for event in events:
        if event.facts.get("turn") != turn_id:
            continue
        if event.kind in STARTED:
            if current:
                yield current
            current = _new_attempt(run, int(event.facts.get("attempt", "1")), event.at_ms)
        elif current and event.kind == "turn.acknowledged":
            current["acked_ms"] = event.at_ms
        elif current and event.kind in ENDED:
            current |= {
                "ended_ms": event.at_ms,
                "outcome": event.kind.removeprefix("turn."),
                "reason": event.facts.get("reason"),
            }
    if current:
        yield current


def _new_attempt(run: str, number: int, started_ms: int) -> AttemptPart:
    """Return an attempt of a container (`run`) that has only begun; its `number` counts from 1."""
    return {
        "attempt": number,
        "run": run,
        "started_ms": started_ms,
        "acked_ms": None,
        "ended_ms": None,
        "outcome": None,
        "reason": None,
    }


def _is_same(attempt: AttemptPart, other: AttemptPart | None) -> bool:
    """Return whether two attempts have the same run and the same number; False if `other` is None."""
    return other is not None and (attempt["run"], attempt["attempt"]) == (other["run"], other["attempt"])


def _last_attempt(turn: TimelineTurnPart) -> AttemptPart | None:
    """Return the last attempt at a turn, as the database has it: the present one, or the one that ended it.

    None for a turn that waits in the queue.
    """
    if turn["run"] is None or turn["started_ms"] is None or turn["state"] == TurnState.QUEUED:
        return None
    last = _new_attempt(turn["run"], turn["attempt"], turn["started_ms"])
    if turn["ended_ms"] is not None:
        last |= {"ended_ms": turn["ended_ms"], "outcome": turn["state"], "reason": turn["reason"]}
    return {**last, "acked_ms": turn["acked_ms"]}


def _log_lines(logs: Path, folder: str, attempts: Sequence[AttemptPart]) -> list[str]:
    """Return the newest lines, at most `LOG_LINES`, that containers wrote to their logs during attempts.

    `logs` is the directory of the logs. Blocks.
    """
    newest: deque[str] = deque(maxlen=LOG_LINES)
    for file in files.of_group(logs, folder):
        # A run may try a turn several times, and answers other turns in between.
        spans = [_span(attempt) for attempt in attempts if attempt["run"] == file.run]
        if not spans:
            continue
        try:
            with file.path.open(encoding="utf-8", errors="replace") as lines:
                newest.extend(
                    line.rstrip("\n")
                    for line in lines
                    if any(begin <= line[:STAMP_CHARS] <= end for begin, end in spans)
                )
        except FileNotFoundError:
            continue  # removed meanwhile, because it is old
    return list(newest)


def _span(attempt: AttemptPart) -> tuple[str, str]:
    """Return the first and the last time stamp, `(begin, end)`, that log lines of an attempt may have.

    They are `LATE_MS` before its start and after its end. Stamps have a fixed form, so the caller compares
    them as texts.
    """
    ended_ms = attempt["ended_ms"]
    # For an attempt that goes on: the text "9" comes after all stamps, which begin with the year.
    end = utc_stamp(ended_ms + LATE_MS) if ended_ms else "9"
    return utc_stamp(attempt["started_ms"] - LATE_MS), end


# In order, and for people


def steps(timeline: StoredTimeline) -> list[TimelineStepView]:
    """Return the history of a message, step by step, and what it waits for.

    `step` of each is one of received, ignored, queued, started, acknowledged, work, tool, answered, put_back,
    failed, waiting, running, said, sent, unsent. `at_ms` is None where a step is a state and not an event.
    """
    return [*_arrival_steps(timeline), *_turn_steps(timeline), *_reply_steps(timeline)]


def lines(timeline: StoredTimeline, *, zone: ZoneInfo) -> list[str]:
    """Return the history of a message as lines for people, and what it cost, with times in `zone`.

    Requests to the host, the model and the network are left out.
    """
    step_lines = [
        f"{local_second(step['at_ms'], zone) if step['at_ms'] else '':14}  {step['text']}"
        for step in steps(timeline)
        if step["step"] != "work"
    ]
    return [*step_lines, *_cost_lines(timeline["cost"])]


def _cost_lines(cost: TurnCostPart | None) -> Iterator[str]:
    """Yield the lines that say what the model's answers to a turn cost, and which part was of subagents.

    There are none if `cost` is None or the model was not asked.
    """
    if cost and cost["requests"]:
        answers = f"{cost['requests']} answers of {', '.join(cost['models'])}"
        yield f"{'':14}  it took {answers}: {_tokens_and_money(cost)}"
        if cost["subagents"]["requests"]:
            part = f"{cost['subagents']['requests']} answers, {_tokens_and_money(cost['subagents'])}"
            yield f"{'':14}  of that, subagents: {part}"


def _tokens_and_money(sums: UsageCountsView) -> str:
    """Return the number of all tokens and the cost in dollars, in words."""
    tokens = (
        sums["input_tokens"] + sums["output_tokens"] + sums["cache_read_tokens"] + sums["cache_write_tokens"]
    )
    money = "an unknown price" if sums["cost_usd"] is None else f"about ${sums['cost_usd']:.4f}"
    return f"{tokens:,} tokens, {money}"


def _step(at_ms: int | None, step: str, text: str) -> TimelineStepView:
    """Return a step of a message's history; `at_ms` is None where it is a state and not an event."""
    return {"at_ms": at_ms, "step": step, "text": text}


def _arrival_steps(timeline: StoredTimeline) -> Iterator[TimelineStepView]:
    """Yield the step of a message's arrival and, if it got no turn, one that says why.

    There is none for a message that is in the outbox only, and no reason for one that Andy sent.
    """
    message = timeline["message"]
    if message is None:
        return
    excerpt = f"{message['sender']}: {short(message['text'], 60)}"
    yield _step(message["received_ms"], "received", f"message {message['seq']} ({timeline['id']}), {excerpt}")
    if message["ignored_reason"] and message["ignored_reason"] != messages.OWN_MESSAGE:
        yield _step(None, "ignored", f"no turn: {message['ignored_reason']}")


def _turn_steps(timeline: StoredTimeline) -> Iterator[TimelineStepView]:
    """Yield the steps of a message's turn by time, then what the turn waits for or works on.

    There are none if the message has no turn.
    """
    turn = timeline["turn"]
    if turn is None:
        return
    yield _step(turn["queued_ms"], "queued", f"turn {turn['id']} ({turn['kind']}) is queued")
    dated_steps = [
        *_attempt_steps(timeline["attempts"]),
        *_work_steps(timeline["work"]),
        *(_step(call["started_ms"], "tool", turn_work.tool_text(call)) for call in timeline["tools"]),
    ]
    yield from sorted(dated_steps, key=lambda step: step["at_ms"] or 0)
    if turn["state"] == TurnState.QUEUED:
        attempt_text = f", try {turn['attempt']} after {turn['reason']}" if turn["attempt"] > 1 else ""
        text = f"is to go on from here; place {turn['place']}{attempt_text}"
        yield _step(turn["not_before_ms"], "waiting", text)
    elif turn["state"] == TurnState.RUNNING:
        text = f"the agent works on it; run {turn['run']} has sent {turn['run_frames']} frames"
        yield _step(None, "running", text)


def _attempt_steps(attempts: Sequence[AttemptPart]) -> Iterator[TimelineStepView]:
    """Yield the steps of attempts at a turn: for each its start, its acknowledgement and its end."""
    for attempt in attempts:
        yield _step(
            attempt["started_ms"], "started", f"try {attempt['attempt']}: given to run {attempt['run']}"
        )
        if attempt["acked_ms"]:
            yield _step(attempt["acked_ms"], "acknowledged", "its agent has it")
        if attempt["ended_ms"] and attempt["outcome"]:
            reason = f": {attempt['reason']}" if attempt["reason"] else ""
            text = f"{attempt['outcome'].replace('_', ' ')}{reason}"
            yield _step(attempt["ended_ms"], attempt["outcome"], text)


def _work_steps(work: Sequence[TurnRequestPart]) -> Iterator[TimelineStepView]:
    """Yield a step for each request to the host, the model or the network."""
    for request in work:
        yield _step(request["at_ms"], "work", f"{request['kind']} {detail_text(request['detail'])}")


def _reply_steps(timeline: StoredTimeline) -> Iterator[TimelineStepView]:
    """Yield the steps of a message's replies: that each was written, then whether and when it was sent."""
    for reply in timeline["replies"]:
        yield _step(reply["created_ms"], "said", f"said ({reply['outbox']}): {short(reply['text'], 60)}")
        match reply["state"]:
            case "sent":
                yield _step(reply["sent_ms"], "sent", f"sent as {reply['id']}, try {reply['tries']}")
            case "pending" | "sending":
                error = f": {reply['error']}" if reply["error"] else ""
                tries = "1 try" if reply["tries"] == 1 else f"{reply['tries']} tries"
                text = f"on its way, {tries} so far{error}"
                yield _step(reply["next_try_ms"], "unsent", text)
            case state:  # held back until the turn ends, given up, skipped, or not known to have arrived
                yield _step(None, "unsent", f"{state}{': ' + reply['error'] if reply['error'] else ''}")
