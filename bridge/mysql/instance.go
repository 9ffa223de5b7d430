package mysql

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// An instance is the result of nameServer.
type instance struct {
	Server  string
	Started int64 // preceded by a part of server_id
}

// A start recognises the start of the answering server. A counter below the time carries into it
// after 16,777,216 calls of UUID_SHORT, by any client. So a start that is one more than the last is
// the same start; a restart within one second of the start is not noticed.
type start struct {
	mu          sync.Mutex
	server      string
	first, last int64
}

// name returns the same name for all results of one instance.
func (s *start) name(i instance) driver.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	if carried := i.Started - s.last; i.Server != s.server || carried < -1 || carried > 1 {
		s.server, s.first, s.last = i.Server, i.Started, i.Started
	}
	s.last = max(s.last, i.Started)
	const seconds = 1<<32 - 1
	return driver.Instance(fmt.Sprintf("the server %s that started at %s", i.Server, time.Unix(s.first&seconds, 0).UTC().Format(time.RFC3339)))
}

func (l *Ledger) nameInstance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	var i instance
	err := portable.QueryRow(ctx, tx, nameServer, nil, &i.Server, &i.Started)
	return l.start.name(i), err
}
