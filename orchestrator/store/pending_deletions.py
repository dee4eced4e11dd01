"""Turns that lost words to who had said them, until nothing that is kept has those any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.domain.values import Folder, Seq, TurnId
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDeletion:
    """A turn, and its message that was taken back last."""

    turn: TurnId
    seq: Seq


async def note(tx: Tx, folder: Folder, turn: TurnId, seq: Seq) -> None:
    """Have the words of a message be looked for in what is kept of its group's conversation."""
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        {"key": f"{_prefix(folder)}{turn}", "seq": str(seq)},
    )


async def waiting(tx: Tx, folder: Folder) -> list[PendingDeletion]:
    """Those that were not looked for yet."""
    prefix = _prefix(folder)
    rows = await tx.execute_fetchall(
        "SELECT key, value FROM router_state WHERE key >= ? AND key < ?", (prefix, f"{prefix}~")
    )
    return [
        PendingDeletion(turn=TurnId(int(row["key"].removeprefix(prefix))), seq=Seq(int(row["value"])))
        for row in rows
    ]


async def done(tx: Tx, folder: Folder, found: Iterable[PendingDeletion]) -> None:
    """Nothing has them any more. A turn that lost more words since stays."""
    for one in found:
        await tx.execute(
            "DELETE FROM router_state WHERE key = ? AND value = ?",
            (f"{_prefix(folder)}{one.turn}", str(one.seq)),
        )


def _prefix(folder: Folder) -> str:
    return f"taken_back:{folder}:"
