package servers

import (
	"errors"
	"net"
	"testing"
)

var errFailed = errors.New("failed")

func TestPortTakenByAnotherIsReplaced(t *testing.T) {
	var thief net.Listener
	attempts := 0
	port, err := onFreePorts(t.Context(), 1, func(ports []int) (int, error) {
		attempts++
		if attempts > 1 {
			return ports[0], nil
		}
		var err error
		if thief, err = listen(ports[0]); err != nil {
			t.Fatal(err)
		}
		return 0, errFailed
	})
	defer thief.Close()
	if err != nil || attempts != 2 || port == thief.Addr().(*net.TCPAddr).Port {
		t.Fatalf("after %d attempts: port %d, %v", attempts, port, err)
	}
}

func TestOtherFailuresAreNotRepeated(t *testing.T) {
	attempts := 0
	_, err := onFreePorts(t.Context(), 3, func([]int) (int, error) {
		attempts++
		return 0, errFailed
	})
	if !errors.Is(err, errFailed) || attempts != 1 {
		t.Fatalf("after %d attempts: %v", attempts, err)
	}
}
