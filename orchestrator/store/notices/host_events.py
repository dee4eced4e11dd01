"""Turn events on the host into notices for a group's agent, in the transaction of the event itself.

Waiting facts of one kind are joined in one notice, with a count and the newest ones named. They never start a
turn. People's texts are quoted in short, and nothing is named that the agent may not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog

from agent_runner.wire.notices import Priority, Severity
from orchestrator.domain.values import Folder, Outgoing
from orchestrator.store.database import Tx
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import DAY_MS, MAX_HOST_FACTS, NewNotice, NoticeMaker

log = structlog.get_logger(__name__)

MAX_NAMED = 5
"""Newest facts that a joined notice names; it only counts the others."""
QUOTED_CHARS = 80
MAX_REPEATED_CHARS = 300
"""Characters of an earlier notice that are repeated when that notice was lost."""
MAX_SIGN_CHARS = 4
SOURCE = "host"
NOT_DELIVERED = "Not delivered, and not tried again"
PERHAPS_NOT_DELIVERED = "Perhaps not delivered, and not tried again lest it be read twice"
_LEADS = (NOT_DELIVERED, PERHAPS_NOT_DELIVERED)
TTL_MS = 3 * DAY_MS


async def reply_undelivered(tx: Tx, outgoing: Outgoing, error: str, *, is_known: bool, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: a message could not be delivered.

    `outgoing` is the message, which is given up because of `error`. For a chat without a group nothing is
    added. `is_known` says that the chat certainly did not get it; else that is unknown. The message may
    itself have lines in which the agent reported earlier lost messages. These lines are not quoted as its
    text: each of the earlier messages is named again by itself, as lost or as perhaps lost.
    """
    if outgoing.folder is None:
        return
    text, lost_messages = _split_off_reports(outgoing.text)
    # The message itself is named unless it had only such lines. A file without a text has no line, and is
    # named.
    if text or not lost_messages:
        lead = NOT_DELIVERED if is_known else PERHAPS_NOT_DELIVERED
        lost_messages.append((lead, f"“{quoted(text)}” ({quoted(error)})"))
    for lead, item in lost_messages:
        await _note(
            tx,
            Folder(outgoing.folder),
            "host.reply.undelivered",
            lead=lead,
            item=item,
            # A notice has one lead, so messages that may have arrived get another notice than lost ones.
            key=outgoing.chat_jid if lead == NOT_DELIVERED else f"{outgoing.chat_jid}:perhaps",
            severity="error",
            priority="high",
            now_ms=now_ms,
        )


