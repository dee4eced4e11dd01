-- MCP servers of the owner's that agents reach through the proxy. A secret is never here, only the name it is set under.
CREATE TABLE mcp_servers (
    name       TEXT PRIMARY KEY,
    url        TEXT NOT NULL,
    header     TEXT NOT NULL, -- the header that carries the secret
    secret_env TEXT, -- the name of the secret in the environment or in .env; none: the server wants no secret
    groups     TEXT NOT NULL CHECK (json_valid(groups)), -- the folders of the groups that may use it
    set_ms     INTEGER NOT NULL
) STRICT;
