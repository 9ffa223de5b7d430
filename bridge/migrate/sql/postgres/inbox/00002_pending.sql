-- +goose Up
CREATE TABLE bridge_inbox_pending (
    consumer    text COLLATE "C" NOT NULL,
    message_key text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL, -- started, doubtful, ready or failed
    run         text             NOT NULL,
    attempts    integer          NOT NULL,
    since_ms    bigint           NOT NULL, -- milliseconds since 1970, as due_ms
    due_ms      bigint           NOT NULL,
    error       text             NOT NULL,
    message     bytea,
    PRIMARY KEY (consumer, message_key)
);

CREATE INDEX bridge_inbox_pending_due ON bridge_inbox_pending (consumer, state, due_ms);
