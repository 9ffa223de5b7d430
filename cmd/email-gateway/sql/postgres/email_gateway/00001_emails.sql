-- +goose Up
CREATE TABLE email_gateway (
    message_id text COLLATE "C" NOT NULL PRIMARY KEY,
    status     text             NOT NULL,
    recipients text             NOT NULL,
    attempts   int              NOT NULL,
    error      text             NOT NULL,
    first_at   timestamptz      NOT NULL,
    changed_at timestamptz      NOT NULL
);
CREATE INDEX email_gateway_changed ON email_gateway (changed_at);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_email_gateway_version_once ON bridge_email_gateway_version (version_id);
