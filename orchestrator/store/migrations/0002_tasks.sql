-- What an agent is asked at a time. Times are integer epoch milliseconds, UTC.

CREATE TABLE scheduled_tasks (
    id             TEXT PRIMARY KEY,
    group_folder   TEXT NOT NULL,
    chat_jid       TEXT NOT NULL REFERENCES chats (jid),
    prompt         TEXT NOT NULL,
    schedule_type  TEXT NOT NULL CHECK (schedule_type IN ('cron', 'interval', 'once')),
    schedule_value TEXT NOT NULL,
    -- The zone that next_run was worked out in.
    timezone       TEXT NOT NULL,
    -- What happens to a local time that the clocks show twice, or skip.
    dst            TEXT NOT NULL CHECK (dst IN ('once', 'both')),
    context_mode   TEXT NOT NULL CHECK (context_mode IN ('group', 'isolated')),
    -- What happens when it is due while its last run has not ended.
    overlap        TEXT NOT NULL CHECK (overlap IN ('skip', 'queue')),
    -- What happens to due times at which Andy was down.
    catch_up       TEXT NOT NULL CHECK (catch_up IN ('skip', 'latest', 'all')),
    check_script   TEXT,
    status         TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'cancelled')),
    status_reason  TEXT,
    status_at      INTEGER NOT NULL,
    next_run       INTEGER,
    last_run       INTEGER,
    last_result    TEXT,
    -- Failures in a row.
    failures       INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX scheduled_tasks_due ON scheduled_tasks (next_run)
    WHERE status = 'active' AND next_run IS NOT NULL;
CREATE INDEX scheduled_tasks_of_group ON scheduled_tasks (group_folder, status);

CREATE TABLE task_run_logs (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id     TEXT NOT NULL REFERENCES scheduled_tasks (id),
    -- What set it off: its schedule, its schedule afterwards, or someone.
    cause       TEXT NOT NULL CHECK (cause IN ('schedule', 'catch_up', 'by_hand')),
    due_at      INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,
    turn_id     INTEGER UNIQUE REFERENCES turns (id),
    status      TEXT NOT NULL CHECK (status IN ('running', 'success', 'error', 'skipped', 'cancelled')),
    duration_ms INTEGER,
    result      TEXT,
    error       TEXT,
    CHECK ((status = 'skipped') = (turn_id IS NULL))
) STRICT;
CREATE INDEX task_run_logs_of_task ON task_run_logs (task_id, id);
