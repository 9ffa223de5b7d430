-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCK_TIMEOUT 3000;

ALTER TABLE bridge_ledger ADD
    message  varbinary(max) NULL, -- the encoded message, if the row carries it
    stage_at datetime2(3)   NULL; -- UTC; when a verifier stages it if its row is still there

-- A batch of its own, as it refers to a new column. READPAST skips rows that are locked, not pages.
EXEC (N'CREATE INDEX bridge_ledger_stage_at ON bridge_ledger (stage_at) INCLUDE (recorded_at) WHERE stage_at IS NOT NULL WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)');
