-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash. MySQL has no
-- ADD COLUMN IF NOT EXISTS. The server does the ALTER TABLE whole or not at all.
SET @bridge_carried = (SELECT IF(COUNT(*) > 0, 'DO 0', 'ALTER TABLE bridge_ledger
    ADD COLUMN message    LONGBLOB    NULL, -- the encoded message, if the row carries it
    ADD COLUMN stage_at   DATETIME(6) NULL, -- UTC; when a verifier stages it if its row is still there
    ADD COLUMN claimed_by BINARY(16)  NULL, -- the last Claim that moved stage_at
    ADD INDEX bridge_ledger_stage_at (stage_at)')
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'bridge_ledger' AND column_name = 'stage_at');

PREPARE bridge_carried FROM @bridge_carried;

EXECUTE bridge_carried;

DEALLOCATE PREPARE bridge_carried;
