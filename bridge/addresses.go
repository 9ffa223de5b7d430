package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
)

// addressPatience bounds an attempt to connect to one address while another is left to try. A
// frozen broker, or a broker on a frozen machine, accepts the connection and sends nothing.
const addressPatience = 5 * time.Second

// A rotation selects the broker's next address. It begins at any of them, which spreads the clients
// of a cluster over its nodes. After a failed attempt or a lost connection the next address
// follows.
type rotation struct{ at atomic.Uint64 }

func newRotation() *rotation {
	r := new(rotation)
	r.at.Store(uint64(rand.Uint32()))
	return r
}

// failed moves on from address number at, unless another caller has moved on already.
func (r *rotation) failed(at uint64) { r.at.CompareAndSwap(at, at+1) }

// urls returns one URL per address of the broker, from BrokerOptions.URL if it is set.
func (b *Broker) urls(ctx context.Context) ([]string, error) {
	text := b.url
	if b.opts.URL != nil {
		var err error
		if text, err = b.opts.URL(ctx); err != nil {
			return nil, fmt.Errorf("connect to the broker: read its URL: %w: %w", ErrUnavailable, err)
		}
	}
	urls := splitURL(text)
	if err := checkURLs(urls, b.opts.TLS); err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	return urls, nil
}

// connectAny connects to the first address that accepts the connection.
func (b *Broker) connectAny(ctx context.Context) (*Connection, error) {
	urls, err := b.urls(ctx)
	if err != nil {
		return nil, err
	}
	first := b.rotation.at.Load()
	var failures attempts
	for i := range urls {
		at := first + uint64(i)
		conn, err := b.connectOne(ctx, urls[at%uint64(len(urls))], len(urls)-i, func() { b.rotation.failed(at) })
		if err == nil {
			return conn, nil
		}
		b.rotation.failed(at)
		if failures = append(failures, err); ctx.Err() != nil {
			break
		}
	}
	return nil, failures.error()
}

// connectOne connects to one address; left is the number of addresses to try, this one included.
// Each except the last gets an equal share of the time, at most addressPatience.
func (b *Broker) connectOne(ctx context.Context, url string, left int, lost func()) (*Connection, error) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(addressPatience, time.Until(end)/time.Duration(left)))
		defer cancel()
	}
	return connect(ctx, b.dial, url, b.opts.Name, b.opts.TLS, b.opts.Logger, lost)
}

// attempts are the errors of several addresses.
type attempts []error

// error returns the only error, or all of them. A refused login is returned alone: it needs a
// repair.
func (a attempts) error() error {
	for _, err := range a {
		if len(a) == 1 || errors.Is(err, ErrCredentials) {
			return err
		}
	}
	return a
}

func (a attempts) Unwrap() []error { return a }

func (a attempts) Error() string {
	texts := make([]string, len(a))
	for i, err := range a {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}
