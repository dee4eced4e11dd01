-- An index over the words of all messages. It is kept by triggers, so a message and what is found of it change
-- in one transaction: who edits, retracts or removes a message takes its old words out of the index.
-- Three characters make a term, so parts of words are found too, also of Korean, which does not part them by blanks.

CREATE VIRTUAL TABLE message_search USING fts5(content, content = 'messages', content_rowid = 'seq', tokenize = 'trigram');

-- The messages from here on are in the index. Older ones are added in the background, the newest first: an upgrade
-- must not keep a host with a million messages from starting.
CREATE TABLE message_search_progress (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    from_seq INTEGER NOT NULL
) STRICT;
INSERT INTO message_search_progress (id, from_seq) SELECT 1, coalesce(max(seq), 0) + 1 FROM messages;

CREATE TRIGGER message_search_adds AFTER INSERT ON messages
BEGIN
    INSERT INTO message_search (rowid, content) VALUES (new.seq, new.content);
END;
CREATE TRIGGER message_search_changes AFTER UPDATE OF content ON messages
WHEN new.content <> old.content AND old.seq >= (SELECT from_seq FROM message_search_progress)
BEGIN
    INSERT INTO message_search (message_search, rowid, content) VALUES ('delete', old.seq, old.content);
    INSERT INTO message_search (rowid, content) VALUES (new.seq, new.content);
END;
CREATE TRIGGER message_search_removes AFTER DELETE ON messages
WHEN old.seq >= (SELECT from_seq FROM message_search_progress)
BEGIN
    INSERT INTO message_search (message_search, rowid, content) VALUES ('delete', old.seq, old.content);
END;
