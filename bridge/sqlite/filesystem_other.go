//go:build !linux

package sqlite

import (
	"errors"
	"fmt"
)

func onNetwork(string) (string, error) {
	return "", fmt.Errorf("look at the file system: %w on this system", errors.ErrUnsupported)
}
