"""`sessions` and `router_state`: what each group's conversation goes on from."""

from __future__ import annotations

from orchestrator.domain.values import Folder, Seq
from orchestrator.store import notice_claims
from orchestrator.store.database import Tx


async def current(tx: Tx, folder: Folder) -> str | None:
    """The agent session to resume."""
    cursor = await tx.execute("SELECT session_id FROM sessions WHERE group_folder = ?", (folder,))
    row = await cursor.fetchone()
    return row["session_id"] if row else None


async def keep(tx: Tx, folder: Folder, session_id: str, *, now_ms: int) -> None:
    """Go on with this one: the conversation is the same, in whichever session."""
    same = await tx.execute(
        "UPDATE sessions SET updated_ms = ? WHERE group_folder = ? AND session_id = ?",
        (now_ms, folder, session_id),
    )
    if same.rowcount == 1:
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
    """Go on in a new session next time: this one is gone, and the conversation is not."""
    await notice_claims.enter_session(tx, folder, None)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def forget(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Begin anew next time; what lived in the conversation has ended with it."""
    await notice_claims.leave_session(tx, folder, now_ms=now_ms)
    await tx.execute("DELETE FROM sessions WHERE group_folder = ?", (folder,))


async def cursor_of(tx: Tx, folder: Folder) -> Seq:
    """The last message the group's agent has answered; 0 before the first."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_cursor_key(folder),))
    row = await cursor.fetchone()
    return Seq(int(row["value"])) if row else Seq(0)


async def move_cursor(tx: Tx, folder: Folder, seq: Seq) -> None:
    """Set the cursor forward; it never goes back."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), CAST(:seq AS INTEGER))
        """,
        {"key": _cursor_key(folder), "seq": str(seq)},
    )


def _cursor_key(folder: Folder) -> str:
    return f"cursor:{folder}"
