-- Whether the cost is by the price of other models of its family, because its model has none on the list.
ALTER TABLE usage ADD COLUMN is_assumed INTEGER NOT NULL DEFAULT 0;
