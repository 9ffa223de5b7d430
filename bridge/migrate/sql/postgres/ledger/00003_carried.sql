-- +goose Up
-- Who waits for a table's lock holds everybody else up: better to fail, and to be
-- called again.
SET LOCAL lock_timeout = '3s';

ALTER TABLE bridge_ledger
    ADD COLUMN message  bytea,       -- the encoded message, if the row carries it
    ADD COLUMN stage_at timestamptz; -- when a verifier stages it if its row is still there; null without a message

CREATE INDEX bridge_ledger_stage_at ON bridge_ledger (stage_at) WHERE stage_at IS NOT NULL;

-- As bridge_committed and bridge_forget, these go by key whatever the statistics say. now() is
-- stable, so the index serves; LIMIT ends the walk along it. An incremental sort orders the rows of
-- one stage time by ID: one statement of a sender has recorded them, so they are few.
CREATE OR REPLACE FUNCTION bridge_due(after_time timestamptz, after_id uuid, most int)
    RETURNS TABLE (id uuid, recorded_at timestamptz, stage_at timestamptz, bytes int)
    LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = on
    AS 'SELECT l.id, l.recorded_at, l.stage_at, octet_length(l.message) FROM bridge_ledger l
WHERE l.stage_at BETWEEN after_time AND now() AND (l.stage_at > after_time OR l.id > after_id)
ORDER BY l.stage_at, l.id LIMIT most';

-- The new stage time is after recorded_at even if the clock has gone back: bridge.Cancel compares both.
-- A locked row is skipped. IS NOT DISTINCT FROM keeps the planner from the index on stage_at: all
-- rows of one transaction may have the same stage time.
CREATE OR REPLACE FUNCTION bridge_claim(ids uuid[], stages timestamptz[])
    RETURNS TABLE (id uuid, message bytea)
    LANGUAGE sql SET enable_seqscan = off
    AS 'WITH free AS MATERIALIZED (
    SELECT f.id FROM unnest(ids, stages) AS d (id, stage_at) CROSS JOIN LATERAL (
        SELECT l.id FROM bridge_ledger l WHERE l.id = d.id AND l.stage_at IS NOT DISTINCT FROM d.stage_at
        FOR NO KEY UPDATE SKIP LOCKED
    ) f
)
UPDATE bridge_ledger l SET stage_at = greatest(clock_timestamp(), l.recorded_at)
    + greatest(interval ''10 s'', least(interval ''10 min'', clock_timestamp() - l.recorded_at))
WHERE l.id = ANY (ARRAY(SELECT free.id FROM free)) RETURNING l.id, l.message';

CREATE OR REPLACE FUNCTION bridge_touch(ids uuid[]) RETURNS void
    LANGUAGE sql SET enable_seqscan = off
    AS 'WITH free AS MATERIALIZED (
    SELECT l.id FROM bridge_ledger l WHERE l.id = ANY (ids) AND l.message IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bridge_ledger l SET stage_at = greatest(clock_timestamp(), l.recorded_at)
    + greatest(interval ''10 s'', least(interval ''10 min'', clock_timestamp() - l.recorded_at))
WHERE l.id = ANY (ARRAY(SELECT free.id FROM free))';
