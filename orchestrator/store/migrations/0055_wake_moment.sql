-- The moment at which an agent wants to wake next, if it named a time of the clock. `schedule_asked_ms` is a span, which
-- counts from the end of the agent's turn; a time of the clock is that time, however long the turn goes on.
ALTER TABLE cycles ADD COLUMN schedule_at_ms INTEGER;
