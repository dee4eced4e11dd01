"""`messages`: every accepted message, stored once, with its outcome."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.domain.values import (
    HOOK_PREFIX,
    ChatJid,
    ChatMember,
    Folder,
    Inbound,
    Message,
    MessageId,
    Outgoing,
    Quote,
    Seq,
    TurnId,
    is_hook,
)
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Column, Part, RowMapper

OWN_MESSAGE = "own message"
"""The `ignored_reason` of a message that Andy sent."""
_READ = "console_read:"
"""Prefix of keys of `router_state`: up to which message the owner has read a group in the console."""


def _or_empty(text: str | None) -> str:
    """Return the text, or an empty one for None."""
    return text or ""


MAPPER = RowMapper(
    Message,
    "messages",
    {
        "folder": "group_folder",
        "text": "content",
        "file": "file_words",
        "quote": Part(
            Quote,
            {
                "message_id": "quoted_id",
                "sender": Column("quoted_sender", _or_empty, str),
                "text": Column("quoted_content", _or_empty, str),
            },
        ),
    },
    unread=("is_request", "channel_id", "thread", "edits"),
)


@dataclass(frozen=True, slots=True)
class FirstOfTurn:
    """The first message that belongs to a turn, and the folder of the turn's group."""

    folder: Folder
    seq: Seq


async def add(
    tx: Tx,
    message: Inbound,
    *,
    received_ms: int,
    is_request: bool,
    turn_id: TurnId | None,
    ignored_reason: str | None,
) -> Seq:
    """Store a message that is not stored yet, and return its `seq`, the number in the order of arrival.

    Either it joins the turn `turn_id`, or `ignored_reason` says why it has none; the other is None.
    `is_request` says whether the turn is to answer it; other messages only belong to the conversation.
    """
    # The group is stored with the message: the message stays with it when its chat moves to another group.
    cursor = await tx.execute(
        """
        INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms, is_from_me,
                              is_request, quoted_id, quoted_sender, quoted_content, turn_id, ignored_reason,
                              file_words, file_until_ms, thread, edits, group_folder)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                (SELECT group_folder FROM group_chats WHERE jid = ?)) RETURNING seq
        """,
        (
            message.chat_jid,
            message.id,
            message.sender,
            message.sender_name,
            with_file(message.text, message.file),
            message.sent_ms,
            received_ms,
            message.is_from_me,
            is_request,
            message.quote.message_id if message.quote else None,
            message.quote.sender if message.quote else None,
            message.quote.text if message.quote else None,
            turn_id,
            ignored_reason,
            message.file,
            message.file_until_ms,
            message.thread,
            message.edits,
            message.chat_jid,
        ),
    )
    return Seq((await returned(cursor))["seq"])


def with_file(text: str, file: str | None) -> str:
    """Return the text of a message, followed by the placeholder of its file on a line of its own."""
    return "\n".join(part for part in (text, file) if part)


async def complete(tx: Tx, message: Message, fetched: Inbound) -> None:
    """Replace the placeholder of a message's file by the final text, now that the file was fetched.

    `fetched` is the message with its file; its `file` names the stored file, or says why there is none. If
    the message quotes another one, the quoted text becomes that of `fetched`, unless it was deleted. An edit
    or a deletion of the message during the fetching stays. Quotes of the message show the final text, too.
    """
    # `content` is the whole text of the message, and `file_words` only the part of it about the file. If
    # `content` is empty, the message was deleted while its file was fetched: both stay empty. An answer waits
    # for the file until `file_until_ms`.
    await tx.execute(
        """
        UPDATE messages SET file_until_ms = NULL, file_words = CASE WHEN content = '' THEN NULL ELSE :new END,
            content = CASE WHEN :old = '' THEN content ELSE replace(content, :old, :new) END,
            quoted_content = CASE WHEN coalesce(quoted_content, '') = '' THEN quoted_content ELSE :quoted END
        WHERE seq = :seq
        """,
        {
            "seq": message.seq,
            "old": message.file or "",
            "new": fetched.file,
            "quoted": fetched.quote.text if fetched.quote else None,
        },
    )
    # In the messages that quote this one.
    await tx.execute(
        """
        UPDATE messages SET quoted_content = replace(quoted_content, :old, :new)
        WHERE chat_jid = :jid AND quoted_id = :id AND :old <> ''
        """,
        {
            "jid": message.chat_jid,
            "id": message.id,
            "old": message.file or "",
            "new": fetched.file,
        },
    )


