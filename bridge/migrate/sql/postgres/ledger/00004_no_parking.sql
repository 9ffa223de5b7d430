-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCAL lock_timeout = '3s';

-- Messages that a sender of an earlier release has parked are committed or gone now, and no more come.
LOCK TABLE bridge_parked IN ACCESS EXCLUSIVE MODE;

-- A parked message without a row was forwarded. A row that carries its message stays as it is.
UPDATE bridge_ledger l SET message = p.message, stage_at = l.recorded_at
FROM bridge_parked p WHERE l.id = p.id AND l.stage_at IS NULL;

DROP TABLE bridge_parked;
