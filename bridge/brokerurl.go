package bridge

import (
	"crypto/tls"
	"errors"
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
		return errors.New("broker URL is not of the form amqp://user:password@host:port/vhost (special characters in user, password and vhost are percent-encoded)")
	}
	query := parsed.Query()
	var files bool
	for _, name := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication"} {
		files = files || query.Has(name)
	}
	switch secure := parsed.Scheme == "amqps"; {
	case files && !secure:
		return errors.New("broker URL: parameters for TLS need amqps in the place of amqp")
	case config != nil && !secure:
		return errors.New("broker options: TLS needs a URL with amqps in the place of amqp")
	case config != nil && files:
		return errors.New("broker options: TLS is given, and parameters for TLS in the URL too; remove the one or the other")
	case (query.Get("certfile") == "") != (query.Get("keyfile") == ""):
		return errors.New("broker URL: a client's certificate needs both certfile and keyfile")
	}
	return nil
}
