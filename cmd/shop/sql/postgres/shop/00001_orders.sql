-- +goose Up
CREATE TABLE orders (
    id        text        NOT NULL PRIMARY KEY,
    placed_at timestamptz NOT NULL
);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_shop_version_once ON bridge_shop_version (version_id);
