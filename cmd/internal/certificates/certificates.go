// Package certificates reads the PEM files that a URL or a variable names for TLS.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
)

// Take removes from query the parameters that name PEM files, and returns the configuration that
// the files make; nil if query has none of them. Its arguments are the names of the parameters for
// the authorities that may have signed the server's certificate, for the client's own certificate,
// and for its key.
func Take(query url.Values, authorities, certificate, key string) (*tls.Config, error) {
	ca, cert, own := query.Get(authorities), query.Get(certificate), query.Get(key)
	for _, name := range []string{authorities, certificate, key} {
		query.Del(name)
	}
	switch {
	case ca == "" && cert == "" && own == "":
		return nil, nil
	case (cert == "") != (own == ""):
		return nil, fmt.Errorf("a client's certificate needs both %s and %s", certificate, key)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if config.RootCAs, err = Authorities(ca); err != nil {
			return nil, fmt.Errorf("read %s: %w", authorities, err)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, own)
		if err != nil {
			return nil, fmt.Errorf("read %s and %s: %w", certificate, key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Authorities reads the certificates of authorities from a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("the file has no certificate; give certificates in PEM")
	}
	return pool, nil
}
