"""`usage`: one row for each answer of the model service, with the numbers that it reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.values import Folder, Role, RunId, TurnId, TurnKind
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

BUCKET_MS = 15 * 60_000
"""Milliseconds of a bucket: zones differ by quarters of an hour, so days of any zone are sums of these."""

LATEST_MS = (1 << 63) - 1
"""A time (epoch ms) that no usage is later than: the largest integer of SQLite."""

LONGEST_TURN_MS = 6 * 3_600_000
"""Milliseconds that a turn is assumed to last at most: answers from longer before its end are not searched.
"""

# `sum` raises an error for a sum beyond 64 bits, as when a service reports absurd counts: no budget could be
# read then. `total` is a float, exact up to 2^53, and the cast bounds it.
_SUMS = """
    count(*) AS requests, CAST(total(input_tokens) AS INTEGER) AS input_tokens,
    CAST(total(output_tokens) AS INTEGER) AS output_tokens,
    CAST(total(cache_read_tokens) AS INTEGER) AS cache_read_tokens,
    CAST(total(cache_write_tokens) AS INTEGER) AS cache_write_tokens,
    coalesce(sum(searches), 0) AS searches, CAST(total(cost_nano_usd) AS INTEGER) AS cost_nano_usd,
    count(*) - count(cost_nano_usd) AS unpriced, coalesce(sum(is_assumed), 0) AS assumed,
    count(*) - coalesce(sum(is_whole), 0) AS cut
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """The usage of one model answer. `kind` and `task_id` are those of its turn, if any."""

    at_ms: int
    folder: Folder
    run_id: RunId
    turn_id: TurnId | None
    """The turn whose request it was; None for a request outside of a turn."""
    kind: TurnKind | None
    task_id: str | None
    model: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_nano_usd: int | None
    """The cost in billionths of a dollar; None if the price is not known."""
    is_whole: bool
    searches: int = 0
    """Web searches that the service made."""
    is_assumed: bool = False
    """Whether the cost uses the price of another model of its family."""
    service: str | None = None
    """The name of the service that answered; None is the one of `.env`."""
    is_subagent: bool = False
    """Whether a subagent asked, as the container reports; it counts in its turn like any other request."""

    @property
    def is_background(self) -> bool:
        """Whether nobody waits for the turn of this answer, as for a scheduled task."""
        return is_background(self.kind)

    @property
    def tokens(self) -> int:
        """All tokens that were read or written, cached or not."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


_MAPPER = RowMapper(UsageEntry, "usage", {"folder": "group_folder"}, unread=("id",))


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """The text of a turn without tool calls, and the tokens that the model reports for writing it."""

    model: str
    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums over any number of answers. `cost_nano_usd` leaves out the `unpriced` ones."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    searches: int = 0
    cost_nano_usd: int = 0
    unpriced: int = 0
    assumed: int = 0
    """Answers whose cost uses the price of another model."""
    cut: int = 0
    """Answers that were broken off before their end."""

    @property
    def tokens(self) -> int:
        """Return the number of all tokens, those of the cache too."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Sums) -> Sums:
        """Return the sums of both together, field by field."""
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePart:
    """The usage of one group by one model in one kind of turn, and by one more column on request."""

    group: str
    model: str | None
    kind: str | None
    other: Any
    """The value of that column; None if none was requested."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class Share:
    """The key of a group's usage by one kind of turn; the kind is None for usage outside of turns."""

    folder: Folder
    kind: str | None


def is_background(kind: TurnKind | None) -> bool:
    """Return whether nobody waits for a turn of this kind; True for None, a request outside of turns."""
    return kind is not TurnKind.CHAT


def sums_of(entries: Iterable[UsageEntry]) -> Sums:
    """Return the sums of tokens, searches and costs over usage entries that are not stored yet."""
    # Unfinished answers are not in the table yet, but count against a budget.
    total = Sums()
    for entry in entries:
        total += Sums(
            requests=1,
            input_tokens=entry.input_tokens,
            output_tokens=entry.output_tokens,
            cache_read_tokens=entry.cache_read_tokens,
            cache_write_tokens=entry.cache_write_tokens,
            searches=entry.searches,
            cost_nano_usd=entry.cost_nano_usd or 0,
            unpriced=entry.cost_nano_usd is None,
            assumed=entry.is_assumed,
            cut=not entry.is_whole,
        )
    return total


async def add(tx: Tx, entry: UsageEntry) -> None:
    """Store the usage of one answer of the model."""
    await _MAPPER.insert(tx, entry)