async def claim(tx: Tx, seq: Seq, turn_id: TurnId) -> None:
    """Make a message, which had no turn until now, a request that a turn is to answer.

    The reason why it was ignored is deleted.
    """
    # One statement for all three columns, because a CHECK constraint demands a turn or a reason, never both.
    await tx.execute(
        "UPDATE messages SET turn_id = ?, is_request = 1, ignored_reason = NULL WHERE seq = ?",
        (turn_id, seq),
    )


async def newest_texts(tx: Tx, chat_jid: ChatJid, *, limit: int) -> list[str]:
    """Return the texts of the newest `limit` messages of a chat, newest first."""
    rows = await tx.execute_fetchall(
        "SELECT content FROM messages WHERE chat_jid = ? ORDER BY seq DESC LIMIT ?", (chat_jid, limit)
    )
    return [row["content"] for row in rows]


async def add_own(
    tx: Tx, sent: Outgoing, *, text: str, name: str, now_ms: int, channel_id: MessageId | None = None
) -> None:
    """Store a message that Andy has sent, as the chat saw it; storing it again changes nothing.

    `name` is Andy's name in the chat. `channel_id` is the messenger's own id of the message, if it has one.
    """
    # Sending and storing are two steps; a host that is killed between them stores the same message again.
    await tx.execute(
        """
        INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,
                              is_from_me, is_bot_message, ignored_reason, channel_id, group_folder)
        VALUES (:jid, :id, 'andy', :name, :text, :now, :now, 1, 1, :reason, :channel_id,
                (SELECT group_folder FROM group_chats WHERE jid = :jid))
        ON CONFLICT (chat_jid, id) DO NOTHING
        """,
        {
            "jid": sent.chat_jid,
            "id": sent.message_id,
            "name": name,
            "text": text,
            "now": now_ms,
            "reason": OWN_MESSAGE,
            "channel_id": channel_id,
        },
    )


async def own_by_channel_id(tx: Tx, chat_jid: ChatJid, channel_id: MessageId) -> MessageId | None:
    """Return Andy's id of the message of his that the messenger calls `channel_id`; None if there is none."""
    # Only messages that Andy sent have a `channel_id`.
    cursor = await tx.execute(
        "SELECT id FROM messages WHERE chat_jid = ? AND channel_id = ?", (chat_jid, channel_id)
    )
    row = await cursor.fetchone()
    return MessageId(row["id"]) if row else None


async def channel_id_of(tx: Tx, chat_jid: ChatJid, message_id: MessageId) -> MessageId | None:
    """Return the messenger's own id of a message that Andy sent.

    None if the messenger uses Andy's id, or the message is not stored.
    """
    cursor = await tx.execute(
        "SELECT channel_id FROM messages WHERE chat_jid = ? AND id = ?", (chat_jid, message_id)
    )
    row = await cursor.fetchone()
    return MessageId(row["channel_id"]) if row and row["channel_id"] else None


async def rewrite(tx: Tx, seq: Seq, text: str, *, is_request: bool) -> None:
    """Replace the text of a message that was edited; the line about its file stays.

    `is_request` says whether its turn is to answer it. A message without a turn is never a request.
    """
    # `char(10)` is the line break before the line about the file.
    await tx.execute(
        """
        UPDATE messages SET content = :text || coalesce(char(10) || file_words, ''),
                            is_request = (:is_request AND turn_id IS NOT NULL)
        WHERE seq = :seq
        """,
        {"text": text, "is_request": is_request, "seq": seq},
    )


