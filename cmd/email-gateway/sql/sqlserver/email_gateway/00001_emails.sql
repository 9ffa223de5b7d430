-- +goose Up
CREATE TABLE email_gateway (
    message_id varchar(36)    NOT NULL CONSTRAINT email_gateway_id PRIMARY KEY,
    status     varchar(20)    NOT NULL,
    recipients varchar(max)   NOT NULL,
    attempts   int            NOT NULL,
    error      nvarchar(1000) NOT NULL,
    first_at   datetime2(3)   NOT NULL, -- UTC
    changed_at datetime2(3)   NOT NULL, -- UTC
    INDEX email_gateway_changed (changed_at)
);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_email_gateway_version_once ON bridge_email_gateway_version (version_id);
