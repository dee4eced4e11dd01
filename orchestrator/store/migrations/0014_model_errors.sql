-- What keeps turns from being answered and is no fault of theirs. Times are integer epoch ms, UTC.

-- The model service refuses for good, until a key or a setting changes: one row a state, not one a request.
CREATE TABLE model_refusals (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    cause    TEXT NOT NULL,
    -- The model that is refused; NULL where no model is served, '' for the one an agent chose by itself.
    model    TEXT,
    -- The name of the key, where one is set, and the HTTP status, where one came.
    setting  TEXT,
    status   INTEGER,
    since_ms INTEGER NOT NULL,
    -- When the owner was told in main.
    told_ms  INTEGER,
    ended_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX model_refusals_open ON model_refusals (coalesce(model, '*')) WHERE ended_ms IS NULL;

-- A turn that waits for what is down or overloaded: since when, and when its chat was told.
CREATE TABLE turn_outages (
    turn_id  INTEGER PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE,
    cause    TEXT NOT NULL CHECK (cause IN ('model', 'engine')),
    since_ms INTEGER NOT NULL,
    told_ms  INTEGER
) STRICT;