async def blank(tx: Tx, message: Message) -> None:
    """Delete the text of a message, also where other messages quote it; the row and its outcome stay."""
    # The row stays, so that the message is not taken for a new one when the channel delivers it again.
    await tx.execute("UPDATE messages SET content = '', file_words = NULL WHERE seq = ?", (message.seq,))
    await tx.execute(
        "UPDATE messages SET quoted_content = '' WHERE chat_jid = ? AND quoted_id = ?",
        (message.chat_jid, message.id),
    )


async def free_id_for_edit(tx: Tx, message: Message, edit_id: MessageId) -> str | None:
    """Delete the text of an edited message, and change the id of its row to `edit_id`, that of the edit.

    So the two exchange their ids: the caller then stores the edit as a new message under the id that the
    edited one had. Return the messenger's id of the thread that the message belongs to, or None.
    """
    # The emptied row stays under the id of the edit: when the messenger delivers the edit again, a row with
    # its id is there, so it is not taken for a new message.
    cursor = await tx.execute(
        """
        UPDATE messages SET id = ?, content = '', file_words = NULL, file_until_ms = NULL
        WHERE seq = ? RETURNING thread
        """,
        (edit_id, message.seq),
    )
    thread = (await returned(cursor))["thread"]
    return None if thread is None else str(thread)


async def edits_of(tx: Tx, chat_jid: ChatJid, message_id: MessageId) -> list[Message]:
    """Return the edits of a message that are stored as rows of their own, oldest first.

    The message itself may not be stored.
    """
    return await MAPPER.fetch_all(
        tx, "SELECT * FROM messages WHERE chat_jid = ? AND edits = ? ORDER BY seq", (chat_jid, message_id)
    )


async def release(tx: Tx, seq: Seq, *, reason: str) -> None:
    """Remove a message from its turn, and store the `reason` why it belongs to none."""
    await tx.execute(
        "UPDATE messages SET turn_id = NULL, is_request = 0, ignored_reason = ? WHERE seq = ?", (reason, seq)
    )


async def release_all(tx: Tx, turn_id: TurnId, *, reason: str) -> None:
    """Remove all messages of a turn from it, and store the `reason` why they belong to none."""
    await tx.execute(
        "UPDATE messages SET turn_id = NULL, is_request = 0, ignored_reason = ? WHERE turn_id = ?",
        (reason, turn_id),
    )


async def find(tx: Tx, chat_jid: ChatJid, message_id: MessageId) -> Message | None:
    """Return the message of a chat by the id that its sender gave it, or None."""
    # Ids are unique only within a chat: senders choose their own.
    return await MAPPER.fetch_one(
        tx, "SELECT * FROM messages WHERE chat_jid = ? AND id = ?", (chat_jid, message_id)
    )


async def by_seq(tx: Tx, folder: Folder, seq: int) -> Message | None:
    """Return the message of a group by its number in the order of arrival, or None."""
    return await MAPPER.fetch_one(
        tx, "SELECT * FROM messages WHERE seq = ? AND group_folder = ?", (seq, folder)
    )


async def by_id(tx: Tx, message_id: str) -> Message | None:
    """Return a message of any chat by its id, or None; the newest where several chats share an id."""
    return await MAPPER.fetch_one(
        tx, "SELECT * FROM messages WHERE id = ? ORDER BY seq DESC LIMIT 1", (message_id,)
    )


async def requests_of(tx: Tx, turn_id: TurnId, *, limit: int) -> list[Message]:
    """Return the first `limit` messages that a turn is to answer, oldest first."""
    return await MAPPER.fetch_all(
        tx,
        "SELECT * FROM messages WHERE turn_id = ? AND is_request = 1 ORDER BY seq LIMIT ?",
        (turn_id, limit),
    )


