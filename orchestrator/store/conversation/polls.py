"""`polls` and `poll_votes`: questions with options that were sent to chats, and the votes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatJid, Folder, MessageId, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper

MAX_VOTES = 2_000
"""Most stored votes of one poll: as many as a large chat has people."""


_MAPPER = RowMapper(
    Poll,
    "polls",
    {"folder": "group_folder", "options": Json("options_json")},
    assigned=("id",),
    unread=("channel_ref", "closed_ms", "end_turn"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollVote:
    """The newest vote of a person."""

    voter: str
    name: str
    chosen: tuple[int, ...]
    """The places of the chosen options, from 0; empty if the vote was withdrawn."""
    voted_ms: int
    vote_id: MessageId
    message_id: MessageId
    """The message that represents the vote in the conversation."""


_VOTE_MAPPER = RowMapper(
    PollVote,
    "poll_votes",
    {"name": "voter_name", "chosen": Json("chosen_json")},
    unread=("poll_id",),
)


async def add(tx: Tx, poll: Poll) -> None:
    """Store a poll whose message is in the outbox.

    If the message has a poll already, only the text of the poll's question is replaced.
    """
    # A dashboard question that is sent once more, perhaps in other words, keeps its message and its poll.
    row = _MAPPER.values(poll)
    await tx.execute(
        f"{_MAPPER.insert_sql(row)} ON CONFLICT (message_id) DO UPDATE SET question = excluded.question", row
    )


async def count_since(tx: Tx, folder: Folder, since_ms: int, *, now_ms: int) -> int:
    """Return how many polls of a group were created since `since_ms` (epoch ms).

    A time after `now_ms` is of a clock that was ahead: such a poll is not counted.
    """
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM polls WHERE group_folder = ? AND created_ms BETWEEN ? AND ?",
        (folder, since_ms, now_ms),
    )
    return int((await returned(cursor))["n"])


async def of_message(tx: Tx, message_id: MessageId | None) -> Poll | None:
    """Return the poll that Andy sent as this message, or None."""
    return await _first(tx, "message_id = ?", message_id)


async def of_ref(tx: Tx, channel_ref: str) -> Poll | None:
    """Return the poll that the messenger knows by the id `channel_ref`, or None."""
    return await _first(tx, "channel_ref = ?", channel_ref)


async def of_vote(tx: Tx, chat_jid: ChatJid, vote_id: MessageId, *, voter: str) -> Poll | None:
    """Return the poll of a chat in which the newest vote of `voter` is the message `vote_id`, or None."""
    return await _first(
        tx,
        "chat_jid = ? AND id IN (SELECT poll_id FROM poll_votes WHERE vote_id = ? AND voter = ?)",
        chat_jid,
        vote_id,
        voter,
    )


async def ended_in(tx: Tx, turn_id: TurnId) -> list[Poll]:
    """Return the ended polls whose results the agent reports in this turn."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM polls WHERE end_turn = ? ORDER BY id", (turn_id,))


async def newest_sent_as_text(tx: Tx, chat_jid: ChatJid, *, since_ms: int) -> Poll | None:
    """Return the newest open poll since `since_ms` that a chat was sent as a numbered text, or None.

    Messengers without polls get one as text, and people answer with the number of an option.
    """
    return await _first(
        tx,
        """id = (SELECT max(p.id) FROM polls AS p JOIN outbox AS o ON o.message_id = p.message_id
                 WHERE p.chat_jid = ? AND p.is_text = 1 AND p.ended_ms IS NULL AND p.created_ms >= ?
                 AND o.state = 'sent')""",
        chat_jid,
        since_ms,
    )


async def of_messages(tx: Tx, message_ids: Sequence[MessageId]) -> list[Poll]:
    """Return the polls that were sent as these messages, in the order in which they were created."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM polls WHERE message_id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (json.dumps(list(message_ids)),),
    )


async def ended_by(tx: Tx, now_ms: int) -> list[Poll]:
    """Return the polls whose time limit has passed, but whose end is not recorded yet."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM polls WHERE ends_ms <= ? AND ended_ms IS NULL ORDER BY ends_ms", (now_ms,)
    )


async def to_close(tx: Tx) -> list[Poll]:
    """Return the ended polls with a time limit (`ends_ms`) that are not yet closed in their messenger."""
    return await _MAPPER.fetch_all(
        tx,
        "SELECT * FROM polls WHERE ended_ms IS NOT NULL AND ends_ms IS NOT NULL AND closed_ms IS NULL"
        " ORDER BY id",
    )


async def next_end_ms(tx: Tx) -> int | None:
    """Return when the time limit of the next open poll ends (epoch ms); None if no open poll has one."""
    rows = await tx.execute_fetchall("SELECT min(ends_ms) AS at_ms FROM polls WHERE ended_ms IS NULL")
    end_ms = next(iter(rows))["at_ms"]
    return int(end_ms) if end_ms is not None else None


async def end(tx: Tx, poll: Poll, turn_id: TurnId | None, *, now_ms: int) -> None:
    """Record that a poll has ended. The turn `turn_id` reports the result; None if nobody reports it.

    A poll that has ended before is left unchanged.
    """
    await tx.execute(
        "UPDATE polls SET ended_ms = ?, end_turn = ? WHERE id = ? AND ended_ms IS NULL",
        (now_ms, turn_id, poll.id),
    )


