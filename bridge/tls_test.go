package bridge_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
)

// With TLS 1.3 a broker refuses a client's certificate after the client has finished its handshake.
// The error names the refusal, at whatever moment it arrives.
func TestARefusedCertificateIsNamedWheneverItIsHeard(t *testing.T) {
	ours, err := servers.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := servers.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	pair := func(a *servers.Authority, name string) tls.Certificate {
		certificate, key, err := a.Issue(name)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.Certificate())
	listener, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair(ours, "127.0.0.1")}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = conn.(*tls.Conn).Handshake()
				_ = conn.Close()
			}()
		}
	}()
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair(theirs, "guest")}}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	var dialers sync.WaitGroup
	for range 16 { // so that one is interrupted between its handshake and its first bytes
		dialers.Go(func() {
			for range 10 {
				_, err := bridge.Dial(t.Context(), "amqps://login:"+password+"@127.0.0.1:"+port+"/", &bridge.BrokerOptions{TLS: config})
				if !errors.Is(err, bridge.ErrUnavailable) || !strings.Contains(err.Error(), "remote error: tls: unknown certificate authority") {
					t.Errorf("error %v", err)
					return
				}
			}
		})
	}
	dialers.Wait()
}
