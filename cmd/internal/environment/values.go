package environment

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// The types of variables. The error of each names the values that it takes.

// A Count is a whole number from 1 to 65535.
type Count int

// Decode implements envconfig.Decoder, as the other Decodes do.
func (c *Count) Decode(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not usable; give a whole number from 1 to %d, or unset it", text, math.MaxUint16)
	}
	*c = Count(n)
	return nil
}

// Shards is the number of ordered queues.
type Shards int

func (s *Shards) Decode(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > bridge.MaxOrderedShards {
		return fmt.Errorf("%q is not usable; give a whole number from 0 to %d, or unset it", text, bridge.MaxOrderedShards)
	}
	*s = Shards(n)
	return nil
}

// Copies is the number of messages that a queue keeps: a whole number from 0 on.
type Copies int

func (c *Copies) Decode(text string) error {
	const most = 1_000_000_000 // the limit of bridge.Topology
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return fmt.Errorf("%q is not usable; give a whole number from 0 to %d, or unset it", text, most)
	}
	*c = Copies(n)
	return nil
}

// Bytes is a positive number of bytes.
type Bytes int

func (b *Bytes) Decode(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not usable; give a positive number of bytes, or unset it", text)
	}
	*b = Bytes(n)
	return nil
}

// A Span is a positive duration.
type Span time.Duration

// Duration returns the span as a time.Duration.
func (s Span) Duration() time.Duration { return time.Duration(s) }

func (s *Span) Decode(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not usable; give a positive duration such as 500ms, 2s or 10m, or unset it", text)
	}
	*s = Span(d)
	return nil
}

// Truth is true or false.
type Truth bool

func (t *Truth) Decode(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is not usable; give true or false, or unset it", text)
	}
	*t = Truth(b)
	return nil
}

// An Address is where a command listens, host:port, or None.
type Address string

// None is the address of a server that must not run.
const None = "none"

func (a *Address) Decode(text string) error {
	return a.decode(text, "", ":port for all of the machine's addresses")
}

// A Private Address is meant for clients on this machine. Its default host is 127.0.0.1.
type Private Address

func (p *Private) Decode(text string) error {
	return (*Address)(p).decode(text, "127.0.0.1", ":port for 127.0.0.1, 0.0.0.0:port for all of the machine's addresses")
}

func (a *Address) decode(text, host, forms string) error {
	if *a = Address(text); *a == None {
		return nil
	}
	given, port, err := net.SplitHostPort(text)
	if n, wrong := strconv.Atoi(port); err != nil || wrong != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not usable; give host:port, %s, or none", text, forms)
	}
	if given == "" {
		*a = Address(net.JoinHostPort(host, port))
	}
	return nil
}

// Hosts are names or addresses of hosts, without ports.
type Hosts []string

func (h *Hosts) Decode(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if _, err := netip.ParseAddr(name); name == "" || strings.ContainsAny(name, ":/[] ") && err != nil {
			return fmt.Errorf("%q is not usable; give names of hosts without ports, with commas between them, or unset it", text)
		}
		*h = append(*h, name)
	}
	return nil
}
