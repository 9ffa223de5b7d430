-- The logins of the programs. The server runs this when it creates the database.
CREATE ROLE "migrate" LOGIN PASSWORD 'demo-only-db-migrate';
CREATE ROLE "verifier" LOGIN PASSWORD 'demo-only-db-verifier';
CREATE ROLE "gateway" LOGIN PASSWORD 'demo-only-db-gateway';
CREATE ROLE "shop" LOGIN PASSWORD 'demo-only-db-shop';
CREATE ROLE "operator" LOGIN PASSWORD 'demo-only-db-operator';

-- bridgectl grants migrate --login migrate
GRANT USAGE ON SCHEMA public TO "migrate";
GRANT CREATE ON SCHEMA public TO "migrate";
