package endpoints

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// Private lets page answer only to those who ask for localhost, a loopback address or one of
// hosts, which variable has named. Somebody else's site may make its own name lead here, and
// read the page in the browser of one who may.
func Private(page http.Handler, hosts []string, variable string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := hostname(r.Host)
		if !transit.Local(asked) && !slices.ContainsFunc(hosts, func(host string) bool { return same(host, asked) }) {
			http.Error(w, fmt.Sprintf("this page answers to localhost, 127.0.0.1 and the names in %s only", variable), http.StatusForbidden)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// same compares two hosts: addresses by what they mean, names without regard to case.
func same(a, b string) bool {
	one, err := netip.ParseAddr(a)
	if err != nil {
		return strings.EqualFold(a, b)
	}
	other, err := netip.ParseAddr(b)
	return err == nil && one.Unmap() == other.Unmap()
}

// hostname is a host without its port, and without the brackets of IPv6.
func hostname(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return host
}
