"""`turns`: one row for each question to an agent, `queued → running → answered | failed`."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import cast

from orchestrator.domain.values import (
    ChatJid,
    ContextMode,
    Folder,
    Role,
    RunId,
    ScheduledTask,
    Seq,
    SessionCommand,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
    least,
    rank,
)
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Column, RowMapper
from orchestrator.store.runs.runs import FailureCount
from orchestrator.store.schedule import task_runs

_ASIDE = "put_aside:"
"""Prefix of keys of `router_state`, followed by a chat's address: its failed
turns up to the value are dismissed.
"""
LONGEST_WAIT_FOR_FILES_MS = 180_000
"""Longest wait in milliseconds, even if one file follows another."""
ASKED_BEFORE_END_MS = 60_000
"""Milliseconds after a recorded end of a turn in which its requests may still be read: requests from the time
when the host was away are read beside the output of the containers that it takes over.
"""


_MAPPER = RowMapper(
    Turn,
    "turns",
    {
        "folder": "group_folder",
        "is_place_notified": Column("told_place_ms", lambda at_ms: at_ms is not None),
    },
    unread=("acked_ms",),
)


async def join_chat(
    tx: Tx,
    folder: Folder,
    chat_jid: ChatJid,
    *,
    now_ms: int,
    role: Role = Role.OWNER,
    is_restricted: bool = False,
) -> TurnId:
    """Return the queued turn of a chat that a new message joins; it is created if there is none.

    A turn is one question to the agent, made of all messages that wait for an answer. Unrestricted people
    share one turn, which gets the lowest of their roles. A person with restricted rights (`is_restricted`)
    joins a turn of that `role` alone, so that nobody's rights change. A turn from before the group's newest
    session command, such as `/clear`, is not joined.
    """
    # A unique index allows one such turn per chat: messages during an agent's work become one question. A
    # restricted turn is isolated: it gets a container and a session of its own.
    command_id = await _last_command(tx, folder)
    waiting = await _queued_after(tx, chat_jid, command_id, role if is_restricted else None)
    if waiting is not None:
        if not is_restricted and rank(role) > rank(waiting.role):  # a higher rank has fewer rights
            await tx.execute("UPDATE turns SET role = ? WHERE id = ?", (role, waiting.id))
        return waiting.id
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms, after_command,
                           role, is_restricted, is_isolated)
        VALUES (:folder, :jid, 'chat', 'queued', :now, :now, :command, :role, :restricted, :restricted)
        RETURNING id
        """,
        {
            "folder": folder,
            "jid": chat_jid,
            "now": now_ms,
            "command": command_id,
            "role": role,
            "restricted": is_restricted,
        },
    )
    return TurnId((await returned(cursor))["id"])


async def add_command(
    tx: Tx, folder: Folder, chat_jid: ChatJid, command: SessionCommand, *, now_ms: int
) -> TurnId:
    """Queue a session command, such as `/clear`, as a turn of its own, and return the turn's id.

    It runs after earlier questions, and later messages join only later turns.
    """
    # A command needs its own turn even beside a queued question: it acts on the conversation, not within it.
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms,
                           command, after_command)
        VALUES (?, ?, 'chat', 'queued', ?, ?, ?, ?) RETURNING id
        """,
        (folder, chat_jid, now_ms, now_ms, command, await _last_command(tx, folder)),
    )
    return TurnId((await returned(cursor))["id"])


async def add_answered(
    tx: Tx, folder: Folder, chat_jid: ChatJid, *, reason: str, now_ms: int, role: Role
) -> TurnId:
    """Store a chat turn that was answered without an agent, for this `reason`, and return its id.

    `role` is stored as the role of the turn: the lowest among those who asked.
    """
    # A CHECK constraint demands that each message has a turn or a reason why it is ignored. A message that
    # was answered without an agent was not ignored, so it needs a turn.
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, state, reason, queued_ms, not_before_ms, ended_ms,
                           after_command, role)
        VALUES (?, ?, 'chat', 'answered', ?, ?, ?, ?, ?, ?) RETURNING id
        """,
        (folder, chat_jid, reason, now_ms, now_ms, now_ms, await _last_command(tx, folder), role),
    )
    return TurnId((await returned(cursor))["id"])