async def note_closed(tx: Tx, poll: Poll, *, now_ms: int) -> None:
    """Record that a poll was closed in its messenger, or that nobody will try to close it any more."""
    await tx.execute("UPDATE polls SET closed_ms = ? WHERE id = ?", (now_ms, poll.id))


async def note_text(tx: Tx, message_id: MessageId) -> None:
    """Record that a poll is sent as a numbered text, because its chat cannot show a poll."""
    await tx.execute("UPDATE polls SET is_text = 1 WHERE message_id = ?", (message_id,))


async def note_ref(tx: Tx, message_id: MessageId, channel_ref: str) -> None:
    """Record the id under which the messenger knows a poll."""
    await tx.execute("UPDATE polls SET channel_ref = ? WHERE message_id = ?", (channel_ref, message_id))


async def note_turn_started(tx: Tx, poll: Poll) -> None:
    """Count one more turn that was started by a vote in a poll."""
    await tx.execute("UPDATE polls SET begun = begun + 1 WHERE id = ?", (poll.id,))


async def move(tx: Tx, old: ChatJid, new: ChatJid) -> None:
    """Assign the polls of a chat to the chat's new address."""
    await tx.execute("UPDATE polls SET chat_jid = ? WHERE chat_jid = ?", (new, old))


async def votes_of(tx: Tx, poll: Poll) -> list[PollVote]:
    """Return the votes in a poll, one of each person, including withdrawn ones, oldest first.

    A person who votes again replaces their row.
    """
    return await _VOTE_MAPPER.fetch_all(
        tx, "SELECT * FROM poll_votes WHERE poll_id = ? ORDER BY voted_ms, voter", (poll.id,)
    )


async def vote_of(tx: Tx, poll: Poll, voter: str) -> PollVote | None:
    """Return the newest vote of a person in a poll, or None if they never voted."""
    return await _VOTE_MAPPER.fetch_one(
        tx, "SELECT * FROM poll_votes WHERE poll_id = ? AND voter = ?", (poll.id, voter)
    )


async def count_voters(tx: Tx, poll: Poll) -> int:
    """Return how many people have at least one option chosen in a poll."""
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM poll_votes WHERE poll_id = ? AND chosen_json <> '[]'", (poll.id,)
    )
    return int((await returned(cursor))["n"])


async def put_vote(tx: Tx, poll: Poll, vote: PollVote) -> bool:
    """Store a person's vote in a poll, in place of an earlier vote of theirs.

    Return False, and store nothing, if the stored vote is newer or `MAX_VOTES` others have voted.
    """
    cursor = await tx.execute(
        """
        INSERT INTO poll_votes (poll_id, voter, voter_name, chosen_json, voted_ms, vote_id, message_id)
        SELECT :poll, :voter, :name, :chosen, :at, :vote, :message
        WHERE (SELECT count(*) FROM poll_votes WHERE poll_id = :poll AND voter <> :voter) < :most
        ON CONFLICT (poll_id, voter) DO UPDATE SET voter_name = excluded.voter_name,
            chosen_json = excluded.chosen_json, voted_ms = excluded.voted_ms, vote_id = excluded.vote_id,
            message_id = excluded.message_id
        WHERE excluded.voted_ms >= voted_ms
        """,
        {
            "poll": poll.id,
            "voter": vote.voter,
            "name": vote.name,
            "chosen": json.dumps(vote.chosen),
            "at": vote.voted_ms,
            "vote": vote.vote_id,
            "message": vote.message_id,
            "most": MAX_VOTES,
        },
    )
    return cursor.rowcount == 1


async def take_back(tx: Tx, chat_jid: ChatJid, vote_id: MessageId, *, voters: Collection[str] | None) -> None:
    """Empty the vote that came as the message `vote_id`, which was deleted in the messenger.

    Its row stays, as a vote for no option. Nothing happens if the chat has no such vote of one of the
    `voters`; for None, which is a moderator's deletion, it may be anybody's.
    """
    await tx.execute(
        """
        UPDATE poll_votes SET chosen_json = '[]' WHERE vote_id = :vote
            AND (:voters IS NULL OR voter IN (SELECT value FROM json_each(:voters)))
            AND poll_id IN (SELECT id FROM polls WHERE chat_jid = :chat)
        """,
        {
            "vote": vote_id,
            "voters": None if voters is None else json.dumps(sorted(voters)),
            "chat": chat_jid,
        },
    )


async def forget_person(tx: Tx, folder: Folder, addresses: Collection[str]) -> None:
    """Delete all votes in a group's polls of the person who has these addresses."""
    await tx.execute(
        """
        DELETE FROM poll_votes WHERE voter IN (SELECT value FROM json_each(?))
            AND poll_id IN (SELECT id FROM polls WHERE group_folder = ?)
        """,
        (json.dumps(sorted(addresses)), folder),
    )


async def _first(tx: Tx, where: str, *values: object) -> Poll | None:
    """Return the first poll for which the SQL condition `where`, with these parameters, holds; or None."""
    return await _MAPPER.fetch_one(tx, f"SELECT * FROM polls WHERE {where}", values)  # noqa: S608 - constants
