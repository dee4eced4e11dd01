"""The link between `notifications` and `outbox`: a notification that is being sent has one row in each."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.domain.dashboard import BoardTask, Notification, Question
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatJid, Folder, Group, OutboxState, Outgoing
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.conversation import messages, outbox, polls
from orchestrator.store.database import Tx, returned
from orchestrator.store.groups import groups

# The messages of a notification, by its first key. `;` follows `:`, so the range has the keys that
# `_message_key` makes with a token.
_OF_KEY = "(dedupe_key = :key OR (dedupe_key >= :key || ':' AND dedupe_key < :key || ';'))"
_OF_REMOVED = """(dedupe_key GLOB 'notification:*' AND part_of IS NULL
    AND NOT EXISTS (SELECT 1 FROM notifications AS n WHERE n.outbox_id = outbox.id))"""
"""The SQL condition on a message of the outbox that it was queued for a notification that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueNotification:
    """A due notification, with the rows that decide what happens to it.

    `group`, `task` and `question` are None if there is none, or if the row is gone.
    """

    row: Notification
    group: Group | None
    task: BoardTask | None
    question: Question | None
    is_reworded: bool
    """Whether a person or an agent has changed the text that a rule wrote; False if no rule made it."""


async def with_subject(tx: Tx, row: Notification) -> DueNotification:
    """Return a due notification with its group, task and question.

    If a rule has made it, it also says whether somebody has changed the rule's text since.
    """
    return DueNotification(
        row=row,
        group=await groups.by_folder(tx, row.folder),
        task=await board_tasks.get(tx, row.folder, row.task_id) if row.task_id else None,
        question=await board_questions.get(tx, row.folder, row.question_id) if row.question_id else None,
        is_reworded=row.cause is not None and await _is_reworded(tx, row),
    )


async def _is_reworded(tx: Tx, notification: Notification) -> bool:
    """Return whether a person or an agent has changed the text of a notification."""
    cursor = await tx.execute(
        """
        SELECT 1 FROM notification_history
        WHERE group_folder = ? AND notification_id = ? AND what = ? LIMIT 1
        """,
        (notification.folder, notification.id, board_notifications.REWORDED),
    )
    return await cursor.fetchone() is not None


async def claim(
    tx: Tx,
    notification: Notification,
    chat_jid: ChatJid,
    *,
    text: str,
    token: str,
    now_ms: int,
    until_ms: int,
    poll: Poll | None = None,
) -> bool:
    """Claim a due notification for sending, and queue it as a message with `text` to the chat `chat_jid`.

    Return False, and change nothing, when another dispatcher has claimed it, or when it was changed or has
    ended.

    A claim keeps other dispatchers from sending the notification until `until_ms` (epoch ms); `token`
    identifies it. The chat gets `text`, which may have more than `notification.message`, such as "(late)".
    The row of the notification gets `notification.message`, and one more attempt is counted. If the
    notification asks a question with options, `poll` is stored for its message. A notification that was tried
    before keeps its message id; if its message is already on its way, that is left unchanged. The message is
    not sent before the end of a pause that the messenger has asked for.
    """
    # Another process may have claimed it since it was read: the version in the row decides.
    cursor = await tx.execute(
        """
        UPDATE notifications SET status = 'sending', claim_token = :token, claim_until_ms = :until,
            attempts = attempts + 1, message = :message
        WHERE group_folder = :folder AND id = :id AND version = :version
          AND status IN ('pending', 'sending') AND ifnull(claim_until_ms, 0) <= :now
        """,
        {
            "folder": notification.folder,
            "id": notification.id,
            "version": notification.version,
            "token": token,
            "message": notification.message,
            "now": now_ms,
            "until": until_ms,
        },
    )
    if cursor.rowcount != 1:
        return False
    key = await _message_key(tx, notification, token=token)
    is_new = await outbox.add(
        tx,
        chat_jid=chat_jid,
        folder=notification.folder,
        text=text,
        dedupe_key=key,
        mention=await _requester_of(tx, notification),
        now_ms=now_ms,
    )
    if not is_new:
        # An earlier attempt failed and its message is held; or the notification had ended, so its message was
        # skipped, and an undo has opened the notification again. The message becomes due again.
        revived = await tx.execute(
            """
            UPDATE outbox SET text = :text, state = 'pending',
                next_attempt_ms = max(:now, ifnull(not_before_ms, 0))
            WHERE dedupe_key = :key AND state IN ('held', 'skipped') RETURNING id
            """,
            {"text": text, "now": now_ms, "key": key},
        )
        # Parts of the earlier text that were skipped have the keys that the parts of this one will get.
        if (row := await revived.fetchone()) is not None:
            await outbox.drop_other_parts(tx, row["id"])
    queued = await outbox.by_key(tx, key)
    if poll is not None and queued is not None:
        await polls.add(tx, replace(poll, chat_jid=queued.chat_jid, message_id=queued.message_id))
    await tx.execute(
        """
        UPDATE notifications SET (outbox_id, channel_msg_id) =
            (SELECT id, message_id FROM outbox WHERE dedupe_key = :key)
        WHERE group_folder = :folder AND id = :id
        """,
        {"key": key, "folder": notification.folder, "id": notification.id},
    )
    return True


