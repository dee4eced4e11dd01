"""`runs`: one row for each container, from its start to its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from orchestrator.domain.values import Folder, Role, Run, RunId, TurnId, TurnKind, least
from orchestrator.store.database import Tx
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Budget
from orchestrator.store.row_mapper import RowMapper

if TYPE_CHECKING:
    from agent_runner.wire.order import RestoreMode


_MAPPER = RowMapper(Run, "runs", {"folder": "group_folder"}, unread=("context_tokens", "context_window"))


async def begin(tx: Tx, run: Run) -> None:
    """Store a run before its container is created, so that every container that exists has a run."""
    await _MAPPER.insert(tx, run)


async def note_ref(tx: Tx, run_id: RunId, ref: str) -> None:
    """Store the name or id of the container in which a run works."""
    await tx.execute("UPDATE runs SET container_ref = ? WHERE id = ?", (ref, run_id))


async def note_continued(tx: Tx, run: Run) -> None:
    """Record with which model and in which way a run continues its group's conversation.

    For a run whose container was started before it had a turn: now it has one.
    """
    await tx.execute(
        """
        UPDATE runs SET model = ?, provider = ?, service = ?, restore_mode = ?, restore_reason = ?
        WHERE id = ?
        """,
        (run.model, run.provider, run.service, run.restore_mode, run.restore_reason, run.id),
    )


async def note_restored(tx: Tx, run_id: RunId, mode: RestoreMode, *, reason: str) -> bool:
    """Correct the record of the way in which a run continued its conversation, with the `reason`.

    Return False if this way is recorded already, or none is, or there is no such run.
    """
    cursor = await tx.execute(
        """
        UPDATE runs SET restore_mode = :mode, restore_reason = :reason
        WHERE id = :id AND restore_mode <> :mode
        """,
        {"mode": mode, "reason": reason, "id": run_id},
    )
    return cursor.rowcount == 1


async def note_context(tx: Tx, run_id: RunId, *, tokens: int, window: int) -> None:
    """Store how many tokens a run's conversation has, and how many the model's window takes; 0 means unknown.

    An unknown number leaves the stored one unchanged.
    """
    # An answer without numbers must not erase the last measured value.
    await tx.execute(
        """
        UPDATE runs SET context_tokens = coalesce(nullif(?, 0), context_tokens),
                        context_window = coalesce(nullif(?, 0), context_window)
        WHERE id = ?
        """,
        (tokens, window, run_id),
    )


async def window_of(tx: Tx, model: str | None) -> int | None:
    """Return the size in tokens of the context window that a model had when it was last used, or None.

    `model` None is the model that an agent chooses by itself.
    """
    # The same model may be served with another window later, so the newest run counts.
    cursor = await tx.execute(
        """
        SELECT context_window FROM runs WHERE model IS ? AND context_window > 0
        ORDER BY started_ms DESC LIMIT 1
        """,
        (model,),
    )
    row = await cursor.fetchone()
    return row["context_window"] if row else None


async def last_restores(tx: Tx) -> list[Run]:
    """Return each group's newest run for which it is recorded how it continued the conversation.

    They are in the order of the groups' folders.
    """
    # Beside `max`, SQLite takes the other columns from the row with the largest value.
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT *, max(started_ms) FROM runs WHERE restore_mode IS NOT NULL
        GROUP BY group_folder ORDER BY group_folder
        """,
    )


async def advance_frame(tx: Tx, run_id: RunId, frame: int) -> bool:
    """Record that a frame, a numbered line of a container's output, is handled.

    Return False when this or a later frame was recorded before, so that it must not be handled again.
    """
    # A host that takes over a container reads its output from the start: recorded frames are skipped.
    cursor = await tx.execute(
        "UPDATE runs SET last_frame = ? WHERE id = ? AND last_frame < ?", (frame, run_id, frame)
    )
    return cursor.rowcount == 1


async def end(tx: Tx, run_id: RunId, *, kind: str, detail: str, now_ms: int) -> None:
    """Record that a run has ended, in the way `kind`, such as `closed`, and why; the first end counts."""
    # The first end stays: a sweep may find a container gone whose stop is already recorded.
    await tx.execute(
        "UPDATE runs SET ended_ms = ?, exit_kind = ?, exit_detail = ? WHERE id = ? AND ended_ms IS NULL",
        (now_ms, kind, detail, run_id),
    )


