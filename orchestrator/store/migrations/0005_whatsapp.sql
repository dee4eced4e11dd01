-- A file that goes with a message: where its copy lies, what people see it called, what it is.
ALTER TABLE outbox ADD COLUMN file_path TEXT;
ALTER TABLE outbox ADD COLUMN file_name TEXT;
ALTER TABLE outbox ADD COLUMN file_mime TEXT;

-- Who is in a chat, as its messenger told last.
CREATE TABLE chat_members (
    chat_jid   TEXT NOT NULL REFERENCES chats (jid) ON DELETE CASCADE,
    member_jid TEXT NOT NULL,
    name       TEXT NOT NULL DEFAULT '',
    is_admin   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (chat_jid, member_jid)
) STRICT;
