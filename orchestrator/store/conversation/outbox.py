"""`outbox`: every message that leaves Andy, `held → pending → sending → sent | skipped | unknown | dead`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.base.installation import as_typed_here
from orchestrator.domain.values import (
    Attachment,
    ChatJid,
    Folder,
    MessageId,
    OutboxState,
    Outgoing,
    Turn,
    TurnId,
)
from orchestrator.store.database import Tx, announce, returned
from orchestrator.store.row_mapper import Column, Part, RowMapper

OF_OWNER = "owner:"
"""Prefix of the `dedupe_key` of messages in which the host speaks to the owner."""
ASKED_OF_OWNER = f"{OF_OWNER}asked:"
"""Prefix of the `dedupe_key` of messages to the owner that quote other people: no agent reads those."""
SAID = "say:"
"""Prefix of the `dedupe_key` of texts that an agent sends by a command.

`say:TURN:…` with the turn's id for one that is sent in a turn, `say:FOLDER:…` for one outside of turns.
"""
LATE_ANSWER = "late-answer:"
"""Prefix of the `dedupe_key` of messages with the reply to a request that its agent no longer waited for.

`late-answer:FOLDER:…` with the id of the request.
"""
REST_OF_UNSENT = "an earlier part of this message was not sent"
"""Reason for which the rest of a message is skipped that was split."""

_MAPPER = RowMapper(
    Outgoing,
    "outbox",
    {
        "folder": "group_folder",
        "attachment": Part(
            Attachment,
            {"path": Column("file_path", Path, str), "name": "file_name", "mime": "file_mime"},
        ),
    },
    unread=("dedupe_key", "part_of", "tried_by", "tried_ms", "not_before_ms"),
)


async def add(
    tx: Tx,
    *,
    chat_jid: ChatJid,
    text: str,
    dedupe_key: str,
    now_ms: int,
    folder: Folder | None = None,
    turn_id: TurnId | None = None,
    state: OutboxState = OutboxState.PENDING,
    attachment: Attachment | None = None,
    mention: str | None = None,
    reacts_to: MessageId | None = None,
) -> bool:
    """Queue a message to a chat and return whether it is new; False when one has the same `dedupe_key`.

    The message gets its id here, before any attempt, so that sending it again cannot duplicate it. `folder`
    is the group of the chat, `turn_id` the turn that sends the message; None for none. With the state `HELD`
    it is not sent until it is released. `mention` is the address of the person to mention. With `reacts_to`,
    `text` is an emoji to put under that message.
    """
    # A turn that is tried again sends the same messages under the same keys, and only the first ones count.
    cursor = await tx.execute(
        """
        INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, message_id, state,
                            next_attempt_ms, created_ms, turn_id, file_path, file_name, file_mime, mention,
                            reacts_to)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (dedupe_key) DO NOTHING
        """,
        (
            folder,
            chat_jid,
            text,
            dedupe_key,
            _new_message_id(),
            state,
            now_ms,
            now_ms,
            turn_id,
            str(attachment.path) if attachment else None,
            attachment.name if attachment else None,
            attachment.mime if attachment else None,
            mention,
            reacts_to,
        ),
    )
    return cursor.rowcount == 1


async def replace_unsent(tx: Tx, key_prefix: str, text: str) -> bool:
    """Replace the text of a queued message before the first attempt to send it; return whether it was found.

    `key_prefix`, which is not empty, is the beginning of its `dedupe_key`.
    """
    # An attempt that the messenger put off does not count as one, but leaves an `error`. The range of keys
    # ends at the prefix with its last character incremented; LIKE would treat "_" as a wildcard.
    end = key_prefix[:-1] + chr(ord(key_prefix[-1]) + 1)
    cursor = await tx.execute(
        """
        UPDATE outbox SET text = ?
        WHERE dedupe_key >= ? AND dedupe_key < ? AND state = 'pending' AND attempts = 0 AND error IS NULL
            AND part_of IS NULL
        """,
        (text, key_prefix, end),
    )
    return cursor.rowcount > 0


async def add_failure(tx: Tx, turn: Turn, text: str, *, now_ms: int) -> None:
    """Queue the message that tells a chat that a turn failed, once for each turn.

    Commands in the text are written as the owner of this installation types them.
    """
    await add(
        tx,
        chat_jid=turn.chat_jid,
        folder=turn.folder,
        text=as_typed_here(text),
        dedupe_key=f"failed:{turn.id}",
        turn_id=turn.id,
        now_ms=now_ms,
    )


def _new_message_id() -> MessageId:
    """Return a random id for a message that Andy sends."""
    # Ids in the form of WhatsApp clients: `3EB0` and upper-case hexadecimal digits; other forms stand out.
    return MessageId(f"3EB0{secrets.token_hex(9).upper()}")


async def release(tx: Tx, turn_id: TurnId, *, now_ms: int) -> int:
    """Queue the messages that a turn held back until its end, and return how many there were."""
    # They are due now; until here, `next_attempt_ms` is the time at which they were written.
    cursor = await tx.execute(
        "UPDATE outbox SET state = 'pending', next_attempt_ms = ? WHERE turn_id = ? AND state = 'held'",
        (now_ms, turn_id),
    )
    return cursor.rowcount


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSize:
    """A number of messages and the number of their characters."""

    count: int
    chars: int


async def held(tx: Tx, turn_id: TurnId) -> OutboxSize:
    """Return how many messages of a turn are held back until its end, and how many characters they have."""
    return await _size(tx, "turn_id = ? AND state = 'held'", turn_id)


async def count_released(tx: Tx, turn_id: TurnId) -> int:
    """Return how many messages a turn has queued for sending, to its own chat and to others.

    Messages that are sent by now count, too; those that are held back until the turn's end do not.
    """
    # A message to another chat than the turn's has no `turn_id`, but the turn in its key.
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM outbox
        WHERE state <> 'held'
            AND (turn_id = :turn OR turn_id IS NULL AND dedupe_key >= :prefix AND dedupe_key < :prefix_end)
        """,
        {"turn": turn_id, **_prefix_range(f"{SAID}{turn_id}:")},
    )
    return int((await returned(cursor))["n"])


