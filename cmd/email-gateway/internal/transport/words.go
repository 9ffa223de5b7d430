package transport

import (
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"regexp"
	"strings"
)

// permanent is what a reply code says about trying again (RFC 5321, 4.2.1).
func permanent(code int) bool { return code/100 == 5 }

var (
	addresses = regexp.MustCompile(`<?[^\s<>]+@[^\s<>]+>?`)
	unprinted = regexp.MustCompile(`[^\x20-\x7e]+`)
)

const longestReply = 300

// words are a reply as one line, without the addresses in it: whose they are is
// nobody's business in a log.
func words(reply *textproto.Error) string {
	text := unprinted.ReplaceAllString(reply.Msg, " ")
	text = addresses.ReplaceAllString(text, "<...>")
	if len(text) > longestReply {
		text = text[:longestReply] + "..."
	}
	return strings.TrimSpace(fmt.Sprintf("%03d %s", reply.Code, text))
}

// plain is a failed connection without its ports, which say nothing.
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
