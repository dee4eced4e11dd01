"""Search the messages of all groups, as rows for machines and lines for people."""

from __future__ import annotations

from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_minute
from orchestrator.base.redaction import redact
from orchestrator.domain.values import Message
from orchestrator.store.conversation import message_search
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

CONTEXT_CHARS = 50
"""Characters that an excerpt shows before the term, and three times as many from there on."""


class FoundView(TypedDict):
    """A message that has the words of a search; `excerpt` is one line around the first of them."""

    seq: int
    id: str
    chat: str
    group: str | None
    at_ms: int
    sender: str
    text: str
    excerpt: str


async def rows(
    tx: Tx, text: str, *, folder: str | None, since_ms: int = 0, before_seq: int | None = None, limit: int
) -> list[FoundView]:
    """Return at most `limit` messages that have all words of `text`, the newest first.

    `folder` is the group; None searches all. Only messages sent at `since_ms` or later count, and, for the
    next page, only those whose `seq` is below `before_seq`. Words that look like secrets are replaced in the
    texts that are returned.

    Raises:
        BadSearch: `text` has no words, or too many.
        UnknownGroup: there is no such group.
    """
    terms = message_search.parse_terms(text)
    group = await groups.known(tx, folder) if folder is not None else None
    messages = await message_search.find(
        tx,
        terms,
        folder=group.folder if group is not None else None,
        since_ms=since_ms,
        before_seq=before_seq,
        limit=limit,
    )
    return [_row(message, terms) for message in messages]


def _row(message: Message, terms: list[str]) -> FoundView:
    """Return a message as the API and `--json` show it, with secrets in its text replaced.

    `terms` are those of the search. `excerpt` is the text around the first of them, even if another one comes
    before it in the text.
    """
    text = redact(message.text)
    return {
        "seq": message.seq,
        "id": message.id,
        "chat": message.chat_jid,
        "at_ms": message.sent_ms,
        "sender": message.sender_name,
        "text": text,
        "excerpt": excerpt(text, terms[0]),
        # The group that the chat belonged to when this was said; by now it may belong to another one.
        "group": message.folder,
    }


def excerpt(text: str, term: str) -> str:
    """Return one line of a text around the first occurrence of a term, with `…` where it is cut.

    Upper and lower case are the same.
    If the term does not occur, as when it was part of a secret that was replaced, it is the beginning of the
    text.
    """
    line = " ".join(text.split())
    position = line.casefold().find(" ".join(term.casefold().split()))
    # Case-folding makes some characters longer (ß becomes ss), so `position` is counted in another text than
    # `line`: for each folded character, this is the index in `line` of the character that it comes from.
    origins = [index for index, char in enumerate(line[: position + 1]) for _ in char.casefold()]
    term_start = origins[position] if position > 0 else 0
    start, end = max(0, term_start - CONTEXT_CHARS), term_start + 3 * CONTEXT_CHARS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def lines(rows: list[FoundView], *, zone: ZoneInfo) -> list[str]:
    """Return found messages as lines for people, with times in `zone`."""
    if not rows:
        return ["No message has these words."]
    return [
        f"{row['seq']:>5}  {local_minute(row['at_ms'], zone)}  {row['group'] or row['chat']}  "
        f"{row['sender']}: {row['excerpt']}"
        for row in rows
    ]
