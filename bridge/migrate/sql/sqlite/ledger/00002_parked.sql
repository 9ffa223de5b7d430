-- +goose Up
CREATE TABLE bridge_parked (
    id      TEXT PRIMARY KEY, -- the UUID's canonical text
    message BLOB NOT NULL
) STRICT;

CREATE TABLE bridge_watermark (
    one          INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), -- so there is one row
    swept_before INTEGER                                        -- seconds; null: there was no sweep
) STRICT;

INSERT INTO bridge_watermark (one) VALUES (1);
