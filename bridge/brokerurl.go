package bridge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ParseURL splits a broker's URL, as Dial does, and returns one URI per address, at least one. The
// error is ErrURL.
func ParseURL(address string) ([]amqp.URI, error) {
	urls := splitURL(address)
	uris := make([]amqp.URI, len(urls))
	for i, one := range urls {
		if err := checkURL(one, nil); err != nil {
			return nil, err
		}
		var err error
		if uris[i], err = amqp.ParseURI(one); err != nil {
			return nil, errURLForm
		}
	}
	return uris, nil
}

// splitURL returns the URL of each address.
func splitURL(address string) []string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return []string{address}
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	path := rest[len(authority):]
	at := strings.LastIndex(authority, "@") + 1
	login, hosts := authority[:at], authority[at:]
	var urls []string
	for host := range strings.SplitSeq(hosts, ",") {
		urls = append(urls, scheme+"://"+login+host+path)
	}
	return urls
}

var errURLForm = fmt.Errorf("%w: it is not of the form amqp://user:password@host:port/vhost, or host:port,host:port for the nodes of a cluster (special characters in user, password and vhost are percent-encoded)", ErrURL)

// checkURLs calls checkURL for the URL of each address.
func checkURLs(urls []string, config *tls.Config) error {
	for _, one := range urls {
		if err := checkURL(one, config); err != nil {
			return err
		}
	}
	return nil
}

// checkURL refuses a URL that the AMQP library would misread, and parameters that it would ignore:
// half a client certificate, and TLS parameters without TLS. No error contains any part of the URL.
func checkURL(address string, config *tls.Config) error {
	parsed, err := url.Parse(address)
	if err == nil {
		_, err = amqp.ParseURI(address)
	}
	// An @ behind the host ends a password with an unescaped special character.
	if err != nil || parsed.Host == "" || parsed.Fragment != "" || strings.Contains(parsed.RequestURI(), "@") {
		return errURLForm
	}
	query := parsed.Query()
	var files bool
	for _, name := range []string{"cacertfile", "certfile", "keyfile", "server_name_indication"} {
		files = files || query.Has(name)
	}
	switch secure := parsed.Scheme == "amqps"; {
	case files && !secure:
		return fmt.Errorf("%w: parameters for TLS need amqps instead of amqp", ErrURL)
	case config != nil && !secure:
		return errors.New("BrokerOptions.TLS needs a URL with amqps instead of amqp")
	case config != nil && files:
		return errors.New("BrokerOptions.TLS and parameters for TLS in the URL exclude each other; remove one of them")
	case (query.Get("certfile") == "") != (query.Get("keyfile") == ""):
		return fmt.Errorf("%w: a client's certificate needs both certfile and keyfile", ErrURL)
	}
	return nil
}