def _split_off_reports(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of a lost message without its lines about earlier lost messages, and these lines.

    Such a line repeats a notice: `⚠️ Not delivered, and not tried again: “hello” (no connection)`. It is
    returned as a pair of its opening words, one of `_LEADS`, and the text after them, shortened.
    """
    lines, reports = [], []
    for line in text.splitlines():
        # An agent may put an emoji before such a line, so it need not start with the lead. `find` returns -1
        # for a line without the lead.
        lead = next(
            (known_lead for known_lead in _LEADS if 0 <= line.find(f"{known_lead}: ") <= MAX_SIGN_CHARS), None
        )
        if lead is None:
            lines.append(line)
        else:
            reports.append((lead, quoted(line.partition(f"{lead}: ")[2], MAX_REPEATED_CHARS)))
    return "\n".join(lines).strip(), reports


async def notification_delivered(tx: Tx, folder: Folder, text: str, *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: a notification reached the chat.

    `text` is the notification's.
    """
    await _note(
        tx,
        folder,
        "host.notification.delivered",
        lead="Sent to the chat",
        item=f"“{quoted(text)}”",
        priority="low",
        now_ms=now_ms,
    )


async def notification_expired(tx: Tx, folder: Folder, text: str, *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: a notification came too late to be sent.

    `text` is the notification's.
    """
    await _note(
        tx,
        folder,
        "host.notification.expired",
        lead="Too late, and so never sent; the chat was told",
        item=f"“{quoted(text)}”",
        severity="warning",
        now_ms=now_ms,
    )


async def budget_warning(tx: Tx, folder: Folder, text: str, *, percent: int, key: str, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: a budget is nearly used up, or spent.

    The notice is `Of what the model may cost: ` and then `text`, which says which budget. `percent` is how
    much of it is used, and stored as 100 at most. Warnings with the same `key` are joined in one notice.
    """
    await _note(
        tx,
        folder,
        "host.budget.warning",
        lead="Of what the model may cost",
        item=quoted(text, 200),
        key=key,
        severity="warning",
        priority="high" if percent >= 100 else "normal",
        now_ms=now_ms,
        percent=min(percent, 100),
    )


async def mounts_refused(tx: Tx, folder: Folder, names: Sequence[str], *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: granted folders are not shown or not
    writable.

    `names` are the names of the folders. Their paths on the host and the reason are for the owner, who reads
    them in the main chat.
    """
    for name in names:
        await _note(
            tx,
            folder,
            "host.mount.refused",
            lead="Not shown, or not writable; the owner was told why",
            item=quoted(name),
            severity="warning",
            now_ms=now_ms,
        )


async def command_refused(tx: Tx, folder: Folder, command: str, reason: str, *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: one of its commands was refused.

    `command` is the title of the command, and `reason` why it was refused.
    """
    await _note(
        tx,
        folder,
        "host.command.refused",
        lead="Refused",
        item=f"{quoted(command)}: {quoted(reason, 120)}",
        key=command,
        severity="warning",
        now_ms=now_ms,
    )


async def approval_decided(tx: Tx, folder: Folder, text: str, *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: the owner has decided about its request.

    `text` says about which request for approval, and how.
    """
    await _note(
        tx,
        folder,
        "host.approval.decided",
        lead="What the owner was asked",
        item=quoted(text, 200),
        now_ms=now_ms,
    )


async def turn_undone(tx: Tx, folder: Folder, text: str, *, now_ms: int) -> None:
    """Add a notice that the group's agent reads in its next turn: the changes of an earlier turn were undone.

    `text` says which changes.
    """
    await _note(
        tx,
        folder,
        "host.turn.undone",
        lead="Undone by the host, as people asked; do not do it again unless they ask",
        item=quoted(text, 300),
        now_ms=now_ms,
    )


async def _note(
    tx: Tx,
    folder: Folder,
    event_type: str,
    *,
    lead: str,
    item: str,
    key: str = "",
    severity: Severity = "info",
    priority: Priority = "normal",
    now_ms: int,
    **payload: Any,
) -> None:
    """Add a fact, `item`, to the waiting notice of the same type and `key`, or store it as a new notice.

    The group's agent reads a notice in its next turn, as `lead: item; item`. Values in `payload` are stored
    with it. A fact that needs a new notice is left out, with a warning in the log, if `MAX_HOST_FACTS`
    notices of the host wait for the group already.
    """
    dedupe_key = f"host:{event_type}:{key}"
    waiting = await notices.pending_by_key(tx, folder, dedupe_key)
    if waiting is not None and waiting.claim_turn is not None:
        # A turn is reading it as it is now. It stays, but without its key, so that `add` makes a new one.
        await notices.remove_key(tx, waiting.id)
        waiting = None
    if waiting is None and await notices.count_undelivered(tx, folder, NoticeMaker.HOST) >= MAX_HOST_FACTS:
        log.warning("notice.left_out", group=folder, type=event_type, reason="enough facts wait already")
        return
    earlier_items = waiting.payload.get("items", []) if waiting else []
    items = [*earlier_items, item]
    count = waiting.count + 1 if waiting else 1
    new_notice = NewNotice(
        folder=folder,
        maker=NoticeMaker.HOST,
        event_type=event_type,
        source=SOURCE,
        payload={"message": joined_line(lead, items, count), "items": items[-MAX_NAMED:], **payload},
        severity=severity,
        priority=priority,
        dedupe_key=dedupe_key,
        expires_ms=now_ms + TTL_MS,
    )
    # A waiting notice with the same `dedupe_key` is not added again: it takes these contents.
    await notices.add(tx, new_notice, now_ms=now_ms)


def joined_line(lead: str, items: Sequence[str], count: int) -> str:
    """Return a line such as `Sent to the chat: “water the plants”; “call Bo” and 2 before`.

    `lead` are its opening words. `items` are the newest facts, oldest first, of which the last `MAX_NAMED`
    are named; `count` is the number of all facts, also of older ones. A fact that is among those several
    times is named once, with that number: `Lost: a (2 times); b`.
    """
    newest = items[-MAX_NAMED:]
    named = [item if times == 1 else f"{item} ({times} times)" for item, times in Counter(newest).items()]
    before = count - len(newest)
    return f"{lead}: {'; '.join(named)}" + (f" and {before} before" if before else "")


def quoted(text: str, max_chars: int = QUOTED_CHARS) -> str:
    """Return a text of people or tools on one line, cut with `…` if it is longer than `max_chars`."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
