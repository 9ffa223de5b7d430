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

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	password = "s3cr3t" // must be in no error
	patience = 2 * time.Minute
)

// dialFails dials and expects an error that tells nothing of the URL but host and
// port.
func dialFails(t *testing.T, ctx context.Context, url string, opts *bridge.BrokerOptions) error {
	t.Helper()
	broker, err := bridge.Dial(ctx, url, opts)
	if err == nil {
		broker.Close()
		t.Fatal("dialed")
	}
	for _, secret := range []string{password, "login", "virtual-one", "amqp://login"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains %q: %v", secret, err)
		}
	}
	return err
}

// peer is a server that says what it is given to every client, and then nothing.
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
		<-ended // also: every client has left
	})
	return fmt.Sprintf("amqp://login:%s@%s/virtual-one", password, listener.Addr())
}

// None of them is a broker that answers.
func TestNoBrokerIsUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := listener.Addr().String()
	_ = listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	for name, test := range map[string]struct {
		ctx     context.Context
		url     string
		timeout time.Duration
		want    error
		says    string
	}{
		"nobody":              {t.Context(), "amqp://login:" + password + "@" + away + "/virtual-one", patience, bridge.ErrUnavailable, away},
		"silent":              {t.Context(), peer(t, ""), 100 * time.Millisecond, context.DeadlineExceeded, ""},
		"silent, given up":    {ctx, peer(t, ""), time.Hour, context.Canceled, ""},
		"of another protocol": {t.Context(), peer(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), patience, bridge.ErrUnavailable, ""},
	} {
		start := time.Now()
		err := dialFails(t, test.ctx, test.url, &bridge.BrokerOptions{DialTimeout: test.timeout})
		if !errors.Is(err, bridge.ErrUnavailable) || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v", name, err)
		}
		if took := time.Since(start); took > patience {
			t.Errorf("%s: took %v", name, took)
		}
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

func TestOnlyWhatMayPassByItselfIsRetryable(t *testing.T) {
	for err, want := range map[error]bool{
		bridge.ErrUnavailable: true, bridge.ErrBlocked: true, bridge.ErrNacked: true, bridge.ErrUnconfirmed: true,
		bridge.ErrReturned: false, bridge.ErrInvalidMessage: false, bridge.ErrCredentials: false,
		bridge.ErrDuplicateID: false, bridge.ErrOtherLedger: false,
	} {
		if got := bridge.Retryable(&bridge.PublishError{Err: fmt.Errorf("wrapped: %w", err)}); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
	if bridge.Retryable(nil) {
		t.Error("no error is retryable")
	}
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

// What the caller has ended itself, no other attempt mends.
func TestWhatTheCallerHasEndedIsNotRetryable(t *testing.T) {
	broker, err := bridge.NewBroker("amqp://login:"+password+"@127.0.0.1:1/", &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	message := []bridge.Outgoing{{Target: bridge.Target{RoutingKey: "q"}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := broker.Publish(ctx, message); !bridge.Retryable(err) {
		t.Errorf("after a deadline: %v", err)
	}
	gone, leave := context.WithCancelCause(t.Context())
	leave(errors.New("the shop shuts down"))
	if err := broker.Publish(gone, message); bridge.Retryable(err) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("publish, cancelled: %v", err)
	}
	if _, err := broker.Connect(gone); bridge.Retryable(err) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("connect, cancelled: %v", err)
	}
	broker.Close()
	if err := broker.Publish(t.Context(), message); bridge.Retryable(err) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("publish, closed: %v", err)
	}
}
