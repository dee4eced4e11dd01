-- Times are integer epoch milliseconds, UTC. Cursors are messages.seq.

CREATE TABLE chats (
    jid             TEXT PRIMARY KEY,
    name            TEXT NOT NULL,
    channel         TEXT,
    is_group        INTEGER NOT NULL DEFAULT 0,
    last_message_ms INTEGER
) STRICT;

CREATE TABLE registered_groups (
    jid              TEXT PRIMARY KEY REFERENCES chats (jid),
    name             TEXT NOT NULL,
    folder           TEXT NOT NULL,
    trigger_pattern  TEXT,
    requires_trigger INTEGER NOT NULL DEFAULT 1,
    is_main          INTEGER NOT NULL DEFAULT 0,
    container_config TEXT NOT NULL DEFAULT '{}',
    added_ms         INTEGER NOT NULL
) STRICT;
-- Folders differ in more than case: a disk may not tell them apart.
CREATE UNIQUE INDEX registered_groups_folder ON registered_groups (folder COLLATE NOCASE);
CREATE UNIQUE INDEX registered_groups_one_main ON registered_groups (is_main) WHERE is_main = 1;

CREATE TABLE runs (
    id            TEXT PRIMARY KEY,
    group_folder  TEXT NOT NULL,
    is_isolated   INTEGER NOT NULL DEFAULT 0,
    runtime       TEXT NOT NULL,
    container_ref TEXT,
    token_hash    TEXT NOT NULL UNIQUE,
    last_frame    INTEGER NOT NULL DEFAULT 0,
    started_ms    INTEGER NOT NULL,
    ended_ms      INTEGER,
    exit_kind     TEXT,
    exit_detail   TEXT
) STRICT;
CREATE INDEX runs_live ON runs (group_folder) WHERE ended_ms IS NULL;

CREATE TABLE turns (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder  TEXT NOT NULL,
    chat_jid      TEXT NOT NULL REFERENCES chats (jid),
    kind          TEXT NOT NULL CHECK (kind IN ('chat', 'task', 'worker', 'auto')),
    is_isolated   INTEGER NOT NULL DEFAULT 0,
    first_seq     INTEGER,
    last_seq      INTEGER,
    task_id       TEXT,
    prompt        TEXT,
    attempt       INTEGER NOT NULL DEFAULT 1,
    run_id        TEXT REFERENCES runs (id),
    state         TEXT NOT NULL CHECK (state IN ('queued', 'running', 'answered', 'failed')),
    reason        TEXT,
    queued_ms     INTEGER NOT NULL,
    not_before_ms INTEGER NOT NULL,
    started_ms    INTEGER,
    acked_ms      INTEGER,
    ended_ms      INTEGER,
    told_place_ms INTEGER,
    CHECK ((state = 'running') <= (run_id IS NOT NULL)),
    CHECK ((state IN ('answered', 'failed')) = (ended_ms IS NOT NULL))
) STRICT;
-- The lane's promises, kept by the database too.
CREATE UNIQUE INDEX turns_one_running ON turns (group_folder) WHERE state = 'running';
CREATE UNIQUE INDEX turns_one_queued_chat ON turns (chat_jid) WHERE state = 'queued' AND kind = 'chat';
CREATE INDEX turns_open ON turns (state, not_before_ms) WHERE state IN ('queued', 'running');
CREATE INDEX turns_of_group ON turns (group_folder, id);

CREATE TABLE messages (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    chat_jid       TEXT NOT NULL REFERENCES chats (jid),
    id             TEXT NOT NULL,
    sender         TEXT NOT NULL,
    sender_name    TEXT NOT NULL,
    content        TEXT NOT NULL,
    sent_ms        INTEGER NOT NULL,
    received_ms    INTEGER NOT NULL,
    is_from_me     INTEGER NOT NULL DEFAULT 0,
    is_bot_message INTEGER NOT NULL DEFAULT 0,
    is_request     INTEGER NOT NULL DEFAULT 0,
    quoted_id      TEXT,
    quoted_sender  TEXT,
    quoted_content TEXT,
    turn_id        INTEGER REFERENCES turns (id),
    ignored_reason TEXT,
    UNIQUE (chat_jid, id),
    -- Every message has exactly one outcome: its turn's, or the reason why it has none.
    CHECK ((turn_id IS NULL) <> (ignored_reason IS NULL))
) STRICT;
CREATE INDEX messages_of_chat ON messages (chat_jid, seq);
CREATE INDEX messages_of_turn ON messages (turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder    TEXT,
    chat_jid        TEXT NOT NULL REFERENCES chats (jid),
    text            TEXT NOT NULL,
    dedupe_key      TEXT NOT NULL UNIQUE,
    message_id      TEXT NOT NULL UNIQUE,
    state           TEXT NOT NULL CHECK (state IN ('held', 'pending', 'sending', 'sent', 'skipped', 'dead')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    sent_ms         INTEGER,
    turn_id         INTEGER REFERENCES turns (id),
    error           TEXT
) STRICT;
CREATE INDEX outbox_due ON outbox (chat_jid, id) WHERE state IN ('pending', 'sending');
CREATE INDEX outbox_of_turn ON outbox (turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE sessions (
    group_folder TEXT PRIMARY KEY,
    session_id   TEXT NOT NULL,
    updated_ms   INTEGER NOT NULL
) STRICT;

CREATE TABLE router_state (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE commands (
    group_folder TEXT NOT NULL,
    request_id   TEXT NOT NULL,
    type         TEXT NOT NULL,
    ok           INTEGER NOT NULL,
    code         TEXT NOT NULL,
    text         TEXT NOT NULL,
    data         TEXT NOT NULL,
    at_ms        INTEGER NOT NULL,
    PRIMARY KEY (group_folder, request_id)
) STRICT;
CREATE INDEX commands_at ON commands (at_ms);

CREATE TABLE reminders (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    chat_jid     TEXT NOT NULL REFERENCES chats (jid),
    text         TEXT NOT NULL,
    due_ms       INTEGER NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('pending', 'sent', 'cancelled')),
    created_ms   INTEGER NOT NULL
) STRICT;
CREATE INDEX reminders_due ON reminders (due_ms) WHERE state = 'pending';
