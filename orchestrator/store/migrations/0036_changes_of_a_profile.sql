-- A group's name, trigger and way of being called are changed and put back like its settings and memory.
-- SQLite cannot change a CHECK, so the table is made anew; its numbers go on from the highest.
DROP INDEX group_changes_by_part;
ALTER TABLE group_changes RENAME TO group_changes_before;
CREATE TABLE group_changes (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    part         TEXT NOT NULL CHECK (part IN ('profile', 'settings', 'memory')),
    at_ms        INTEGER NOT NULL,
    by_whom      TEXT NOT NULL, -- the browser, the command line, main or a program
    before       TEXT NOT NULL,
    after        TEXT NOT NULL,
    added        INTEGER NOT NULL, -- lines
    removed      INTEGER NOT NULL,
    undoes       INTEGER -- the change before which the text was as it is again
) STRICT;
INSERT INTO group_changes SELECT * FROM group_changes_before;
DROP TABLE group_changes_before;
CREATE INDEX group_changes_by_part ON group_changes (group_folder, part, id);