async def questions_in_groups(tx: Tx, *, only_running: bool) -> dict[TurnId, Message]:
    """Map each turn in a group chat that was started and has not ended to the last message it answers.

    With `only_running`, only turns that run now are included, else also those that wait for another attempt.
    A turn whose last message came from a program, through a hook, is left out, even if people asked before.
    """
    # The caller shows a reaction under these messages from the start of their turns on, so turns that were
    # never started are left out.
    rows = await tx.execute_fetchall(
        """
        SELECT m.*, t.id AS turn FROM turns t
        JOIN chats c ON c.jid = t.chat_jid AND c.is_group = 1
        JOIN messages m ON m.seq = (
            SELECT max(seq) FROM messages WHERE turn_id = t.id AND is_request = 1 AND chat_jid = t.chat_jid)
        WHERE t.state IN ('queued', 'running') AND t.kind = 'chat'
          AND (t.state = 'running' OR NOT :only_running) AND t.started_ms IS NOT NULL
        """,
        {"only_running": only_running},
    )
    # A hook's message exists in no messenger.
    return {TurnId(row["turn"]): MAPPER.read(row) for row in rows if not is_hook(row["sender"])}


async def first_of_turns(tx: Tx, turn_ids: Collection[int]) -> dict[int, FirstOfTurn]:
    """Return the first message of each of these turns, keyed by turn; turns without messages are left out."""
    placeholders = ", ".join("?" * len(turn_ids))
    rows = await tx.execute_fetchall(
        f"""
        SELECT turns.id, turns.group_folder, min(messages.seq) AS seq
        FROM turns JOIN messages ON messages.turn_id = turns.id
        WHERE turns.id IN ({placeholders}) GROUP BY turns.id
        """,  # noqa: S608 - only question marks
        tuple(turn_ids),
    )
    return {row["id"]: FirstOfTurn(folder=Folder(row["group_folder"]), seq=Seq(row["seq"])) for row in rows}


async def asker_of(tx: Tx, *turn_ids: TurnId | int | None) -> str | None:
    """Return the address of the person who asked last in a turn, for a mention; None if nobody did.

    Of several turns, the first in which a person asked counts; a turn id that is None is skipped. Messages
    from the assistant's own account, and of programs that write through a hook, do not count.
    """
    for turn_id in turn_ids:
        # An owner who writes from the assistant's own number (`is_from_me`) cannot be mentioned.
        cursor = await tx.execute(
            """
            SELECT sender FROM messages
            WHERE turn_id = ? AND is_request = 1 AND is_from_me = 0 AND substr(sender, 1, ?) <> ?
            ORDER BY seq DESC LIMIT 1
            """,
            (turn_id, len(HOOK_PREFIX), HOOK_PREFIX),
        )
        row = await cursor.fetchone()
        if row is not None:
            return str(row["sender"])
    return None


async def member_to_mention(tx: Tx, chat_jid: ChatJid, sender: str) -> ChatMember | None:
    """Return the person with the address `sender` as a group chat's member, with their newest name there.

    None if they never wrote in the chat, if it is a chat of two people, or for a program behind a hook.
    """
    if is_hook(sender):
        return None
    # A mention needs the name by which the chat knows a person; somebody who never wrote has none.
    cursor = await tx.execute(
        """
        SELECT m.sender_name FROM messages m JOIN chats c ON c.jid = m.chat_jid AND c.is_group = 1
        WHERE m.chat_jid = ? AND m.sender = ? ORDER BY m.seq DESC LIMIT 1
        """,
        (chat_jid, sender),
    )
    row = await cursor.fetchone()
    return ChatMember(jid=sender, name=row["sender_name"]) if row else None


