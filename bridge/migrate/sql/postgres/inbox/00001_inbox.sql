-- +goose Up
CREATE TABLE bridge_inbox (
    consumer   text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    claimed_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, key)
);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_inbox_version_once ON bridge_inbox_version (version_id);
