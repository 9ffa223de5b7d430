-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCAL lock_timeout = '3s';

CREATE TABLE bridge_parked (
    id      uuid  PRIMARY KEY,
    message bytea NOT NULL
);

CREATE TABLE bridge_watermark (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one), -- so there is one row
    swept_before timestamptz                                   -- null: there was no sweep
);

INSERT INTO bridge_watermark DEFAULT VALUES;

-- The time of the INSERT: now() is when the transaction began.
ALTER TABLE bridge_ledger ALTER COLUMN recorded_at SET DEFAULT clock_timestamp();
