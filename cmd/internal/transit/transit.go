// Package transit finds URLs that allow connections to other machines without TLS, or without a
// verified certificate. An attacker on the way can read and change the traffic of such a connection.
package transit

import (
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

// An Exposure is a connection that need not use verified TLS.
type Exposure struct {
	Host string
	Fix  string // the fix for its URL
}

func (e *Exposure) String() string {
	return fmt.Sprintf("the URL allows a connection to %s without TLS or with an unverified certificate: an attacker on the way can read and change the traffic", e.Host)
}

// Database examines a database's URL. It returns nil if the URL requires TLS with a verified
// certificate, names this machine, or is not usable.
func Database(address string) *Exposure {
	hosts, fix := database.InClear(address)
	return exposure(fix, hosts...)
}

// Broker examines a broker's URL in the same way.
func Broker(address string) *Exposure {
	uris, err := bridge.ParseURL(address)
	if err != nil || uris[0].Scheme != "amqp" {
		return nil // the program refuses an unusable URL
	}
	var hosts []string
	for _, uri := range uris {
		hosts = append(hosts, uri.Host)
	}
	return exposure("write amqps://", hosts...)
}

// HTTP examines the URL of an API in the same way.
func HTTP(address string) *Exposure {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "http" {
		return nil
	}
	return exposure("write https://", parsed.Hostname())
}

func exposure(fix string, hosts ...string) *Exposure {
	for _, host := range hosts {
		if !Local(host) {
			return &Exposure{host, fix}
		}
	}
	return nil
}

// Local reports whether a host's name alone means this machine: localhost, a loopback address, or the
// folder of a socket.
func Local(host string) bool {
	if strings.EqualFold(host, "localhost") || strings.HasPrefix(host, "/") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Insecure is the value of PREFIX_INSECURE. Each command has this variable.
type Insecure = environment.Truth

// Refuse returns a check of the URL in a variable, for environment.Secret. look is Database, Broker
// or HTTP. The check fails if look finds an exposure, unless the operator has set PREFIX_INSECURE.
// Its error names both fixes and the host, but no other part of the URL.
func Refuse(insecure Insecure, variable string, look func(url string) *Exposure) func(url string) error {
	prefix, _, _ := strings.Cut(variable, "_")
	return func(url string) error {
		if found := look(url); found != nil && !bool(insecure) {
			return fmt.Errorf("%s: %s; %s, or set %s_INSECURE=true if the network to that machine is trusted", variable, found, found.Fix, prefix)
		}
		return nil
	}
}

// Warn logs the exposures of a command's URLs, at its start. The variables are prefix_DATABASE_URL
// and prefix_AMQP_URL.
func Warn(log *slog.Logger, prefix, databaseURL, amqpURL string) {
	warn := func(variable string, found *Exposure) {
		if found != nil {
			log.Warn(fmt.Sprintf("%s_%s: %s; %s", prefix, variable, found, found.Fix), "host", found.Host)
		}
	}
	warn("DATABASE_URL", Database(databaseURL))
	warn("AMQP_URL", Broker(amqpURL))
}
