package servers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are below the range (32768 and up) that Linux uses for outgoing connections. Such a
// connection could otherwise take a server's port while the server is down between two starts.
const lowestPort, highestPort = 10000, 32767

const portAttempts = 5

// onFreePorts calls start with n free ports. If start fails while another program has one of the
// ports, it calls start again with other ports.
func onFreePorts[S any](ctx context.Context, n int, start func(ports []int) (S, error)) (S, error) {
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(n)
		if err != nil {
			var none S
			return none, err
		}
		s, err := start(ports)
		if err == nil || attempt == portAttempts || ctx.Err() != nil || allFree(ports) {
			return s, err
		}
	}
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range 100 * n {
		if len(ports) == n {
			break
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		listener, err := listen(port)
		if err != nil {
			continue
		}
		defer listener.Close() // only at the end, so that each port is drawn once
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("find %d free ports: none left between %d and %d", n, lowestPort, highestPort)
	}
	return ports, nil
}

func allFree(ports []int) bool {
	for _, port := range ports {
		listener, err := listen(port)
		if err != nil {
			return false
		}
		listener.Close()
	}
	return true
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
}
