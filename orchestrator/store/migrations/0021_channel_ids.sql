-- The messenger's own id of a message that Andy sent, where the messenger does not take Andy's.
ALTER TABLE messages ADD COLUMN channel_id TEXT;
CREATE INDEX messages_by_channel_id ON messages (chat_jid, channel_id) WHERE channel_id IS NOT NULL;
