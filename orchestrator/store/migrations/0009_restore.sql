-- How the conversation of each run began, and how far the agent's session is known to hold it.

-- The model that was ordered; none means the agent's own choice.
ALTER TABLE runs ADD COLUMN model TEXT;
-- Whose model it is: the host part of the service's address, or the name of an agent without one.
ALTER TABLE runs ADD COLUMN provider TEXT;
-- Empty of a run apart from the group's conversation.
ALTER TABLE runs ADD COLUMN restore_mode TEXT
    CHECK (restore_mode IN ('fresh', 'resume', 'resume_plus_delta', 'rehydrate'));
ALTER TABLE runs ADD COLUMN restore_reason TEXT;
-- As the agent told last: what the conversation filled of the model's window, and how large that is.
ALTER TABLE runs ADD COLUMN context_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN context_window INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_windows ON runs (model, started_ms) WHERE context_window > 0;
CREATE INDEX runs_restores ON runs (group_folder, started_ms) WHERE restore_mode IS NOT NULL;

-- The session in which a group's agent answered last, whichever is to be resumed now. A session that is
-- not here has not answered yet: what is in it is a question that is asked again.
CREATE TABLE answered_sessions (
    group_folder TEXT PRIMARY KEY,
    session_id   TEXT NOT NULL,
    run_id       TEXT REFERENCES runs (id),
    at_ms        INTEGER NOT NULL
) STRICT;
INSERT INTO answered_sessions (group_folder, session_id, at_ms)
SELECT group_folder, session_id, updated_ms FROM sessions;

-- Answered turns, in the order of their ends: the last message that the session's transcript had of each.
-- Without one, the turn was answered outside of any session.
CREATE TABLE checkpoints (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id      INTEGER NOT NULL UNIQUE REFERENCES turns (id),
    group_folder TEXT NOT NULL,
    session_id   TEXT,
    uuid         TEXT,
    CHECK ((session_id IS NULL) = (uuid IS NULL))
) STRICT;
CREATE INDEX checkpoints_of_group ON checkpoints (group_folder, id);