async def _last_command(tx: Tx, folder: Folder) -> int:
    """Return the id of the turn with the newest session command of a group; 0 if there is none."""
    # By group and not by chat: all chats of a group are one conversation.
    cursor = await tx.execute(
        "SELECT max(id) AS id FROM turns WHERE group_folder = ? AND command IS NOT NULL", (folder,)
    )
    return (await returned(cursor))["id"] or 0


async def add_task(
    tx: Tx, task: ScheduledTask, *, chat_jid: ChatJid, now_ms: int, is_restricted: bool = False
) -> TurnId:
    """Queue a turn with the prompt of a scheduled task, to be answered in `chat_jid`, and return its id.

    With `is_restricted`, the turn has the restricted rights of the task's role, and so a container and a
    session of its own.
    """
    # The prompt is copied: a later change of the task does not affect a turn that waits.
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, is_isolated, task_id, prompt, state,
                           queued_ms, not_before_ms, role, is_restricted)
        VALUES (?, ?, 'task', ?, ?, ?, 'queued', ?, ?, ?, ?) RETURNING id
        """,
        (
            task.folder,
            chat_jid,
            is_restricted or task.context_mode is ContextMode.ISOLATED,
            task.id,
            task.prompt,
            now_ms,
            now_ms,
            task.role,
            is_restricted,
        ),
    )
    return TurnId((await returned(cursor))["id"])


async def queued_of_task(tx: Tx, task_id: str) -> list[Turn]:
    """Return the queued turns of a scheduled task, the oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM turns WHERE task_id = ? AND state = 'queued' ORDER BY id", (task_id,)
    )


async def queued_chat(tx: Tx, folder: Folder, chat_jid: ChatJid) -> Turn | None:
    """Return the queued turn that a new message of an unrestricted person in a chat would join, or None."""
    # Only a turn after the newest command may take the message: `/clear` must not remove later messages.
    return await _queued_after(tx, chat_jid, await _last_command(tx, folder), None)


async def _queued_after(tx: Tx, jid: ChatJid, command_id: int, restricted_to: Role | None) -> Turn | None:
    """Return the queued chat turn that was added after the turn `command_id` of a session command, or None.

    A session command is `/clear` or `/compact`; 0 stands for none. A role may be restricted: its people have
    a turn of their own, which is returned with that role as `restricted_to`; with None, that of all others.
    """
    # For the comparison, an unrestricted turn counts as one with an empty role, whatever its role is.
    return await _MAPPER.fetch_one(
        tx,
        """
        SELECT * FROM turns
        WHERE chat_jid = ? AND after_command = ? AND kind = 'chat' AND state = 'queued' AND command IS NULL
            AND CASE is_restricted WHEN 1 THEN role ELSE '' END = ?
        """,
        (jid, command_id, restricted_to or ""),
    )


async def extend(tx: Tx, turn_id: TurnId, seq: Seq) -> None:
    """Include the message with this `seq` in the span of messages of a turn."""
    # An edit may make an older message a request, so the position may also be before the first one.
    await tx.execute(
        """
        UPDATE turns SET first_seq = min(coalesce(first_seq, :seq), :seq),
                         last_seq = max(coalesce(last_seq, :seq), :seq)
        WHERE id = :id
        """,
        {"id": turn_id, "seq": seq},
    )


