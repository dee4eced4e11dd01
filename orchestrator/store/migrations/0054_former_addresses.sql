-- The addresses that a group's chat had before its messenger gave it the present one. The owner's rules name a chat
-- by its address and are not written by Andy: a rule for a former address still counts for the chat.
CREATE TABLE former_addresses (
    former TEXT PRIMARY KEY,
    chat_jid TEXT NOT NULL
) STRICT;
CREATE INDEX former_addresses_by_chat ON former_addresses (chat_jid);
