"""`web_sessions` and `used_forms`: the browsers that are signed in to the console, and the forms they sent.

Only the hash of a secret is stored. The forms of a session are deleted with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.errors import BadRequest
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper

DAY_MS = 24 * 3_600_000
IDLE_MS = 7 * DAY_MS
"""Milliseconds without use after which a session ends."""
LIFE_MS = 30 * DAY_MS
"""Milliseconds after which a session ends, however often it is used."""


class UnknownSession(BadRequest):
    """No browser session of the console has this id."""

    code = "unknown_session"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSession:
    """One browser that is signed in."""

    id: str
    secret_hash: str
    browser: str
    """The name of the browser, shortened; other browsers that showed its cookie follow after ", also "."""
    created_ms: int
    seen_ms: int

    def is_over(self, now_ms: int) -> bool:
        """Return whether the session has ended: it was unused for `IDLE_MS`, or is older than `LIFE_MS`."""
        return now_ms - self.seen_ms > IDLE_MS or now_ms - self.created_ms > LIFE_MS


_MAPPER = RowMapper(WebSession, "web_sessions", {})


async def add(tx: Tx, session: WebSession) -> None:
    """Store the session of a browser that signed in, and delete all sessions that have ended by then."""
    await tx.execute(
        "DELETE FROM web_sessions WHERE seen_ms < ? OR created_ms < ?",
        (session.created_ms - IDLE_MS, session.created_ms - LIFE_MS),
    )
    await _MAPPER.insert(tx, session)


async def find(tx: Tx, session_id: str) -> WebSession | None:
    """Return the session with this id, or None; it may have ended."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM web_sessions WHERE id = ?", (session_id,))


async def every(tx: Tx, *, now_ms: int) -> list[WebSession]:
    """Return the sessions of browsers that are still signed in, the most recently used first."""
    rows = await tx.execute_fetchall("SELECT * FROM web_sessions ORDER BY seen_ms DESC, id")
    return [session for row in rows if not (session := _MAPPER.read(row)).is_over(now_ms)]


async def touch(tx: Tx, session_id: str, *, browser: str, now_ms: int) -> None:
    """Record that a session is used now; `browser` has the names of the browsers that have used it."""
    await tx.execute(
        "UPDATE web_sessions SET seen_ms = ?, browser = ? WHERE id = ?", (now_ms, browser, session_id)
    )


async def remove(tx: Tx, session_id: str) -> None:
    """End one session, so that its browser has to sign in again. Raises `UnknownSession` if there is none."""
    cursor = await tx.execute("DELETE FROM web_sessions WHERE id = ?", (session_id,))
    if not cursor.rowcount:
        raise UnknownSession(f"There is no session '{session_id[:40]}': see 'andy sessions list'.")


async def remove_all(tx: Tx) -> int:
    """End every session, and return how many there were."""
    return (await tx.execute("DELETE FROM web_sessions")).rowcount


async def use_form(tx: Tx, session_id: str, number: str, *, now_ms: int) -> bool:
    """Record that a session sends the form with this number. Return False if the form was sent before.

    Each form that is shown has a number, so that a form that a browser sends twice is carried out once.
    """
    cursor = await tx.execute(
        """
        INSERT INTO used_forms (number, session_id, used_ms) VALUES (?, ?, ?)
        ON CONFLICT (number) DO NOTHING
        """,
        (number, session_id, now_ms),
    )
    return cursor.rowcount > 0


async def finish_form(tx: Tx, number: str) -> None:
    """Record that the request of the form with this number was carried out."""
    await tx.execute("UPDATE used_forms SET is_done = 1 WHERE number = ?", (number,))


async def is_form_done(tx: Tx, number: str) -> bool:
    """Return whether the request of the form with this number was carried out to its end."""
    cursor = await tx.execute("SELECT 1 FROM used_forms WHERE number = ? AND is_done = 1", (number,))
    return await cursor.fetchone() is not None


async def give_form_back(tx: Tx, number: str) -> None:
    """Delete the record that a form was sent, so that it can be sent again: its request changed nothing."""
    await tx.execute("DELETE FROM used_forms WHERE number = ?", (number,))
