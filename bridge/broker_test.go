package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	password = "s3cr3t" // no error may contain it
	patience = 2 * time.Minute
)

// dialFails dials and expects an error, in time, that contains host and port and nothing else of
// the URL.
func dialFails(t *testing.T, ctx context.Context, url string, opts *bridge.BrokerOptions) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		broker, err := bridge.Dial(ctx, url, opts)
		if err == nil {
			broker.Close()
		}
		result <- err
	}()
	var err error
	select {
	case err = <-result:
	case <-time.After(patience):
		t.Fatal("Dial does not return")
	}
	if err == nil {
		t.Fatal("dialed")
	}
	for _, secret := range []string{password, "login", "virtual-one", "amqp://login"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains %q: %v", secret, err)
		}
	}
	return err
}

// peer starts a server that sends words to every client, and then nothing.
func peer(t *testing.T, words string) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, words)
			_, _ = io.Copy(io.Discard, conn) // until the client leaves
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended // waits for the clients too
	})
	return fmt.Sprintf("amqp://login:%s@%s/virtual-one", password, listener.Addr())
}

// In no case is there a broker that answers.
func TestNoBrokerIsUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := listener.Addr().String()
	_ = listener.Close()
	const short, byDefault = 100 * time.Millisecond, 10 * time.Second // an attempt that ends by itself ends before the default time-out
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(short, cancel)
	for name, test := range map[string]struct {
		ctx     context.Context
		url     string
		timeout time.Duration
		want    error
		says    string
		waits   bool // until the short time is over
	}{
		"no server":           {t.Context(), "amqp://login:" + password + "@" + away + "/virtual-one", 0, bridge.ErrUnavailable, away, false},
		"silent":              {t.Context(), peer(t, ""), short, context.DeadlineExceeded, "", true},
		"silent, given up":    {ctx, peer(t, ""), time.Hour, context.Canceled, "", false},
		"of another protocol": {t.Context(), peer(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), 0, bridge.ErrUnavailable, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			err := dialFails(t, test.ctx, test.url, &bridge.BrokerOptions{DialTimeout: test.timeout})
			if took := time.Since(start); test.waits && took < short || took >= byDefault {
				t.Errorf("it took %v", took)
			}
			if !errors.Is(err, bridge.ErrUnavailable) || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for field, opts := range map[string]*bridge.BrokerOptions{
		"DialTimeout": {DialTimeout: -1},
		"Channels":    {Channels: 1001},
		"InFlight":    {InFlight: -1},
	} {
		if err := dialFails(t, t.Context(), "amqp://localhost", opts); !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestOnlyATemporaryErrorIsRetryable(t *testing.T) {
	for err, want := range map[error]bool{
		bridge.ErrUnavailable: true, bridge.ErrBlocked: true, bridge.ErrNacked: true, bridge.ErrUnconfirmed: true, bridge.ErrNotBegun: true,
		bridge.ErrReturned: false, bridge.ErrInvalidMessage: false, bridge.ErrCredentials: false,
		bridge.ErrDuplicateID: false, bridge.ErrOtherLedger: false, bridge.ErrReadOnly: false,
		refused(amqp.AccessRefused): false, refused(amqp.NotFound): false, refused(amqp.PreconditionFailed): true,
	} {
		if got := bridge.Retryable(&bridge.PublishError{Err: fmt.Errorf("wrapped: %w", err)}); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
	if bridge.Retryable(nil) {
		t.Error("no error is retryable")
	}
}

// refused returns the error of a publish that the broker refused: it closes the channel.
func refused(code int) error {
	return fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, &amqp.Error{Code: code, Server: true, Recover: true})
}

func TestAPublishErrorNamesMessageAndTarget(t *testing.T) {
	id := uuid.MustParse("01920000-0000-7000-8000-000000000001")
	for target, want := range map[bridge.Target]string{
		{RoutingKey: "q"}:                "publish message " + id.String() + ` to queue "q": message returned as unroutable`,
		{Exchange: "x", RoutingKey: "k"}: "publish message " + id.String() + ` to exchange "x" key "k": message returned as unroutable`,
	} {
		err := &bridge.PublishError{ID: id, Target: target, Err: bridge.ErrReturned}
		if err.Error() != want || !errors.Is(err, bridge.ErrReturned) {
			t.Errorf("text %q, want %q", err, want)
		}
	}
}

// Another attempt does not help if the caller itself has ended this one.
func TestACallThatItsCallerHasEndedIsNotRetryable(t *testing.T) {
	broker, err := bridge.NewBroker("amqp://login:"+password+"@127.0.0.1:1/", &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := broker.Connect(gone); bridge.Retryable(err) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("connect, cancelled: %v", err)
	}
	broker.Close()
	if err := broker.Publish(t.Context(), make([]bridge.Outgoing, 1)); bridge.Retryable(err) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("publish, closed: %v", err)
	}
}
