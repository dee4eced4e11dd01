-- What an agent did with its tools in a turn, as its container said it; secrets are taken out before. Bounded a turn.
CREATE TABLE tool_calls (
    id          INTEGER PRIMARY KEY,
    turn_id     INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    run_id      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    call_id     TEXT NOT NULL,
    -- The call that started the subagent which made this one; NULL for one of the agent itself.
    parent_id   TEXT,
    tool        TEXT NOT NULL,
    summary     TEXT NOT NULL,
    started_ms  INTEGER NOT NULL,
    duration_ms INTEGER,
    -- NULL until it has ended.
    is_ok       INTEGER CHECK (is_ok IN (0, 1)),
    UNIQUE (turn_id, run_id, call_id)
) STRICT;
