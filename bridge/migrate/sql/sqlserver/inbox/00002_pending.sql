-- +goose Up
CREATE TABLE bridge_inbox_pending (
    consumer    varbinary(255) NOT NULL,
    message_key varbinary(255) NOT NULL,
    state       varchar(16)    NOT NULL, -- started, doubtful, ready or failed
    run         varchar(36)    NOT NULL,
    attempts    int            NOT NULL,
    since_ms    bigint         NOT NULL, -- milliseconds since 1970, as due_ms
    due_ms      bigint         NOT NULL,
    error       nvarchar(2000) NOT NULL,
    message     varbinary(max),
    CONSTRAINT bridge_inbox_pending_key PRIMARY KEY CLUSTERED (consumer, message_key) WITH (ALLOW_PAGE_LOCKS = OFF)
);

CREATE INDEX bridge_inbox_pending_due ON bridge_inbox_pending (consumer, state, due_ms) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE bridge_inbox_pending SET (LOCK_ESCALATION = DISABLE);
