// Package lost recognises the errors of a connection to a database that is no longer there.
package lost

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"
)

// Is tells whether err says that the connection ended: by the other side, or somewhere between.
// A time-out is not such an error, since the connection may be there.
func Is(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
