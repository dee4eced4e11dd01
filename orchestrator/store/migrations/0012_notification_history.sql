-- What became of each notification, and by whom: it goes with its notification.
CREATE TABLE notification_history (
    id              INTEGER PRIMARY KEY,
    group_folder    TEXT NOT NULL,
    notification_id TEXT NOT NULL,
    at_ms           INTEGER NOT NULL,
    what            TEXT NOT NULL,
    -- worker, user, main_agent, or host.
    by_whom         TEXT NOT NULL,
    turn_id         INTEGER,
    detail_json     TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(detail_json)),
    FOREIGN KEY (group_folder, notification_id) REFERENCES notifications (group_folder, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX notification_history_of_one ON notification_history (group_folder, notification_id, id);

-- The time zone by which the days of deadlines on a dashboard were last counted.
ALTER TABLE dashboards ADD COLUMN zone TEXT;
