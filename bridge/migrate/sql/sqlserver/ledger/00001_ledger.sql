-- +goose Up
CREATE TABLE bridge_ledger (
    id          uniqueidentifier NOT NULL,
    recorded_at datetime2(3)     NOT NULL CONSTRAINT bridge_ledger_recorded_at DEFAULT sysutcdatetime(),
    -- READPAST skips rows that are locked, not pages. Statistics of a table that is
    -- empty most of the time are stale all the time, and no statement needs them.
    CONSTRAINT bridge_ledger_key PRIMARY KEY CLUSTERED (id) WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);

-- A transaction with thousands of IDs must not lock the others out.
ALTER TABLE bridge_ledger SET (LOCK_ESCALATION = DISABLE);

CREATE TABLE bridge_identity (
    -- There is one row.
    one        bit              NOT NULL CONSTRAINT bridge_identity_key PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    [identity] uniqueidentifier NOT NULL
);

INSERT INTO bridge_identity ([identity]) VALUES (NEWID());

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_ledger_version_once ON bridge_ledger_version (version_id);
