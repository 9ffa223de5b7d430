-- The logins of the programs. ../sqlserver/init.sh runs this.
IF SUSER_ID('migrate') IS NULL CREATE LOGIN [migrate] WITH PASSWORD = 'Demo-only-migrate-1', DEFAULT_DATABASE = shop;
IF USER_ID('migrate') IS NULL CREATE USER [migrate] FOR LOGIN [migrate];
IF SUSER_ID('verifier') IS NULL CREATE LOGIN [verifier] WITH PASSWORD = 'Demo-only-verifier-1', DEFAULT_DATABASE = shop;
IF USER_ID('verifier') IS NULL CREATE USER [verifier] FOR LOGIN [verifier];
IF SUSER_ID('gateway') IS NULL CREATE LOGIN [gateway] WITH PASSWORD = 'Demo-only-gateway-1', DEFAULT_DATABASE = shop;
IF USER_ID('gateway') IS NULL CREATE USER [gateway] FOR LOGIN [gateway];
IF SUSER_ID('shop') IS NULL CREATE LOGIN [shop] WITH PASSWORD = 'Demo-only-shop-1', DEFAULT_DATABASE = shop;
IF USER_ID('shop') IS NULL CREATE USER [shop] FOR LOGIN [shop];
IF SUSER_ID('operator') IS NULL CREATE LOGIN [operator] WITH PASSWORD = 'Demo-only-operator-1', DEFAULT_DATABASE = shop;
IF USER_ID('operator') IS NULL CREATE USER [operator] FOR LOGIN [operator];

-- bridgectl grants migrate --login migrate
GRANT CREATE TABLE TO [migrate];
GRANT ALTER, SELECT, INSERT, UPDATE ON SCHEMA::dbo TO [migrate];
