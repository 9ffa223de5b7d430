package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// SharedVariable is the environment variable in which a test finds the Shared servers
// of its run.
const SharedVariable = "TWOQUEUE_TEST_SERVERS"

// Shared are servers that several test binaries use side by side, each in vhosts and
// databases of its own, and a folder that goes with them. What is nil is not shared.
type Shared struct {
	Folder   string           `json:",omitempty"`
	RabbitMQ *RabbitMQAddress `json:",omitempty"`
	Postgres *PostgresAddress `json:",omitempty"`
	MariaDB  *MariaDBAddress  `json:",omitempty"`
}

// FindShared returns the shared servers of this run, none if it has none.
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

// Environment is the line of an environment in which FindShared finds the servers.
func (s Shared) Environment() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("tell shared servers: %w", err)
	}
	return SharedVariable + "=" + string(text), nil
}

// StartSharedRabbitMQ starts a RabbitMQ as tests share it: with the management plugin and its
// metrics, and with as much free disk as the doctor wants it to insist on.
func StartSharedRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	return StartRabbitMQ(ctx, &RabbitMQOptions{
		Plugins: []string{"rabbitmq_management", "rabbitmq_prometheus"},
		Config:  "disk_free_limit.absolute = 1GB",
	})
}

// StartSharedPostgres starts a PostgreSQL as tests share it: it does not wait for the
// disk, and takes the connections of many.
func StartSharedPostgres(ctx context.Context) (*Postgres, error) {
	return StartPostgres(ctx, &PostgresOptions{Fast: true, Config: []string{"max_connections = 1000"}})
}

// StartSharedMariaDB starts a MariaDB, or a MySQL, as tests share it, like StartSharedPostgres.
func StartSharedMariaDB(ctx context.Context) (*MariaDB, error) {
	return StartMariaDB(ctx, &MariaDBOptions{Fast: true, Config: []string{"max-connections=1000"}})
}
