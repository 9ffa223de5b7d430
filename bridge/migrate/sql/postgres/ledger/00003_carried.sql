-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCAL lock_timeout = '3s';

ALTER TABLE bridge_ledger
    ADD COLUMN message  bytea,       -- the encoded message, if the row carries it
    ADD COLUMN stage_at timestamptz; -- when a verifier stages it if its row is still there; null without a message

CREATE INDEX bridge_ledger_stage_at ON bridge_ledger (stage_at) WHERE stage_at IS NOT NULL;
