-- A value that is another one after each change of a group or of its chats, by whatever program. So loops that
-- follow all groups read them again only after a change. It is random and not counted: a count that a rolled
-- back transaction had reached would come again, for other rows.

CREATE TRIGGER group_added AFTER INSERT ON registered_groups BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;

CREATE TRIGGER group_changed AFTER UPDATE ON registered_groups BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;

CREATE TRIGGER group_removed AFTER DELETE ON registered_groups BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;

CREATE TRIGGER group_chat_added AFTER INSERT ON group_chats BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;

CREATE TRIGGER group_chat_changed AFTER UPDATE ON group_chats BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;

CREATE TRIGGER group_chat_removed AFTER DELETE ON group_chats BEGIN
    INSERT INTO router_state (key, value) VALUES ('group_revision', hex(randomblob(8)))
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;
END;
