package portable

import (
	"context"

	"github.com/twoqueue/twoqueue/bridge"
)

// NoFence is the driver.Fence of a database whose statements, and COMMIT, fail if the transaction
// ended before.
type NoFence struct{}

// Enter does nothing.
func (NoFence) Enter(context.Context, bridge.Tx) error { return nil }

// Leave does nothing.
func (NoFence) Leave(context.Context, bridge.Tx) error { return nil }
