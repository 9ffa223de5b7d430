-- +goose Up
CREATE TABLE bridge_parked (
    id      uniqueidentifier NOT NULL,
    message varbinary(max)   NOT NULL,
    -- READPAST skips rows that are locked, not pages.
    CONSTRAINT bridge_parked_key PRIMARY KEY CLUSTERED (id) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE bridge_parked SET (LOCK_ESCALATION = DISABLE);

-- Not a column of bridge_identity: a change of that table, and of its row, would wait
-- for senders and have others wait for it.
CREATE TABLE bridge_watermark (
    -- There is one row.
    one          bit NOT NULL CONSTRAINT bridge_watermark_key PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    swept_before datetime2(3) NULL -- UTC; null: there was no sweep
);

INSERT INTO bridge_watermark (one) VALUES (1);
