-- Agents that wake by themselves. Times are integer epoch milliseconds, UTC.

-- One row a group whose loop was ever on. Timers are hints: this is when it wakes.
CREATE TABLE loop_state (
    group_folder     TEXT PRIMARY KEY,
    status           TEXT NOT NULL CHECK (status IN ('on', 'paused', 'stopped')),
    -- The back-off, apart from what the agent asked for.
    auto_interval_ms INTEGER NOT NULL,
    next_wake_ms     INTEGER,
    wake_set_by      TEXT NOT NULL CHECK (wake_set_by IN ('auto', 'agent', 'cap', 'user')),
    wake_reason      TEXT NOT NULL DEFAULT '',
    -- Why it is then, step by step.
    trace_json       TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(trace_json)),
    -- Why nothing is started though it is time.
    held_reason      TEXT,
    last_start_ms    INTEGER,
    last_end_ms      INTEGER,
    -- Which turn is its cycle: while that is held no second one begins.
    lease_owner      TEXT,
    lease_until_ms   INTEGER,
    now_streak       INTEGER NOT NULL DEFAULT 0,
    noop_streak      INTEGER NOT NULL DEFAULT 0,
    changed_ms       INTEGER NOT NULL,
    CHECK ((lease_owner IS NULL) = (lease_until_ms IS NULL))
) STRICT;

-- Why a cycle is wanted; each is kept until a cycle has taken it.
CREATE TABLE wakes (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    kind         TEXT NOT NULL,
    is_direct    INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    dedupe_key   TEXT NOT NULL,
    created_ms   INTEGER NOT NULL,
    cycle_id     INTEGER
) STRICT;
CREATE UNIQUE INDEX wakes_pending ON wakes (group_folder, dedupe_key) WHERE cycle_id IS NULL;
CREATE INDEX wakes_of_cycle ON wakes (cycle_id) WHERE cycle_id IS NOT NULL;

-- A turn of a group whose loop is on, from its start to what was decided at its end.
CREATE TABLE cycles (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder        TEXT NOT NULL,
    turn_id             INTEGER NOT NULL UNIQUE,
    kind                TEXT NOT NULL CHECK (kind IN ('chat', 'task', 'worker', 'auto')),
    -- Who had set the wake that it began by; nobody, when something else began it.
    set_by              TEXT,
    trigger_json        TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(trigger_json)),
    started_ms          INTEGER NOT NULL,
    ended_ms            INTEGER,
    outcome             TEXT CHECK (outcome IN ('action', 'noop', 'error', 'busy', 'skipped')),
    has_spoken          INTEGER NOT NULL DEFAULT 0,
    error               TEXT,
    -- What the agent asked for, last, and what it got.
    schedule_raw        TEXT,
    schedule_reason     TEXT,
    schedule_asked_ms   INTEGER,
    is_soonest          INTEGER NOT NULL DEFAULT 0,
    schedule_applied_ms INTEGER,
    schedule_bounded    INTEGER,
    -- The unanswered turn that capped it.
    capped_by           INTEGER,
    next_wake_ms        INTEGER,
    trace_json          TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(trace_json)),
    CHECK ((ended_ms IS NULL) = (outcome IS NULL))
) STRICT;
CREATE UNIQUE INDEX cycles_one_open ON cycles (group_folder) WHERE ended_ms IS NULL;
CREATE INDEX cycles_of_group ON cycles (group_folder, started_ms);

-- No second free cycle of a group waits or runs, whoever queues it.
CREATE UNIQUE INDEX turns_one_auto ON turns (group_folder) WHERE kind = 'auto' AND state IN ('queued', 'running');

-- What happened in loops, written with the facts; told from here.
CREATE TABLE events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms        INTEGER NOT NULL,
    group_folder TEXT,
    kind         TEXT NOT NULL,
    data_json    TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(data_json))
) STRICT;
CREATE INDEX events_of_group ON events (group_folder, seq);