async def count_outside_turns(tx: Tx, folder: Folder, *, since_ms: int, now_ms: int) -> int:
    """Return how many texts a group's agent has sent since `since_ms` while no turn was running."""
    return await count_with_key(tx, folder, f"{SAID}{folder}:", since_ms=since_ms, now_ms=now_ms)


async def count_late_answers(tx: Tx, folder: Folder, *, since_ms: int, now_ms: int) -> int:
    """Return how many messages with late replies to its agent's requests a group got since `since_ms`."""
    return await count_with_key(tx, folder, f"{LATE_ANSWER}{folder}:", since_ms=since_ms, now_ms=now_ms)


async def count_with_key(tx: Tx, folder: Folder, prefix: str, *, since_ms: int, now_ms: int) -> int:
    """Count a group's messages since `since_ms` that are of no turn and whose key begins with `prefix`."""
    # A message with a time after `now_ms` is from before the clock was set back. Without the upper bound it
    # would count until the clock has reached that time.
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM outbox
        WHERE group_folder = :folder AND turn_id IS NULL AND created_ms BETWEEN :since AND :now
            AND dedupe_key >= :prefix AND dedupe_key < :prefix_end
        """,
        {"folder": folder, "since": since_ms, "now": now_ms, **_prefix_range(prefix)},
    )
    return int((await returned(cursor))["n"])


def _prefix_range(prefix: str) -> dict[str, str]:
    """Return the SQL parameters `prefix` and `prefix_end`: all texts in this range begin with `prefix`."""
    return {"prefix": prefix, "prefix_end": prefix[:-1] + chr(ord(prefix[-1]) + 1)}


async def waiting_of(tx: Tx, folder: Folder) -> OutboxSize:
    """Return how many messages of a group wait or are being sent, and how many characters they have."""
    return await _size(tx, "state IN ('pending', 'sending') AND group_folder = ?", folder)


async def unsent_files(tx: Tx, folder: Folder, *, since_ms: int) -> int:
    """Count the files of a group that wait to be sent, or were given up and created since `since_ms`."""
    # Files that were given up count for a while, since the owner may have them sent again.
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM outbox WHERE group_folder = ? AND file_path IS NOT NULL
            AND (state IN ('held', 'pending', 'sending')
                 OR (state IN ('unknown', 'dead') AND created_ms >= ?))
        """,
        (folder, since_ms),
    )
    return int((await returned(cursor))["n"])


