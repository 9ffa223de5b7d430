-- +goose Up
ALTER TABLE bridge_ledger ADD COLUMN message BLOB;     -- the encoded message, if the row carries it
ALTER TABLE bridge_ledger ADD COLUMN stage_at INTEGER; -- milliseconds; when a verifier stages it if its row is still there

CREATE INDEX IF NOT EXISTS bridge_ledger_stage_at ON bridge_ledger (stage_at) WHERE stage_at IS NOT NULL;
