-- +goose Up
CREATE TABLE bridge_inbox (
    -- As bytes: as text, SQL Server takes two keys for one that differ in spaces at
    -- the end, or in what the collation does not tell apart.
    consumer   varbinary(255) NOT NULL,
    [key]      varbinary(255) NOT NULL,
    claimed_at datetime2(3)   NOT NULL CONSTRAINT bridge_inbox_claimed_at DEFAULT sysutcdatetime(),
    CONSTRAINT bridge_inbox_key PRIMARY KEY CLUSTERED (consumer, [key]) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE bridge_inbox SET (LOCK_ESCALATION = DISABLE);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_inbox_version_once ON bridge_inbox_version (version_id);
