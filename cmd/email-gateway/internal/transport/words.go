package transport

import (
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"regexp"
	"strings"
)

// permanent reports whether a reply code forbids another attempt (RFC 5321, 4.2.1).
func permanent(code int) bool { return code/100 == 5 }

var (
	addresses = regexp.MustCompile(`<?[^\s<>]+@[^\s<>]+>?`)
	unprinted = regexp.MustCompile(`[^\x20-\x7e]+`)
)

const longestReply = 300

// words returns a reply as one line without addresses, which must not be logged.
func words(reply *textproto.Error) string {
	text := unprinted.ReplaceAllString(reply.Msg, " ")
	text = addresses.ReplaceAllString(text, "<...>")
	if len(text) > longestReply {
		text = text[:longestReply] + "..."
	}
	return strings.TrimSpace(fmt.Sprintf("%03d %s", reply.Code, text))
}

// plain returns a failed connection's error without its ports.
func plain(err error) error {
	var operation *net.OpError
	switch {
	case errors.As(err, &operation) && operation.Timeout():
		return errors.New("no answer in time")
	case errors.As(err, &operation):
		return fmt.Errorf("connection lost: %w", operation.Err)
	}
	return fmt.Errorf("connection lost: %w", err)
}
