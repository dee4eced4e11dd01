-- A group may have chats in several messengers. `registered_groups.jid` names the one of them that is told what
-- nobody asked for in another.
CREATE TABLE group_chats (
    jid          TEXT PRIMARY KEY REFERENCES chats (jid),
    group_folder TEXT NOT NULL,
    added_ms     INTEGER NOT NULL
) STRICT;
CREATE INDEX group_chats_of_group ON group_chats (group_folder);
INSERT INTO group_chats (jid, group_folder, added_ms) SELECT jid, folder, added_ms FROM registered_groups;

-- A session command is said to the group's one conversation, whichever of its chats it comes from.
DROP INDEX turns_commands;
CREATE INDEX turns_commands ON turns (group_folder, id) WHERE command IS NOT NULL;
