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

// askPatience is how long Ask waits for the answer; a probe may take half of it.
const askPatience = 4 * time.Second

// Ask asks a command that runs on this machine for one of its endpoints, such as
// /readyz, by the address that it was told to listen on, and returns nil if the answer
// is 200. It is the health check of containers that have no other program to ask.
func Ask(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+near(address)+path, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", path, err)
	}
	request.Close = true
	response, err := new(http.Transport).RoundTrip(request) // by no proxy
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

// near is where something that listens on address is reached from the same machine.
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
