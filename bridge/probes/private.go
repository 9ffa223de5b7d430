package probes

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Private serves page only to requests for localhost, a loopback address or one of hosts. Otherwise
// a foreign site could point its own name here, and read the page in the browser of a user with
// access. setting names the setting of hosts, for the answer to all other requests.
func Private(page http.Handler, hosts []string, setting string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := hostname(r.Host)
		if !local(asked) && !slices.ContainsFunc(hosts, func(host string) bool { return same(host, asked) }) {
			http.Error(w, fmt.Sprintf("this page answers to localhost, 127.0.0.1 and the names in %s only", setting), http.StatusForbidden)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// local reports whether a host is this machine.
func local(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// same compares two hosts: addresses by value, names without regard to case.
func same(a, b string) bool {
	one, err := netip.ParseAddr(a)
	if err != nil {
		return strings.EqualFold(a, b)
	}
	other, err := netip.ParseAddr(b)
	return err == nil && one.Unmap() == other.Unmap()
}

// hostname returns a host without its port, and without the brackets of IPv6.
func hostname(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return host
}
