-- +goose Up
-- A printed script may run twice, so each statement can be run again.
CREATE TABLE IF NOT EXISTS bridge_inbox_pending (
    consumer    TEXT    NOT NULL,
    message_key TEXT    NOT NULL,
    state       TEXT    NOT NULL, -- started, doubtful, ready or failed
    run         TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    since_ms    INTEGER NOT NULL, -- milliseconds since 1970, as due_ms
    due_ms      INTEGER NOT NULL,
    error       TEXT    NOT NULL,
    message     BLOB,
    PRIMARY KEY (consumer, message_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS bridge_inbox_pending_due ON bridge_inbox_pending (consumer, state, due_ms);
