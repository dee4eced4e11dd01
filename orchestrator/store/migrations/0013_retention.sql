-- What is removed after its time asks who still refers to it: without these, each removal reads whole tables.
CREATE INDEX turns_of_run ON turns (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX outbox_parts ON outbox (part_of) WHERE part_of IS NOT NULL;
