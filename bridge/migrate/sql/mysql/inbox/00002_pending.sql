-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
CREATE TABLE IF NOT EXISTS bridge_inbox_pending (
    consumer    VARBINARY(255) NOT NULL,
    message_key VARBINARY(255) NOT NULL,
    state       VARCHAR(16)    CHARACTER SET ascii NOT NULL, -- started, doubtful, ready or failed
    run         VARCHAR(36)    CHARACTER SET ascii NOT NULL,
    attempts    INT            NOT NULL,
    since_ms    BIGINT         NOT NULL, -- milliseconds since 1970, as due_ms
    due_ms      BIGINT         NOT NULL,
    error       VARCHAR(1000)  CHARACTER SET utf8mb4 NOT NULL,
    message     LONGBLOB,
    PRIMARY KEY (consumer, message_key),
    KEY bridge_inbox_pending_due (consumer, state, due_ms)
) ENGINE = InnoDB;
