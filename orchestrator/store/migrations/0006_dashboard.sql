-- Each group's dashboard: what it has to do, what is open, what it is told and what it knows.
-- Times are integer epoch milliseconds, UTC. Ids are a group's own: an import keeps `task_001`.

CREATE TABLE dashboards (
    group_folder    TEXT PRIMARY KEY,
    -- Counts the changes: a row's version is the count at which it changed last.
    revision        INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    -- When the rules looked last and look next.
    rules_last_ms   INTEGER,
    rules_next_ms   INTEGER NOT NULL DEFAULT 0,
    -- What the model was shown last of it.
    worker_last_ms  INTEGER,
    worker_revision INTEGER,
    worker_digest   TEXT,
    -- Who upkeeps it just now.
    lease_owner     TEXT,
    lease_until_ms  INTEGER,
    CHECK ((lease_owner IS NULL) = (lease_until_ms IS NULL))
) STRICT;

CREATE TABLE dashboard_tasks (
    group_folder    TEXT NOT NULL REFERENCES dashboards (group_folder),
    id              TEXT NOT NULL,
    title           TEXT NOT NULL CHECK (title <> ''),
    raw_input       TEXT NOT NULL DEFAULT '',
    -- A deadline that is a day has its date, and the start of that day in the group's zone; a timed one no date.
    deadline_date   TEXT,
    deadline_ms     INTEGER,
    deadline_text   TEXT NOT NULL DEFAULT '',
    estimation_json TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(estimation_json)),
    pct             INTEGER NOT NULL DEFAULT 0 CHECK (pct BETWEEN 0 AND 100),
    progress_note   TEXT NOT NULL DEFAULT '',
    last_update_ms  INTEGER NOT NULL,
    blocked_ms      INTEGER,
    blocker_note    TEXT,
    status          TEXT NOT NULL CHECK (status IN ('active', 'someday', 'completed', 'cancelled')),
    priority        TEXT NOT NULL CHECK (priority IN ('low', 'medium', 'high')),
    context         TEXT NOT NULL DEFAULT '',
    tags_json       TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tags_json)),
    links_json      TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(links_json)),
    recurring_json  TEXT CHECK (recurring_json IS NULL OR json_valid(recurring_json)),
    reflection      TEXT NOT NULL DEFAULT '',
    created_ms      INTEGER NOT NULL,
    updated_ms      INTEGER NOT NULL,
    completed_ms    INTEGER,
    -- In the history.
    archived_ms     INTEGER,
    -- A field → when a person set it last, so that rules do not undo it.
    user_set_json   TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(user_set_json)),
    -- What an import brought that nothing here reads.
    extra_json      TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(extra_json)),
    version         INTEGER NOT NULL,
    -- The turn that changed it last.
    changed_turn    INTEGER,
    PRIMARY KEY (group_folder, id),
    CHECK ((deadline_date IS NULL) OR (deadline_ms IS NOT NULL)),
    CHECK ((blocker_note IS NULL) OR (blocked_ms IS NOT NULL)),
    CHECK ((status = 'completed') = (completed_ms IS NOT NULL)),
    CHECK ((status <> 'completed') OR (pct = 100)),
    CHECK ((archived_ms IS NULL) OR (status IN ('completed', 'cancelled')))
) STRICT;
CREATE INDEX dashboard_tasks_open ON dashboard_tasks (group_folder, status, deadline_ms, id) WHERE archived_ms IS NULL;
CREATE INDEX dashboard_tasks_archived ON dashboard_tasks (group_folder, archived_ms) WHERE archived_ms IS NOT NULL;

