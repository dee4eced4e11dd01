-- Which answers went to a subagent, by what its CLI says of a request. Earlier rows count as the agent's own.
ALTER TABLE usage ADD COLUMN is_subagent INTEGER NOT NULL DEFAULT 0 CHECK (is_subagent IN (0, 1));
