-- +goose Up
-- A printed script may run twice, so each statement can be run again. SQLite cannot add a column
-- only if it is missing, so the table is made anew. The join with a table without rows adds the
-- columns that are missing. A later version that adds a column must add it here too.
CREATE TABLE IF NOT EXISTS bridge_ledger_carried (
    id          TEXT    PRIMARY KEY, -- the UUID's canonical text
    recorded_at INTEGER NOT NULL DEFAULT (unixepoch()), -- seconds
    message     BLOB,   -- the encoded message, if the row carries it
    stage_at    INTEGER -- milliseconds; when a verifier stages it if its row is still there; null without a message
) STRICT, WITHOUT ROWID;

INSERT INTO bridge_ledger_carried SELECT * FROM bridge_ledger
NATURAL LEFT JOIN (SELECT '' AS id, 0 AS recorded_at, x'' AS message, 0 AS stage_at WHERE false);

DROP TABLE bridge_ledger;

ALTER TABLE bridge_ledger_carried RENAME TO bridge_ledger;

CREATE INDEX bridge_ledger_stage_at ON bridge_ledger (stage_at) WHERE stage_at IS NOT NULL;
