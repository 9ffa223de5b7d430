package bridge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// BrokerOptions are the options of Dial and NewBroker. Nil and the zero value of each
// field mean defaults.
type BrokerOptions struct {
	// Name is the connections' name in RabbitMQ's lists. Default "twoqueue".
	Name string
	// TLS is the client configuration for amqps URLs. Default: made from the URL's parameters;
	// without parameters, the system's roots and the URL's host name.
	TLS *tls.Config
	// DialTimeout bounds one attempt to connect, over all addresses of the URL. While another
	// address is left to try, an address gets at most 5 s of it. Default 10 s.
	DialTimeout time.Duration
	// URL is called for the broker's URL before each attempt to connect, and replaces Dial's
	// argument: a rotated password needs no restart. An error of URL counts as ErrUnavailable.
	// Default: none.
	URL func(context.Context) (string, error)
	// Channels is the number of channels that Publish spreads over, at most 1000.
	// Default 2.
	Channels int
	// InFlight is how many messages each of these channels may have unconfirmed
	// before Publish waits. Default 1024.
	InFlight int
	// Logger gets a line when the publishing connection is lost or cannot be made, one a minute
	// during the outage, and one when the connection is back; a line for each queue or exchange that
	// Declare could not check; and a line when deliveries are not received (BoundReadAhead). Default
	// slog.Default().
	Logger *slog.Logger
}

func (o *BrokerOptions) withDefaults() (BrokerOptions, error) {
	var out BrokerOptions
	if o != nil {
		out = *o
	}
	switch {
	case out.DialTimeout < 0:
		return out, errors.New("BrokerOptions.DialTimeout is negative")
	case out.Channels < 0 || out.Channels > 1000:
		return out, errors.New("BrokerOptions.Channels is not between 1 and 1000")
	case out.InFlight < 0:
		return out, errors.New("BrokerOptions.InFlight is negative")
	}
	if out.Name == "" {
		out.Name = "twoqueue"
	}
	if out.DialTimeout == 0 {
		out.DialTimeout = 10 * time.Second
	}
	if out.Channels == 0 {
		out.Channels = 2
	}
	if out.InFlight == 0 {
		out.InFlight = 1024
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}

// A Broker is a RabbitMQ server or cluster with a login. Publish reconnects by itself; a connection
// opened by Connect does not. A Broker may be used from any number of goroutines.
type Broker struct {
	url      string
	opts     BrokerOptions
	dial     dialer
	rotation *rotation
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	keeper   sync.WaitGroup
	once     sync.Once
	next     atomic.Uint64
	outage   disconnection // used by keep only

	mu      sync.Mutex
	up      *link         // nil while there is none
	linked  chan struct{} // closed when up is set
	lastErr error         // why there is no link
}

// link holds the publishing channels of one connection. It is replaced when one of them ends.
type link struct {
	publishers []*Publisher
	gone       chan struct{} // closed when it is no longer the broker's link
}

// Dial connects to the broker once, to check url and login. The error is ErrCredentials for a
// wrong login; ErrURL for a malformed URL; ErrUnavailable if there is no broker, if no further
// connection is allowed, or if the broker's certificate does not verify. The URL has the form
// amqp://user:password@host:port/vhost, or begins with amqps for TLS. With amqps it may have
// parameters that name PEM files: cacertfile (authorities for the broker's certificate), certfile
// and keyfile (the client's own). They are read again for each connection. Errors contain host
// and port, and no other part of the URL.
//
// The nodes of a cluster are listed in one URL:
// amqp://user:password@a:5672,b:5672,[::1]:5672/vhost. A Broker begins at any of them, and stays
// there until a connection fails or is lost. Then it tries the next. With TLS each certificate must
// be for its own host, unless the parameter server_name_indication or TLS.ServerName gives one name
// for all. A frozen node costs at most 5 s when a connection is made. An open connection to a node
// that freezes is lost after one and a half heartbeats: 15 s, or 6 s with the parameter
// heartbeat=4.
func Dial(ctx context.Context, url string, opts *BrokerOptions) (*Broker, error) {
	b, err := NewBroker(url, opts)
	if err != nil {
		return nil, err
	}
	conn, err := b.Connect(ctx)
	if err != nil {
		b.cancel()
		return nil, err
	}
	conn.Close()
	return b, nil
}

// NewBroker is Dial without connecting, for a process that must start during an outage, such as a
// sender of carried messages. Its error is ErrURL, or names a wrong option. A wrong login shows at
// the first Publish or Connect.
func NewBroker(url string, opts *BrokerOptions) (*Broker, error) {
	options, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new broker: %w", err)
	}
	if options.URL == nil {
		if err := checkURLs(splitURL(url), options.TLS); err != nil {
			return nil, err
		}
	}
	b := &Broker{url: url, opts: options, dial: new(net.Dialer).DialContext, rotation: newRotation(), linked: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.outage.logger = options.Logger
	return b, nil
}

// Connect opens a connection that never recovers, within BrokerOptions.DialTimeout.
// The caller closes it. The errors are Dial's.
func (b *Broker) Connect(ctx context.Context) (*Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.DialTimeout)
	defer cancel()
	conn, err := b.connectAny(ctx)
	return conn, cancelled(ctx, err)
}

