-- +goose Up
-- A printed script may run twice, so each statement can be run again.
CREATE TABLE IF NOT EXISTS bridge_inbox (
    consumer   TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    claimed_at INTEGER NOT NULL DEFAULT (unixepoch()), -- seconds
    PRIMARY KEY (consumer, key)
) STRICT, WITHOUT ROWID;

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX IF NOT EXISTS bridge_inbox_version_once ON bridge_inbox_version (version_id);
