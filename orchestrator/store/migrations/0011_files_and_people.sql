-- What stands for a message's file in its text, and until when it is being fetched: its turn waits so long.
ALTER TABLE messages ADD COLUMN file_words TEXT;
ALTER TABLE messages ADD COLUMN file_until_ms INTEGER;
CREATE INDEX messages_files_to_come ON messages (chat_jid, seq) WHERE file_until_ms IS NOT NULL;

-- Who asked for a reminder, and whom a message is to mention, by their messenger's address.
ALTER TABLE reminders ADD COLUMN asked_by TEXT;
ALTER TABLE outbox ADD COLUMN mention TEXT;
