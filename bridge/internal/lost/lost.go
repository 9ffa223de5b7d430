// Package lost recognises the errors of a lost connection to a database.
package lost

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"
)

// Is reports whether err means that the connection ended: by the other side, or somewhere between.
// A time-out is not such an error, since the connection may still exist.
func Is(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
