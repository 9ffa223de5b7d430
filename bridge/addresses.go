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

// addressPatience is how long an attempt to connect to one address may take while there is
// another to try. A broker that is frozen, or whose machine is, takes the connection and says
// nothing.
const addressPatience = 5 * time.Second

// A rotation says which of a broker's addresses comes next: at first any, so that the clients
// of a cluster spread over its nodes; after a failed attempt or a lost connection the one behind it.
type rotation struct{ at atomic.Uint64 }

func newRotation() *rotation {
	r := new(rotation)
	r.at.Store(uint64(rand.Uint32()))
	return r
}

// failed moves on from an address, unless somebody has done so.
func (r *rotation) failed(at uint64) { r.at.CompareAndSwap(at, at+1) }

// urls are those of the broker's addresses, read anew if the options say how.
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

// connectAny connects to the first of the broker's addresses that takes us.
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

// connectOne connects to one address, of so many that are left. All but the last get a share of
// the time, and addressPatience at most.
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

// error is the only one, or all. A refused login comes alone: it must be mended first.
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
