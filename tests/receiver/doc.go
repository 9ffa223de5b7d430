// Package receiver tests the promises of a receiver that is written from the README alone.
// Command service in this folder is such a receiver; it runs as two processes under faults.
//
//	go test ./tests/receiver                                          1,000 orders, each fault once
//	go test ./tests/receiver -messages 20000 -timeout 30m -v          many faults
//	… -database mariadb                                               on a MariaDB, or a MySQL
package receiver
