-- The first of the changes that were made in one step: they are undone together. Without one, a change stands alone.

ALTER TABLE group_changes ADD COLUMN made_with INTEGER;
UPDATE group_changes SET made_with = (
    SELECT min(other.id) FROM group_changes AS other
    WHERE other.group_folder = group_changes.group_folder AND other.at_ms = group_changes.at_ms
        AND other.by_whom = group_changes.by_whom
);
