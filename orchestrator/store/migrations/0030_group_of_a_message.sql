-- The group that the message's chat belonged to when it was stored. A chat may move to another group: what was said
-- in it before stays with the group that it was said to. NULL: the chat belonged to none.
ALTER TABLE messages ADD COLUMN group_folder TEXT;
UPDATE messages SET group_folder = coalesce(
    (SELECT t.group_folder FROM turns t WHERE t.id = messages.turn_id),
    (SELECT c.group_folder FROM group_chats c WHERE c.jid = messages.chat_jid));
CREATE INDEX messages_of_group ON messages (group_folder, seq);
