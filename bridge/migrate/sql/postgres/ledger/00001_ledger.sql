-- +goose Up
CREATE TABLE bridge_ledger (
    id          uuid        PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

-- The rows of a ledger are mostly dead or not committed yet. Statistics count neither, so the
-- planner takes such a ledger for empty and reads all of it for a single ID (measured: 20 ms
-- with 8,000 rows, 0.1 ms by key). Within these functions it goes by key.
CREATE OR REPLACE FUNCTION bridge_committed(ids uuid[]) RETURNS SETOF uuid
    LANGUAGE sql STABLE SET enable_seqscan = off
    AS 'SELECT id FROM bridge_ledger WHERE id = ANY (ids)';

CREATE OR REPLACE FUNCTION bridge_forget(ids uuid[]) RETURNS void
    LANGUAGE sql SET enable_seqscan = off
    AS 'DELETE FROM bridge_ledger WHERE id = ANY (ids)';

CREATE TABLE bridge_identity (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one), -- so there is one row
    identity uuid    NOT NULL
);

INSERT INTO bridge_identity (identity) VALUES (gen_random_uuid());

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_ledger_version_once ON bridge_ledger_version (version_id);
