-- +goose Up
-- A printed script may run twice, so each statement can be run again.
CREATE TABLE IF NOT EXISTS bridge_parked (
    id      TEXT PRIMARY KEY, -- the UUID's canonical text
    message BLOB NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS bridge_watermark (
    one          INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), -- so there is one row
    swept_before INTEGER                                        -- seconds; null: there was no sweep
) STRICT;

INSERT OR IGNORE INTO bridge_watermark (one) VALUES (1);
