-- A reaction of the agent waits and leaves like a message: its text is the emoji, empty to take one back.

ALTER TABLE outbox ADD COLUMN reacts_to TEXT;
