-- The due time that a cancelled task had: once its cancellation is undone, it goes on in step with it.

ALTER TABLE scheduled_tasks ADD COLUMN cancelled_due INTEGER;
