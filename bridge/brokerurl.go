package bridge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// checkURL refuses what the library would read otherwise than it is meant, or pass
// over: half a client certificate, and TLS without TLS. No error contains any part of
// the URL.
func checkURL(address string, config *tls.Config) error {
	parsed, err := url.Parse(address)
	if err == nil {
		_, err = amqp.ParseURI(address)
	}
	// An @ behind the host is the end of a password with a special character in it.
	if err != nil || parsed.Host == "" || parsed.Fragment != "" || strings.Contains(parsed.RequestURI(), "@") {
		return fmt.Errorf("%w: it is not of the form amqp://user:password@host:port/vhost (special characters in user, password and vhost are percent-encoded)", ErrURL)
	}
	query := parsed.Query()
	var files bool
	for _, name := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication"} {
		files = files || query.Has(name)
	}
	switch secure := parsed.Scheme == "amqps"; {
	case files && !secure:
		return fmt.Errorf("%w: parameters for TLS need amqps in the place of amqp", ErrURL)
	case config != nil && !secure:
		return errors.New("BrokerOptions.TLS needs a URL with amqps in the place of amqp")
	case config != nil && files:
		return errors.New("BrokerOptions.TLS is given, and parameters for TLS in the URL too; remove the one or the other")
	case (query.Get("certfile") == "") != (query.Get("keyfile") == ""):
		return fmt.Errorf("%w: a client's certificate needs both certfile and keyfile", ErrURL)
	}
	return nil
}
