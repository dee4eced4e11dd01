"""`message_search`: the index over the text of all messages. Triggers update it; old rows are added here.

Terms of three or more characters are looked up in the index. Shorter ones, such as many Korean words, are not
in an index of trigrams: the messages themselves are scanned for them, newest first. That takes some
milliseconds where many messages match, and up to a second per million where none does; several times as long
for a term with letters outside of ASCII that have two cases, such as `é`. Until the index is complete, every
term is searched in this way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, Message
from orchestrator.store.conversation import messages
from orchestrator.store.conversation.outbox import ASKED_OF_OWNER
from orchestrator.store.database import Tx, returned

MAX_TERMS = 8
MAX_QUERY_CHARS = 200
INDEXED_CHARS = 3
"""Characters of a trigram: the index has no shorter terms."""
FILL_BATCH = 1_000
"""Messages indexed in one transaction, about 15 ms: a message that arrives meanwhile waits that long."""
ESCAPE = "!"
_QUOTES_NOBODY = """(m.is_bot_message = 0 OR NOT EXISTS (
    SELECT 1 FROM outbox o WHERE o.message_id = m.id AND o.dedupe_key LIKE :asked || '%'))"""
"""The SQL condition on a message that it is none in which Andy quotes other people to the owner."""
_TERM = re.compile(r'"([^"]+)"|([^\s"]+)')


class BadSearch(BadRequest):
    """The search text cannot be used."""

    code = "bad_search"


def parse_terms(text: str) -> list[str]:
    """Return the terms of a search, all of which a message has to contain; words in "quotes" are one term.

    No character but the quote has a special meaning, so no text is a syntax error.

    Raises:
        BadSearch: there is nothing to search for, or too much.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise BadSearch(f"The search has {len(text):,} characters; at most {MAX_QUERY_CHARS} are taken.")
    # FTS5 reads up to the first NUL, and SQLite's LIKE too.
    parts = [quoted or plain for quoted, plain in _TERM.findall(text.replace("\0", " "))]
    terms = list(dict.fromkeys(term.strip() for term in parts if term.strip()))
    if not terms:
        raise BadSearch("There is nothing to search for: name a word or a part of one.")
    if len(terms) > MAX_TERMS:
        raise BadSearch(f"At most {MAX_TERMS} words are searched for at once: leave some out.")
    return terms


async def find(
    tx: Tx,
    terms: Sequence[str],
    *,
    folder: Folder | None = None,
    since_ms: int = 0,
    before_seq: int | None = None,
    limit: int,
    is_for_agent: bool = False,
    senders: Collection[str] | None = None,
) -> list[Message]:
    """Return at most `limit` messages that contain all `terms`, ignoring case, newest first.

    Only messages of the group `folder` (None: of all groups), sent since `since_ms`, and with a `seq` below
    `before_seq` (None: any). With `is_for_agent`, messages to the owner that quote other people are left out:
    they could steer an agent. With `senders`, only messages by the agent, or from these addresses.
    """
    # Short terms cannot be searched in the index, and none can while it lacks messages.
    is_index_complete = await indexed_from(tx) <= 1
    indexed_terms = [term for term in terms if is_index_complete and len(term) >= INDEXED_CHARS]
    scans = [
        _scan_for(term, name=f"pattern{number}")
        for number, term in enumerate(terms)
        if term not in indexed_terms
    ]
    tables = "message_search s JOIN messages m ON m.seq = s.rowid" if indexed_terms else "messages m"
    is_match = "s.message_search MATCH :match" if indexed_terms else "TRUE"
    # By the rowid of the table that is scanned, so that nothing has to be sorted.
    seq = "s.rowid" if indexed_terms else "m.seq"
    group_condition = "TRUE" if folder is None else "m.group_folder = :folder"
    is_shown = _QUOTES_NOBODY if is_for_agent else "TRUE"
    return await messages.MAPPER.fetch_all(
        tx,
        f"""
        SELECT m.* FROM {tables}
        WHERE {is_match} AND (:before IS NULL OR {seq} < :before) AND m.content <> ''
          AND {group_condition} AND m.sent_ms >= :since AND {is_shown}
          AND (:senders IS NULL OR m.is_bot_message = 1
               OR m.sender IN (SELECT value FROM json_each(:senders)))
          {" ".join(f"AND {scan.condition}" for scan in scans)}
        ORDER BY {seq} DESC LIMIT :limit
        """,  # noqa: S608 - constants
        {
            "match": " AND ".join(_quoted(term) for term in indexed_terms),
            "before": before_seq,
            "folder": folder,
            "since": since_ms,
            "asked": ASKED_OF_OWNER,
            "senders": None if senders is None else json.dumps(list(senders)),
            **{scan.name: scan.pattern for scan in scans},
            "limit": limit,
        },
    )


def _quoted(term: str) -> str:
    """Return a search term as a string of the full-text index (FTS5), in which no character has a meaning."""
    return '"' + term.replace('"', '""') + '"'


class _Scan(NamedTuple):
    """A condition in SQL that a message contains a search term, ignoring case."""

    condition: str
    name: str
    """The name of the parameter in the condition."""
    pattern: str
    """The value of the parameter."""


def _scan_for(term: str, *, name: str) -> _Scan:
    """Return the condition that a message contains `term`, with a parameter of this name."""
    cases = [_cases(letter) for letter in term]
    # LIKE ignores the case of A-Z alone. GLOB, which takes sets of letters, is several times slower.
    if all(term[index].isascii() or len(letters) == 1 for index, letters in enumerate(cases)):
        escaped = re.sub(f"([{ESCAPE}%_])", rf"{ESCAPE}\1", term)
        return _Scan(f"m.content LIKE :{name} ESCAPE '{ESCAPE}'", name, f"%{escaped}%")
    sets = [f"[{letters}]" if len(letters) > 1 or letters in "*?[" else letters for letters in cases]
    return _Scan(f"m.content GLOB :{name}", name, f"*{''.join(sets)}*")


def _cases(letter: str) -> str:
    """Return a letter with its lower and upper case, as far as these are single letters."""
    cases = (letter, letter.lower(), letter.upper())
    return "".join(dict.fromkeys(case for case in cases if len(case) == 1))


async def indexed_from(tx: Tx) -> int:
    """Return the `seq` of the oldest message in the search index; 1 or less when all messages are indexed."""
    cursor = await tx.execute("SELECT from_seq FROM message_search_progress")
    return int((await returned(cursor))["from_seq"])


async def fill(tx: Tx, *, batch: int = FILL_BATCH) -> bool:
    """Add the newest messages that the search index lacks, at most `batch`; return whether it lacks more.

    The index is filled from the newest message back to the oldest.
    """
    to_seq = await indexed_from(tx)
    cursor = await tx.execute(
        """
        SELECT min(seq) AS seq FROM (SELECT seq FROM messages WHERE seq < ? ORDER BY seq DESC LIMIT ?)
        """,
        (to_seq, batch),
    )
    from_seq = (await returned(cursor))["seq"]
    if from_seq is not None:
        await tx.execute(
            """
            INSERT INTO message_search (rowid, content)
            SELECT seq, content FROM messages WHERE seq >= ? AND seq < ? ORDER BY seq
            """,
            (from_seq, to_seq),
        )
    # 0 if no message was left to index: then all of them are indexed.
    await tx.execute("UPDATE message_search_progress SET from_seq = ?", (from_seq or 0,))
    return from_seq is not None and from_seq > 1
