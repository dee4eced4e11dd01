-- What agents asked to be allowed, where a rule of their group says `ask`, and what the owner decided.
CREATE TABLE approvals (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    group_folder TEXT NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('egress', 'mcp')),
    -- host:port, or server/tool.
    subject      TEXT NOT NULL,
    -- Of a tool: the hash of what it is called with, so that just this call is allowed; else ''.
    call_hash    TEXT NOT NULL,
    -- What it is called with, for people: secrets taken out, cut where it is long.
    detail       TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    turn_id      INTEGER,
    state        TEXT NOT NULL CHECK (state IN ('waiting', 'once', 'always', 'used', 'refused')),
    asked_ms     INTEGER NOT NULL,
    -- Until when a request waits, or a decision holds; 'always' holds until it is taken back.
    expires_ms   INTEGER NOT NULL,
    decided_ms   INTEGER,
    decided_by   TEXT
) STRICT;
CREATE INDEX approvals_of_subject ON approvals (group_folder, kind, subject);
