-- +goose Up
CREATE TABLE email_gateway (
    message_id TEXT     NOT NULL PRIMARY KEY,
    status     TEXT     NOT NULL,
    recipients TEXT     NOT NULL,
    attempts   INTEGER  NOT NULL,
    error      TEXT     NOT NULL,
    first_at   DATETIME NOT NULL, -- UTC
    changed_at DATETIME NOT NULL  -- UTC
);
CREATE INDEX email_gateway_changed ON email_gateway (changed_at);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_email_gateway_version_once ON bridge_email_gateway_version (version_id);
