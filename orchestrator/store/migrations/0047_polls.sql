-- Questions with options that chats were asked, and who chose what. Times are epoch ms, UTC.

CREATE TABLE polls (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder   TEXT NOT NULL,
    chat_jid       TEXT NOT NULL,
    -- The message of the outbox that asks it.
    message_id     TEXT NOT NULL UNIQUE,
    question       TEXT NOT NULL CHECK (question <> ''),
    options_json   TEXT NOT NULL CHECK (json_valid(options_json)),
    is_multiple    INTEGER NOT NULL DEFAULT 0 CHECK (is_multiple IN (0, 1)),
    -- Whether it stands in the chat as a text with numbers, because its messenger shows no poll there.
    is_text        INTEGER NOT NULL DEFAULT 0 CHECK (is_text IN (0, 1)),
    -- What the messenger calls the poll, where that is not the id of its message.
    channel_ref    TEXT,
    -- The question of the group's board that it asks; NULL of the agent's own.
    board_question TEXT,
    -- The role in whose turn it was asked: its end is worked on with no more than that.
    role           TEXT NOT NULL DEFAULT 'owner' CHECK (role IN ('owner', 'member', 'guest')),
    created_ms     INTEGER NOT NULL,
    ends_ms        INTEGER,
    ended_ms       INTEGER,
    -- When the messenger was told of the end, or will never be.
    closed_ms      INTEGER,
    -- The turns that its answers have begun.
    begun          INTEGER NOT NULL DEFAULT 0,
    -- The turn that its end has begun.
    end_turn       INTEGER
) STRICT;
CREATE INDEX polls_of_chat ON polls (chat_jid, id);
CREATE UNIQUE INDEX polls_of_ref ON polls (channel_ref) WHERE channel_ref IS NOT NULL;
CREATE INDEX polls_ending ON polls (ends_ms) WHERE ends_ms IS NOT NULL AND closed_ms IS NULL;
CREATE INDEX polls_of_end ON polls (end_turn) WHERE end_turn IS NOT NULL;

-- The newest vote of each person; one that was taken back has no options.
CREATE TABLE poll_votes (
    poll_id      INTEGER NOT NULL REFERENCES polls (id) ON DELETE CASCADE,
    voter        TEXT NOT NULL,
    voter_name   TEXT NOT NULL,
    chosen_json  TEXT NOT NULL CHECK (json_valid(chosen_json)),
    voted_ms     INTEGER NOT NULL,
    -- The messenger's id of the vote, and the message that stands for it in the conversation.
    vote_id      TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    PRIMARY KEY (poll_id, voter)
) STRICT;
CREATE INDEX poll_votes_of_vote ON poll_votes (vote_id);
