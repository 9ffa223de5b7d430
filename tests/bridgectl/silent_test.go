package bridgectl_test

import (
	"net"
	"os"
	"testing"
	"time"
)

// A silentServer takes connections and says nothing.
type silentServer struct {
	address string
	clients chan struct{}
}

func listenSilently(t *testing.T) *silentServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silentServer{address: listener.Addr().String(), clients: make(chan struct{}, 100)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			s.clients <- struct{}{}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return s
}

func (s *silentServer) awaitClient(t *testing.T) {
	t.Helper()
	select {
	case <-s.clients:
	case <-time.After(patience):
		t.Fatal("nobody connects")
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
