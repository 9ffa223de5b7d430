-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash, from the first.
-- Between two statements a sender of an earlier release could park. So the table is renamed, which
-- waits for all who have used it, and only then moved. What a crash has left renamed goes first.
CREATE TABLE IF NOT EXISTS bridge_parked (
    id      BINARY(16) NOT NULL PRIMARY KEY,
    message LONGBLOB   NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS bridge_parked_moved (
    id      BINARY(16) NOT NULL PRIMARY KEY,
    message LONGBLOB   NOT NULL
) ENGINE = InnoDB;

-- A parked message without a row was forwarded. A row that carries its message stays as it is.
UPDATE bridge_parked_moved p STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = p.id
SET l.message = p.message, l.stage_at = l.recorded_at WHERE l.stage_at IS NULL;

DROP TABLE bridge_parked_moved;

RENAME TABLE bridge_parked TO bridge_parked_moved;

UPDATE bridge_parked_moved p STRAIGHT_JOIN bridge_ledger l FORCE INDEX (PRIMARY) ON l.id = p.id
SET l.message = p.message, l.stage_at = l.recorded_at WHERE l.stage_at IS NULL;

DROP TABLE bridge_parked_moved;