async def move(tx: Tx, folder: Folder, old: ChatJid, new: ChatJid) -> None:
    """Redirect the unfinished turns of a chat to the chat's new address `new`.

    A queued chat turn is merged with the one that the same people could join at the new address, if any.
    """
    for chat_turn in await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM turns
        WHERE group_folder = ? AND chat_jid = ? AND kind = 'chat' AND state = 'queued' AND command IS NULL
        """,
        (folder, old),
    ):
        restricted_to = chat_turn.role if chat_turn.is_restricted else None
        other = await _queued_after(tx, new, chat_turn.after_command, restricted_to)
        if other is not None:
            # An attempt may have had effects, so a turn that had one remains; without one, the older turn.
            remaining, merged = sorted((chat_turn, other), key=lambda turn: (turn.run_id is None, turn.id))
            await _merge(tx, merged, remaining)
    await tx.execute(
        """
        UPDATE turns SET chat_jid = ?
        WHERE group_folder = ? AND chat_jid = ? AND state IN ('queued', 'running')
        """,
        (new, folder, old),
    )


async def unsettled(tx: Tx) -> list[Turn]:
    """Return all turns that are queued or running, oldest first.

    In the returned copy of a chat's turn, `not_before_ms` is at least the time until which files of its
    messages are being fetched, up to `LONGEST_WAIT_FOR_FILES_MS` after the turn was queued.
    """
    # The wait is computed at each call and not stored: a file that arrives early lets its turn start at once.
    rows = await tx.execute_fetchall(
        """
        SELECT t.*, (SELECT max(m.file_until_ms) FROM messages m
                     WHERE m.chat_jid = t.chat_jid AND m.seq <= t.last_seq AND m.file_until_ms IS NOT NULL
                    ) AS files_until_ms
        FROM turns t WHERE t.state IN ('queued', 'running') ORDER BY t.id
        """
    )
    return [_waiting_for_files(_MAPPER.read(row), row["files_until_ms"]) for row in rows]


def _waiting_for_files(turn: Turn, until_ms: int | None) -> Turn:
    """Return a copy of `turn` that does not start before `until_ms`.

    Until then, files in its chat are being fetched; None means that there are none. The turn waits for
    them at most until `LONGEST_WAIT_FOR_FILES_MS` after it was queued. A turn that is no chat's question, or
    has no file to wait for, is returned as it is.
    """
    if until_ms is None or turn.kind is not TurnKind.CHAT:
        return turn
    # A chat that is sent one file after another would otherwise never be answered.
    until_ms = min(until_ms, turn.queued_ms + LONGEST_WAIT_FOR_FILES_MS)
    return replace(turn, not_before_ms=max(turn.not_before_ms, until_ms))


async def last_question_ms(tx: Tx, folder: Folder) -> int | None:
    """Return when the newest question in the chats of a group was queued (epoch ms); None if there is none.

    A session command, such as `/clear`, counts as a question; a scheduled task does not.
    """
    cursor = await tx.execute(
        "SELECT queued_ms FROM turns WHERE group_folder = ? AND kind = 'chat' ORDER BY id DESC LIMIT 1",
        (folder,),
    )
    row = await cursor.fetchone()
    return row["queued_ms"] if row else None


async def unsettled_of(tx: Tx, folder: Folder) -> list[Turn]:
    """Return the queued and running turns of one group, oldest first."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM turns WHERE group_folder = ? AND state IN ('queued', 'running') ORDER BY id",
        (folder,),
    )


async def get(tx: Tx, turn_id: TurnId) -> Turn | None:
    """Return the turn with this id, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM turns WHERE id = ?", (turn_id,))


async def by_ids(tx: Tx, turn_ids: Collection[TurnId]) -> list[Turn]:
    """Return the turns with these ids, in any order."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM turns WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(turn_ids)),),
    )


async def queue_positions(tx: Tx) -> dict[TurnId, int]:
    """Return the place of each queued turn among the queued turns of all groups, counted from 1."""
    rows = await tx.execute_fetchall("SELECT id FROM turns WHERE state = 'queued' ORDER BY id")
    return {TurnId(row["id"]): position for position, row in enumerate(rows, start=1)}


