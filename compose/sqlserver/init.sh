#!/bin/bash
# Makes the demo's database and login on SQL Server, once; a further run changes
# nothing but READ_COMMITTED_SNAPSHOT, to what RCSI says.
set -euo pipefail

case ${RCSI:-} in
ON | OFF) ;;
*) echo "init: RCSI must be ON or OFF" >&2; exit 2 ;;
esac
SQLCMDPASSWORD=$(</run/secrets/sqlserver_sa_password)
export SQLCMDPASSWORD
password=$(</run/secrets/sqlserver_password)
[[ $password != *"'"* ]] || { echo "init: no quote may be in the password" >&2; exit 2; }

# On standard input, so that the password is in no list of processes. -b: the first
# error ends it. -x: $( in the password is no variable.
/opt/mssql-tools18/bin/sqlcmd -C -S sqlserver -U sa -b -x <<SQL
IF DB_ID('shop') IS NULL CREATE DATABASE shop;
GO
ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT $RCSI WITH ROLLBACK IMMEDIATE;
GO
USE shop;
GO
IF SUSER_ID('shop') IS NULL CREATE LOGIN shop WITH PASSWORD = '$password', DEFAULT_DATABASE = shop;
IF USER_ID('shop') IS NULL CREATE USER shop FOR LOGIN shop;
IF IS_ROLEMEMBER('db_owner', 'shop') = 1 ALTER ROLE db_owner DROP MEMBER shop;
-- It makes the tables and works with them; of the database's other affairs it has no right.
GRANT CREATE TABLE TO shop;
GRANT ALTER, SELECT, INSERT, UPDATE, DELETE ON SCHEMA::dbo TO shop;
GO
SQL
