-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCK_TIMEOUT 3000;

-- This locks the table until it is dropped, also where hints are ignored: what a sender of an
-- earlier release has parked is committed or gone now, and no more comes.
ALTER TABLE bridge_parked ADD moved bit NULL;

-- A parked message without a row was forwarded. A row that carries its message stays as it is.
UPDATE l SET message = p.message, stage_at = l.recorded_at
FROM bridge_parked p INNER JOIN bridge_ledger l ON l.id = p.id WHERE l.stage_at IS NULL;

DROP TABLE bridge_parked;