async def spent(
    tx: Tx, *, folder: Folder | None, since_ms: int, until_ms: int, only_background: bool
) -> Sums:
    """Return the sums of usage from `since_ms` on and before `until_ms`.

    Only usage of the group `folder` counts, or of all groups if it is None. With `only_background`, only
    usage in turns that nobody waits for.
    """
    # `until_ms` is the end of a budget's period: a clock that was ahead may have recorded usage after it.
    # A request outside of turns has no kind and counts as background: nobody waits for it.
    cursor = await tx.execute(
        f"""
        SELECT {_SUMS} FROM usage
        WHERE at_ms >= :since AND at_ms < :until AND (:folder IS NULL OR group_folder = :folder)
              AND (NOT :background OR kind IS NULL OR kind <> 'chat')
        """,  # noqa: S608 - our own text
        {"since": since_ms, "until": until_ms, "folder": folder, "background": only_background},
    )
    return _sums(await returned(cursor))


async def spent_by(
    tx: Tx, roles: Iterable[Role], *, folder: Folder, since_ms: int, until_ms: int, only_background: bool
) -> Sums:
    """Return the sums of a group's usage in turns that have one of these roles.

    It is the usage from `since_ms` on and before `until_ms`.

    A turn has the lowest role of the people who asked in it. With `only_background`, only turns that nobody
    waits for are included.
    """
    cursor = await tx.execute(
        f"""
        SELECT {_SUMS} FROM usage
        WHERE at_ms >= :since AND at_ms < :until AND group_folder = :folder
              AND (NOT :background OR kind IS NULL OR kind <> 'chat')
              AND EXISTS (SELECT 1 FROM turns WHERE turns.id = usage.turn_id
                          AND turns.role IN (SELECT value FROM json_each(:roles)))
        """,  # noqa: S608 - our own text
        {
            "since": since_ms,
            "until": until_ms,
            "folder": folder,
            "background": only_background,
            "roles": json.dumps([role.value for role in roles]),
        },
    )
    return _sums(await returned(cursor))


async def parts(
    tx: Tx, *, since_ms: int, until_ms: int, folder: Folder | None = None, other: str | None = None
) -> list[UsagePart]:
    """Return the sums of usage for each combination of group, model and kind of turn.

    It is the usage from `since_ms` on and before `until_ms`.
    `other` names one more column to split them by: `task_id`, `service` or `is_subagent`. With a `folder`,
    only that group.
    """
    # The name becomes part of the SQL text, so only these are accepted.
    assert other in {None, "task_id", "service", "is_subagent"}
    rows = await tx.execute_fetchall(
        f"""
        SELECT group_folder, model, kind, {other or "NULL"} AS other, {_SUMS}
        FROM usage
        WHERE at_ms >= :since AND at_ms < :until AND (:folder IS NULL OR group_folder = :folder)
        GROUP BY group_folder, model, kind, other
        """,  # noqa: S608 - our own text
        {"since": since_ms, "until": until_ms, "folder": folder},
    )
    return [
        UsagePart(
            group=row["group_folder"],
            model=row["model"],
            kind=row["kind"],
            other=row["other"],
            sums=_sums(row),
        )
        for row in rows
    ]


async def summed_by_spans(
    tx: Tx, starts_ms: Sequence[int], *, until_ms: int, folder: Folder | None = None
) -> list[Sums]:
    """Return the sums of usage in each span of time, of the group `folder` or of all if it is None.

    `starts_ms` has the starts of the spans, ascending (epoch ms). Each span ends where the next one starts,
    the last at `until_ms`; its end does not belong to it.
    """
    ends_ms = [*starts_ms[1:], until_ms]
    placeholders = ", ".join(["(?, ?, ?)"] * len(starts_ms))
    parameters: list[int] = []
    for index, (start_ms, end_ms) in enumerate(zip(starts_ms, ends_ms, strict=True)):
        parameters += (index, start_ms, end_ms)
    rows = await tx.execute_fetchall(
        f"""
        WITH spans (place, start_ms, end_ms) AS (VALUES {placeholders})
        SELECT place, {_SUMS} FROM spans JOIN usage ON at_ms >= start_ms AND at_ms < end_ms
        WHERE ? IS NULL OR group_folder = ? GROUP BY place
        """,  # noqa: S608 - our own text
        (*parameters, folder, folder),
    )
    # A span without usage has no row.
    by_index = {row["place"]: _sums(row) for row in rows}
    return [by_index.get(index, Sums()) for index in range(len(starts_ms))]


