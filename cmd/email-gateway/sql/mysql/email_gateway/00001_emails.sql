-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
CREATE TABLE IF NOT EXISTS email_gateway (
    message_id VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    status     VARCHAR(20)   NOT NULL,
    recipients MEDIUMTEXT CHARACTER SET ascii NOT NULL,
    attempts   INT           NOT NULL,
    error      VARCHAR(1000) CHARACTER SET utf8mb4 NOT NULL,
    first_at   DATETIME(3)   NOT NULL, -- UTC
    changed_at DATETIME(3)   NOT NULL, -- UTC
    INDEX email_gateway_changed (changed_at)
) ENGINE = InnoDB;