async def live(tx: Tx) -> list[Run]:
    """Return the runs of all groups that have not ended, oldest first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM runs WHERE ended_ms IS NULL ORDER BY started_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHolder:
    """The holder of a run token: a live run, its running turn if any, its group, and all budgets."""

    run_id: RunId
    folder: Folder
    turn_id: TurnId | None
    """The turn that runs in it; None, as the next two, between turns."""
    kind: TurnKind | None
    task_id: str | None
    is_main: bool
    container_config: dict[str, Any]
    budgets: tuple[Budget, ...]
    service: str | None
    """The model service that the run uses; None is the one in `.env`."""
    model: str | None
    """The model that the run was started with; None leaves it to the agent."""
    is_isolated: bool
    role: Role
    """The lowest role among the turn's and the run's own."""


async def holder_of_token(tx: Tx, token_hash: str) -> TokenHolder | None:
    """Return the live run that has the token with this hash; None if none has.

    It comes with its running turn, its group and all budgets. Its role is the lower one of the role that the
    run was started for and that of the turn. A container shows this token to the host's proxies. One SQL
    statement, because every request needs it.
    """
    # The token of an ended run is refused, whoever has it.
    rows = await tx.execute_fetchall(
        f"""
        SELECT runs.id AS run_id, runs.group_folder, turns.id AS turn_id, turns.kind, turns.task_id,
               coalesce(registered_groups.is_main, 0) AS is_main, registered_groups.container_config,
               runs.service, runs.model, runs.is_isolated, runs.role AS run_role, turns.role AS turn_role,
               {budgets.AS_JSON} AS budgets
        FROM runs
        LEFT JOIN turns ON turns.run_id = runs.id AND turns.state = 'running'
        LEFT JOIN registered_groups ON registered_groups.folder = runs.group_folder COLLATE NOCASE
        WHERE runs.token_hash = ? AND runs.ended_ms IS NULL
        """,  # noqa: S608 - our own text
        (token_hash,),
    )
    row = next(iter(rows), None)
    if row is None:
        return None
    return TokenHolder(
        run_id=RunId(row["run_id"]),
        folder=Folder(row["group_folder"]),
        turn_id=row["turn_id"],
        kind=TurnKind(row["kind"]) if row["kind"] else None,
        task_id=row["task_id"],
        is_main=bool(row["is_main"]),
        container_config=json.loads(row["container_config"] or "{}"),
        budgets=budgets.from_json(row["budgets"]),
        service=row["service"],
        model=row["model"],
        is_isolated=bool(row["is_isolated"]),
        role=least(Role(role) for role in (row["run_role"], row["turn_role"]) if role is not None),
    )


async def recent(tx: Tx, *, limit: int, folder: str | None = None) -> list[Run]:
    """Return the newest `limit` runs, newest first, of the group `folder` or of all groups if it is None."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM runs WHERE :folder IS NULL OR group_folder = :folder
        ORDER BY started_ms DESC LIMIT :limit
        """,
        {"folder": folder, "limit": limit},
    )


async def numbered(
    tx: Tx, *, limit: int, folder: str | None = None, before_number: int | None = None
) -> list[tuple[int, Run]]:
    """Return at most `limit` runs as pairs of a number and the run, newest first.

    The number is the order in which runs were stored. With `before_number`, only runs with a lower number:
    the next page of a list. With a `folder`, only those of that group.
    """
    # Run ids do not ascend; only the row's number does, so pages use it. `1 << 62` is above every number.
    rows = await tx.execute_fetchall(
        """
        SELECT rowid AS number, * FROM runs
        WHERE (:folder IS NULL OR group_folder = :folder) AND rowid < coalesce(:before, 1 << 62)
        ORDER BY rowid DESC LIMIT :limit
        """,
        {"folder": folder, "before": before_number, "limit": limit},
    )
    return [(row["number"], _MAPPER.read(row)) for row in rows]


class FailureCount(TypedDict):
    """A kind of failure: how often it came, and when, in which group and why it came last."""

    kind: str
    count: int
    last_ms: int
    group: str
    reason: str | None


async def bad_ends(tx: Tx, *, since_ms: int) -> list[FailureCount]:
    """Count the ends of containers since `since_ms` that the host did not request, for each kind of end."""
    # `closed` and `stopped` are ends that the host itself requested, so they are no failures. Beside `max`,
    # SQLite takes the other columns from the row with the largest value: group and reason are of the newest.
    rows = await tx.execute_fetchall(
        """
        SELECT exit_kind AS kind, count(*) AS count, max(ended_ms) AS last_ms, group_folder AS "group",
               exit_detail AS reason
        FROM runs WHERE ended_ms >= ? AND exit_kind NOT IN ('closed', 'stopped') GROUP BY exit_kind
        """,
        (since_ms,),
    )
    return [cast("FailureCount", dict(row)) for row in rows]


async def restricted_at(tx: Tx, folder: Folder, at_ms: int) -> list[Role]:
    """Return the distinct roles of a group's containers with restricted rights that ran at `at_ms`."""
    # Only runs with restricted rights have a role of their own.
    rows = await tx.execute_fetchall(
        """
        SELECT DISTINCT role FROM runs
        WHERE group_folder = :folder AND role IS NOT NULL AND started_ms <= :at
            AND (ended_ms IS NULL OR ended_ms >= :at)
        """,
        {"folder": folder, "at": at_ms},
    )
    return [Role(row["role"]) for row in rows]


async def get(tx: Tx, run_id: RunId) -> Run | None:
    """Return the run with this id, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM runs WHERE id = ?", (run_id,))
