package verifier

import (
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Permits returns what a verifier with these options asks of a committed message before
// it forwards it: whether it may go to its target, and by the keys of its CC and BCC
// headers. It is for tools that send a message to its target in a verifier's place.
func (o *Options) Permits() func(wire.Staged) bool { return newAllowList(*o).permits }
