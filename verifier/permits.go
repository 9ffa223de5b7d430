package verifier

import (
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Permits returns the check that a verifier with these options makes before it forwards a committed
// message: whether it may go to its target, and by the keys of its CC and BCC headers. o may be nil.
// Tools that send a message to its target in a verifier's place use it.
func (o *Options) Permits() func(wire.Staged) bool { return newAllowList(o.withQueue()).permits }
