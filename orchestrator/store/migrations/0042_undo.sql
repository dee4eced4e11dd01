-- What turns changed, row by row and file by file, so that it can be taken back. Times are epoch ms, UTC.

CREATE TABLE turn_effects (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id    INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    -- A table of this database, or 'file'.
    table_name TEXT NOT NULL,
    -- The values of its primary key, or the path of the file in the group's folder, as a JSON array.
    row_key    TEXT NOT NULL CHECK (json_valid(row_key)),
    -- The whole row before the turn and after it; NULL where there was none.
    before     TEXT CHECK (before IS NULL OR json_valid(before)),
    after      TEXT CHECK (after IS NULL OR json_valid(after)),
    UNIQUE (turn_id, table_name, row_key)
) STRICT;
CREATE INDEX turn_effects_of_row ON turn_effects (table_name, row_key, turn_id);
CREATE INDEX turn_effects_at ON turn_effects (at_ms);

-- Each undo is a turn of its own, which can be undone like any other.
CREATE TABLE undos (
    turn_id      INTEGER PRIMARY KEY,
    undoes       INTEGER NOT NULL,
    group_folder TEXT NOT NULL,
    by_whom      TEXT NOT NULL,
    at_ms        INTEGER NOT NULL,
    -- Whether files of the group have still to be put back: that is done after the commit, again after a crash.
    has_files_due INTEGER NOT NULL DEFAULT 0 CHECK (has_files_due IN (0, 1))
) STRICT;
CREATE INDEX undos_of_turn ON undos (undoes);
CREATE INDEX undos_due ON undos (turn_id) WHERE has_files_due = 1;