async def _message_key(tx: Tx, notification: Notification, *, token: str) -> str:
    """Return the `dedupe_key` of the message that sends a notification: that of its earlier attempts, if any.

    `token` makes another key if the first one is used up.
    """
    if notification.outbox_id is not None:
        cursor = await tx.execute("SELECT dedupe_key FROM outbox WHERE id = ?", (notification.outbox_id,))
        row = await cursor.fetchone()
        if row is not None:
            return str(row["dedupe_key"])
    # An import may bring back a notification whose message has ended: under the same key, nothing is sent.
    key = _first_key(notification)
    return key if await outbox.by_key(tx, key) is None else f"{key}:{token}"


def _first_key(notification: Notification) -> str:
    """Return the `dedupe_key` of the first message that sends a notification."""
    return f"notification:{notification.folder}:{notification.id}"  # see `_OF_REMOVED`


async def sent_ms(tx: Tx, notification: Notification) -> int | None:
    """Return when a notification of this group and id was sent last (epoch ms); None if none was.

    It may have been deleted from the dashboard since, and be imported again.
    """
    cursor = await tx.execute(
        f"SELECT max(sent_ms) AS sent_ms FROM outbox WHERE state = 'sent' AND {_OF_KEY}",  # noqa: S608
        {"key": _first_key(notification)},
    )
    return (await returned(cursor))["sent_ms"]  # type: ignore[no-any-return]


async def with_waiting_message(tx: Tx, notification: Notification) -> Notification:
    """Return a notification with the message in the outbox that waits to send it; unchanged if none waits.

    It may have been queued for an earlier row with the same id, which was deleted from the dashboard before
    this one was imported.
    """
    cursor = await tx.execute(
        f"""
        SELECT id, message_id FROM outbox
        WHERE state IN ('held', 'pending', 'sending') AND part_of IS NULL AND {_OF_KEY}
        ORDER BY id DESC LIMIT 1
        """,  # noqa: S608 - a constant
        {"key": _first_key(notification)},
    )
    row = await cursor.fetchone()
    if row is None:
        return notification
    return replace(notification, outbox_id=row["id"], channel_msg_id=row["message_id"])


async def _requester_of(tx: Tx, notification: Notification) -> str | None:
    """Return the address of the person who requested a notification or its task, to mention them; None if
    unknown.
    """
    if notification.asked_by is not None:
        return notification.asked_by
    # Otherwise the person who asked in the turn that last changed the notification or, if no person asked in
    # that turn, in the turn that last changed its task.
    cursor = await tx.execute(
        "SELECT changed_turn FROM dashboard_tasks WHERE group_folder = ? AND id = ?",
        (notification.folder, notification.task_id),
    )
    task = await cursor.fetchone()
    return await messages.asker_of(tx, notification.changed_turn, task["changed_turn"] if task else None)