async def summed(tx: Tx, column: str, *, folder: Folder | None = None) -> dict[Any, Sums]:
    """Return the sums of usage for each value of a column, such as for each group with `group_folder`.

    With a `folder`, only the usage of that group.
    """
    # The name becomes part of the SQL text, so only these are accepted.
    assert column in {"group_folder", "task_id", "kind", "model", "service", "is_subagent"}
    return {row["key"]: _sums(row) for row in await _grouped(tx, column, folder)}


async def summed_by_time(tx: Tx, *, folder: Folder | None = None) -> dict[int, Sums]:
    """Return the sums of usage in each quarter of an hour, keyed by its start (epoch ms).

    With a `folder`, only the usage of that group.
    """
    rows = await _grouped(tx, f"at_ms / {BUCKET_MS} * {BUCKET_MS}", folder)
    return {row["key"]: _sums(row) for row in rows}


@dataclass(frozen=True, slots=True)
class TurnShare:
    """The key of a part of a turn's usage: the model, and whether a subagent or the agent itself asked."""

    model: str | None
    is_subagent: bool


async def summed_of_turn(tx: Tx, turn_id: TurnId, *, since_ms: int) -> dict[TurnShare, Sums]:
    """Return the sums of usage of one turn for each model, apart for its subagents and the agent itself.

    `since_ms` is the time when the turn was queued.
    """
    # The index is on `at_ms`, so the bound keeps this from reading the whole table.
    rows = await tx.execute_fetchall(
        f"""
        SELECT model, is_subagent, {_SUMS} FROM usage WHERE turn_id = ? AND at_ms >= ?
        GROUP BY model, is_subagent
        """,  # noqa: S608 - our own text
        (turn_id, since_ms),
    )
    return {TurnShare(row["model"], bool(row["is_subagent"])): _sums(row) for row in rows}


async def shares(tx: Tx, *, since_ms: int = 0, until_ms: int = LATEST_MS) -> dict[Share, Sums]:
    """Return the sums of usage for each pair of a group and a kind of turn.

    It is the usage from `since_ms` on and before `until_ms`.
    """
    rows = await tx.execute_fetchall(
        f"""
        SELECT group_folder, kind, {_SUMS} FROM usage WHERE at_ms >= ? AND at_ms < ?
        GROUP BY group_folder, kind
        """,  # noqa: S608 - our own text
        (since_ms, until_ms),
    )
    return {Share(Folder(row["group_folder"]), row["kind"]): _sums(row) for row in rows}


async def plain_answers(tx: Tx, *, since_ms: int, until_ms: int) -> list[PlainAnswer]:
    """Return the answered turns that ended after `since_ms`, up to `until_ms`, with a single complete answer.

    Their texts and tokens teach the host how many tokens a model needs for a text. A turn with a tool call
    has several answers of the model, so it is left out.
    """
    # An answer was given before its turn ended, by `:longest` at the most. This bound on `at_ms`, which has
    # an index, keeps the query from reading the whole table. A reply of an agent has a key that begins with
    # `frame:`, and `char(10)` is a line break.
    rows = await tx.execute_fetchall(
        """
        SELECT usage.model, usage.output_tokens,
               (SELECT group_concat(text, char(10)) FROM outbox
                WHERE turn_id = turns.id AND dedupe_key LIKE 'frame:%') AS text
        FROM turns JOIN usage ON usage.turn_id = turns.id
        WHERE usage.at_ms > :since - :longest AND turns.ended_ms > :since AND turns.ended_ms <= :until
              AND turns.state = 'answered'
        GROUP BY turns.id HAVING count(*) = 1 AND sum(is_whole) = 1 AND model IS NOT NULL AND text IS NOT NULL
        """,
        {"since": since_ms, "until": until_ms, "longest": LONGEST_TURN_MS},
    )
    return [PlainAnswer(row["model"], row["text"], row["output_tokens"]) for row in rows]


async def _grouped(tx: Tx, expression: str, folder: Folder | None) -> list[sqlite3.Row]:
    """Return a row of sums, named as in `_SUMS`, for each value of an SQL expression, which is in `key`.

    With a `folder`, only over the usage of that group.
    """
    rows = await tx.execute_fetchall(
        f"""
        SELECT {expression} AS key, {_SUMS} FROM usage
        WHERE :folder IS NULL OR group_folder = :folder GROUP BY key ORDER BY key
        """,  # noqa: S608 - our own text
        {"folder": folder},
    )
    return list(rows)


def _sums(row: sqlite3.Row) -> Sums:
    """Return the sums from a row that was selected with the SQL of `_SUMS`."""
    numbers: dict[str, Any] = {name: row[name] for name in Sums.__slots__}
    return Sums(**numbers)