async def running_in(tx: Tx, run_id: RunId) -> Turn | None:
    """Return the turn on which this run works now, or None if it waits for one."""
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM turns WHERE run_id = ? AND state = 'running'", (run_id,)
    )


async def running_of(tx: Tx, folder: Folder) -> Turn | None:
    """Return the running turn of a group, or None; a chat's or task's precedes the dashboard worker's."""
    return await _MAPPER.fetch_one(
        tx,
        "SELECT * FROM turns WHERE group_folder = ? AND state = 'running' ORDER BY kind = 'worker' LIMIT 1",
        (folder,),
    )


async def requesting_turn(
    tx: Tx, folder: Folder, *, claimed: int | None, written_ms: int | None, now_ms: int
) -> Turn | None:
    """Return the turn in which a group's agent made a request by a file, or None when it belongs to no turn.

    It is the turn that the container claims (`claimed`) if that is possible, else one that ran when the
    request was written, at `written_ms` (epoch ms; None when unknown).

    A request may outlive its writer. If the host or the container dies before the request is read, its turn
    waits for the next attempt; if the host was away for longer than the agent waits, its turn has ended by
    now.
    """
    # The number comes from the container, so it counts only for a turn of the container's own group.
    turn = await get(tx, TurnId(claimed)) if claimed is not None else None
    if turn is not None and turn.folder == folder and _may_be_requester(turn, now_ms=now_ms):
        return turn
    turn = await running_of(tx, folder) or await _waiting_to_run_again(tx, folder)
    # A file from before the turn began is no request of it: a background program may have written it.
    is_older = turn is not None and written_ms is not None and written_ms < (turn.started_ms or 0)
    return None if is_older else turn


def _may_be_requester(turn: Turn, *, now_ms: int) -> bool:
    """Return whether a request that is read at `now_ms` may count as made in this turn."""
    match turn.state:
        case TurnState.RUNNING:
            return True
        case TurnState.QUEUED:
            # A queued turn with a run was put back, as after a crash; one that never ran made no request.
            return turn.run_id is not None
        case TurnState.ANSWERED:
            # The request may have been written before the turn ended, and be read only now.
            return turn.ended_ms is not None and now_ms - turn.ended_ms <= ASKED_BEFORE_END_MS
        case TurnState.FAILED:
            # People were notified that a failed turn failed: nothing more may be done in its name.
            return False


async def _waiting_to_run_again(tx: Tx, folder: Folder) -> Turn | None:
    """Return the group's turn that has been in a run and waits for its next attempt, as after a crash.

    None without one. If a chat's or task's turn and the dashboard worker's both wait, the worker's is not
    returned.
    """
    return await _MAPPER.fetch_one(
        tx,
        """
        SELECT * FROM turns WHERE group_folder = ? AND state = 'queued' AND run_id IS NOT NULL
        ORDER BY kind = 'worker', id LIMIT 1
        """,
        (folder,),
    )


async def answering_chats(tx: Tx) -> list[ChatJid]:
    """Return the chats in which a question of a person is being answered now."""
    rows = await tx.execute_fetchall(
        "SELECT DISTINCT chat_jid FROM turns WHERE state = 'running' AND kind = 'chat'"
    )
    return [ChatJid(row["chat_jid"]) for row in rows]


