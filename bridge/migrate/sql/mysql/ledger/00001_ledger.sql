-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
CREATE TABLE IF NOT EXISTS bridge_ledger (
    id          BINARY(16)  NOT NULL PRIMARY KEY,
    recorded_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)) -- UTC
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS bridge_identity (
    one      TINYINT    NOT NULL DEFAULT 1 PRIMARY KEY, -- so there is one row
    identity BINARY(16) NOT NULL,
    CONSTRAINT bridge_identity_one CHECK (one = 1)
) ENGINE = InnoDB;

-- A time-based (version 1) UUID, the only kind that all releases can make.
INSERT INTO bridge_identity (identity) VALUES (UNHEX(REPLACE(UUID(), '-', '')))
ON DUPLICATE KEY UPDATE one = one;
