-- Until when the messenger has asked not to be sent a message that it did not take. Epoch ms, UTC; NULL if it has
-- asked for no pause. A messenger that is connected again makes its messages due, but none before this time.
ALTER TABLE outbox ADD COLUMN not_before_ms INTEGER;
