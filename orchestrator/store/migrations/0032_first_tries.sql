-- Where a messenger forgets what it was sent, or knows it of one login alone, who tried first and when decides
-- whether a message is looked for in its chat before it is sent again.
ALTER TABLE outbox ADD COLUMN tried_by TEXT;
ALTER TABLE outbox ADD COLUMN tried_ms INTEGER;
