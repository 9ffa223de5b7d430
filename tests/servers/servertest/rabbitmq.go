package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twoqueue/twoqueue/compose/servers"
)

const requestLimit = Patience

// Vhost creates a vhost for this test and returns its AMQP address. The vhost is deleted with its
// contents when the test ends. If BRIDGE_TEST_AMQP_URL is set, Vhost returns that URL unchanged, so
// the names of queues must be unique.
func Vhost(t testing.TB) string {
	t.Helper()
	if given := os.Getenv(amqpVariable); given != "" {
		return given
	}
	server := RabbitMQ(t)
	name := uniqueName(t)
	path := "/vhosts/" + url.PathEscape(name)
	manage(t, server, http.MethodPut, path, nil)
	t.Cleanup(func() { manage(t, server, http.MethodDelete, path, nil) })
	manage(t, server, http.MethodPut, "/permissions/"+url.PathEscape(name)+"/guest", permissions(".*", ".*", ".*"))
	return server.VhostURL(name)
}

// User creates a user with these rights (regular expressions over names, "" for none) in a vhost
// from Vhost, and returns the vhost's AMQP address for that user.
func User(t testing.TB, vhostURL, configure, write, read string) string {
	t.Helper()
	server, vhost := managed(t, vhostURL)
	name := uniqueName(t)
	path := "/users/" + url.PathEscape(name)
	manage(t, server, http.MethodPut, path, map[string]any{"password": "secret", "tags": ""})
	t.Cleanup(func() { manage(t, server, http.MethodDelete, path, nil) })
	address := fmt.Sprintf("amqp://%s:secret@%s/%s", name, server.Addr(), url.PathEscape(vhost))
	Permit(t, address, configure, write, read)
	return address
}

// Permit gives other rights to a user from User.
func Permit(t testing.TB, userURL, configure, write, read string) {
	t.Helper()
	server, vhost := managed(t, userURL)
	parsed, err := url.Parse(userURL)
	if err != nil {
		t.Fatalf("parse user: %v", err)
	}
	manage(t, server, http.MethodPut, "/permissions/"+url.PathEscape(vhost)+"/"+url.PathEscape(parsed.User.Username()),
		permissions(configure, write, read))
}

// SetPolicy sets a policy for the queues whose name matches the pattern, in a vhost from Vhost.
func SetPolicy(t testing.TB, vhostURL, name, pattern string, definition map[string]any) {
	t.Helper()
	server, vhost := managed(t, vhostURL)
	manage(t, server, http.MethodPut, "/policies/"+url.PathEscape(vhost)+"/"+url.PathEscape(name),
		map[string]any{"pattern": pattern, "definition": definition, "apply-to": "queues"})
}

// NoConnections forbids connections to the vhost or of the user of an address from Vhost or User.
// of is "vhost" or "user".
func NoConnections(t testing.TB, vhostURL, of string) {
	t.Helper()
	LimitConnections(t, vhostURL, of, 0)
}

// LimitConnections allows n connections to the vhost or of the user, as NoConnections allows none.
func LimitConnections(t testing.TB, vhostURL, of string, n int) {
	t.Helper()
	server, name := managed(t, vhostURL)
	if of == "user" {
		parsed, err := url.Parse(vhostURL)
		if err != nil {
			t.Fatal(err)
		}
		name = parsed.User.Username()
	}
	manage(t, server, http.MethodPut, "/"+of+"-limits/"+url.PathEscape(name)+"/max-connections",
		map[string]any{"value": n})
}

// Alarm sets or clears the memory alarm of a server from StartRabbitMQ. The alarm blocks all
// connections that publish. It is cleared at the end of the test.
func Alarm(t testing.TB, server *servers.RabbitMQ, on bool) {
	t.Helper()
	set := func(ctx context.Context, on bool) {
		if err := server.SetMemoryAlarm(ctx, on); err != nil {
			t.Error(err)
		}
	}
	if on {
		t.Cleanup(func() { set(context.Background(), false) })
	}
	set(t.Context(), on)
}

// managed returns the shared server and the name of the vhost of a URL.
func managed(t testing.TB, vhostURL string) (servers.RabbitMQAddress, string) {
	t.Helper()
	if os.Getenv(amqpVariable) != "" {
		t.Skipf("needs a private RabbitMQ, and %s is set", amqpVariable)
	}
	parsed, err := url.Parse(vhostURL)
	if err != nil {
		t.Fatalf("parse vhost: %v", err)
	}
	return RabbitMQ(t), strings.TrimPrefix(parsed.Path, "/")
}

func permissions(configure, write, read string) map[string]any {
	return map[string]any{"configure": configure, "write": write, "read": read}
}

// manage makes one request to the management API.
func manage(t testing.TB, server servers.RabbitMQAddress, method, path string, body any) {
	t.Helper()
	if err := request(method, server.ManagementURL()+path, body); err != nil {
		t.Fatalf("manage RabbitMQ: %v", err)
	}
}

func request(method, address string, body any) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, address, &content)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Close = true // leaves no connection and no goroutine behind
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		answer, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s %s: %s: %s", method, r.URL.Path, response.Status, answer)
	}
	return nil
}

var names atomic.Int64

// uniqueName returns a name of plain characters. It is unique among the tests of this binary, and
// of all binaries that run at the same time.
func uniqueName(t testing.TB) string {
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(t.Name()))
	// PostgreSQL cuts names at 63 bytes.
	return fmt.Sprintf("%.40s_%d_%d", plain, os.Getpid(), names.Add(1))
}
