-- name: PlaceOrder :exec
INSERT INTO orders (body) VALUES ($1);
