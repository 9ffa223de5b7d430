-- +goose Up
CREATE TABLE IF NOT EXISTS orders (
    id        VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    placed_at DATETIME(3) NOT NULL -- UTC
) ENGINE = InnoDB;
