-- +goose Up
-- A printed script may run twice, so each statement can be run again.
CREATE TABLE IF NOT EXISTS bridge_ledger (
    id          TEXT    PRIMARY KEY, -- the UUID's canonical text
    recorded_at INTEGER NOT NULL DEFAULT (unixepoch()) -- seconds
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bridge_identity (
    one      INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), -- so there is one row
    identity TEXT    NOT NULL
) STRICT;

-- A random (version 4) UUID.
INSERT OR IGNORE INTO bridge_identity (identity)
SELECT lower(substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-'
    || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(h, 18, 3) || '-' || substr(h, 21))
FROM (SELECT hex(randomblob(16)) AS h);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX IF NOT EXISTS bridge_ledger_version_once ON bridge_ledger_version (version_id);