async def extend_claim(tx: Tx, notification: Notification, *, text: str, until_ms: int) -> bool:
    """Extend a claim on a notification until `until_ms` (epoch ms), while its message is in the outbox.

    Until then, no other dispatcher sends it. Return False, and change nothing, if the outbox has no message
    that is yet to be sent or is being sent. If the message is in one part and its sending has not begun, its
    text becomes `text`, for example with "(late)"; if that is another text, the notification's row gets
    `notification.message`, which the caller has changed too and which has no such additions.
    """
    cursor = await tx.execute(
        """
        UPDATE notifications SET claim_until_ms = :until
        WHERE group_folder = :folder AND id = :id AND status = 'sending' AND claim_token IS NOT NULL
          AND outbox_id IN (SELECT id FROM outbox WHERE state IN ('pending', 'sending'))
        """,
        {"folder": notification.folder, "id": notification.id, "until": until_ms},
    )
    if cursor.rowcount != 1:
        return False
    # A message in parts (`part`) may have been sent up to one of them.
    replaced = await tx.execute(
        "UPDATE outbox SET text = ? WHERE id = ? AND state = 'pending' AND part IS NULL AND text <> ?",
        (text, notification.outbox_id, text),
    )
    if replaced.rowcount:
        await tx.execute(
            "UPDATE notifications SET message = ? WHERE group_folder = ? AND id = ?",
            (notification.message, notification.folder, notification.id),
        )
    return True


async def pause(tx: Tx, notification: Notification, *, until_ms: int) -> None:
    """Set the time of the next attempt to send a notification to `until_ms` (epoch ms), and change nothing
    else.
    """
    await tx.execute(
        "UPDATE notifications SET next_attempt_ms = ? WHERE group_folder = ? AND id = ?",
        (until_ms, notification.folder, notification.id),
    )


async def of_outgoing(tx: Tx, outgoing: Outgoing) -> Notification | None:
    """Return the notification that a message in the outbox sends; None if it sends none."""
    cursor = await tx.execute(
        "SELECT group_folder, id FROM notifications WHERE outbox_id = ?", (outgoing.id,)
    )
    row = await cursor.fetchone()
    return await board_notifications.get(tx, Folder(row["group_folder"]), row["id"]) if row else None


async def is_of_removed(tx: Tx, outgoing: Outgoing) -> bool:
    """Return whether a message was queued for a notification that has been removed from its dashboard since.

    An undo removes notifications, and so does an import that replaces a dashboard.
    """
    cursor = await tx.execute(
        f"SELECT 1 FROM outbox WHERE id = ? AND {_OF_REMOVED}",  # noqa: S608 - a constant
        (outgoing.id,),
    )
    return await cursor.fetchone() is not None


async def hold(tx: Tx, outgoing: Outgoing, *, error: str, not_before_ms: int | None) -> None:
    """Hold a message that could not be sent because of `error`, until its notification is tried again.

    `not_before_ms` is the time (epoch ms) until which the messenger asked to wait: then the attempt is not
    counted. None if the messenger did not ask to wait.
    """
    # In SQL, `:until IS NOT NULL` is the number 1 or 0.
    await tx.execute(
        """
        UPDATE outbox SET state = 'held', error = :error, not_before_ms = :until,
            attempts = attempts - (:until IS NOT NULL)
        WHERE id = :id
        """,
        {"error": error, "until": not_before_ms, "id": outgoing.id},
    )


