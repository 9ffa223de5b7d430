-- The logins of the programs. The server runs this when it creates the database.
CREATE USER 'migrate'@'%' IDENTIFIED BY 'demo-only-db-migrate';
CREATE USER 'verifier'@'%' IDENTIFIED BY 'demo-only-db-verifier';
CREATE USER 'gateway'@'%' IDENTIFIED BY 'demo-only-db-gateway';
CREATE USER 'shop'@'%' IDENTIFIED BY 'demo-only-db-shop';
CREATE USER 'operator'@'%' IDENTIFIED BY 'demo-only-db-operator';

-- bridgectl grants migrate --login migrate
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON `shop`.* TO 'migrate'@'%';