async def recent(
    tx: Tx, *, limit: int, folder: str | None = None, before_id: int | None = None
) -> list[Turn]:
    """Return at most `limit` turns, newest first, of the group `folder` or of all groups if it is None.

    With `before_id`, only turns with a lower id: the next page of a list.
    """
    # Pages by id and not by offset, so that turns that come meanwhile shift no page. `1 << 62` is above
    # every id.
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM turns
        WHERE (:folder IS NULL OR group_folder = :folder) AND id < coalesce(:before, 1 << 62)
        ORDER BY id DESC LIMIT :limit
        """,
        {"folder": folder, "before": before_id, "limit": limit},
    )


async def start(tx: Tx, turn_id: TurnId, run_id: RunId, *, now_ms: int) -> None:
    """Record that a queued turn runs in this run from now on; a turn in any other state is left unchanged."""
    # The acknowledgement of an earlier attempt would make this attempt look acknowledged, too.
    await tx.execute(
        """
        UPDATE turns SET state = 'running', run_id = ?, started_ms = ?, acked_ms = NULL
        WHERE id = ? AND state = 'queued'
        """,
        (run_id, now_ms, turn_id),
    )


async def acknowledge(tx: Tx, turn_id: TurnId, *, now_ms: int) -> None:
    """Record that the agent has received a running turn."""
    await tx.execute("UPDATE turns SET acked_ms = ? WHERE id = ? AND state = 'running'", (now_ms, turn_id))


async def acked_ms(tx: Tx, turn_id: TurnId) -> int | None:
    """Return when the agent received the turn in its present attempt (epoch ms); None if it has not yet."""
    cursor = await tx.execute("SELECT acked_ms FROM turns WHERE id = ?", (turn_id,))
    return (await returned(cursor))["acked_ms"]  # type: ignore[no-any-return]


async def settle(
    tx: Tx, turn_id: TurnId, state: TurnState, *, reason: str | None, now_ms: int, is_own_fault: bool = True
) -> None:
    """Record the only outcome of a turn, `ANSWERED` or `FAILED`; a scheduled task's run ends with its turn.

    `reason` says why the turn was not answered; None if it was. A failure counts against the scheduled task
    if it `is_own_fault`, and not one of the host, the model service or a person who stopped the turn. If the
    turn has an outcome already, nothing changes.
    """
    # A run's exit and its last frame may both end a turn; the condition on the state lets the first win.
    await tx.execute(
        """
        UPDATE turns SET state = ?, reason = ?, ended_ms = ? WHERE id = ? AND state IN ('queued', 'running')
        """,
        (state, reason, now_ms, turn_id),
    )
    await task_runs.close(tx, turn_id, state, reason=reason, now_ms=now_ms, is_own_fault=is_own_fault)


async def put_back(
    tx: Tx,
    turn: Turn,
    *,
    reason: str,
    not_before_ms: int,
    counts_as_attempt: bool = True,
    counts_as_restart: bool = False,
) -> None:
    """Queue a turn again after an attempt that did not end well, not to start before `not_before_ms`.

    `reason` says why the attempt ended. `counts_as_attempt` and `counts_as_restart` say which of the turn's
    two counters are incremented. The turn counts as not received by an agent. A question that was queued
    after it in the same chat is merged into it: one question, one answer, with the lower of the two roles. A
    restricted turn, which has the rights of one role only, is merged only with another of that role.
    """
    # A command is never merged: later messages must not run before it.
    is_question = turn.kind is TurnKind.CHAT and turn.command is None
    restricted_to = turn.role if turn.is_restricted else None
    younger = (
        await _queued_after(tx, turn.chat_jid, turn.after_command, restricted_to) if is_question else None
    )
    if younger is not None and younger.id != turn.id:
        await _merge(tx, younger, turn)
    await tx.execute(
        """
        UPDATE turns SET state = 'queued', attempt = attempt + ?, restarts = restarts + ?,
                         reason = ?, not_before_ms = ?, acked_ms = NULL
        WHERE id = ?
        """,
        (counts_as_attempt, counts_as_restart, reason, not_before_ms, turn.id),
    )


async def hurry(tx: Tx, turn_id: TurnId, *, now_ms: int) -> None:
    """Make a queued turn due now, instead of at the time of its next attempt."""
    # `min`, because a turn that is due already must not be postponed.
    await tx.execute(
        "UPDATE turns SET not_before_ms = min(not_before_ms, ?) WHERE id = ? AND state = 'queued'",
        (now_ms, turn_id),
    )


async def collect(tx: Tx, turn_id: TurnId, *, first_seq: Seq, until_ms: int) -> bool:
    """Let a queued turn that has only the message `first_seq` wait until `until_ms` for further messages.

    Return whether it waits: a turn that has more messages by now, or was started before, does not.
    """
    cursor = await tx.execute(
        """
        UPDATE turns SET not_before_ms = max(not_before_ms, ?)
        WHERE id = ? AND state = 'queued' AND started_ms IS NULL AND first_seq = ? AND last_seq = first_seq
        """,
        (until_ms, turn_id, first_seq),
    )
    return cursor.rowcount > 0


async def hurry_new(tx: Tx, turn_id: TurnId, *, now_ms: int) -> None:
    """Make a queued turn that was never started due at once, because it now has a request to answer."""
    await tx.execute(
        """
        UPDATE turns SET not_before_ms = min(not_before_ms, ?)
        WHERE id = ? AND state = 'queued' AND started_ms IS NULL
        """,
        (now_ms, turn_id),
    )


async def _merge(tx: Tx, merged: Turn, remaining: Turn) -> None:
    """Move all that the queued turn `merged` asks to the turn `remaining`, and delete `merged`.

    `remaining` gets the lower of the two roles.
    """
    # The messages are moved before their turn is deleted: without a turn, each would need a reason why it is
    # ignored.
    await _move_contents(tx, merged.id, remaining.id)
    # The messages, tool calls and changes of an earlier attempt belong to the question, and move with it. By
    # `OR IGNORE`, a call or a changed row that both turns have stays as `remaining` has it: the call of
    # `merged` is deleted with `merged`, and its record of the change keeps the id of a turn that is gone.
    await tx.execute("UPDATE outbox SET turn_id = ? WHERE turn_id = ?", (remaining.id, merged.id))
    await tx.execute(
        "UPDATE OR IGNORE tool_calls SET turn_id = ? WHERE turn_id = ?", (remaining.id, merged.id)
    )
    await tx.execute(
        "UPDATE OR IGNORE turn_effects SET turn_id = ? WHERE turn_id = ?", (remaining.id, merged.id)
    )
    # These rows concern only the attempt.
    for table in ("dashboard_seen", "dashboard_views", "turn_stops"):
        await tx.execute(f"DELETE FROM {table} WHERE turn_id = ?", (merged.id,))  # noqa: S608 - our own text
    await tx.execute("DELETE FROM turns WHERE id = ?", (merged.id,))
    await tx.execute(
        "UPDATE turns SET role = ? WHERE id = ?", (least((remaining.role, merged.role)), remaining.id)
    )
    # `merged` may have older messages than `remaining`, such as those of a failed turn that is repeated.
    for seq in (merged.first_seq, merged.last_seq):
        if seq is not None:
            await extend(tx, remaining.id, seq)


async def _move_contents(tx: Tx, old: TurnId, new: TurnId) -> None:
    """Move the messages of a turn, and the ended polls whose results it reports, to another turn."""
    await tx.execute("UPDATE messages SET turn_id = ? WHERE turn_id = ?", (new, old))
    await tx.execute("UPDATE polls SET end_turn = ? WHERE end_turn = ?", (new, old))


async def take_over(tx: Tx, turn_id: TurnId, failed: Turn) -> None:
    """Move the messages of a failed turn, and its reports of ended polls, to the queued turn `turn_id`.

    Both are of the same chat.
    """
    # A failed turn stays failed, since people were notified of that. Only its messages are asked again.
    await _move_contents(tx, failed.id, turn_id)
    await tx.execute(
        """
        UPDATE turns SET first_seq = min(coalesce(first_seq, :first), :first),
                         last_seq = max(coalesce(last_seq, :last), :last)
        WHERE id = :id
        """,
        {"id": turn_id, "first": failed.first_seq, "last": failed.last_seq},
    )


async def split(tx: Tx, turn: Turn, *, after: Seq) -> Turn:
    """Move the messages after `after` of a running turn to a new queued turn of its chat.

    Return the given turn with the messages that it keeps. If that is queued again, `put_back` may merge the
    new turn into it.
    """
    # The new turn has the time at which the whole turn was queued, so that its messages keep their place in
    # the queue.
    cursor = await tx.execute(
        """
        INSERT INTO turns (group_folder, chat_jid, kind, state, queued_ms, not_before_ms, after_command,
                           role, is_restricted, is_isolated, first_seq, last_seq)
        SELECT group_folder, chat_jid, kind, 'queued', queued_ms, queued_ms, after_command,
               role, is_restricted, is_isolated,
               (SELECT min(seq) FROM messages WHERE turn_id = turns.id AND seq > :after), last_seq
        FROM turns WHERE id = :id RETURNING id
        """,
        {"id": turn.id, "after": after},
    )
    new_turn = (await returned(cursor))["id"]
    # In the transaction that creates the turn: a crash in between would leave messages in both or in neither.
    await tx.execute(
        "UPDATE messages SET turn_id = ? WHERE turn_id = ? AND seq > ?", (new_turn, turn.id, after)
    )
    await tx.execute("UPDATE turns SET last_seq = ? WHERE id = ?", (after, turn.id))
    return replace(turn, last_seq=after)


async def note_place_notified(tx: Tx, turn_id: TurnId, *, now_ms: int) -> None:
    """Record that the chat of a queued turn was notified of the turn's place in the queue."""
    await tx.execute("UPDATE turns SET told_place_ms = ? WHERE id = ?", (now_ms, turn_id))