async def to_quote(tx: Tx, turn_id: TurnId, chat_jid: ChatJid) -> Message | None:
    """Return the first message that a turn answers, if the turn's next reply is to quote it, else None.

    It is quoted when something was written in the chat after it and after the last message that Andy sent in
    the turn. A message from another chat, or of a program that wrote through a hook, is never quoted.
    """
    requests = await requests_of(tx, turn_id, limit=1)
    if not requests or requests[0].chat_jid != chat_jid or is_hook(requests[0].sender):
        return None
    # Without other messages in between, a quote shows people nothing new.
    cursor = await tx.execute(
        """
        SELECT m.seq FROM messages m WHERE m.chat_jid = :jid AND m.seq > :asked AND m.seq > coalesce((
            SELECT max(own.seq) FROM outbox o JOIN messages own
                ON own.chat_jid = o.chat_jid AND own.id = o.message_id
            WHERE o.turn_id = :turn), 0)
        LIMIT 1
        """,
        {"jid": chat_jid, "asked": requests[0].seq, "turn": turn_id},
    )
    return requests[0] if await cursor.fetchone() else None


async def thread_of(tx: Tx, turn_id: TurnId, chat_jid: ChatJid) -> str | None:
    """Return the messenger's id of the thread in which the first question of a turn was asked, or None.

    None when it is in no thread, or in another chat than `chat_jid`, where the thread would mean nothing.
    """
    requests = await requests_of(tx, turn_id, limit=1)
    if not requests or requests[0].chat_jid != chat_jid:
        return None
    cursor = await tx.execute("SELECT thread FROM messages WHERE seq = ?", (requests[0].seq,))
    thread = (await returned(cursor))["thread"]
    return None if thread is None else str(thread)


async def page(
    tx: Tx, folder: Folder, *, limit: int, before_seq: int | None = None, after_seq: int | None = None
) -> list[Message]:
    """Return at most `limit` messages of a group, including Andy's own, oldest first.

    They are the newest, or those right before `before_seq`, or those right after `after_seq`; at most one of
    the two is given.
    """
    # Before or after a `seq`, the nearest messages are selected, not the newest; both are returned oldest
    # first. `1 << 62` is above every `seq`.
    order = "DESC" if after_seq is None else "ASC"
    return await MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM (
            SELECT * FROM messages
            WHERE group_folder = :folder
              AND seq < coalesce(:before, 1 << 62) AND seq > coalesce(:after, -1)
            ORDER BY seq {order} LIMIT :limit)
        ORDER BY seq
        """,  # noqa: S608 - one of two words
        {"folder": folder, "before": before_seq, "after": after_seq, "limit": limit},
    )


async def turns_of_own(tx: Tx, messages: Sequence[Message]) -> dict[int, int]:
    """Return the turns in which Andy sent its own messages among `messages`, keyed by the message's `seq`."""
    # Andy's own messages have no turn in this table; only the outbox records it.
    seq_by_id = {message.id: message.seq for message in messages if message.is_bot_message}
    rows = await tx.execute_fetchall(
        """
        SELECT message_id, turn_id FROM outbox
        WHERE message_id IN (SELECT value FROM json_each(?)) AND turn_id IS NOT NULL
        """,
        (json.dumps(list(seq_by_id)),),
    )
    return {seq_by_id[row["message_id"]]: row["turn_id"] for row in rows}


async def count(tx: Tx, folder: Folder) -> int:
    """Return how many messages of a group have text; a deleted message has none."""
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM messages WHERE group_folder = ? AND content <> ''", (folder,)
    )
    return int((await returned(cursor))["n"])


async def newest(tx: Tx, chat_jid: ChatJid, *, limit: int) -> list[Message]:
    """Return the newest `limit` messages of a chat, including Andy's own, oldest first."""
    return await MAPPER.fetch_all(
        tx,
        "SELECT * FROM (SELECT * FROM messages WHERE chat_jid = ? ORDER BY seq DESC LIMIT ?) ORDER BY seq",
        (chat_jid, limit),
    )


