-- One table of the secret addresses that were given out: those of calendars stay valid, and hooks join them.
-- How often an address was used is counted in the minute and the day (UTC) of its last use, by which hooks
-- are bounded.
CREATE TABLE secret_addresses (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT NOT NULL CHECK (kind IN ('calendar', 'hook')),
    group_folder TEXT NOT NULL,
    name         TEXT NOT NULL,
    is_request   INTEGER NOT NULL DEFAULT 0 CHECK (is_request IN (0, 1)),
    secret_hash  TEXT NOT NULL UNIQUE,
    created_ms   INTEGER NOT NULL,
    used_ms      INTEGER,
    uses         INTEGER NOT NULL DEFAULT 0,
    minute_uses  INTEGER NOT NULL DEFAULT 0,
    day_uses     INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO secret_addresses (id, kind, group_folder, name, secret_hash, created_ms, used_ms)
SELECT id, 'calendar', group_folder, name, secret_hash, created_ms, fetched_ms FROM calendar_feeds;
-- A number that was given once, and revoked since, is given to no other address.
UPDATE sqlite_sequence SET seq = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'calendar_feeds'), seq)
WHERE name = 'secret_addresses';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'secret_addresses', seq FROM sqlite_sequence
WHERE name = 'calendar_feeds' AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'secret_addresses');
DROP TABLE calendar_feeds;
