-- +goose Up
CREATE TABLE orders (
    id        TEXT     NOT NULL PRIMARY KEY,
    placed_at DATETIME NOT NULL -- UTC
);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_shop_version_once ON bridge_shop_version (version_id);
