package bridge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A tlsConn remembers the broker's final alert. With TLS 1.3 a broker refuses a client's
// certificate after the client's handshake is done; the AMQP library may then find its connection
// closed before it has read the alert, and reports only that.
type tlsConn struct {
	*tls.Conn
	alert  atomic.Pointer[net.OpError]
	opened atomic.Bool // AMQP is open over it: the broker has accepted our certificate
}

// alertTimeout is how long Close waits for an alert before AMQP is open.
const alertTimeout = time.Second

// handshake returns conn secured by TLS.
func handshake(ctx context.Context, conn net.Conn, uri amqp.URI, config *tls.Config) (*tlsConn, error) {
	if config == nil {
		var err error
		if config, err = tlsConfig(uri); err != nil {
			return nil, err
		}
	} else {
		config = config.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = uri.Host
	}
	c := &tlsConn{Conn: tls.Client(conn, config)}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// tlsConfig returns the configuration in the URL's parameters.
func tlsConfig(uri amqp.URI) (*tls.Config, error) {
	config := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if uri.CACertFile != "" {
		content, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(content)
	}
	if uri.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// orAlert returns the broker's alert if there was one, else err.
func (c *tlsConn) orAlert(err error) error {
	if c != nil {
		if alert := c.alert.Load(); alert != nil {
			return alert
		}
	}
	return err
}

// Close looks for an unread alert first: the library also closes the connection after a failed
// write, and then an alert may have arrived unread.
func (c *tlsConn) Close() error {
	if !c.opened.Load() && c.alert.Load() == nil {
		_ = c.SetReadDeadline(time.Now().Add(alertTimeout))
		for err := error(nil); err == nil; {
			_, err = c.Read(make([]byte, 512))
		}
	}
	return c.Conn.Close()
}

func (c *tlsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" { // crypto/tls names an alert so
		c.alert.Store(alert)
	}
	return n, err
}
