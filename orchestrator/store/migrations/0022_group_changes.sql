-- Changes of a group's settings and of its memory file by its owner, with the whole text before and after each.
CREATE TABLE group_changes (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    part         TEXT NOT NULL CHECK (part IN ('settings', 'memory')),
    at_ms        INTEGER NOT NULL,
    by_whom      TEXT NOT NULL, -- the browser, or the command line
    before       TEXT NOT NULL,
    after        TEXT NOT NULL,
    added        INTEGER NOT NULL, -- lines
    removed      INTEGER NOT NULL,
    undoes       INTEGER -- the change before which the text was as it is again
) STRICT;
CREATE INDEX group_changes_by_part ON group_changes (group_folder, part, id);
