-- The rights of the programs' logins, as bridgectl grants prints them. The job grants-mariadb runs
-- this at each start, after the jobs that create the tables. It grants existing rights again.

-- bridgectl grants verifier --login verifier
GRANT INSERT ON bridge_ledger TO 'verifier'@'%';
GRANT SELECT ON bridge_identity TO 'verifier'@'%';
GRANT SELECT ON bridge_ledger_version TO 'verifier'@'%';
GRANT SELECT, DELETE ON bridge_ledger TO 'verifier'@'%';
GRANT SELECT, UPDATE ON bridge_watermark TO 'verifier'@'%';
GRANT UPDATE (stage_at, claimed_by) ON bridge_ledger TO 'verifier'@'%';

-- bridgectl grants gateway --login gateway
GRANT SELECT ON bridge_inbox_version TO 'gateway'@'%';
GRANT SELECT, INSERT, DELETE ON bridge_inbox TO 'gateway'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON bridge_inbox_pending TO 'gateway'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON email_gateway TO 'gateway'@'%';

-- bridgectl grants sender --login shop
GRANT INSERT ON bridge_ledger TO 'shop'@'%';
GRANT SELECT ON bridge_identity TO 'shop'@'%';
GRANT SELECT ON bridge_ledger_version TO 'shop'@'%';

-- bridgectl grants operator --login operator
GRANT INSERT ON bridge_ledger TO 'operator'@'%';
GRANT SELECT ON bridge_identity TO 'operator'@'%';
GRANT SELECT ON bridge_ledger_version TO 'operator'@'%';
GRANT SELECT, DELETE ON bridge_ledger TO 'operator'@'%';
GRANT SELECT, UPDATE ON bridge_watermark TO 'operator'@'%';
GRANT UPDATE (stage_at, claimed_by) ON bridge_ledger TO 'operator'@'%';
GRANT UPDATE (recorded_at) ON bridge_ledger TO 'operator'@'%';
GRANT SELECT ON bridge_inbox_version TO 'operator'@'%';
GRANT SELECT ON bridge_inbox TO 'operator'@'%';
GRANT SELECT, UPDATE, DELETE ON bridge_inbox_pending TO 'operator'@'%';
GRANT SELECT, INSERT, UPDATE ON bridge_mark TO 'operator'@'%';
GRANT SELECT, DELETE ON bridge_kept TO 'operator'@'%';

-- The shop's own table, which bridgectl grants does not include.
GRANT INSERT ON orders TO 'shop'@'%';

-- Beyond the least rights: with it the status page and the log describe the session that holds a
-- message up.
GRANT PROCESS ON *.* TO 'verifier'@'%', 'operator'@'%';
GRANT SELECT ON performance_schema.* TO 'verifier'@'%', 'operator'@'%';