// Close ends the publishing connection, and returns when it has ended. Unconfirmed messages may or
// may not be at the broker. Publish returns ErrUnavailable afterwards. Connections opened by
// Connect stay open.
func (b *Broker) Close() {
	b.cancel()
	b.once.Do(func() {}) // no keeper starts any more
	b.keeper.Wait()
}

// Done returns a channel that is closed when Close is called.
func (b *Broker) Done() <-chan struct{} { return b.ctx.Done() }

// Blocked returns the broker's own reason for accepting no messages (a memory or disk alarm). It
// is empty if the broker accepts messages, or if there is no connection.
func (b *Broker) Blocked() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up == nil {
		return ""
	}
	return b.up.publishers[0].conn.Blocked()
}

// An Outgoing is a message in its final form, with its target.
type Outgoing struct {
	Target
	amqp.Publishing
}

// Publish sends all messages, then waits once for all confirms. It returns nil only if the broker
// has put every message into a queue. If no connection came in time, nothing was sent, and the
// error is ErrUnavailable, or ErrCredentials if the broker refused the login meanwhile (RabbitMQ
// takes seconds for that). Otherwise the error is the first failure, a *PublishError, and some of
// the messages may have arrived. Give the context a deadline: Publish waits until then while the
// connection is down or blocked.
func (b *Broker) Publish(ctx context.Context, messages []Outgoing) error {
	if len(messages) == 0 {
		return nil
	}
	return cancelled(ctx, b.publish(ctx, messages))
}

func (b *Broker) publish(ctx context.Context, messages []Outgoing) error {
	for {
		link, err := b.link(ctx)
		if err != nil {
			return err
		}
		publisher := link.publishers[b.next.Add(1)%uint64(len(link.publishers))]
		results, sent, failure := send(ctx, publisher, messages)
		if sent == 0 && errors.Is(failure, ErrUnavailable) && ctx.Err() == nil {
			select { // the channel was over already: the next link may do
			case <-link.gone:
			case <-ctx.Done():
			}
			continue
		}
		for i := range sent { // messages of one target come in order
			select {
			case err := <-results:
				if failure == nil {
					failure = err
				}
			case <-ctx.Done():
				if failure == nil {
					failure = publishError(messages[i].Target, messages[i].MessageId, late(ctx, publisher))
				}
				return failure
			}
		}
		return failure
	}
}

// send publishes the messages up to the first failure. results gets one result for each message
// sent.
func send(ctx context.Context, publisher *Publisher, messages []Outgoing) (results <-chan error, sent int, failure error) {
	// Buffered for all: a late confirm finds room after the caller has gone.
	reports := make(chan error, len(messages))
	for _, m := range messages {
		if err := publisher.Publish(ctx, m.Target, m.Publishing, reporter(reports, m.Target, m.MessageId)); err != nil {
			return reports, sent, publishError(m.Target, m.MessageId, err)
		}
		sent++
	}
	return reports, sent, nil
}

// reporter keeps only the message's target and ID: the function lives until the confirm or the end of
// the connection, perhaps long after the caller has returned.
func reporter(reports chan<- error, to Target, id string) func(error) {
	return func(err error) {
		if err != nil {
			err = publishError(to, id, err)
		}
		reports <- err
	}
}

// late is the error of a confirm that did not come before the deadline.
func late(ctx context.Context, p *Publisher) error {
	if reason := p.conn.Blocked(); reason != "" {
		return fmt.Errorf("%w: %w: %s", ErrUnconfirmed, ErrBlocked, reason)
	}
	return fmt.Errorf("%w in time: %w", ErrUnconfirmed, context.Cause(ctx))
}

