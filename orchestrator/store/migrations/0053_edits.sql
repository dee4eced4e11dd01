-- The id of the message whose text this one replaces, for an edit that is stored beside that message; NULL for any
-- other. Whoever deletes a message deletes its edits, too.
ALTER TABLE messages ADD COLUMN edits TEXT;
CREATE INDEX messages_of_edited ON messages (chat_jid, edits) WHERE edits IS NOT NULL;
