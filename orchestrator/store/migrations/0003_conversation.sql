-- A reply too long for its channel leaves in parts, each a row, in the place of the whole.
ALTER TABLE outbox ADD COLUMN part_of INTEGER REFERENCES outbox (id);
ALTER TABLE outbox ADD COLUMN part INTEGER;
DROP INDEX outbox_due;
CREATE INDEX outbox_due ON outbox (chat_jid, coalesce(part_of, id), part) WHERE state IN ('pending', 'sending');

-- A session command is a turn of its own. What is said after it never joins what was said before.
ALTER TABLE turns ADD COLUMN command TEXT CHECK (command IN ('compact', 'clear'));
ALTER TABLE turns ADD COLUMN after_command INTEGER NOT NULL DEFAULT 0;
DROP INDEX turns_one_queued_chat;
CREATE UNIQUE INDEX turns_one_queued_chat ON turns (chat_jid, after_command)
    WHERE state = 'queued' AND kind = 'chat' AND command IS NULL;
CREATE INDEX turns_commands ON turns (chat_jid, id) WHERE command IS NOT NULL;
