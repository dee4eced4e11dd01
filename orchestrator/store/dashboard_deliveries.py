"""Where `notifications` and `outbox` meet: a notification that is being sent has one row in each."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.dashboard import Notification, QuestionType
from orchestrator.domain.values import ChatJid, Folder, OutboxState, Outgoing
from orchestrator.store import dashboard_notifications, messages, outbox
from orchestrator.store.database import Tx, returned


async def hand_over(tx: Tx, one: Notification, chat_jid: ChatJid, *, text: str, now_ms: int) -> None:
    """Put a claimed notification into the outbox as `text`; one that was tried before keeps its message id.

    One that is there already and was not given up is on its way: it is left as it is.
    """
    key = f"notification:{one.folder}:{one.id}"
    is_new = await outbox.add(
        tx,
        chat_jid=chat_jid,
        folder=one.folder,
        text=text,
        dedupe_key=key,
        mention=await _person(tx, one),
        now_ms=now_ms,
    )
    if not is_new:
        await tx.execute(
            """
            UPDATE outbox SET text = :text, state = 'pending', next_attempt_ms = :now
            WHERE dedupe_key = :key AND state = 'held'
            """,
            {"text": text, "now": now_ms, "key": key},
        )
    await tx.execute(
        """
        UPDATE notifications SET (outbox_id, channel_msg_id) =
            (SELECT id, message_id FROM outbox WHERE dedupe_key = :key)
        WHERE group_folder = :folder AND id = :id
        """,
        {"key": key, "folder": one.folder, "id": one.id},
    )


async def _person(tx: Tx, one: Notification) -> str | None:
    """Who asked for it, or for the task that it is about."""
    if one.asked_by is not None:
        return one.asked_by
    cursor = await tx.execute(
        "SELECT changed_turn FROM dashboard_tasks WHERE group_folder = ? AND id = ?",
        (one.folder, one.task_id),
    )
    task = await cursor.fetchone()
    return await messages.asker_of(tx, one.changed_turn, task["changed_turn"] if task else None)


async def keep_claim(tx: Tx, one: Notification, *, text: str, until_ms: int) -> bool:
    """Extend a claim whose message still waits in the outbox; return False when there is no such message.

    What no messenger has got yet becomes `text`, which is what the notification says now.
    """
    cursor = await tx.execute(
        """
        UPDATE notifications SET claim_until_ms = :until
        WHERE group_folder = :folder AND id = :id AND status = 'sending' AND claim_token IS NOT NULL
          AND outbox_id IN (SELECT id FROM outbox WHERE state IN ('pending', 'sending'))
        """,
        {"folder": one.folder, "id": one.id, "until": until_ms},
    )
    if cursor.rowcount != 1:
        return False
    waiting = await tx.execute(
        "UPDATE outbox SET text = ? WHERE id = ? AND state = 'pending' AND part IS NULL AND text <> ?",
        (text, one.outbox_id, text),
    )
    if waiting.rowcount:
        await tx.execute(
            "UPDATE notifications SET message = ? WHERE group_folder = ? AND id = ?",
            (one.message, one.folder, one.id),
        )
    return True


async def of_outgoing(tx: Tx, outgoing: Outgoing) -> Notification | None:
    """Return the notification that a message belongs to, or None."""
    cursor = await tx.execute(
        "SELECT group_folder, id FROM notifications WHERE outbox_id = ?", (outgoing.id,)
    )
    row = await cursor.fetchone()
    return await dashboard_notifications.get(tx, Folder(row["group_folder"]), row["id"]) if row else None


async def hold(tx: Tx, outgoing: Outgoing, *, error: str) -> None:
    """Keep a message that could not be sent until its notification is claimed again."""
    await tx.execute("UPDATE outbox SET state = 'held', error = ? WHERE id = ?", (error, outgoing.id))


async def call_back(tx: Tx, one: Notification) -> bool:
    """Hold the message of a claimed notification until it is claimed again; return False when it has left."""
    cursor = await tx.execute(
        "UPDATE outbox SET state = 'held' WHERE id = ? AND state = 'pending'", (one.outbox_id,)
    )
    return cursor.rowcount == 1


async def drop_held(tx: Tx, *, now_ms: int) -> int:
    """End the messages whose notification nobody will claim any more, and return how many."""
    cursor = await tx.execute(
        """
        UPDATE outbox SET state = ?, sent_ms = NULL, next_attempt_ms = ?
        WHERE state = 'held' AND turn_id IS NULL AND id IN (
            SELECT outbox_id FROM notifications
            WHERE outbox_id IS NOT NULL AND status NOT IN ('pending', 'sending'))
        """,
        (OutboxState.SKIPPED, now_ms),
    )
    return cursor.rowcount


async def told_by_itself(tx: Tx, folder: Folder, *, since_ms: int) -> int:
    """Count the notifications since `since_ms`, sent or about to be, that nobody asked for and that are not
    urgent.
    """
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM notifications
        WHERE group_folder = ? AND created_by = 'worker' AND priority <> 'high'
          AND (status = 'sending' OR (status = 'delivered' AND delivered_ms >= ?))
        """,
        (folder, since_ms),
    )
    return int((await returned(cursor))["n"])


async def told_by_rules(tx: Tx, folder: Folder, *, since_ms: int) -> list[sqlite3.Row]:
    """Return the alerts and nudges that ended since `since_ms`: the rules decide by them when another may
    come.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT task_id, question_id, type, cause, delivered_ms, cancelled_ms, cancel_reason
        FROM notifications INDEXED BY notifications_delivered
        WHERE group_folder = :folder AND status = 'delivered' AND delivered_ms >= :since
          AND type <> 'reminder'
        UNION ALL
        SELECT task_id, question_id, type, cause, delivered_ms, cancelled_ms, cancel_reason
        FROM notifications
        WHERE group_folder = :folder AND status = 'cancelled' AND cancelled_ms >= :since
          AND type <> 'reminder'
        """,
        {"folder": folder, "since": since_ms},
    )
    return list(rows)


async def asked(tx: Tx, folder: Folder) -> dict[tuple[str, QuestionType], int]:
    """Return when a question of each kind about each task was last shown, answered or closed (epoch ms)."""
    rows = await tx.execute_fetchall(
        """
        SELECT task_id, type,
               max(max(ifnull(last_asked_ms, 0), ifnull(answered_ms, 0), ifnull(closed_ms, 0))) AS last_ms
        FROM questions WHERE group_folder = ? AND task_id IS NOT NULL GROUP BY task_id, type
        """,
        (folder,),
    )
    return {(row["task_id"], QuestionType(row["type"])): row["last_ms"] for row in rows if row["last_ms"]}
