-- +goose Up
-- How far each consumer has come with an entity or a source; '' is not begun.
CREATE TABLE bridge_mark (
    consumer   text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    mark       text COLLATE "C" NOT NULL,
    changed_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, name)
) WITH (fillfactor = 70); -- room for the row's next versions on its page

-- Messages of entities that have come before their turn.
CREATE TABLE bridge_kept (
    consumer text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    version  bigint           NOT NULL,
    message  bytea            NOT NULL,
    kept_at  timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, entity, version)
);
