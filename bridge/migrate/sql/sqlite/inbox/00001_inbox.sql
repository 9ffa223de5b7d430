-- +goose Up
CREATE TABLE bridge_inbox (
    consumer   TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    claimed_at INTEGER NOT NULL DEFAULT (unixepoch()), -- seconds
    PRIMARY KEY (consumer, key)
) STRICT, WITHOUT ROWID;

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_inbox_version_once ON bridge_inbox_version (version_id);