async def hurry(tx: Tx, patterns: Sequence[str], *, now_ms: int) -> None:
    """Make messages and notifications whose last attempt failed due now: their messenger is connected again.

    They are those in chats whose address matches one of `patterns`, which are those of SQL's LIKE. If the
    messenger has asked for a pause, they are due at its end.
    """
    await outbox.hurry(tx, patterns, now_ms=now_ms)
    # After a failed attempt a notification's message is held: the notification's row has the next attempt.
    await tx.execute(
        f"""
        UPDATE notifications SET next_attempt_ms = max(?, ifnull(
            (SELECT not_before_ms FROM outbox WHERE outbox.id = notifications.outbox_id), 0))
        WHERE status = 'pending' AND next_attempt_ms > ?
            AND outbox_id IN (SELECT id FROM outbox
                WHERE state = 'held' AND ({" OR ".join("chat_jid LIKE ?" for _ in patterns)}))
        """,  # noqa: S608 - only placeholders are joined
        (now_ms, now_ms, *patterns),
    )


async def hold_claimed(tx: Tx, notification: Notification) -> bool:
    """Hold the unsent message of a notification; return False if the message is being sent or was sent.

    It stays in the outbox, unsent, until the notification is claimed again.
    """
    cursor = await tx.execute(
        "UPDATE outbox SET state = 'held' WHERE id = ? AND state = 'pending'", (notification.outbox_id,)
    )
    return cursor.rowcount == 1


async def drop_held(tx: Tx, *, now_ms: int) -> int:
    """Mark held messages as skipped if their notification has ended or was removed; return how many.

    A message is held after a failed attempt, until its notification is tried again.
    """
    # The next attempt of a skipped message never comes; the column, which cannot be empty, gets the time now.
    # A held message with a `turn_id` is no notification: its turn holds it back until the turn's end.
    cursor = await tx.execute(
        f"""
        UPDATE outbox SET state = ?, sent_ms = NULL, next_attempt_ms = ?
        WHERE state = 'held' AND turn_id IS NULL AND (id IN (
            SELECT outbox_id FROM notifications
            WHERE outbox_id IS NOT NULL AND status NOT IN ('pending', 'sending')) OR {_OF_REMOVED})
        """,  # noqa: S608 - a constant
        (OutboxState.SKIPPED, now_ms),
    )
    return cursor.rowcount


async def count_automatic(tx: Tx, folder: Folder, *, since_ms: int, now_ms: int) -> int:
    """Count a group's automatic notifications that were sent from `since_ms` to `now_ms`, or are being sent.

    Automatic ones were created by the dashboard worker; urgent ones are not counted.
    """
    # A time of delivery after now is from before the clock was set back: such a notification is not counted.
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM notifications
        WHERE group_folder = ? AND created_by = 'worker' AND priority <> 'high'
          AND (status = 'sending' OR (status = 'delivered' AND delivered_ms BETWEEN ? AND ?))
        """,
        (folder, since_ms, now_ms),
    )
    return int((await returned(cursor))["n"])


async def delivered_or_cancelled(tx: Tx, folder: Folder, *, since_ms: int) -> list[sqlite3.Row]:
    """Return a group's notifications that were delivered or cancelled since `since_ms` (epoch ms).

    Only reminders that no rule has made are left out. By these notifications the rules decide when the next
    one may come. A row has the columns `task_id`, `question_id`, `type`, `cause`, `delivered_ms`,
    `cancelled_ms` and `cancel_reason`.
    """
    # A reminder without a `cause` was made by no rule.
    rows = await tx.execute_fetchall(
        """
        SELECT task_id, question_id, type, cause, delivered_ms, cancelled_ms, cancel_reason
        FROM notifications INDEXED BY notifications_delivered
        WHERE group_folder = :folder AND status = 'delivered' AND delivered_ms >= :since
          AND (type <> 'reminder' OR cause IS NOT NULL)
        UNION ALL
        SELECT task_id, question_id, type, cause, delivered_ms, cancelled_ms, cancel_reason
        FROM notifications
        WHERE group_folder = :folder AND status = 'cancelled' AND cancelled_ms >= :since
          AND (type <> 'reminder' OR cause IS NOT NULL)
        """,
        {"folder": folder, "since": since_ms},
    )
    return list(rows)
