-- Chats without a group that called Andy, what their owner is asked of each, and what he decided.
CREATE TABLE access_requests (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    chat_jid    TEXT NOT NULL UNIQUE REFERENCES chats (jid),
    -- What was seen when it called; all of it is bounded. The words go when it is decided.
    chat_name   TEXT NOT NULL,
    channel     TEXT NOT NULL,
    is_direct   INTEGER NOT NULL,
    people      INTEGER,
    sender      TEXT NOT NULL,
    sender_name TEXT NOT NULL,
    is_owner    INTEGER NOT NULL,
    message_id  TEXT NOT NULL,
    words       TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('waiting', 'registered', 'ignored', 'blocked')),
    asked_ms    INTEGER NOT NULL,
    -- When main was asked; NULL of one that is only listed.
    notified_ms INTEGER,
    decided_ms  INTEGER,
    decided_by  TEXT
) STRICT;
-- A chat that was only seen may be forgotten: whatever refers to chats is looked through then.
CREATE INDEX turns_of_chat ON turns (chat_jid);
CREATE INDEX outbox_of_chat ON outbox (chat_jid);
CREATE INDEX notifications_of_chat ON notifications (chat_jid);
