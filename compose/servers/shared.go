package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// SharedVariable is the environment variable that gives a test the Shared servers of its run.
const SharedVariable = "TWOQUEUE_TEST_SERVERS"

// Shared are servers that several test binaries use concurrently, each with its own vhosts and
// databases, and a folder for all of them. A nil server is not shared.
type Shared struct {
	Folder   string           `json:",omitempty"`
	RabbitMQ *RabbitMQAddress `json:",omitempty"`
	Postgres *PostgresAddress `json:",omitempty"`
	MariaDB  *MariaDBAddress  `json:",omitempty"`
}

// FindShared returns the shared servers of this run, or none.
func FindShared() (Shared, error) {
	var s Shared
	text := os.Getenv(SharedVariable)
	if text == "" {
		return s, nil
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Shared{}, fmt.Errorf("read %s: %w", SharedVariable, err)
	}
	return s, nil
}

// Environment returns the environment entry from which FindShared reads the servers.
func (s Shared) Environment() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode shared servers: %w", err)
	}
	return SharedVariable + "=" + string(text), nil
}

// StartSharedRabbitMQ starts a RabbitMQ for all tests: with the management plugin and metrics, and
// with the limit of free disk that the doctor recommends.
func StartSharedRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	return StartRabbitMQ(ctx, &RabbitMQOptions{
		Plugins: []string{"rabbitmq_management", "rabbitmq_prometheus"},
		Config:  "disk_free_limit.absolute = 1GB",
	})
}

// StartSharedPostgres starts a PostgreSQL for all tests. It does not wait for the disk, and allows
// many connections.
func StartSharedPostgres(ctx context.Context) (*Postgres, error) {
	return StartPostgres(ctx, &PostgresOptions{Fast: true, Config: []string{"max_connections = 1000"}})
}

// StartSharedMariaDB starts a MariaDB, or a MySQL, for all tests. It does not wait for the disk,
// and allows many connections.
func StartSharedMariaDB(ctx context.Context) (*MariaDB, error) {
	return StartMariaDB(ctx, &MariaDBOptions{Fast: true, Config: []string{"max-connections=1000"}})
}
