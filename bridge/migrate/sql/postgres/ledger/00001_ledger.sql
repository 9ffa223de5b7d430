-- +goose Up
CREATE TABLE bridge_ledger (
    id          uuid        PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE bridge_identity (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one), -- so there is one row
    identity uuid    NOT NULL
);

INSERT INTO bridge_identity (identity) VALUES (gen_random_uuid());

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_ledger_version_once ON bridge_ledger_version (version_id);
