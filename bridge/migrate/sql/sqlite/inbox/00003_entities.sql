-- +goose Up
-- A printed script may run twice, so each statement can be run again.
-- How far each consumer has come with an entity or a source; '' is not begun.
CREATE TABLE IF NOT EXISTS bridge_mark (
    consumer   TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    mark       TEXT    NOT NULL,
    changed_at INTEGER NOT NULL DEFAULT (unixepoch()), -- seconds
    PRIMARY KEY (consumer, name)
) STRICT, WITHOUT ROWID;

-- Messages of entities that have come before their turn.
CREATE TABLE IF NOT EXISTS bridge_kept (
    consumer TEXT    NOT NULL,
    entity   TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    message  BLOB    NOT NULL,
    kept_at  INTEGER NOT NULL DEFAULT (unixepoch()), -- seconds
    PRIMARY KEY (consumer, entity, version)
) STRICT;