func publishError(to Target, messageID string, err error) error {
	id, _ := uuid.Parse(messageID)
	return &PublishError{ID: id, Target: to, Err: err}
}

// link returns the link, after waiting for one if necessary.
func (b *Broker) link(ctx context.Context) (*link, error) {
	b.once.Do(func() {
		b.keeper.Add(1)
		go b.keep()
	})
	for {
		b.mu.Lock()
		link, linked := b.up, b.linked
		b.mu.Unlock()
		if link != nil {
			return link, nil
		}
		select {
		case <-linked:
		case <-b.ctx.Done():
			return nil, fmt.Errorf("publish: %w: broker is closed: %w", ErrUnavailable, context.Canceled)
		case <-ctx.Done():
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.lastErr != nil {
				return nil, fmt.Errorf("publish: no connection in time: %w", b.lastErr)
			}
			return nil, fmt.Errorf("publish: %w: no connection in time", ErrUnavailable)
		}
	}
}

// keep reconnects after each loss, until Close.
func (b *Broker) keep() {
	defer b.keeper.Done()
	wait := newBackOff()
	for b.ctx.Err() == nil {
		linked, err := b.serve()
		if b.ctx.Err() != nil {
			return
		}
		if linked {
			wait.Reset()
		}
		pause := wait.NextBackOff()
		b.outage.lost(err)
		select {
		case <-b.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// A disconnection logs that there is no publishing connection: at the beginning, at the end, and
// once per disconnectionAgain in between.
type disconnection struct {
	logger        *slog.Logger
	since, logged time.Time // zero: there is a connection
}

const disconnectionAgain = time.Minute

// lost is called for each connection that was lost or could not be made.
func (d *disconnection) lost(err error) {
	now := time.Now()
	switch {
	case d.since.IsZero():
		d.since, d.logged = now, now
		d.logger.Warn("publishing connection lost", "error", err)
	case now.Sub(d.logged) >= disconnectionAgain:
		d.logged = now
		d.logger.Warn("publishing connection still lost", "error", err, "for", now.Sub(d.since).Round(time.Second))
	}
}

func (d *disconnection) back() {
	if d.since.IsZero() {
		return
	}
	d.logger.Info("publishing connection is back", "after", time.Since(d.since).Round(time.Millisecond))
	d.since = time.Time{}
}

// newBackOff is the pause between attempts to reach a server: exponential with jitter, from a
// tenth of a second to two seconds. It is short because transactions wait for it.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 100 * time.Millisecond
	b.MaxInterval = 2 * time.Second
	return b
}

// serve makes one connection and keeps publishing channels open on it. It returns when the
// connection is over or could not be made.
func (b *Broker) serve() (linked bool, err error) {
	conn, err := b.Connect(b.ctx)
	if err != nil {
		b.unlink(err)
		return false, err
	}
	defer conn.Close()
	// Opening a channel on a half-open connection would outwait Close.
	defer context.AfterFunc(b.ctx, conn.Close)()
	over := make(chan *Publisher, b.opts.Channels)
	open := func() (*Publisher, error) {
		p, err := conn.Publisher(b.opts.InFlight)
		if err != nil {
			return nil, err
		}
		go func() {
			<-p.Done()
			over <- p
		}()
		return p, nil
	}
	publishers := make([]*Publisher, b.opts.Channels)
	for i := range publishers {
		if publishers[i], err = open(); err != nil {
			b.unlink(err)
			return false, err
		}
	}
	b.outage.back()
	for {
		b.relink(publishers)
		var ended *Publisher
		select {
		case ended = <-over:
			err = ended.Err()
		case <-b.ctx.Done():
			err = b.ctx.Err()
		}
		// A refused message ends only its own channel; the other channels go on. Every other end
		// means that the connection has ended.
		var next *Publisher
		if Refusal(err) != nil {
			next, err = open() // on failure, try another connection
		}
		if next == nil {
			b.unlink(err)
			return true, err
		}
		publishers = slices.Clone(publishers) // publish reads the link's slice without a lock
		publishers[slices.Index(publishers, ended)] = next
	}
}

// relink makes Publish use these publishers from now on.
func (b *Broker) relink(publishers []*Publisher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up == nil {
		close(b.linked)
	} else {
		close(b.up.gone)
	}
	b.up, b.lastErr = &link{publishers, make(chan struct{})}, nil
}

func (b *Broker) unlink(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastErr = err
	if b.up != nil {
		close(b.up.gone)
		b.up = nil
		b.linked = make(chan struct{})
	}
}
