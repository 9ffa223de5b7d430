package sender

import (
	"errors"
	"time"
)

// Options are the options of New. Nil and the zero value mean defaults.
type Options struct {
	// Queue is the staging queue, see bridge.Topology. Default "twoqueue".
	Queue string
	// Timeout bounds the staging of one transaction's messages: waiting for a
	// connection, publishing, waiting for the confirms. The database transaction
	// is open meanwhile. Default 5 s. A context that ends earlier counts.
	Timeout time.Duration
	// MaxMessageBytes is the largest body that is accepted. It must not exceed
	// the broker's max_message_size, which closes the channel of whoever sends
	// more. Default 16 MiB, which is RabbitMQ 4's default; 3.x takes 128 MiB.
	MaxMessageBytes int
}

func (o *Options) withDefaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	switch {
	case len(out.Queue) > 255:
		return out, errors.New("sender options: Queue has more than 255 bytes")
	case out.Timeout < 0:
		return out, errors.New("sender options: Timeout is negative")
	case out.MaxMessageBytes < 0:
		return out, errors.New("sender options: MaxMessageBytes is negative")
	}
	if out.Queue == "" {
		out.Queue = "twoqueue"
	}
	if out.Timeout == 0 {
		out.Timeout = 5 * time.Second
	}
	if out.MaxMessageBytes == 0 {
		out.MaxMessageBytes = 16 << 20
	}
	return out, nil
}