async def files_in_use(tx: Tx, *, since_ms: int) -> frozenset[Path]:
    """Return the paths of the copies of files that are still needed.

    Their messages wait or are being sent; or they were sent, may have been sent, or were given up, and were
    created since `since_ms`.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT file_path FROM outbox WHERE file_path IS NOT NULL
            AND (state IN ('held', 'pending', 'sending')
                 OR (state IN ('sent', 'unknown', 'dead') AND created_ms >= ?))
        """,
        (since_ms,),
    )
    return frozenset(Path(row["file_path"]) for row in rows)


async def surplus_files(tx: Tx, folder: Folder | None, *, retained: int) -> list[Path]:
    """Return the paths of copies of a group's sent files that are no longer among the newest `retained`.

    `folder` None means chats without a group. At most `retained` paths are returned, the newest first: the
    copies of older files were returned by earlier calls.
    """
    # Sorted by the time of sending, because a file that was retried for hours is newer than its id suggests.
    rows = await tx.execute_fetchall(
        """
        SELECT file_path FROM outbox WHERE group_folder IS ? AND file_path IS NOT NULL AND state = 'sent'
        ORDER BY sent_ms DESC, id DESC LIMIT ? OFFSET ?
        """,
        (folder, retained, retained),
    )
    return [Path(row["file_path"]) for row in rows]


async def file_names(tx: Tx, message_ids: Collection[MessageId]) -> dict[str, str]:
    """Return the names of the files that were sent with these messages, keyed by message id."""
    rows = await tx.execute_fetchall(
        """
        SELECT message_id, file_name FROM outbox WHERE file_path IS NOT NULL
            AND message_id IN (SELECT value FROM json_each(?))
        """,
        (json.dumps(list(message_ids)),),
    )
    return {row["message_id"]: row["file_name"] for row in rows}


async def _size(tx: Tx, where: str, value: object) -> OutboxSize:
    """Return the number of messages for which the SQL condition `where` holds, and of their characters.

    `value` is the only parameter of the condition.
    """
    cursor = await tx.execute(
        f"SELECT count(*) AS n, coalesce(sum(length(text)), 0) AS chars FROM outbox WHERE {where}",  # noqa: S608
        (value,),
    )
    row = await returned(cursor)
    return OutboxSize(count=row["n"], chars=row["chars"])


