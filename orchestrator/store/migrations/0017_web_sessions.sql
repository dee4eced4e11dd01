-- Who is signed in to the console: one row a browser. Only the hash of its secret is here.
CREATE TABLE web_sessions (
    id          TEXT PRIMARY KEY,
    secret_hash TEXT NOT NULL,
    browser     TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    seen_ms     INTEGER NOT NULL
) STRICT;
