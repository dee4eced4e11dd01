-- How often the model service searched the web for an answer; each search is charged besides the tokens.
ALTER TABLE usage ADD COLUMN searches INTEGER NOT NULL DEFAULT 0 CHECK (searches >= 0);
