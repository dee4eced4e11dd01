-- The thread or topic of its chat that a message stands in, as the messenger calls it.
ALTER TABLE messages ADD COLUMN thread TEXT;
