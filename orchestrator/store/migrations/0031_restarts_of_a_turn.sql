-- Runs that a turn lost by a restart of the host: they are no attempts of the turn, and are bounded apart.
ALTER TABLE turns ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
