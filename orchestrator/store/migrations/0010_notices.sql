-- Notices that wait for a group's agent: its own, and facts of the host. Times are integer epoch ms, UTC.

CREATE TABLE cross_session_notifications (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder      TEXT NOT NULL,
    -- Who made it: the group's own agent, or the host.
    agent             TEXT NOT NULL CHECK (agent IN ('self', 'host')),
    -- One of a session lives and ends with it; NULL as long as the session has no id.
    scope             TEXT NOT NULL CHECK (scope IN ('session', 'cross_session')),
    session_id        TEXT,
    event_type        TEXT NOT NULL,
    source            TEXT NOT NULL,
    severity          TEXT NOT NULL CHECK (severity IN ('debug', 'info', 'warning', 'error', 'critical')),
    priority          TEXT NOT NULL DEFAULT 'normal'
                      CHECK (priority IN ('low', 'normal', 'high', 'critical')),
    category          TEXT,
    payload_json      TEXT NOT NULL CHECK (json_valid(payload_json)),
    -- What the model read, once it was told.
    formatted_content TEXT,
    deliver_at        TEXT NOT NULL DEFAULT 'next_turn'
                      CHECK (deliver_at IN ('immediate', 'next_turn', 'after_n_turns', 'after_tool',
                                            'on_condition')),
    inject_at         TEXT NOT NULL DEFAULT 'turn_start'
                      CHECK (inject_at IN ('immediate', 'turn_start', 'after_tool', 'turn_end')),
    -- It waits for as many turns of the chat to begin; the last of them that was counted.
    turns_remaining   INTEGER CHECK (turns_remaining >= 0),
    counted_turn      INTEGER,
    tool_name         TEXT,
    condition         TEXT,
    dedupe_key        TEXT,
    -- How often the same was noticed before it was told.
    count             INTEGER NOT NULL DEFAULT 1,
    made_turn         INTEGER,
    created_ms        INTEGER NOT NULL,
    expires_ms        INTEGER,
    state             TEXT NOT NULL DEFAULT 'pending'
                      CHECK (state IN ('pending', 'delivered', 'acknowledged', 'expired', 'cancelled')),
    -- Why it ended as it did.
    reason            TEXT,
    delivered_ms      INTEGER,
    acknowledged_ms   INTEGER,
    ended_ms          INTEGER,
    deliveries        INTEGER NOT NULL DEFAULT 0,
    told_session      TEXT,
    -- The attempt at a turn that has it now: told when that ends well and says so, free again otherwise.
    claim_turn        INTEGER,
    claim_attempt     INTEGER,
    claimed_ms        INTEGER,
    CHECK ((claim_turn IS NULL) = (claim_attempt IS NULL)),
    CHECK ((claim_turn IS NULL) = (claimed_ms IS NULL)),
    CHECK ((state IN ('acknowledged', 'expired', 'cancelled')) = (ended_ms IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX notices_one_pending ON cross_session_notifications (group_folder, dedupe_key)
    WHERE state = 'pending' AND dedupe_key IS NOT NULL;
CREATE INDEX notices_open ON cross_session_notifications (group_folder, state)
    WHERE state IN ('pending', 'delivered');
CREATE INDEX notices_claimed ON cross_session_notifications (claim_turn) WHERE claim_turn IS NOT NULL;
CREATE INDEX notices_expiring ON cross_session_notifications (expires_ms)
    WHERE state IN ('pending', 'delivered') AND expires_ms IS NOT NULL;
CREATE INDEX notices_of_group ON cross_session_notifications (group_folder, id);

-- What of high priority a model was told in a turn, for people to see.
CREATE TABLE told_notices (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    turn_id      INTEGER NOT NULL,
    notice_id    INTEGER,
    event_type   TEXT NOT NULL,
    priority     TEXT NOT NULL CHECK (priority IN ('high', 'critical')),
    text         TEXT NOT NULL,
    told_ms      INTEGER NOT NULL
) STRICT;
CREATE INDEX told_notices_at ON told_notices (told_ms);
