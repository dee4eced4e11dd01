-- Who asks in a turn, and what a role may do. The roles themselves are settings of the group.

-- The least role of those who asked; what nobody asked in a chat, and all of before, is the owner's.
ALTER TABLE turns ADD COLUMN role TEXT NOT NULL DEFAULT 'owner' CHECK (role IN ('owner', 'member', 'guest'));
-- Whether that role may not do everything: the turn shares no container and no session.
ALTER TABLE turns ADD COLUMN is_restricted INTEGER NOT NULL DEFAULT 0 CHECK (is_restricted IN (0, 1));
-- A question of somebody who may less waits in a turn of its own: it neither lowers nor gains by others.
DROP INDEX turns_one_queued_chat;
CREATE UNIQUE INDEX turns_one_queued_chat
    ON turns (chat_jid, after_command, (CASE is_restricted WHEN 1 THEN role ELSE '' END))
    WHERE state = 'queued' AND kind = 'chat' AND command IS NULL;

-- The role of the one restricted turn that a container was made for; NULL for whoever asks.
ALTER TABLE runs ADD COLUMN role TEXT CHECK (role IN ('owner', 'member', 'guest'));
-- The role of whoever had the task made.
ALTER TABLE scheduled_tasks ADD COLUMN role TEXT NOT NULL DEFAULT 'owner'
    CHECK (role IN ('owner', 'member', 'guest'));

-- Everybody who was seen in a group, and since when: before that is the history of before they joined.
CREATE TABLE group_people (
    group_folder TEXT NOT NULL,
    address      TEXT NOT NULL,
    name         TEXT NOT NULL,
    since_seq    INTEGER NOT NULL,
    since_ms     INTEGER NOT NULL,
    PRIMARY KEY (group_folder, address)
) STRICT;
INSERT INTO group_people (group_folder, address, name, since_seq, since_ms)
SELECT seen.group_folder, seen.sender, newest.sender_name, seen.first_seq, seen.first_ms
FROM (
    SELECT group_folder, sender, min(seq) AS first_seq, max(seq) AS last_seq, min(received_ms) AS first_ms
    FROM messages WHERE group_folder IS NOT NULL AND is_bot_message = 0 AND sender <> ''
    GROUP BY group_folder, sender
) AS seen JOIN messages AS newest ON newest.seq = seen.last_seq;

-- The addresses under which a messenger knows one person: a phone number behind an opaque one.
CREATE TABLE sender_aliases (
    alias  TEXT PRIMARY KEY,
    person TEXT NOT NULL
) STRICT;
CREATE INDEX sender_aliases_of_person ON sender_aliases (person);
