-- +goose Up
-- One statement, which the server does whole or not at all.
ALTER TABLE bridge_ledger
    ADD COLUMN message  LONGBLOB    NULL, -- the encoded message, if the row carries it
    ADD COLUMN stage_at DATETIME(6) NULL, -- UTC; when a verifier stages it if its row is still there
    ADD INDEX bridge_ledger_stage_at (stage_at);