async def sent_in(tx: Tx, turn_id: TurnId) -> list[Message]:
    """Return the messages that were sent in a turn, with the text that the chat saw, oldest first."""
    return await MAPPER.fetch_all(
        tx,
        """
        SELECT m.* FROM outbox o JOIN messages m ON m.chat_jid = o.chat_jid AND m.id = o.message_id
        WHERE o.turn_id = ? AND o.state = 'sent' ORDER BY coalesce(o.part_of, o.id), o.part
        """,
        (turn_id,),
    )


async def before_in_turn(tx: Tx, turn_id: TurnId, chat_jid: ChatJid, message_id: MessageId | str) -> int:
    """Count the messages of a turn that arrived before the given message of the same turn."""
    cursor = await tx.execute(
        """
        SELECT count(*) AS n FROM messages
        WHERE turn_id = ? AND seq < (SELECT seq FROM messages WHERE chat_jid = ? AND id = ?)
        """,
        (turn_id, chat_jid, message_id),
    )
    return int((await returned(cursor))["n"])


MAX_UNREAD = 100
"""The most unread messages of a group that are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group in a list of conversations: its newest message, and the number of unread ones."""

    folder: Folder
    name: str
    sender: str
    """The name of the newest message's sender; empty if there is no message yet."""
    text: str
    """The beginning of the newest message."""
    at_ms: int | None
    unread: int
    """Messages after the last one that the owner was shown in the console, at most `MAX_UNREAD`."""
    state: str
    """`running` or `queued` if a turn is, `failed` if the last question got no answer, else empty."""


async def group_summaries(tx: Tx) -> Collection[GroupSummary]:
    """Return a summary of each group for a list of conversations, the most recently active first.

    It has the beginning of the newest message, the number of messages that the owner has not read in the
    console, up to `MAX_UNREAD`, and the state of the group's turns: `running` or `queued` if one is, `failed`
    if the last question got no answer, else empty.
    """
    # One statement: a query for each of fifty groups took 125 ms in total. With a queued and a running turn,
    # `max(state)` is 'running', the later word in the alphabet.
    rows = await tx.execute_fetchall(
        """
        SELECT g.folder, g.name, m.sent_ms AS at_ms, coalesce(m.sender_name, '') AS sender,
            coalesce(substr(m.content, 1, 200), '') AS text,
            (SELECT count(*) FROM (
                SELECT 1 FROM messages u
                WHERE u.group_folder = g.folder AND u.seq > CAST(coalesce(r.value, '0') AS INTEGER)
                LIMIT :most)) AS unread,
            coalesce(
                (SELECT max(state) FROM turns
                 WHERE state IN ('queued', 'running') AND group_folder = g.folder),
                (SELECT CASE state WHEN 'failed' THEN state ELSE '' END FROM turns
                 WHERE group_folder = g.folder AND kind = 'chat' ORDER BY id DESC LIMIT 1), '') AS state
        FROM registered_groups g
        LEFT JOIN router_state r ON r.key = :read || g.folder
        LEFT JOIN messages m ON m.seq = (SELECT max(seq) FROM messages WHERE group_folder = g.folder)
        ORDER BY m.seq DESC NULLS LAST, g.folder
        """,
        {"most": MAX_UNREAD, "read": _READ},
    )
    return [GroupSummary(**dict(row)) for row in rows]


async def mark_read(tx: Tx, folder: Folder, seq: int) -> None:
    """Record that the owner has read a group's messages up to `seq` in the console.

    A lower `seq` than the stored one changes nothing.
    """
    await tx.execute(
        """
        INSERT INTO router_state (key, value) VALUES (:key, :seq)
        ON CONFLICT (key) DO UPDATE SET value = max(CAST(value AS INTEGER), :seq)
        """,
        {"key": _READ + folder, "seq": seq},
    )


async def read_up_to(tx: Tx, folder: Folder) -> int:
    """Return the `seq` of the last message of a group that the owner has read in the console; 0 for none."""
    cursor = await tx.execute("SELECT value FROM router_state WHERE key = ?", (_READ + folder,))
    row = await cursor.fetchone()
    return int(row["value"]) if row else 0
