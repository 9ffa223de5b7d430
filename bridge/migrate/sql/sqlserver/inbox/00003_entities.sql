-- +goose Up
-- How far each consumer has come with an entity or a source; '' is not begun. Names
-- and marks are bytes, as the keys of bridge_inbox.
CREATE TABLE bridge_mark (
    consumer   varbinary(255) NOT NULL,
    [name]     varbinary(255) NOT NULL,
    mark       varbinary(255) NOT NULL,
    changed_at datetime2(3)   NOT NULL CONSTRAINT bridge_mark_changed_at DEFAULT sysutcdatetime(),
    CONSTRAINT bridge_mark_key PRIMARY KEY CLUSTERED (consumer, [name]) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE bridge_mark SET (LOCK_ESCALATION = DISABLE);

-- Messages of entities that have come before their turn.
CREATE TABLE bridge_kept (
    consumer  varbinary(255) NOT NULL,
    entity    varbinary(255) NOT NULL,
    [version] bigint         NOT NULL,
    [message] varbinary(max) NOT NULL,
    kept_at   datetime2(3)   NOT NULL CONSTRAINT bridge_kept_kept_at DEFAULT sysutcdatetime(),
    CONSTRAINT bridge_kept_key PRIMARY KEY CLUSTERED (consumer, entity, [version]) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE bridge_kept SET (LOCK_ESCALATION = DISABLE);
