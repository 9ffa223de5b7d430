-- +goose Up
CREATE TABLE orders (
    id        varchar(36)  NOT NULL CONSTRAINT orders_id PRIMARY KEY,
    placed_at datetime2(3) NOT NULL -- UTC
);

-- Of several migrators at once only one can record a version, and with it commit
-- what the version changes.
CREATE UNIQUE INDEX bridge_shop_version_once ON bridge_shop_version (version_id);
