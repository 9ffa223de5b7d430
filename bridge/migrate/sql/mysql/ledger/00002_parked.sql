-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
CREATE TABLE IF NOT EXISTS bridge_parked (
    id      BINARY(16) NOT NULL PRIMARY KEY,
    message LONGBLOB   NOT NULL
) ENGINE = InnoDB;

-- Not a column of bridge_identity: there a sender at REPEATABLE READ holds a lock.
CREATE TABLE IF NOT EXISTS bridge_watermark (
    one          TINYINT     NOT NULL DEFAULT 1 PRIMARY KEY, -- so there is one row
    swept_before DATETIME(6) NULL,                           -- UTC; null: there was no sweep
    CONSTRAINT bridge_watermark_one CHECK (one = 1)
) ENGINE = InnoDB;

INSERT INTO bridge_watermark (one) VALUES (1) ON DUPLICATE KEY UPDATE one = one;
