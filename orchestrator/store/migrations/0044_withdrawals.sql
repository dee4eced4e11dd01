-- Messages that were sent and are to be deleted in their chats, because their turn was undone. Epoch ms, UTC.

CREATE TABLE withdrawals (
    outbox_id       INTEGER PRIMARY KEY REFERENCES outbox (id) ON DELETE CASCADE,
    -- The turn that the undo is.
    turn_id         INTEGER NOT NULL,
    state           TEXT NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'done', 'failed')),
    created_ms      INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_ms INTEGER NOT NULL,
    error           TEXT
) STRICT;
CREATE INDEX withdrawals_due ON withdrawals (next_attempt_ms) WHERE state = 'due';
CREATE INDEX withdrawals_of_turn ON withdrawals (turn_id);
