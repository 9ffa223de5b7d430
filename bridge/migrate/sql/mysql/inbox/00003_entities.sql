-- +goose Up
-- Each statement commits by itself here, so each can be run again after a crash.
-- How far each consumer has come with an entity or a source; '' is not begun.
CREATE TABLE IF NOT EXISTS bridge_mark (
    consumer   VARBINARY(255) NOT NULL,
    name       VARBINARY(255) NOT NULL,
    mark       VARBINARY(255) NOT NULL,
    changed_at DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)), -- UTC
    PRIMARY KEY (consumer, name)
) ENGINE = InnoDB;

-- Messages of entities that have come before their turn.
CREATE TABLE IF NOT EXISTS bridge_kept (
    consumer VARBINARY(255) NOT NULL,
    entity   VARBINARY(255) NOT NULL,
    version  BIGINT         NOT NULL,
    message  LONGBLOB       NOT NULL,
    kept_at  DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)), -- UTC
    PRIMARY KEY (consumer, entity, version)
) ENGINE = InnoDB;
