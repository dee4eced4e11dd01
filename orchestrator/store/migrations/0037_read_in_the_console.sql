-- How far the owner has read each group in the console. What is there already counts as read.
INSERT INTO router_state (key, value)
SELECT 'console_read:' || g.folder, max(m.seq)
FROM registered_groups g JOIN messages m ON m.group_folder = g.folder GROUP BY g.folder;