CREATE TABLE questions (
    group_folder  TEXT NOT NULL REFERENCES dashboards (group_folder),
    id            TEXT NOT NULL,
    question      TEXT NOT NULL CHECK (question <> ''),
    -- The question without case, spaces and marks: two that ask the same are one.
    normal        TEXT NOT NULL,
    context       TEXT NOT NULL DEFAULT '',
    priority      TEXT NOT NULL CHECK (priority IN ('low', 'medium', 'high')),
    type          TEXT NOT NULL CHECK (type IN ('info_gather', 'progress_check', 'deadline_check', 'start_check',
                      'blocker_check', 'status_check', 'completion_check', 'routine_check')),
    task_id       TEXT,
    asked_count   INTEGER NOT NULL DEFAULT 0 CHECK (asked_count >= 0),
    last_asked_ms INTEGER,
    cooldown_h    INTEGER NOT NULL DEFAULT 24 CHECK (cooldown_h >= 0),
    created_by    TEXT NOT NULL CHECK (created_by IN ('worker', 'user', 'main_agent')),
    created_ms    INTEGER NOT NULL,
    answer        TEXT,
    answered_ms   INTEGER,
    closed_ms     INTEGER,
    closed_reason TEXT,
    -- When a worker has seen the answer.
    processed_ms  INTEGER,
    version       INTEGER NOT NULL,
    changed_turn  INTEGER,
    PRIMARY KEY (group_folder, id),
    CHECK ((answer IS NULL) = (answered_ms IS NULL))
) STRICT;
CREATE INDEX questions_open ON questions (group_folder, created_ms) WHERE answered_ms IS NULL AND closed_ms IS NULL;
CREATE INDEX questions_unprocessed ON questions (group_folder, answered_ms)
    WHERE answered_ms IS NOT NULL AND processed_ms IS NULL;
CREATE INDEX questions_of_task ON questions (group_folder, task_id, type) WHERE task_id IS NOT NULL;
CREATE INDEX questions_normal ON questions (group_folder, normal) WHERE answered_ms IS NULL AND closed_ms IS NULL;

CREATE TABLE notifications (
    group_folder    TEXT NOT NULL REFERENCES dashboards (group_folder),
    id              TEXT NOT NULL,
    message         TEXT NOT NULL CHECK (message <> ''),
    -- Whom it is for: people in the chat, or the agent itself, later.
    audience        TEXT NOT NULL DEFAULT 'user' CHECK (audience IN ('user', 'agent')),
    due_ms          INTEGER NOT NULL,
    -- The time as it was asked for, where that was no ISO time.
    due_text        TEXT,
    type            TEXT NOT NULL CHECK (type IN ('reminder', 'deadline_alert', 'progress_check',
                        'blocker_followup', 'question_reminder')),
    priority        TEXT NOT NULL CHECK (priority IN ('low', 'medium', 'high')),
    task_id         TEXT,
    question_id     TEXT,
    -- Why rules made it (`deadline:24h`, …): once while it is to come.
    cause           TEXT,
    status          TEXT NOT NULL CHECK (status IN ('pending', 'sending', 'delivered', 'cancelled', 'failed', 'expired')),
    context         TEXT NOT NULL DEFAULT '',
    created_by      TEXT NOT NULL CHECK (created_by IN ('worker', 'user', 'main_agent')),
    created_ms      INTEGER NOT NULL,
    delivered_ms    INTEGER,
    cancelled_ms    INTEGER,
    cancel_reason   TEXT,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER,
    claim_token     TEXT,
    claim_until_ms  INTEGER,
    outbox_id       INTEGER,
    channel_msg_id  TEXT,
    late_ms         INTEGER,
    error           TEXT,
    version         INTEGER NOT NULL,
    changed_turn    INTEGER,
    PRIMARY KEY (group_folder, id),
    CHECK ((status = 'delivered') = (delivered_ms IS NOT NULL)),
    CHECK ((claim_token IS NULL) = (claim_until_ms IS NULL))
) STRICT;
CREATE UNIQUE INDEX notifications_one_a_cause
    ON notifications (group_folder, ifnull(task_id, ''), ifnull(question_id, ''), cause)
    WHERE cause IS NOT NULL AND status IN ('pending', 'sending');
