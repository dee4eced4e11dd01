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
    """Return the id of the agent session to resume, or None."""
    cursor = await tx.execute("SELECT session_id FROM sessions WHERE group_folder = ?", (folder,))
    row = await cursor.fetchone()
    return row["session_id"] if row else None


async def put_current(tx: Tx, folder: Folder, session_id: str, *, now_ms: int) -> None:
    """Store the session to resume next time; a new session continues the same conversation."""
    unchanged = await tx.execute(
        "UPDATE sessions SET updated_ms = ? WHERE group_folder = ? AND session_id = ?",
        (now_ms, folder, session_id),
    )
    if unchanged.rowcount == 1:
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
    """Start a new session next time, in the same conversation: the old session is lost."""
    await notice_claims.enter_session(tx, folder, None)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def forget(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Start a new conversation next time; notices that belonged to this one end with it."""
    await notice_claims.leave_session(tx, folder, now_ms=now_ms)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def cursor_of(tx: Tx, folder: Folder) -> Seq:
    """Return the position of the last message that the group's agent has answered; 0 before the first."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_cursor_key(folder),))
    row = await cursor.fetchone()
    return Seq(int(row["value"])) if row else Seq(0)


async def move_cursor(tx: Tx, folder: Folder, seq: Seq) -> None:
    """Record that the group's agent has answered the messages up to `seq`; the cursor never goes back."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(:seq AS INTEGER))
        """,
        {"key": _cursor_key(folder), "seq": str(seq)},
    )


def _cursor_key(folder: Folder) -> str:
    """Return the key under which a group's position in its messages is stored."""
    return f"cursor:{folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDeletion:
    """A turn in which messages were deleted, and the last deleted one."""

    turn: TurnId
    seq: Seq


async def note_deletion(tx: Tx, folder: Folder, turn: TurnId, seq: Seq) -> None:
    """Record that a deleted message has to be removed from the context of its group."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {"key": f"{_deletions_prefix(folder)}{turn}", "seq": str(seq)},
    )


async def pending_deletions(tx: Tx, folder: Folder) -> list[PendingDeletion]:
    """Return the deletions that still have to be removed from a group's context."""
    prefix = _deletions_prefix(folder)
    # `~` sorts after every digit, so these are all keys that begin with the prefix.
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (prefix, f"{prefix}~")
    )
    return [
        PendingDeletion(turn=TurnId(int(row["key"].removeprefix(prefix))), seq=Seq(int(row["value"])))
        for row in rows
    ]


async def groups_to_forget(tx: Tx) -> list[Folder]:
    """Return the groups with pending deletions, or with a session to end because of one."""
    # `;` is the character after `:`, so these are all keys that begin with `taken_back:` or `new_session:`.
    rows = await tx.execute_fetchall(
        """
        SELECT key FROM router_state
        WHERE (key >= 'taken_back:' AND key < 'taken_back;')
           OR (key >= 'new_session:' AND key < 'new_session;')
        """
    )
    return sorted({Folder(row["key"].split(":")[1]) for row in rows})


async def finish_deletions(tx: Tx, folder: Folder, deletions: Iterable[PendingDeletion]) -> None:
    """Delete the rows of deletions that are carried out; those of turns with a newer deletion stay."""
    for deletion in deletions:
        await tx.execute(
            "DELETE FROM router_state WHERE key = ? AND value = ?",
            (f"{_deletions_prefix(folder)}{deletion.turn}", str(deletion.seq)),
        )


async def note_new_session(tx: Tx, folder: Folder) -> None:
    """Record that the group's session contains deleted text: no later run may resume it."""
    await tx.execute(
        "INSERT INTO router_state (key, value) VALUES (?, '1') ON CONFLICT DO NOTHING",
        (f"new_session:{folder}",),
    )


async def take_new_session(tx: Tx, folder: Folder) -> bool:
    """Return whether a new session has to be started, and forget it: only the first call returns True."""
    cursor = await tx.execute("DELETE FROM router_state WHERE key = ?", (f"new_session:{folder}",))
    return cursor.rowcount == 1


def _deletions_prefix(folder: Folder) -> str:
    return f"taken_back:{folder}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSnapshot:
    """All files of a folder at one moment."""

    at_ms: int
    digest: str
    """The hash of the files' paths, times and sizes."""


async def last_workspace(tx: Tx, folder: Folder) -> WorkspaceSnapshot | None:
    """Return the stored snapshot of a group's folder, or None."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_workspace_key(folder),))
    row = await cursor.fetchone()
    if row is None:
        return None
    snapshot = json.loads(row["value"])
    return WorkspaceSnapshot(at_ms=snapshot["at_ms"], digest=snapshot["digest"])


async def note_workspace(tx: Tx, folder: Folder, snapshot: WorkspaceSnapshot) -> None:
    """Store the snapshot of a group's folder in place of the earlier one."""
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
    """Delete the snapshot of a folder that is no longer watched."""
    await tx.execute("DELETE FROM router_state WHERE key = ?", (_workspace_key(folder),))


def _workspace_key(folder: Folder) -> str:
    """Return the key under which the workspace of a group is stored."""
    return f"workspace:{folder}"
