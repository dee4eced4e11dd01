-- Reminders become notifications: one table says what is sent to a chat at a time, and one loop sends it.

-- The short number by which people name a reminder; NULL of what nobody asked for.
ALTER TABLE notifications ADD COLUMN number INTEGER;
-- Where a reminder goes when its group is no longer registered.
ALTER TABLE notifications ADD COLUMN chat_jid TEXT REFERENCES chats (jid);
-- The address of who asked for it.
ALTER TABLE notifications ADD COLUMN asked_by TEXT;
CREATE UNIQUE INDEX notifications_number ON notifications (number) WHERE number IS NOT NULL;
CREATE INDEX notifications_reminders ON notifications (due_ms)
    WHERE number IS NOT NULL AND status IN ('pending', 'sending');

-- Reminders that were set by tools have had no number: theirs follow those of the others.
UPDATE notifications SET
    number = named.number,
    chat_jid = (SELECT jid FROM registered_groups WHERE folder = notifications.group_folder)
FROM (
    SELECT rowid AS row, row_number() OVER (ORDER BY created_ms, id)
        + (SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'reminders') AS number
    FROM notifications WHERE type = 'reminder' AND audience = 'user'
) AS named WHERE notifications.rowid = named.row;

INSERT INTO dashboards (group_folder, created_ms)
    SELECT group_folder, min(created_ms) FROM reminders WHERE TRUE GROUP BY group_folder
    ON CONFLICT DO NOTHING;
UPDATE dashboards SET revision = revision + 1
    WHERE EXISTS (SELECT 1 FROM reminders AS r WHERE r.group_folder = dashboards.group_folder);

-- What was handed to the outbox is as far as its message is; a message that is long gone was sent.
INSERT INTO notifications (group_folder, id, message, due_ms, type, priority, status, created_by, created_ms,
    delivered_ms, cancelled_ms, cancel_reason, attempts, claim_token, claim_until_ms, outbox_id, channel_msg_id,
    error, version, number, chat_jid, asked_by)
SELECT r.group_folder, 'reminder_' || r.id, iif(r.text = '', '⏰', r.text), r.due_ms, 'reminder', 'medium',
    moved.status, 'user', r.created_ms,
    iif(moved.status = 'delivered', coalesce(o.sent_ms, r.due_ms), NULL),
    iif(moved.status = 'cancelled', r.due_ms, NULL),
    iif(moved.status = 'cancelled', 'User requested cancellation', NULL),
    iif(r.state = 'sent', 1, 0),
    iif(moved.status = 'sending', 'moved', NULL), iif(moved.status = 'sending', 0, NULL),
    o.id, o.message_id, o.error, d.revision, r.id, r.chat_jid, r.asked_by
FROM reminders AS r
JOIN dashboards AS d ON d.group_folder = r.group_folder
LEFT JOIN outbox AS o ON o.dedupe_key = 'reminder:' || r.id
JOIN (
    SELECT r.id, CASE
        WHEN r.state <> 'sent' THEN r.state
        WHEN o.state IN ('held', 'pending', 'sending') THEN 'sending'
        WHEN o.state IN ('skipped', 'dead') THEN 'failed'
        ELSE 'delivered' END AS status
    FROM reminders AS r LEFT JOIN outbox AS o ON o.dedupe_key = 'reminder:' || r.id
) AS moved ON moved.id = r.id;

DROP TABLE reminders;