CREATE INDEX notifications_due ON notifications (due_ms) WHERE status IN ('pending', 'sending');
CREATE INDEX notifications_again ON notifications (due_ms)
    WHERE status IN ('pending', 'sending') AND (next_attempt_ms IS NOT NULL OR claim_until_ms IS NOT NULL);
CREATE INDEX notifications_of_group ON notifications (group_folder, status, due_ms, id);
CREATE INDEX notifications_of_task ON notifications (group_folder, task_id, type, due_ms) WHERE task_id IS NOT NULL;
CREATE INDEX notifications_of_question ON notifications (group_folder, question_id, due_ms)
    WHERE question_id IS NOT NULL;
CREATE INDEX notifications_delivered ON notifications (group_folder, delivered_ms) WHERE status = 'delivered';
CREATE INDEX notifications_of_message ON notifications (channel_msg_id) WHERE channel_msg_id IS NOT NULL;
CREATE INDEX notifications_of_outbox ON notifications (outbox_id) WHERE outbox_id IS NOT NULL;

CREATE TABLE insights (
    group_folder TEXT NOT NULL REFERENCES dashboards (group_folder),
    id           TEXT NOT NULL,
    category     TEXT NOT NULL CHECK (category IN ('tech', 'life', 'work', 'learning')),
    title        TEXT NOT NULL,
    content      TEXT NOT NULL CHECK (content <> ''),
    source       TEXT NOT NULL DEFAULT '',
    tags_json    TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tags_json)),
    links_json   TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(links_json)),
    created_ms   INTEGER NOT NULL,
    content_hash TEXT NOT NULL,
    PRIMARY KEY (group_folder, id),
    UNIQUE (group_folder, content_hash)
) STRICT;

-- Read and written by export and import only.
CREATE TABLE people (
    group_folder TEXT NOT NULL REFERENCES dashboards (group_folder),
    id           TEXT NOT NULL,
    body_json    TEXT NOT NULL CHECK (json_valid(body_json)),
    PRIMARY KEY (group_folder, id)
) STRICT;

CREATE TABLE projects (
    group_folder TEXT NOT NULL REFERENCES dashboards (group_folder),
    id           TEXT NOT NULL,
    body_json    TEXT NOT NULL CHECK (json_valid(body_json)),
    PRIMARY KEY (group_folder, id)
) STRICT;

-- Which revision of its group's dashboard a turn was shown.
CREATE TABLE dashboard_views (
    turn_id      INTEGER PRIMARY KEY REFERENCES turns (id),
    group_folder TEXT NOT NULL,
    revision     INTEGER NOT NULL
) STRICT;

-- Rows that a turn was shown anew after that, and in which version.
CREATE TABLE dashboard_seen (
    turn_id INTEGER NOT NULL REFERENCES turns (id),
    row_id  TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (turn_id, row_id)
) STRICT, WITHOUT ROWID;

-- Upkeep of a dashboard, by rules or by a model: what set it off and what came of it.
CREATE TABLE worker_cycles (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('rules', 'llm')),
    trigger_json TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(trigger_json)),
    turn_id      INTEGER REFERENCES turns (id),
    started_ms   INTEGER NOT NULL,
    ended_ms     INTEGER,
    outcome      TEXT,
    detail_json  TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(detail_json)),
    error        TEXT
) STRICT;
CREATE INDEX worker_cycles_of_group ON worker_cycles (group_folder, id);
CREATE INDEX worker_cycles_of_turn ON worker_cycles (turn_id) WHERE turn_id IS NOT NULL;

-- The numbers under which a chat was told its open questions, so that "1. … 2. …" answers them.
CREATE TABLE question_lists (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    ids_json     TEXT NOT NULL CHECK (json_valid(ids_json)),
    told_ms      INTEGER NOT NULL,
    used_ms      INTEGER
) STRICT;
CREATE INDEX question_lists_of_group ON question_lists (group_folder, id);
