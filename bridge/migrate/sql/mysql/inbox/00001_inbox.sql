-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
-- VARBINARY compares every byte, trailing spaces too.
CREATE TABLE IF NOT EXISTS bridge_inbox (
    consumer   VARBINARY(255) NOT NULL,
    `key`      VARBINARY(255) NOT NULL,
    claimed_at DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)), -- UTC
    PRIMARY KEY (consumer, `key`)
) ENGINE = InnoDB;
