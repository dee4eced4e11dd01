-- Services that have models, by name, and which of them answers what. Times are integer epoch ms, UTC.

-- The one of `.env` has no row: its name is `anthropic`. Keys are in `.env` alone; here is under which name.
CREATE TABLE model_services (
    name               TEXT PRIMARY KEY,
    kind               TEXT NOT NULL,
    url                TEXT NOT NULL,
    key_env            TEXT,
    model              TEXT, -- the one that is asked where a choice names the service alone
    window             INTEGER, -- tokens
    price              TEXT, -- JSON: dollars a million tokens; none: not known
    abilities          TEXT NOT NULL, -- JSON: a list of what it can
    tested_ms          INTEGER, -- when that was seen by asking
    first_byte_seconds INTEGER,
    set_ms             INTEGER NOT NULL
) STRICT;

-- What the owner chose: a model for all work, for one kind of work, or, in their order, those to fall back on.
CREATE TABLE model_choices (
    work          TEXT NOT NULL CHECK (work IN ('all', 'tasks', 'worker', 'summaries', 'fallback')),
    place         INTEGER NOT NULL,
    model         TEXT NOT NULL,
    may_be_dearer INTEGER NOT NULL,
    set_ms        INTEGER NOT NULL,
    PRIMARY KEY (work, place)
) STRICT;

-- The service that a run asks, and that an answer came from; none: the one of `.env`.
ALTER TABLE runs ADD COLUMN service TEXT;
ALTER TABLE usage ADD COLUMN service TEXT;
ALTER TABLE model_refusals ADD COLUMN service TEXT NOT NULL DEFAULT 'anthropic';
DROP INDEX model_refusals_open;
CREATE UNIQUE INDEX model_refusals_open ON model_refusals (service, coalesce(model, '*')) WHERE ended_ms IS NULL;

-- The services that a turn has left, because they did not answer it: it goes on at another.
CREATE TABLE turn_moves (
    turn_id INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    service TEXT NOT NULL,
    run_id  TEXT NOT NULL,
    cause   TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (turn_id, service)
) STRICT;

-- A service that did not answer the host itself: others stand in for it until it does.
CREATE TABLE service_outages (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    service  TEXT NOT NULL,
    cause    TEXT NOT NULL,
    status   INTEGER,
    since_ms INTEGER NOT NULL,
    ended_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX service_outages_open ON service_outages (service) WHERE ended_ms IS NULL;
