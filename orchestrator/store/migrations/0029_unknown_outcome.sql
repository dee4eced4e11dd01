-- A message whose sending may or may not have reached its chat is 'unknown', and no longer counted among the dead.
ALTER TABLE outbox RENAME TO outbox_before;
CREATE TABLE outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder    TEXT,
    chat_jid        TEXT NOT NULL REFERENCES chats (jid),
    text            TEXT NOT NULL,
    dedupe_key      TEXT NOT NULL UNIQUE,
    message_id      TEXT NOT NULL UNIQUE,
    state           TEXT NOT NULL
        CHECK (state IN ('held', 'pending', 'sending', 'sent', 'skipped', 'unknown', 'dead')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    sent_ms         INTEGER,
    turn_id         INTEGER REFERENCES turns (id),
    error           TEXT,
    part_of         INTEGER REFERENCES outbox (id),
    part            INTEGER,
    file_path       TEXT,
    file_name       TEXT,
    file_mime       TEXT,
    mention         TEXT
) STRICT;
INSERT INTO outbox (id, group_folder, chat_jid, text, dedupe_key, message_id, state, attempts, next_attempt_ms,
    created_ms, sent_ms, turn_id, error, part_of, part, file_path, file_name, file_mime, mention)
SELECT id, group_folder, chat_jid, text, dedupe_key, message_id,
    -- The sentence of the error was all that told them from the dead.
    CASE WHEN state = 'dead' AND error LIKE 'The message may have arrived%' THEN 'unknown' ELSE state END,
    attempts, next_attempt_ms, created_ms, sent_ms, turn_id, error, part_of, part,
    file_path, file_name, file_mime, mention
FROM outbox_before;
-- Ids are not given again: what refers to a message that is gone must not mean another one.
DELETE FROM sqlite_sequence WHERE name = 'outbox';
UPDATE sqlite_sequence SET name = 'outbox' WHERE name = 'outbox_before';
DROP TABLE outbox_before;
CREATE INDEX outbox_due ON outbox (chat_jid, coalesce(part_of, id), part) WHERE state IN ('pending', 'sending');
CREATE INDEX outbox_of_turn ON outbox (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX outbox_parts ON outbox (part_of) WHERE part_of IS NOT NULL;
