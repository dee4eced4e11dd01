-- The forms of the console that were sent, so that none counts twice, also after a restart of the host.
-- `is_done` is 0 while what a form asks for is carried out.
CREATE TABLE used_forms (
    number     TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES web_sessions (id) ON DELETE CASCADE,
    used_ms    INTEGER NOT NULL,
    is_done    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX used_forms_of_session ON used_forms (session_id);
