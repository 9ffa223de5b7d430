package bridge_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
)

// No error shows the URL.
func TestAnUnusableURLIsRefusedAndTLSNotLeftOutSilently(t *testing.T) {
	const login = "login:" + password + "@127.0.0.1:1/virtual-one"
	const form = "amqp://user:password@host:port/vhost"
	for url, want := range map[string]string{
		"":          form,
		"localhost": form,
		"http://login:" + password + "@localhost/virtual-one":        form,
		"amqp://login:" + password + "@local host/":                  form,
		"amqp://login:" + password + "%@localhost/":                  form,
		"amqp://login:" + password + "@localhost:port/virtual-one":   form,
		"amqp://" + login + "?cacertfile=/nowhere/ca.pem":            "parameters for TLS need amqps",
		"amqp://" + login + "?server_name_indication=x":              "parameters for TLS need amqps",
		"amqps://" + login + "?certfile=/nowhere/cert.pem":           "needs both certfile and keyfile",
		"amqps://" + login + "?certfile=&keyfile=/nowhere/key.pem":   "needs both certfile and keyfile",
		"amqps://login:12/" + password + "@127.0.0.1:1/virtual-one":  form,
		"amqp://login:12?" + password + "@127.0.0.1:1/virtual-one":   form,
		"amqp://login:12#" + password + "@127.0.0.1:1/virtual-one":   form,
		"amqp:login:" + password + "@127.0.0.1:1/virtual-one":        form,
		"amqps://" + login + "?cacertfile=/nowhere/ca.pem&heartbeat": form,
	} {
		if err := dialFails(t, t.Context(), url, nil); !errors.Is(err, bridge.ErrURL) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "12") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
	for url, want := range map[string]string{
		"amqp://" + login: "TLS needs a URL with amqps",
		"amqps://" + login + "?cacertfile=/nowhere/ca.pem": "remove one of them",
	} {
		if err := dialFails(t, t.Context(), url, &bridge.BrokerOptions{TLS: new(tls.Config)}); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

func TestAVirtualHostMayHaveAnyName(t *testing.T) {
	broker, err := bridge.NewBroker("amqp://login:"+password+"@127.0.0.1:1/a%40b%2Fc", nil)
	if err != nil {
		t.Fatal(err)
	}
	broker.Close()
}