async def unspoken(tx: Tx, *, since_ms: int) -> list[Outgoing]:
    """Return the sent replies since `since_ms` that still need a voice note, oldest first.

    They need none if one was queued or given up; a reply in several parts is too long to be spoken. Only the
    last thousand messages are searched: `since_ms` has to be so recent that no more were written since.
    """
    # Without the limit on ids this would read the whole table after each sent message. A reply has a key that
    # begins with `frame:`. A voice note that is held has no sound yet.
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT outbox.* FROM outbox JOIN turns ON turns.id = outbox.turn_id
        WHERE outbox.id > (SELECT coalesce(max(id), 0) - 1000 FROM outbox)
            AND outbox.state = 'sent' AND outbox.sent_ms >= ? AND outbox.file_path IS NULL
            AND outbox.part IS NULL AND outbox.dedupe_key LIKE 'frame:%' AND turns.kind = 'chat'
            AND NOT EXISTS (SELECT 1 FROM outbox AS voice
                            WHERE voice.dedupe_key = 'speech:' || outbox.id AND voice.state <> 'held')
        ORDER BY outbox.id
        """,
        (since_ms,),
    )


async def add_voice(tx: Tx, reply: Outgoing, file: Attachment | None, *, now_ms: int) -> Outgoing:
    """Add a message with the voice note of a sent reply, and return it; one that exists is returned instead.

    `file` is the sound of the reply. The message is `HELD`: the caller releases it once the sound is stored.
    With None as `file`, the caller finishes the message without sending it, so that `unspoken` leaves out the
    reply from then on.
    """
    # The key is derived from the reply's id, so a host that is killed meanwhile makes no second voice note.
    key = f"speech:{reply.id}"
    await add(
        tx,
        chat_jid=reply.chat_jid,
        folder=reply.folder,
        text="",
        dedupe_key=key,
        turn_id=reply.turn_id,
        state=OutboxState.HELD,
        attachment=file,
        now_ms=now_ms,
    )
    voice_note = await by_key(tx, key)
    assert voice_note is not None
    return voice_note


async def release_voice(tx: Tx, outgoing_id: int, *, now_ms: int) -> None:
    """Queue a voice note for sending that was held back until its file was stored."""
    await tx.execute(
        "UPDATE outbox SET state = 'pending', next_attempt_ms = ? WHERE id = ? AND state = 'held'",
        (now_ms, outgoing_id),
    )


async def drop_held(tx: Tx, turn_id: TurnId) -> None:
    """Delete the messages that an attempt at a turn held back, because the attempt did not end well."""
    # None of them was sent, so the next attempt can send the same messages without duplicates.
    await tx.execute("DELETE FROM outbox WHERE turn_id = ? AND state = 'held'", (turn_id,))


async def heads(tx: Tx) -> list[Outgoing]:
    """Return the next message to send in each chat: within a chat, messages are sent in order.

    It may still wait for its next attempt, and those behind it wait with it.
    """
    # Parts of a long message sort by the id of the whole, or later messages would come between them.
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY chat_jid ORDER BY coalesce(part_of, id), part) AS place
            FROM outbox WHERE state IN ('pending', 'sending'))
        WHERE place = 1 ORDER BY coalesce(part_of, id)
        """,
    )


async def still_waits(tx: Tx, outgoing: Outgoing) -> bool:
    """Return whether a message still waits to be sent with the text of `outgoing`."""
    # Between reading the queue and sending, an agent may have cancelled or changed a notification.
    cursor = await tx.execute(
        "SELECT 1 FROM outbox WHERE id = ? AND state IN ('pending', 'sending') AND text = ?",
        (outgoing.id, outgoing.text),
    )
    return await cursor.fetchone() is not None


async def split(tx: Tx, whole: Outgoing, parts: Sequence[str]) -> Outgoing:
    """Replace a message that was never tried by its `parts`, which fit the messenger; return the first.

    Each part has a message id of its own, so that one sent before a crash is not sent again after it. The
    first part stays in the row of the whole, with its mention; the others get rows of their own without one.
    """
    await tx.execute("UPDATE outbox SET text = ?, part = 0 WHERE id = ?", (parts[0], whole.id))
    # Only the first row keeps the key, so that a repeat of the whole message finds it and adds nothing.
    for number, text in enumerate(parts[1:], start=1):
        await tx.execute(
            """
            INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, message_id, state,
                                next_attempt_ms, created_ms, turn_id, part_of, part)
            SELECT group_folder, chat_jid, :text, dedupe_key || '#' || :part, :message_id, 'pending',
                   next_attempt_ms, created_ms, turn_id, id, :part
            FROM outbox WHERE id = :id
            """,
            {"text": text, "part": number, "message_id": _new_message_id(), "id": whole.id},
        )
    return replace(whole, text=parts[0], part=0)


