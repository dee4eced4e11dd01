-- A server is reached at a URL through the proxy, or is a program of the owner's that runs beside the agent.
ALTER TABLE mcp_servers RENAME TO mcp_servers_before;
CREATE TABLE mcp_servers (
    name       TEXT PRIMARY KEY,
    url        TEXT,
    command    TEXT CHECK (command IS NULL OR json_valid(command)), -- the words of the program's command line
    header     TEXT NOT NULL, -- the header that carries the secret
    secret_env TEXT, -- the name of the secret in the environment or in .env; none: the server wants no secret
    groups     TEXT NOT NULL CHECK (json_valid(groups)), -- the folders of the groups that may use it
    set_ms     INTEGER NOT NULL,
    CHECK ((url IS NULL) <> (command IS NULL)),
    CHECK (command IS NULL OR secret_env IS NULL) -- no container is given a secret
) STRICT;
INSERT INTO mcp_servers (name, url, header, secret_env, groups, set_ms)
SELECT name, url, header, secret_env, groups, set_ms FROM mcp_servers_before;
DROP TABLE mcp_servers_before;
