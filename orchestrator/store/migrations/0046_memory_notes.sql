-- What an agent notes of people, and people who are to be forgotten. Times are epoch milliseconds, UTC.

CREATE TABLE memory_notes (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    text         TEXT NOT NULL CHECK (text <> ''),
    -- The addresses of the people whom it concerns, a JSON array; empty where it concerns nobody by name.
    about_json   TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(about_json)),
    -- The addresses of those who asked in its turn, as the messenger has them: one of them said it. Empty
    -- where nobody asked, as in a scheduled task.
    said_by_json TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(said_by_json)),
    at_ms        INTEGER NOT NULL,
    request_id   TEXT NOT NULL,
    UNIQUE (group_folder, request_id)
) STRICT;
CREATE INDEX memory_notes_of_group ON memory_notes (group_folder, id);

-- A person who wants to be forgotten in a group. The row stays until it is done, also after a crash.
CREATE TABLE person_removals (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder   TEXT NOT NULL,
    -- All addresses of the person, a JSON array.
    addresses_json TEXT NOT NULL CHECK (json_valid(addresses_json)),
    chat_jid       TEXT,
    by_whom        TEXT NOT NULL,
    -- asked: waits for a yes; due: is to be done.
    state          TEXT NOT NULL CHECK (state IN ('asked', 'due')),
    -- Messages up to this one go; what they write later is another matter.
    last_seq       INTEGER NOT NULL,
    at_ms          INTEGER NOT NULL
) STRICT;
CREATE INDEX person_removals_of_group ON person_removals (group_folder, state);
