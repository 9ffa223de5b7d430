-- +goose Up
-- A printed script may run twice, so each statement can be run again.
CREATE TABLE IF NOT EXISTS bridge_parked (
    id      TEXT PRIMARY KEY, -- the UUID's canonical text
    message BLOB NOT NULL
) STRICT;

-- A parked message without a row was forwarded. A row that carries its message stays as it is.
UPDATE bridge_ledger SET message = p.message, stage_at = recorded_at * 1000
FROM bridge_parked p WHERE bridge_ledger.id = p.id AND stage_at IS NULL;

DROP TABLE bridge_parked;
