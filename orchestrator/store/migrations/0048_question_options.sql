-- The answers among which people choose one; empty of a question that is answered in words.

ALTER TABLE questions ADD COLUMN options_json TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(options_json));
