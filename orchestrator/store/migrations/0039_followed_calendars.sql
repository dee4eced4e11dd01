-- Calendars of the owner's that Andy reads for a group, and their events to come, as they were read last.
CREATE TABLE followed_calendars (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder   TEXT NOT NULL,
    name           TEXT NOT NULL,
    address        TEXT NOT NULL,
    user           TEXT,
    password_env   TEXT,
    notice_minutes INTEGER,
    created_ms     INTEGER NOT NULL,
    looked_ms      INTEGER,
    read_ms        INTEGER,
    failures       INTEGER NOT NULL DEFAULT 0,
    problem        TEXT,
    UNIQUE (group_folder, name)
) STRICT;
CREATE TABLE calendar_events (
    calendar_id INTEGER NOT NULL REFERENCES followed_calendars (id) ON DELETE CASCADE,
    id          TEXT NOT NULL,
    start_ms    INTEGER NOT NULL,
    end_ms      INTEGER NOT NULL,
    is_all_day  INTEGER NOT NULL,
    title       TEXT NOT NULL,
    place       TEXT NOT NULL,
    PRIMARY KEY (calendar_id, id, start_ms)
) STRICT;
CREATE INDEX calendar_events_by_start ON calendar_events (start_ms);
