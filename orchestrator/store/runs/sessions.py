"""`sessions` and `router_state`: the host's memory of each group between its runs.

These are the agent session to resume, the last answered message, the deleted messages that are still in its
context, and the last snapshot of its folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.values import Folder, Seq, TurnId
from orchestrator.store.database import Tx
from orchestrator.store.notices import claims as notice_claims


async def current(tx: Tx, folder: Folder) -> str | None:
    """Return the id of the agent session that a group's next run resumes; None if it starts a new one."""
    cursor = await tx.execute("SELECT session_id FROM sessions WHERE group_folder = ?", (folder,))
    row = await cursor.fetchone()
    return row["session_id"] if row else None


async def put_current(tx: Tx, folder: Folder, session_id: str, *, now_ms: int) -> None:
    """Store the agent session with which a group's next run goes on.

    If it is another session than before, the waiting notices of the old one move to it: for people, it is the
    same conversation.
    """
    cursor = await tx.execute(
        "UPDATE sessions SET updated_ms = ? WHERE group_folder = ? AND session_id = ?",
        (now_ms, folder, session_id),
    )
    if cursor.rowcount == 1:  # it is the same session as before
        return
    await notice_claims.enter_session(tx, folder, session_id)
    await tx.execute(
        """
        INSERT INTO sessions (group_folder, session_id, updated_ms) VALUES (?, ?, ?)
        ON CONFLICT (group_folder) DO UPDATE SET session_id = excluded.session_id,
                                                 updated_ms = excluded.updated_ms
        """,
        (folder, session_id, now_ms),
    )


async def lose(tx: Tx, folder: Folder) -> None:
    """Record that a group's agent session is lost: the next run continues the conversation in a new session.

    Waiting notices of the old session move to the new one.
    """
    await notice_claims.enter_session(tx, folder, None)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def forget(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Record that a group's conversation has ended: the next run starts a new one.

    Waiting notices that belonged to the ended conversation end with it.
    """
    await notice_claims.leave_session(tx, folder, now_ms=now_ms)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def cursor_of(tx: Tx, folder: Folder) -> Seq:
    """Return the `seq` of the last message that a group's agent has answered; 0 before the first."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_cursor_key(folder),))
    row = await cursor.fetchone()
    return Seq(int(row["value"])) if row else Seq(0)


async def move_cursor(tx: Tx, folder: Folder, seq: Seq) -> None:
    """Record that a group's agent has answered the messages up to `seq`; a lower `seq` changes nothing."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(:seq AS INTEGER))
        """,
        {"key": _cursor_key(folder), "seq": str(seq)},
    )


def _cursor_key(folder: Folder) -> str:
    """Return the key in the table `router_state` of the last message that a group's agent has answered."""
    return f"cursor:{folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDeletion:
    """A turn in which messages were deleted, and the last deleted one."""

    turn: TurnId
    seq: Seq


async def note_deletion(tx: Tx, folder: Folder, turn: TurnId, seq: Seq) -> None:
    """Record that a message of a turn was deleted, and still has to be removed from its agent's context.

    A turn has one record, however many of its messages were deleted: by the last one's `seq`,
    `finish_deletions` sees whether another was deleted meanwhile.
    """
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {"key": f"{_deletions_prefix(folder)}{turn}", "seq": str(seq)},
    )


async def pending_deletions(tx: Tx, folder: Folder) -> list[PendingDeletion]:
    """Return the turns whose deleted messages are still to be removed from a group's stored context.

    Each comes with the last of its deleted messages.
    """
    prefix = _deletions_prefix(folder)
    # `~` sorts after every digit, so these are all keys that begin with the prefix.
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (prefix, f"{prefix}~")
    )
    return [
        PendingDeletion(turn=TurnId(int(row["key"].removeprefix(prefix))), seq=Seq(int(row["value"])))
        for row in rows
    ]


async def groups_with_deleted_text(tx: Tx) -> list[Folder]:
    """Return the groups whose agent's context or session still contains a deleted message."""
    # `taken_back:` marks deleted messages that are still in the context, `new_session:` a session that still
    # has them. `;` is the character after `:`, so these are all keys with these beginnings.
    rows = await tx.execute_fetchall(
        """
        SELECT key FROM router_state
        WHERE (key >= 'taken_back:' AND key < 'taken_back;')
           OR (key >= 'new_session:' AND key < 'new_session;')
        """
    )
    return sorted({Folder(row["key"].split(":")[1]) for row in rows})


async def finish_deletions(tx: Tx, folder: Folder, deletions: Iterable[PendingDeletion]) -> None:
    """Record that deleted messages were removed from a group's context.

    A turn in which another message was deleted since `pending_deletions` was read stays recorded.
    """
    for deletion in deletions:
        await tx.execute(
            "DELETE FROM router_state WHERE key = ? AND value = ?",
            (f"{_deletions_prefix(folder)}{deletion.turn}", str(deletion.seq)),
        )


async def request_new_session(tx: Tx, folder: Folder) -> None:
    """Record that a group's agent session contains deleted text: the next run must start a new session."""
    # Requests are counted, so that `finish_new_session` deletes the record only if none came meanwhile.
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (?, '1')
        ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1
        """,
        (f"new_session:{folder}",),
    )


async def new_session_requests(tx: Tx, folder: Folder) -> int:
    """Return how often `request_new_session` was called for a group since its last new session; mostly 0."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (f"new_session:{folder}",))
    row = await cursor.fetchone()
    return int(row["value"]) if row else 0


async def finish_new_session(tx: Tx, folder: Folder, request_count: int) -> None:
    """Delete the record that a group needs a new session, after its old session was deleted.

    `request_count` is what `new_session_requests` returned before; if there were more requests since, the
    record stays.
    """
    await tx.execute(
        "DELETE FROM router_state WHERE key = ? AND value = ?", (f"new_session:{folder}", str(request_count))
    )


def _deletions_prefix(folder: Folder) -> str:
    """Return the prefix of the keys in `router_state` of messages to be removed from a group's context."""
    return f"taken_back:{folder}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSnapshot:
    """The digest of all files of a folder at one moment, by which a later change is noticed."""

    at_ms: int
    digest: str
    """The hash of the files' paths, times and sizes."""


async def last_workspace(tx: Tx, folder: Folder) -> WorkspaceSnapshot | None:
    """Return the stored time and digest of the files in a group's folder; None if there is none."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_workspace_key(folder),))
    row = await cursor.fetchone()
    if row is None:
        return None
    snapshot = json.loads(row["value"])
    return WorkspaceSnapshot(at_ms=snapshot["at_ms"], digest=snapshot["digest"])


async def note_workspace(tx: Tx, folder: Folder, snapshot: WorkspaceSnapshot) -> None:
    """Store the time and digest of the files in a group's folder, in place of the earlier ones."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {
            "key": _workspace_key(folder),
            "value": json.dumps({"at_ms": snapshot.at_ms, "digest": snapshot.digest}),
        },
    )


async def forget_workspace(tx: Tx, folder: Folder) -> None:
    """Delete the stored snapshot of a group's folder, because its loop was switched on or off."""
    await tx.execute("DELETE FROM router_state WHERE key = ?", (_workspace_key(folder),))


def _workspace_key(folder: Folder) -> str:
    """Return the key in the table `router_state` of the snapshot of a group's folder."""
    return f"workspace:{folder}"
