package bridge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// outgoing makes n messages with bodies of a size.
func outgoing(n, size int) []Outgoing {
	out := make([]Outgoing, n)
	for i := range out {
		out[i] = Outgoing{Target{RoutingKey: "q"}, amqp.Publishing{MessageId: uuid.NewString(), Body: make([]byte, size)}}
	}
	return out
}

// Publish waits for a broker that does not confirm until its deadline and not longer; its error
// names the known state.
func TestPublishEndsAtItsDeadline(t *testing.T) {
	const large = 2 * burstLimit
	for name, test := range map[string]struct {
		peer   *script // nil: there is no broker
		n      int
		size   int
		want   []error
		blamed int     // the message that the error names; -1: none
		next   []error // errors of the next Publish, of one message, which is not sent
	}{
		"there is no broker":               {nil, 1, 1, []error{ErrUnavailable}, -1, []error{ErrUnavailable}},
		"it confirms nothing":              {&script{}, 10, 1, []error{ErrUnconfirmed, context.DeadlineExceeded}, 0, nil},
		"it confirms the first":            {&script{confirms: 1}, 2, 1, []error{ErrUnconfirmed, context.DeadlineExceeded}, 1, nil},
		"it confirms all except the last":  {&script{confirms: 9}, 10, 1, []error{ErrUnconfirmed}, 9, nil},
		"it reads nothing after the first": {&script{confirms: 1, reads: 1}, 5, large, []error{ErrUnavailable, context.DeadlineExceeded}, -1, []error{ErrUnavailable, context.DeadlineExceeded}},
		"it blocks":                        {&script{blocks: "low on memory"}, 1, 1, []error{ErrUnconfirmed, ErrBlocked}, 0, []error{ErrBlocked}},
		"it blocks and reads nothing":      {&script{blocks: "low on disk", reads: 1}, 5, large, []error{ErrBlocked}, -1, []error{ErrBlocked}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := test.peer.peer().broker(t, BrokerOptions{})
				publish := func(messages []Outgoing, want []error) error {
					t.Helper()
					const deadline = 3 * time.Second
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					began := time.Now()
					err := b.Publish(ctx, messages)
					if took := time.Since(began); took != deadline {
						t.Errorf("it took %v of %v", took, deadline)
					}
					for _, want := range want {
						if !errors.Is(err, want) {
							t.Errorf("error %v, want %v", err, want)
						}
					}
					if !Retryable(err) {
						t.Errorf("not retryable: %v", err)
					}
					if test.peer != nil && !strings.Contains(err.Error(), test.peer.blocks) {
						t.Errorf("does not name the broker's reason: %v", err)
					}
					return err
				}
				messages := outgoing(test.n, test.size)
				err := publish(messages, test.want)
				if test.blamed >= 0 {
					if failed := new(PublishError); !errors.As(err, &failed) || failed.ID.String() != messages[test.blamed].MessageId || failed.Target != messages[0].Target {
						t.Errorf("a message other than %d is blamed: %v", test.blamed, err)
					}
				}
				if test.next != nil {
					if err := publish(outgoing(1, 1), test.next); errors.Is(err, ErrUnconfirmed) {
						t.Errorf("the next message was sent: %v", err)
					}
				}
			})
		})
	}
}

// A caller that gives up gets the error at once, and must not try again.
func TestPublishEndsWithItsCaller(t *testing.T) {
	for name, peer := range map[string]*script{
		"there is no broker":  nil,
		"it confirms nothing": {},
		"it reads nothing":    {reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancelCause(t.Context())
				gone := errors.New("the shop shuts down")
				time.AfterFunc(time.Minute, func() { leave(gone) })
				b, began := peer.peer().broker(t, BrokerOptions{}), time.Now()
				err := b.Publish(ctx, outgoing(5, 2*burstLimit))
				if took := time.Since(began); took != time.Minute {
					t.Errorf("it took %v", took)
				}
				if err == nil || Retryable(err) || peer != nil && !errors.Is(err, gone) {
					t.Errorf("retryable %t: %v", Retryable(err), err)
				}
			})
		})
	}
}

func TestCloseEndsPublishesInProgressAndWaitsForNoSilentPeer(t *testing.T) {
	for name, test := range map[string]struct {
		peer *script
		took time.Duration
		want error
	}{
		"there is no broker":  {nil, 0, ErrUnavailable},
		"it confirms nothing": {&script{}, 0, ErrUnconfirmed},
		"it reads nothing":    {&script{reads: 1}, closePatience, ErrUnconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := test.peer.peer().broker(t, BrokerOptions{})
				underWay := make(chan error, 1)
				go func() { underWay <- b.Publish(t.Context(), outgoing(2, 1)) }()
				synctest.Wait()
				began := time.Now()
				b.Close()
				// Both deadlines end at the same moment; if the writer's is first, the reader has
				// lastRead more
				if took := time.Since(began); took != test.took && (test.took == 0 || took != test.took+lastRead) {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if err := <-underWay; !errors.Is(err, test.want) {
					t.Errorf("the publish in progress: %v, want %v", err, test.want)
				}
				if err := b.Publish(t.Context(), outgoing(1, 1)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "closed") {
					t.Errorf("afterwards: %v", err)
				}
				b.Close() // a second Close does no harm
			})
		})
	}
}

// RabbitMQ waits for seconds before it refuses a login, while Publish waits for the connection.
func TestALoginThatIsRefusedWhileOneWaitsIsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := (&peer{}).broker(t, BrokerOptions{})
		b.dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				c := &peerConn{Conn: far}
				_, _ = io.ReadFull(c, make([]byte, len("AMQP0091")))
				c.say(0, method{10, 10, "\x00\x09" + "\x00\x00\x00\x00" + "\x00\x00\x00\x05PLAIN" + "\x00\x00\x00\x05en_US"}) // start
				_, _ = c.Read(make([]byte, 1<<10))                                                                            // the login
				select {
				case <-time.After(3 * time.Second):
				case <-t.Context().Done():
				}
			}()
			return near, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := b.Publish(ctx, outgoing(1, 1)); !errors.Is(err, ErrCredentials) {
			t.Errorf("the error is %v", err)
		}
	})
}

// RabbitMQ gives its reason when it refuses a virtual host. A broker that dies at that moment, or
// is too busy for its handshake_timeout, gives none.
func TestABrokerThatGoesAwayDuringTheLoginIsUnavailable(t *testing.T) {
	_, err := connect(t.Context(), func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go (&peerConn{Conn: dying{far}}).serve(func(peerMessage) bool { return true })
		return near, nil
	}, "amqp://peer/", "", nil, slog.New(slog.DiscardHandler), func() {})
	if errors.Is(err, ErrCredentials) || !Retryable(err) {
		t.Errorf("error %v", err)
	}
}

// dying closes the connection in place of opening a virtual host.
type dying struct{ net.Conn }

func (d dying) Write(b []byte) (int, error) {
	if openOK := []byte{0, 10, 0, 41}; bytes.Contains(b, openOK) {
		return 0, d.Close()
	}
	return d.Conn.Write(b)
}
