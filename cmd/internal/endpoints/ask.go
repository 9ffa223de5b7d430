package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// askPatience bounds Ask's wait for the answer. A probe may take half of it.
const askPatience = 4 * time.Second

// Ask requests an endpoint, such as /readyz, of a command that runs on this machine and listens on
// address. It returns nil if the answer is 200, else an error with the answer's text. It is the
// health check of containers that have no other HTTP client.
func Ask(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+near(address)+path, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", path, err)
	}
	request.Close = true
	response, err := new(http.Transport).RoundTrip(request) // without a proxy
	if err != nil {
		return fmt.Errorf("ask %s: %w", path, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	const most = 4 << 10
	text, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return fmt.Errorf("ask %s: %w", path, err)
	}
	return errors.New(strings.TrimSpace(string(text)))
}

// near returns the address at which this machine reaches a server that listens on address.
func near(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