async def counts(tx: Tx) -> dict[str, int]:
    """Return the number of turns in each state; states without turns are left out."""
    rows = await tx.execute_fetchall("SELECT state, count(*) AS n FROM turns GROUP BY state")
    return {row["state"]: row["n"] for row in rows}


async def failures(tx: Tx, *, since_ms: int) -> list[FailureCount]:
    """Return one entry that counts the turns that failed since `since_ms`; an empty list if none did."""
    # Beside `max`, SQLite takes the other columns from the row with the largest value: the newest failure.
    rows = await tx.execute_fetchall(
        """
        SELECT 'turn failed' AS kind, count(*) AS count, max(ended_ms) AS last_ms, group_folder AS "group",
               reason
        FROM turns WHERE state = 'failed' AND ended_ms >= ? HAVING count(*) > 0
        """,
        (since_ms,),
    )
    return [cast("FailureCount", dict(row)) for row in rows]


async def last_failed(tx: Tx, *, since_ms: int, limit: int) -> list[Turn]:
    """Return the failed chat turns since `since_ms` that are the last turn of their chat, newest first.

    At most `limit`. Failures that the owner has dismissed are left out.
    """
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM turns AS failed
        WHERE state = 'failed' AND kind = 'chat' AND ended_ms >= :since AND NOT EXISTS (
            SELECT 1 FROM turns AS later
            WHERE later.group_folder = failed.group_folder AND later.id > failed.id
                AND later.chat_jid = failed.chat_jid AND later.kind = 'chat'
        ) AND NOT EXISTS (
            SELECT 1 FROM router_state
            WHERE key = :aside || failed.chat_jid AND CAST(value AS INTEGER) >= failed.id
        )
        ORDER BY ended_ms DESC LIMIT :limit
        """,
        {"since": since_ms, "aside": _ASIDE, "limit": limit},
    )


async def dismiss(tx: Tx, turn: Turn) -> None:
    """Record that the owner dismisses a failed turn and earlier ones of its chat.

    `last_failed` leaves them out.
    """
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :turn)
        ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), :turn)
        """,
        {"key": _ASIDE + turn.chat_jid, "turn": turn.id},
    )
