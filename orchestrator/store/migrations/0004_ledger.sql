-- What the model was asked and what it cost, the bounds on it, and what was done. Money is in billionths of a dollar.

CREATE TABLE usage (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms              INTEGER NOT NULL,
    group_folder       TEXT NOT NULL,
    run_id             TEXT NOT NULL,
    turn_id            INTEGER,
    kind               TEXT,
    task_id            TEXT,
    model              TEXT,
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cost_nano_usd      INTEGER, -- none: no price is known for the model
    is_whole           INTEGER NOT NULL -- 0: the answer broke off, these are the numbers until then
) STRICT;
CREATE INDEX usage_at ON usage (at_ms);
CREATE INDEX usage_of_group ON usage (group_folder, at_ms);

CREATE TABLE budgets (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder  TEXT NOT NULL, -- '*': all groups together
    is_background INTEGER NOT NULL, -- 1: bounds and counts what nobody waits for: tasks, the worker, free cycles
    period        TEXT NOT NULL CHECK (period IN ('day', 'month')),
    unit          TEXT NOT NULL CHECK (unit IN ('tokens', 'usd')),
    amount        INTEGER NOT NULL CHECK (amount >= 0),
    set_ms        INTEGER NOT NULL,
    UNIQUE (group_folder, is_background, period, unit)
) STRICT;

-- Turns that the host itself stopped: they fail with this reason and are not tried again.
CREATE TABLE turn_stops (
    turn_id INTEGER PRIMARY KEY REFERENCES turns (id),
    code    TEXT NOT NULL,
    reason  TEXT NOT NULL,
    at_ms   INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms         INTEGER NOT NULL,
    kind          TEXT NOT NULL,
    group_folder  TEXT,
    run_id        TEXT,
    turn_id       INTEGER,
    detail        TEXT NOT NULL, -- JSON
    previous_hash TEXT NOT NULL,
    hash          TEXT NOT NULL
) STRICT;
CREATE INDEX audit_at ON audit (at_ms);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit rows are never changed');
END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit rows are never deleted');
END;