async def drop_other_parts(tx: Tx, whole_id: int) -> None:
    """Delete all parts but the first of a message that was split; the first counts as the whole again.

    Its caller replaces its text, or sends it no more. A message that was not split is left unchanged.
    """
    await tx.execute("DELETE FROM outbox WHERE part_of = ?", (whole_id,))
    await tx.execute("UPDATE outbox SET part = NULL WHERE id = ? AND part = 0", (whole_id,))


async def is_rest_of_unsent(tx: Tx, outgoing_id: int) -> bool:
    """Return whether a message is a part of one that was split, and an earlier part was skipped or is dead.

    An earlier part that perhaps arrived does not count.
    """
    cursor = await tx.execute(
        """
        SELECT 1 FROM outbox AS rest
        JOIN outbox AS earlier ON (earlier.id = rest.part_of OR earlier.part_of = rest.part_of)
            AND earlier.part < rest.part AND earlier.state IN ('skipped', 'dead')
        WHERE rest.id = ?
        """,
        (outgoing_id,),
    )
    return await cursor.fetchone() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTry:
    """The first try to send a message: what its channel has noted of it, and when."""

    note: str
    """The messenger login that tried; for Telegram, the numbers of the parts that were sent."""
    at_ms: int


async def note_try(tx: Tx, message_id: MessageId, *, note: str, now_ms: int) -> FirstTry | None:
    """Return the first attempt to send a message; if there was none, record this one and return None.

    `note` is the channel's note about the attempt: Matrix notes its login, Telegram the parts that were sent,
    at first an empty text.
    """
    cursor = await tx.execute("SELECT tried_by, tried_ms FROM outbox WHERE message_id = ?", (message_id,))
    row = await cursor.fetchone()
    if row is not None and row["tried_by"] is not None:
        return FirstTry(note=row["tried_by"], at_ms=row["tried_ms"])
    await renew_try(tx, message_id, note=note, now_ms=now_ms)
    return None


async def renew_try(tx: Tx, message_id: MessageId, *, note: str, now_ms: int) -> None:
    """Replace the channel's note about the first attempt to send a message by `note` and the time now.

    The channel reads the note before the next attempt, so that it sends nothing twice. Matrix notes its login
    and does this when earlier attempts did not reach the chat; Telegram notes the parts that were sent.
    """
    await tx.execute(
        "UPDATE outbox SET tried_by = ?, tried_ms = ? WHERE message_id = ?", (note, now_ms, message_id)
    )


async def begin_attempt(tx: Tx, outgoing_id: int) -> None:
    """Record that an attempt to send a message begins, before the messenger gets it."""
    # Committed before the send: after a crash the row shows that the message may have been sent.
    await tx.execute(
        "UPDATE outbox SET state = 'sending', attempts = attempts + 1 WHERE id = ?", (outgoing_id,)
    )


async def finish(
    tx: Tx, outgoing_id: int, state: OutboxState, *, now_ms: int, error: str | None = None
) -> None:
    """Record the final state of a message: `SENT`, `SKIPPED`, `UNKNOWN` or `DEAD`.

    `error` is the reason for the last three.
    """
    # Only sent messages have a time of sending; surplus files are selected by it.
    await tx.execute(
        "UPDATE outbox SET state = ?, sent_ms = ?, error = ? WHERE id = ?",
        (state, now_ms if state is OutboxState.SENT else None, error, outgoing_id),
    )


async def try_later(
    tx: Tx,
    outgoing_id: int,
    *,
    at_ms: int,
    error: str,
    forgets_tries: bool = False,
    is_requested: bool = False,
) -> None:
    """Record that an attempt to send a message failed because of `error`, and try it again at `at_ms`.

    With `forgets_tries` the note of the first try (`note_try`) is deleted, so that the channel takes the next
    attempt for the first: none of the earlier ones reached the chat. `attempts` still counts them.
    `is_requested` says that the messenger asked to wait until `at_ms`: the attempt does not count then, and
    `hurry` makes the message due no sooner.
    """
    await tx.execute(
        """
        UPDATE outbox SET state = 'pending', next_attempt_ms = :at, error = :error,
            attempts = attempts - :is_requested,
            not_before_ms = CASE WHEN :is_requested THEN :at END,
            tried_by = CASE WHEN :forgets THEN NULL ELSE tried_by END WHERE id = :id
        """,
        {
            "at": at_ms,
            "error": error,
            "is_requested": is_requested,
            "forgets": forgets_tries,
            "id": outgoing_id,
        },
    )


