#!/bin/bash
# Creates the demo's database and logins on SQL Server, once. A further run only sets
# READ_COMMITTED_SNAPSHOT to RCSI.
set -euo pipefail

case ${RCSI:-} in
ON | OFF) ;;
*) echo "init: RCSI must be ON or OFF" >&2; exit 2 ;;
esac
SQLCMDPASSWORD=$(</run/secrets/sqlserver_admin_password)
export SQLCMDPASSWORD

# -b: the first error ends sqlcmd. -x: sqlcmd does not expand $( in a password.
sqlcmd() { /opt/mssql-tools18/bin/sqlcmd -C -S sqlserver -U sa -b -x "$@"; }
sqlcmd <<SQL
IF DB_ID('shop') IS NULL CREATE DATABASE shop;
GO
ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT $RCSI WITH ROLLBACK IMMEDIATE;
GO
SQL
sqlcmd -d shop -i /run/secrets/sqlserver_logins
