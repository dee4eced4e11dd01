-- The addresses by which calendar programs read what is to come in a group. A secret is stored as its hash alone.
CREATE TABLE calendar_feeds (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    name         TEXT NOT NULL,
    secret_hash  TEXT NOT NULL UNIQUE,
    created_ms   INTEGER NOT NULL,
    fetched_ms   INTEGER
) STRICT;