async def has_queue(tx: Tx, chat_jid: ChatJid) -> bool:
    """Return whether at least two messages wait to be sent in a chat."""
    rows = await tx.execute_fetchall(
        "SELECT 1 FROM outbox WHERE chat_jid = ? AND state IN ('pending', 'sending') LIMIT 2", (chat_jid,)
    )
    return len(list(rows)) > 1


async def add_undelivered(tx: Tx, outgoing: Outgoing, text: str, *, now_ms: int) -> bool:
    """Queue `text`, which tells a chat that the message `outgoing` was given up; return whether it was new.

    It is queued once for a message. It is never queued for a message that is itself such a text: otherwise a
    chat to which nothing can be sent would cause one such text after the other.
    """
    cursor = await tx.execute(
        "SELECT 1 FROM outbox WHERE id = ? AND dedupe_key LIKE 'undelivered:%'", (outgoing.id,)
    )
    if await cursor.fetchone() is not None:
        return False
    # The time is in the key because a message that the owner has sent again may be given up once more. It
    # then has another `created_ms`, and the chat gets another text about it.
    return await add(
        tx,
        chat_jid=outgoing.chat_jid,
        folder=Folder(outgoing.folder) if outgoing.folder else None,
        text=text,
        dedupe_key=f"undelivered:{outgoing.id}:{outgoing.created_ms}",
        now_ms=now_ms,
    )


async def hurry(tx: Tx, patterns: Sequence[str], *, now_ms: int) -> int:
    """Make the messages that wait for another attempt due now, and return how many there were.

    Only messages to chats whose address matches one of `patterns`, which are those of SQL's LIKE. A message
    is due no sooner than its messenger has asked for.
    """
    cursor = await tx.execute(
        f"""
        UPDATE outbox SET next_attempt_ms = max(?, ifnull(not_before_ms, 0))
        WHERE state = 'pending' AND next_attempt_ms > ? AND attempts > 0
            AND ({" OR ".join("chat_jid LIKE ?" for _ in patterns)})
        """,  # noqa: S608 - only placeholders are joined
        (now_ms, now_ms, *patterns),
    )
    return cursor.rowcount


async def move(tx: Tx, old: ChatJid, new: ChatJid) -> None:
    """Redirect the unsent messages of a chat to its new address `new`.

    Nothing is redirected while a message is being sent to the old address: later ones would overtake it.
    """
    await tx.execute(
        """
        UPDATE outbox SET chat_jid = :new WHERE chat_jid = :old AND state IN ('held', 'pending')
            AND NOT EXISTS (SELECT 1 FROM outbox WHERE chat_jid = :old AND state = 'sending')
        """,
        {"new": new, "old": old},
    )


async def revive(tx: Tx, outgoing_id: int, *, now_ms: int) -> bool:
    """Queue a message again that was given up, or that perhaps did not arrive, and announce the change.

    Later parts of it that were skipped because of that are queued, too. Return False, and do nothing, for a
    message in any other state.
    """
    # It counts as new, or the age limit would give it up again at once. Of a dead message the record of the
    # first try stays, by which some channels check whether it arrived after all. Of an unknown one it is
    # deleted, because the owner has decided that it is sent again in any case.
    cursor = await tx.execute(
        """
        UPDATE outbox SET state = 'pending', attempts = 0, created_ms = :now, next_attempt_ms = :now,
            tried_by = CASE state WHEN 'unknown' THEN NULL ELSE tried_by END
        WHERE id = :id AND state IN ('unknown', 'dead')
        RETURNING group_folder, coalesce(part_of, id) AS whole, part
        """,
        {"id": outgoing_id, "now": now_ms},
    )
    revived = await cursor.fetchone()
    if revived is None:
        return False
    await tx.execute(
        """
        UPDATE outbox SET state = 'pending', created_ms = :now, next_attempt_ms = :now
        WHERE part_of = :whole AND part > :part AND state = 'skipped' AND error = :reason
        """,
        {"whole": revived["whole"], "part": revived["part"], "now": now_ms, "reason": REST_OF_UNSENT},
    )
    announce(tx, "outbox.changed", group=revived["group_folder"])
    return True


async def is_ours(tx: Tx, message_id: MessageId) -> bool:
    """Return whether Andy has sent, or is going to send, a message with this id."""
    cursor = await tx.execute("SELECT 1 FROM outbox WHERE message_id = ?", (message_id,))
    return await cursor.fetchone() is not None


async def of_turn(tx: Tx, turn_id: TurnId) -> list[Outgoing]:
    """Return the messages that a turn sends, in the order of sending; parts of a long one are consecutive."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM outbox WHERE turn_id = ? ORDER BY coalesce(part_of, id), part", (turn_id,)
    )


async def by_ids(tx: Tx, ids: Collection[int]) -> list[Outgoing]:
    """Return the messages with these ids, and the parts into which they were split."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM outbox WHERE id IN (SELECT value FROM json_each(:ids))
            OR part_of IN (SELECT value FROM json_each(:ids)) ORDER BY id
        """,
        {"ids": json.dumps(sorted(ids))},
    )


async def skip_unsent(tx: Tx, ids: Collection[int]) -> None:
    """Mark the messages among `ids` that wait to be sent as skipped, because their turn was undone.

    Messages that are held back, or wait for another attempt, are skipped, too.
    """
    await tx.execute(
        """
        UPDATE outbox SET state = 'skipped', error = 'its turn was undone'
        WHERE id IN (SELECT value FROM json_each(?)) AND state IN ('held', 'pending')
        """,
        (json.dumps(sorted(ids)),),
    )


async def by_message_id(tx: Tx, message_id: MessageId) -> Outgoing | None:
    """Return the message that has this id in its channel, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM outbox WHERE message_id = ?", (message_id,))


async def by_key(tx: Tx, key: str) -> Outgoing | None:
    """Return the message that was queued under this key, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM outbox WHERE dedupe_key = ?", (key,))


async def blank(tx: Tx, message_id: MessageId) -> TurnId | None:
    """Delete the text of a sent message and of its other parts; return the turn that sent it.

    None if it was sent in no turn, or if no sent message has this id.
    """
    # A person who deletes one part of a long message in the messenger means the whole message.
    cursor = await tx.execute(
        "SELECT coalesce(part_of, id) AS whole, turn_id FROM outbox WHERE message_id = ? AND state = 'sent'",
        (message_id,),
    )
    if (row := await cursor.fetchone()) is None:
        return None
    await tx.execute("UPDATE outbox SET text = '' WHERE :whole IN (id, part_of)", {"whole": row["whole"]})
    return row["turn_id"]  # type: ignore[no-any-return]


async def unsent(tx: Tx, *, limit: int) -> list[Outgoing]:
    """Return at most `limit` messages that are neither sent nor skipped, oldest first."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM outbox WHERE state NOT IN ('sent', 'skipped')
        ORDER BY coalesce(part_of, id), part LIMIT ?
        """,
        (limit,),
    )


async def given_up(tx: Tx, *, limit: int) -> list[Outgoing]:
    """Return at most `limit` messages that were given up or of which it is unknown whether they arrived.

    The oldest come first.
    """
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM outbox WHERE state IN ('unknown', 'dead') ORDER BY id LIMIT ?", (limit,)
    )


async def counts(tx: Tx) -> dict[str, int]:
    """Return the number of messages in each state; states without messages are left out."""
    rows = await tx.execute_fetchall("SELECT state, count(*) AS n FROM outbox GROUP BY state")
    return {row["state"]: row["n"] for row in rows}
